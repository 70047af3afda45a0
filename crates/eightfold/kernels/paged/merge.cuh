// Results of several warps, and of several blocks, become one: each is a maximum, a sum of weights and the values'
// sums for every row, and weighs 2^(its maximum − the largest).
#pragma once
#include "attention/output.cuh"
#include "attention/scoring.cuh"
#include "paged/attend.cuh"
#include "paged/schedule.cuh"

// Rows of a run, by which results are stored.
struct Place {
    const Paged& problem;
    const Run& run;

    __device__ int rows() const {
        return min(TILE_ROWS, run.sequence.queries * problem.group - run.row_tile * TILE_ROWS);
    }

    // Four neighbouring channels of a row, from its maximum and the sums of its weights and of weighted values.
    __device__ void store(int row, int channel, float row_max, float row_sum, float4 sums) const {
        RowOf of(problem, run.sequence, run.row_tile, row);
        int head = run.kv_head * problem.group + of.head;
        float lowered = 1.0f;
        if constexpr (SINKS) {
            float sink = sink_score(problem, head), largest = fmaxf(row_max, sink);
            lowered = exp2_hardware(row_max - largest);
            row_sum = fmaf(row_sum, lowered, SINK_WEIGHT * exp2_hardware(sink - largest));
            row_max = largest;
        }
        float factor = row_sum != 0.0f ? lowered / row_sum : 0.0f;
        float4 x = make_float4(sums.x * factor, sums.y * factor, sums.z * factor, sums.w * factor);
        long long place = problem.output.place(run.sequence.index, head, run.sequence.first_query + of.query) + channel;
        if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
            *reinterpret_cast<float4*>(static_cast<float*>(problem.output.values) + place) = x;
        } else {
            *reinterpret_cast<uint2*>(static_cast<unsigned short*>(problem.output.values) + place) =
                make_uint2(pack_output(x.x, x.y), pack_output(x.z, x.w));
        }
        if (channel == 0) store_lse(of, head, row_max, row_sum);
    }

   private:
    __device__ void store_lse(const RowOf& of, int head, float row_max, float row_sum) const {
        if (!problem.lse.values) return;
        long long place = run.sequence.index * problem.lse.sequence_stride + head * problem.lse.head_stride +
                          (run.sequence.first_query + of.query) * problem.lse.token_stride;
        problem.lse.values[place] = row_sum != 0.0f ? log_sum_exp(row_max, row_sum, 0.0f) : minus_infinity();
    }
};

// The warps' results in shared memory.
struct WarpResults {
    float* rows;
    float2* ends;

    __device__ WarpResults(char* memory)
        : rows(reinterpret_cast<float*>(memory)), ends(reinterpret_cast<float2*>(memory + ENDS)) {}

    __device__ float* row(int warp, int row) const { return rows + (warp * TILE_ROWS + row) * RESULT_FLOATS; }
    __device__ float2& end(int warp, int row) const { return ends[warp * TILE_ROWS + row]; }

    __device__ void leave(const RowState& state, int warp, int lane) const {
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r) {
            int line = 16 * (r / 2) + 8 * (r % 2) + lane / 4;
            float* out = row(warp, line) + 4 * (lane % 4);
            float unit = state.value_unit;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                const float(&even)[4] = state.o[r / 2][2 * chunk], (&odd)[4] = state.o[r / 2][2 * chunk + 1];
                int i = 2 * (r % 2);
                *reinterpret_cast<float4*>(out + 16 * chunk) =
                    make_float4(even[i] * unit, odd[i] * unit, even[i + 1] * unit, odd[i + 1] * unit);
            }
            if (lane % 4 == 0) end(warp, line) = make_float2(state.row_max[r], state.row_sum[r]);
        }
    }
};

// Of a row of a part: sums, the maximum and the row sum; and those of the group that the part is the first of, since
// the part's own may still be read when they are written. 16 bytes at a time.
constexpr int PART_END = HEAD_DIM, GROUP_END = HEAD_DIM + 2, PART_ROW = HEAD_DIM + 4;
constexpr int GROUP_PARTS = 16;  // that become one before all do
constexpr int FEW_PARTS = 64;    // of which all become one at once

// Parts of a tile of rows in the workspace. Of a tile that is cut by the blocks' shares, the first part is its block's
// last run and every other one its block's first. With fixed cuts every unit has a place of its own.
struct Parts {
    const Paged& problem;
    const Run& run;

    __device__ int slot(int part) const {
        return FIXED_CUTS ? run.first_owner + part : 2 * (run.first_owner + part) + (part == 0);
    }
    __device__ float* row(int part, int row) const {
        return problem.parts + (static_cast<long long>(slot(part)) * TILE_ROWS + row) * PART_ROW;
    }
    // Two tickets for every slot: one for parts, one for groups of them.
    __device__ unsigned& ticket(int part, bool of_groups) const { return problem.tickets[2 * slot(part) + of_groups]; }
};

