// S = Q·Kᵀ of one warpgroup's rows and one tile of keys, in f16 or f32, and what is done to it before the exponentials.
#pragma once
#include "hopper/problem.cuh"
#include "hopper/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "ptx/wgmma.cuh"

constexpr unsigned HALVES_65504 = 0x7bff7bff;
constexpr unsigned HALVES_MINUS_64 = 0xd400d400;
__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

struct HalfScores {
    __device__ unsigned at(int i) const { return value[i / (SCORE_COLUMNS / 4)][i % (SCORE_COLUMNS / 4)]; }

    unsigned value[SCORE_PARTS][SCORE_COLUMNS / 4];  // [2j] row group, [2j+1] row group+8: keys 8j+2·quad and the next

    // Of each of the two rows, keys from `visible` on are out of sight, counted from the lane's first key; of no row of
    // the warp are the first `seen` keys of the tile.
    //
    // In f16, two keys at a time and without a branch: 2·(visible - key) - 1 is 1 or more for a visible key, and -1 or
    // less for a hidden one; times 65504, less 64, that is a bound at or above every score, or minus infinity.
    __device__ void mask(const int (&visible)[2], int seen) {
        unsigned odd[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float twice = 2.0f * static_cast<float>(min(max(visible[row], -1), TILE_KEYS + 1));
            odd[row] = pack_f16(twice - 1.0f, twice - 3.0f);
        }
#pragma unroll
        for (int part = 0; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) <= seen) continue;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int key = 64 * part + i / 2 * 8;
                unsigned& pair = value[part / (SCORE_COLUMNS / 64)][part % (SCORE_COLUMNS / 64) * 16 + i];
                unsigned left = subtract_halves(odd[i % 2], halves_of(2 * key));
                pair = min_halves(pair, multiply_add_halves(left, HALVES_65504, HALVES_MINUS_64));
            }
        }
    }

    // The largest score of each of the two rows, by the quad.
    __device__ void row_maxima(float (&maximum)[2]) const {
        unsigned even[2] = {at(0), at(1)}, odd[2] = {at(2), at(3)};
#pragma unroll
        for (int i = 4; i < TILE_KEYS / 4; i += 4) {
            even[0] = max_halves(even[0], at(i));
            even[1] = max_halves(even[1], at(i + 1));
            odd[0] = max_halves(odd[0], at(i + 2));
            odd[1] = max_halves(odd[1], at(i + 3));
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
    __device__ float at(int i) const { return value[i / (SCORE_COLUMNS / 2)][i % (SCORE_COLUMNS / 2)]; }

    float value[SCORE_PARTS]
               [SCORE_COLUMNS / 2];  // [4j], [4j+1] row group, keys 8j+2·quad and the next; [4j+2], [4j+3] row group+8

    __device__ void mask(const int (&visible)[2], int seen) {
#pragma unroll
        for (int part = 0; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) <= seen) continue;
#pragma unroll
            for (int i = 32 * part; i < 32 * (part + 1); ++i) {
                int key = i / 4 * 8 + i % 2;
                if (key >= visible[i / 2 % 2])
                    value[i / (SCORE_COLUMNS / 2)][i % (SCORE_COLUMNS / 2)] = minus_infinity();
            }
        }
    }

    __device__ void row_maxima(float (&maximum)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float even = at(2 * row), odd = at(2 * row + 1);
#pragma unroll
            for (int i = 4; i < TILE_KEYS / 2; i += 4) {
                even = fmaxf(even, at(i + 2 * row));
                odd = fmaxf(odd, at(i + 2 * row + 1));
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
    unsigned long long q = describe_matrix<HEAD_DIM>(queries);
    fence_products();
#pragma unroll
    for (int part = 0; part < SCORE_PARTS; ++part) {
        unsigned long long k = describe_matrix<HEAD_DIM>(keys + part * SCORE_COLUMNS * HEAD_DIM);
#pragma unroll
        for (int step = 0; step < SCORE_STEPS; ++step) {
            multiply_shared<E5M2>(scores.value[part], q + step * STEP_32, k + step * STEP_32, step > 0);
        }
    }
    commit_products();
}
