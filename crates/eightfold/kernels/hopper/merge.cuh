// Split keys: every part leaves its sums in global memory, and the block that comes last puts them together.
#pragma once
#include "hopper/store.cuh"

constexpr int PARTIAL_ROW = VALUE_TILE + 4;  // sums, then the maximum and the row sum; 16 bytes at a time

__device__ inline float* partial_row(const Attention& problem, const Work& work, int split, int row) {
    long long part = static_cast<long long>(work.tile) * problem.splits + split;
    return problem.partial + (part * TILE_QUERIES + row) * PARTIAL_ROW;
}

__device__ inline void store_part(const Attention& problem, const Work& work, const Accumulator& acc,
                                  const RowState& rows, float value_scale, int first_row, int quad) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int row = first_row + 8 * half;
        if (!work.has_row(problem, row)) continue;
        float* out = partial_row(problem, work, work.split, row);
#pragma unroll
        for (int block = 0; block < VALUE_TILE / 8; ++block) {
            float first = acc.o[4 * block + 2 * half], second = acc.o[4 * block + 2 * half + 1];
            *reinterpret_cast<float2*>(out + 8 * block + 2 * quad) =
                make_float2(first * value_scale, second * value_scale);
        }
        if (quad == 0) {
            *reinterpret_cast<float2*>(out + VALUE_TILE) = make_float2(rows.row_max[half], rows.row_sum[half]);
        }
    }
}

// Whether this block's part is the last of the tile's to be done. Every computing thread.
__device__ inline bool is_last_part(const Attention& problem, const Work& work, int thread) {
    __threadfence();
    sync_threads_of_role<1, WARPGROUPS * WARPGROUP>();
    int last = 0;
    if (thread == 0) {
        last = atomicAdd(problem.tickets + work.tile, 1) + 1 == static_cast<unsigned>(problem.splits);
        if (last) problem.tickets[work.tile] = 0;
    }
    bool any = is_true_for_any_of_role<1, WARPGROUPS * WARPGROUP>(last);
    if (any) __threadfence();
    return any;
}

// One row of all parts, by a warp whose lanes lie side by side along the channels.
struct MergedRow {
    // A lane loads two or four channels at a time, next to its neighbours'; of several times the last may lie beyond V.
    static constexpr int WIDTH = VALUE_TILE % 128 == 0 || VALUE_TILE == 96 ? 4 : 2;
    static constexpr int TIMES = (VALUE_TILE + 32 * WIDTH - 1) / (32 * WIDTH);
    static constexpr int CHANNELS = TIMES * WIDTH;
    __device__ static int channel(int time, int lane) { return WIDTH * (32 * time + lane); }
    static constexpr long long NEXT_PART = static_cast<long long>(TILE_QUERIES) * PARTIAL_ROW;

    const float* parts;
    float maximum = LOWEST, sum = 0.0f, weight = 0.0f, value[CHANNELS] = {};

    // The maximum and the row sum of 32 parts, one by each lane, and the weights that follow.
    __device__ void weigh(int first, int count, int lane) {
        const float* part = parts + (first + min(lane, count - 1)) * NEXT_PART;
        float2 end = load_fresh_8(part + VALUE_TILE);
        float larger = warp_max(fmaxf(maximum, end.x));
        weight = lane < count ? exp2_hardware(end.x - larger) : 0.0f;
        float weighted = warp_sum(weight * end.y);
        float factor = exp2_hardware(maximum - larger);
        maximum = larger;
        sum = sum * factor + weighted;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) value[i] *= factor;
    }

    __device__ void add(int first, int part, int lane) {
        float of_part = __shfl_sync(0xffffffff, weight, part);
#pragma unroll
        for (int time = 0; time < TIMES; ++time) {
            if (VALUE_TILE % (32 * WIDTH) > 0 && channel(time, lane) >= VALUE_TILE) continue;
            const float* sums = parts + (first + part) * NEXT_PART + channel(time, lane);
            float* to = value + WIDTH * time;
            if constexpr (WIDTH == 4) {
                float4 four = load_fresh_16(sums);
                const float from[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) to[i] += of_part * from[i];
            } else {
                float2 two = load_fresh_8(sums);
                to[0] += of_part * two.x;
                to[1] += of_part * two.y;
            }
        }
    }

    __device__ void store(const Attention& problem, const Work& work, int row, int lane) {
        RowPlace end(problem, work, row);
        // The first quad's first lane stores; every quad computes the same.
        int quad = lane < 4 ? lane : 4 + lane % 4;
        float of_keys = sum, share = 1.0f;  // weights, and what share of all of them that is
        if constexpr (SINKS) {
            share = add_sink(problem, work, end, maximum, sum, quad) * of_keys;
            share *= reciprocal(sum);
        }
        store_lse(problem, work, end, maximum, sum, quad);
        if (!end.exists) return;
        const float* means =
            problem.has_value_means() ? problem.v_means + work.kv_head_index(problem) * VALUE_DIM : nullptr;
#pragma unroll
        for (int time = 0; time < TIMES; ++time) {
            if (VALUE_DIM % (32 * WIDTH) > 0 && channel(time, lane) >= VALUE_DIM) continue;
            float* from = value + WIDTH * time;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                float mean = means ? means[channel(time, lane) + i] : 0.0f;
                from[i] = end.sees_keys ? fmaf(from[i], reciprocal(of_keys), mean) : 0.0f;
                if constexpr (SINKS) from[i] *= share;
            }
            long long place = end.place + channel(time, lane);
#pragma unroll
            for (int i = 0; i < WIDTH; i += 2) {
                if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
                    float* out = static_cast<float*>(problem.output.values) + place + i;
                    *reinterpret_cast<float2*>(out) = make_float2(from[i], from[i + 1]);
                } else {
                    unsigned short* out = static_cast<unsigned short*>(problem.output.values) + place + i;
                    *reinterpret_cast<unsigned*>(out) = pack_output(from[i], from[i + 1]);
                }
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