// Whether this block is the last of so many to come here. Every thread of the block.
__device__ inline bool is_last(unsigned& ticket, int count, volatile int& answer) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        bool last = atomicAdd(&ticket, 1) + 1 == static_cast<unsigned>(count);
        if (last) ticket = 0;
        answer = last;
    }
    __syncthreads();
    bool last = answer;
    if (last) __threadfence();
    __syncthreads();
    return last;
}

// Of several results of each row, one: `end(i, row)` and `sums(i, row, channel)` are the results', `done` takes the
// row's maximum and sum and four channels. So many results at once are on their way together. Every thread of the
// block.
template <int AT_ONCE, typename End, typename Sums, typename Done>
__device__ inline void merge_rows(int rows, int count, End end, Sums sums, Done done) {
    constexpr int QUARTERS = HEAD_DIM / 4;
    for (int item = threadIdx.x; item < rows * QUARTERS; item += THREADS) {
        int row = item / QUARTERS, channel = 4 * (item % QUARTERS);
        float row_max = LOWEST, row_sum = 0.0f;
        float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int first = 0; first < count; first += AT_ONCE) {
            float2 ends[AT_ONCE];
            float4 results[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                bool exists = first + i < count;
                ends[i] = exists ? end(first + i, row) : make_float2(LOWEST, 0.0f);
                results[i] = exists ? sums(first + i, row, channel) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
            float largest = row_max;
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) largest = fmaxf(largest, ends[i].x);
            float lowered = exp2_hardware(row_max - largest);
            row_max = largest;
            row_sum *= lowered;
            all = make_float4(all.x * lowered, all.y * lowered, all.z * lowered, all.w * lowered);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                float weight = exp2_hardware(ends[i].x - row_max);
                float4 x = results[i];
                row_sum = fmaf(weight, ends[i].y, row_sum);
                all.x = fmaf(weight, x.x, all.x);
                all.y = fmaf(weight, x.y, all.y);
                all.z = fmaf(weight, x.z, all.z);
                all.w = fmaf(weight, x.w, all.w);
            }
        }
        done(row, channel, row_max, row_sum, all);
    }
}

// To memory: as the output, or as a part.
struct ToOutput {
    const Place& place;

    __device__ void operator()(int row, int channel, float row_max, float row_sum, float4 sums) const {
        place.store(row, channel, row_max, row_sum, sums);
    }
};
struct ToPart {
    const Parts& parts;
    int part, end;

    __device__ void operator()(int row, int channel, float row_max, float row_sum, float4 sums) const {
        float* out = parts.row(part, row);
        *reinterpret_cast<float4*>(out + channel) = sums;
        if (channel == 0) *reinterpret_cast<float2*>(out + end) = make_float2(row_max, row_sum);
    }
};

// So many parts, or groups of them, from one on.
template <typename Done>
__device__ inline void merge_parts(const Parts& parts, int rows, int first, int apart, int count, Done done) {
    int at = apart == 1 ? PART_END : GROUP_END;
    merge_rows<GROUP_PARTS>(
        rows, count, [&](int i, int row) { return load_fresh_8(parts.row(first + i * apart, row) + at); },
        [&](int i, int row, int channel) { return load_fresh_16(parts.row(first + i * apart, row) + channel); }, done);
}

// The warps' results become the block's, and that the output, or a part of it. Whoever brings the last part merges all.
__device__ inline void finish(const Paged& problem, const Run& run, const RowState& state, char* memory,
                              volatile int& answer, int warp, int lane) {
    Place place{problem, run};
    Parts parts{problem, run};
    WarpResults results(memory);
    __syncthreads();  // every warp is done with its ring
    results.leave(state, warp, lane);
    __syncthreads();
    auto end = [&](int i, int row) { return results.end(i, row); };
    auto sums = [&](int i, int row, int channel) {
        return *reinterpret_cast<const float4*>(results.row(i, row) + channel);
    };
    int rows = place.rows();
    if (run.is_whole()) {
        merge_rows<WARPS>(rows, WARPS, end, sums, ToOutput{place});
    } else {
        merge_rows<WARPS>(rows, WARPS, end, sums, ToPart{parts, run.part, PART_END});
        int most = run.parts <= FEW_PARTS ? FEW_PARTS : GROUP_PARTS;
        int first = run.part / most * most, members = min(most, run.parts - first);
        if (is_last(parts.ticket(first, false), members, answer)) {
            if (run.parts == members) {
                merge_parts(parts, rows, 0, 1, members, ToOutput{place});
            } else {
                merge_parts(parts, rows, first, 1, members, ToPart{parts, first, GROUP_END});
                int groups = (run.parts + GROUP_PARTS - 1) / GROUP_PARTS;
                if (is_last(parts.ticket(0, true), groups, answer)) {
                    merge_parts(parts, rows, 0, GROUP_PARTS, groups, ToOutput{place});
                }
            }
        }
    }
}
