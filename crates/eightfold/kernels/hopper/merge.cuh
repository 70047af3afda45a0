// Split keys: every part leaves its sums in global memory, and the block that comes last puts them together.
#pragma once
#include "hopper/store.cuh"

constexpr int PARTIAL_ROW = HEAD_DIM + 4;  // sums, then the maximum and the row sum; 16 bytes at a time

__device__ inline float* partial_row(const Attention& problem, const Work& work, int split, int row) {
    long long part = static_cast<long long>(work.unit) * problem.splits + split;
    return problem.partial + (part * TILE_QUERIES + row) * PARTIAL_ROW;
}

__device__ inline void store_part(const Attention& problem, const Work& work, const Sums& sums, const Rows& rows,
                                  float value_scale, int first_row, int quad) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int row = first_row + 8 * half;
        if (!work.has_row(problem, row)) continue;
        float* out = partial_row(problem, work, work.split, row);
#pragma unroll
        for (int block = 0; block < HEAD_DIM / 8; ++block) {
            float first = sums.value[4 * block + 2 * half], second = sums.value[4 * block + 2 * half + 1];
            *reinterpret_cast<float2*>(out + 8 * block + 2 * quad) =
                make_float2(first * value_scale, second * value_scale);
        }
        if (quad == 0) {
            *reinterpret_cast<float2*>(out + HEAD_DIM) = make_float2(rows.maximum[half], rows.sum[half]);
        }
    }
}

// Whether this block's part is the last of the unit's to be done. Every computing thread.
__device__ inline bool is_last_part(const Attention& problem, const Work& work, int thread) {
    __threadfence();
    sync_threads_of_role<1, WARPGROUPS * WARPGROUP>();
    int last = 0;
    if (thread == 0) {
        last = atomicAdd(problem.tickets + work.unit, 1) + 1 == static_cast<unsigned>(problem.splits);
        if (last) problem.tickets[work.unit] = 0;
    }
    bool any = is_true_for_any_of_role<1, WARPGROUPS * WARPGROUP>(last);
    if (any) __threadfence();
    return any;
}

// One row of all parts, by a warp whose lanes lie side by side along the channels.
struct MergedRow {
    static constexpr int CHANNELS = HEAD_DIM / 32;
    static_assert(CHANNELS == 2 || CHANNELS == 4, "a lane loads two or four channels at a time");
    static constexpr long long NEXT_PART = static_cast<long long>(TILE_QUERIES) * PARTIAL_ROW;

    const float* parts;
    float maximum = LOWEST, sum = 0.0f, weight = 0.0f, value[CHANNELS] = {};

    // The maximum and the row sum of 32 parts, one by each lane, and the weights that follow.
    __device__ void weigh(int first, int count, int lane) {
        const float* part = parts + (first + min(lane, count - 1)) * NEXT_PART;
        float2 end = load_fresh_8(part + HEAD_DIM);
        float larger = fmaxf(maximum, end.x);
#pragma unroll
        for (int i = 16; i > 0; i /= 2) larger = fmaxf(larger, __shfl_xor_sync(0xffffffff, larger, i));
        weight = lane < count ? exp2_hardware(end.x - larger) : 0.0f;
        float weighted = weight * end.y;
#pragma unroll
        for (int i = 16; i > 0; i /= 2) weighted += __shfl_xor_sync(0xffffffff, weighted, i);
        float factor = exp2_hardware(maximum - larger);
        maximum = larger;
        sum = sum * factor + weighted;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) value[i] *= factor;
    }

    __device__ void add(int first, int part, int lane) {
        float of_part = __shfl_sync(0xffffffff, weight, part);
        const float* sums = parts + (first + part) * NEXT_PART + CHANNELS * lane;
        if constexpr (CHANNELS == 4) {
            float4 four = load_fresh_16(sums);
            const float from[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) value[i] += of_part * from[i];
        } else {
            float2 two = load_fresh_8(sums);
            value[0] += of_part * two.x;
            value[1] += of_part * two.y;
        }
    }

    __device__ void store(const Attention& problem, const Work& work, int row, int lane) {
        RowPlace end(problem, work, row);
        // The first quad's first lane stores; every quad computes the same.
        store_lse(problem, work, end, maximum, sum, lane < 4 ? lane : 4 + lane % 4);
        if (!end.exists) return;
        const float* means = problem.has_value_means() ? problem.v_means + work.kv_index(problem) * HEAD_DIM : nullptr;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            float mean = means ? means[CHANNELS * lane + i] : 0.0f;
            value[i] = end.sees_keys ? fmaf(value[i], reciprocal(sum), mean) : 0.0f;
        }
        long long place = end.place + CHANNELS * lane;
#pragma unroll
        for (int i = 0; i < CHANNELS; i += 2) {
            if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
                float* out = static_cast<float*>(problem.output) + place + i;
                *reinterpret_cast<float2*>(out) = make_float2(value[i], value[i + 1]);
            } else {
                unsigned short* out = static_cast<unsigned short*>(problem.output) + place + i;
                *reinterpret_cast<unsigned*>(out) = pack_output(value[i], value[i + 1]);
            }
        }
    }
};

// Two rows by each warp at a time: while the parts of one arrive, those of the other do.
__device__ inline void merge_parts(const Attention& problem, const Work& work, int thread) {
    constexpr int WARPS = 4 * WARPGROUPS;
    int lane = thread % 32;
    for (int row = thread / 32; row < TILE_QUERIES && work.has_row(problem, row); row += 2 * WARPS) {
        int other = row + WARPS;
        int safe = work.has_row(problem, other) ? other : row;
        MergedRow rows[2] = {{partial_row(problem, work, 0, row)}, {partial_row(problem, work, 0, safe)}};
        for (int first = 0; first < problem.splits; first += 32) {
            int count = min(32, problem.splits - first);
            rows[0].weigh(first, count, lane);
            rows[1].weigh(first, count, lane);
#pragma unroll 8
            for (int part = 0; part < count; ++part) {
                rows[0].add(first, part, lane);
                rows[1].add(first, part, lane);
            }
        }
        rows[0].store(problem, work, row, lane);
        rows[1].store(problem, work, other, lane);
    }
}
