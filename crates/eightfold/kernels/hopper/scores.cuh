// S = Q·Kᵀ of one warpgroup's rows and one tile of keys, in f16 or f32, and what is done to it before the exponentials.
#pragma once
#include "hopper/problem.cuh"
#include "hopper/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "ptx/wgmma.cuh"

constexpr unsigned HALF_MINUS_INFINITY = 0xfc00;
constexpr unsigned HALVES_MINUS_INFINITY = 0xfc00fc00;

struct HalfScores {
    unsigned value[TILE_KEYS / 4];  // [2j] row group, [2j+1] row group+8: keys 8j+2·quad and the next

    // Of each of the two rows, keys from `visible` on are out of sight, counted from the lane's first key; of no row of
    // the warp are the first `seen` keys of the tile.
    __device__ void mask(const int (&visible)[2], int seen) {
#pragma unroll
        for (int group = 0; group < TILE_KEYS / 32; ++group) {
            if (32 * (group + 1) <= seen) continue;
#pragma unroll
            for (int i = 8 * group; i < 8 * (group + 1); ++i) {
                int left = visible[i % 2] - i / 2 * 8;
                unsigned one = (value[i] & 0xffff) | HALF_MINUS_INFINITY << 16;
                value[i] = left >= 2 ? value[i] : left == 1 ? one : HALVES_MINUS_INFINITY;
            }
        }
    }

    // The largest score of each of the two rows, by the quad.
    __device__ void row_maxima(float (&maximum)[2]) const {
        unsigned even[2] = {value[0], value[1]}, odd[2] = {value[2], value[3]};
#pragma unroll
        for (int i = 4; i < TILE_KEYS / 4; i += 4) {
            even[0] = max_halves(even[0], value[i]);
            even[1] = max_halves(even[1], value[i + 1]);
            odd[0] = max_halves(odd[0], value[i + 2]);
            odd[1] = max_halves(odd[1], value[i + 3]);
        }
        unsigned first = max_halves(even[0], odd[0]), second = max_halves(even[1], odd[1]);
        unsigned both = max_halves(permute_bytes(first, second, 0x5410), permute_bytes(first, second, 0x7632));
        both = max_halves(both, __shfl_xor_sync(0xffffffff, both, 1));
        both = max_halves(both, __shfl_xor_sync(0xffffffff, both, 2));
        Floats2 floats = to_floats(both);
        maximum[0] = floats.low;
        maximum[1] = floats.high;
    }
};

struct FloatScores {
    float value[TILE_KEYS / 2];  // [4j], [4j+1] row group, keys 8j+2·quad and the next; [4j+2], [4j+3] row group+8

    __device__ void mask(const int (&visible)[2], int seen) {
#pragma unroll
        for (int group = 0; group < TILE_KEYS / 32; ++group) {
            if (32 * (group + 1) <= seen) continue;
#pragma unroll
            for (int i = 16 * group; i < 16 * (group + 1); ++i) {
                int key = i / 4 * 8 + i % 2;
                if (key >= visible[i / 2 % 2]) value[i] = __int_as_float(0xff800000);
            }
        }
    }

    __device__ void row_maxima(float (&maximum)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float even = value[2 * row], odd = value[2 * row + 1];
#pragma unroll
            for (int i = 4; i < TILE_KEYS / 2; i += 4) {
                even = fmaxf(even, value[i + 2 * row]);
                odd = fmaxf(odd, value[i + 2 * row + 1]);
            }
            float both = fmaxf(even, odd);
            both = fmaxf(both, __shfl_xor_sync(0xffffffff, both, 1));
            maximum[row] = fmaxf(both, __shfl_xor_sync(0xffffffff, both, 2));
        }
    }
};

#if SCORES_F32
using Scores = FloatScores;
#else
using Scores = HalfScores;
#endif

// Starts the product; the scores are there after wait_for_products.
__device__ inline void start_scores(Scores& scores, unsigned queries, unsigned keys) {
    unsigned long long q = describe_matrix<HEAD_DIM>(queries), k = describe_matrix<HEAD_DIM>(keys);
    fence_products();
#pragma unroll
    for (int step = 0; step < SCORE_STEPS; ++step) {
        multiply_shared<E5M2>(scores.value, q + step * STEP_32, k + step * STEP_32, step > 0);
    }
    commit_products();
}
