// Split keys: every part leaves its sums in global memory, and the block that comes last puts them together.
#pragma once
#include "hopper/store.cuh"

constexpr int PARTIAL_ROW = HEAD_DIM + 2;  // sums, then the maximum and the row sum

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
    sync_numbered(1, WARPGROUPS * WARPGROUP);
    int last = 0;
    if (thread == 0) {
        last = atomicAdd(problem.tickets + work.unit, 1) + 1 == static_cast<unsigned>(problem.splits);
        if (last) problem.tickets[work.unit] = 0;
    }
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.red.or.pred q, 1, %2, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(last), "n"(WARPGROUPS * WARPGROUP)
                 : "memory");
    if (any) __threadfence();
    return any;
}

// A warp for each row, its lanes side by side along the channels. The weights of up to 32 parts are made at once, one by
// each lane.
__device__ inline void merge_parts(const Attention& problem, const Work& work, int thread) {
    constexpr int CHANNELS = HEAD_DIM / 32;
    int lane = thread % 32;
    const float* means = problem.v_means ? problem.v_means + work.kv_index(problem) * HEAD_DIM : nullptr;
    for (int row = thread / 32; row < TILE_QUERIES && work.has_row(problem, row); row += 4 * WARPGROUPS) {
        const float* first_part = partial_row(problem, work, 0, row);
        long long next_part = static_cast<long long>(TILE_QUERIES) * PARTIAL_ROW;
        float maximum = LOWEST, sum = 0.0f, value[CHANNELS] = {};
        for (int begin = 0; begin < problem.splits; begin += 32) {
            int count = min(32, problem.splits - begin);
            const float* part = first_part + begin * next_part;
            bool has = lane < count;
            float of_lane = has ? part[lane * next_part + HEAD_DIM] : LOWEST;
            float row_sum = has ? part[lane * next_part + HEAD_DIM + 1] : 0.0f;
            float larger = fmaxf(maximum, of_lane);
#pragma unroll
            for (int i = 16; i > 0; i /= 2) larger = fmaxf(larger, __shfl_xor_sync(0xffffffff, larger, i));
            float factor = exp2_hardware(maximum - larger), weight = exp2_hardware(of_lane - larger);
            maximum = larger;
            float weighted = weight * row_sum;
#pragma unroll
            for (int i = 16; i > 0; i /= 2) weighted += __shfl_xor_sync(0xffffffff, weighted, i);
            sum = sum * factor + weighted;
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) value[i] *= factor;
#pragma unroll 8
            for (int split = 0; split < count; ++split) {
                float of_split = __shfl_sync(0xffffffff, weight, split);
                const float2* sums = reinterpret_cast<const float2*>(part + split * next_part + CHANNELS * lane);
#pragma unroll
                for (int i = 0; i < CHANNELS / 2; ++i) {
                    float2 pair = sums[i];
                    value[2 * i] += of_split * pair.x;
                    value[2 * i + 1] += of_split * pair.y;
                }
            }
        }
        RowEnd end(problem, work, row, maximum, sum);
        // The first quad's first lane stores; every quad computes the same.
        store_lse(problem, work, end, lane < 4 ? lane : 4 + lane % 4);
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            float mean = means ? means[CHANNELS * lane + i] : 0.0f;
            value[i] = end.sees_keys ? fmaf(value[i], reciprocal(end.sum), mean) : 0.0f;
        }
        long long place = end.place(problem, work) + CHANNELS * lane;
        if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
            float* out = static_cast<float*>(problem.output) + place;
#pragma unroll
            for (int i = 0; i < CHANNELS; i += 2) {
                *reinterpret_cast<float2*>(out + i) = make_float2(value[i], value[i + 1]);
            }
        } else {
            unsigned short* out = static_cast<unsigned short*>(problem.output) + place;
#pragma unroll
            for (int i = 0; i < CHANNELS; i += 2) {
                *reinterpret_cast<unsigned*>(out + i) = pack_output(value[i], value[i + 1]);
            }
        }
    }
}
