// S = Q·Kᵀ of one warpgroup's rows and one tile of keys, in f16 or f32, and what is done to it before the exponentials.
#pragma once
#include "hopper/descriptor.cuh"
#include "hopper/problem.cuh"
#include "hopper/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "ptx/wgmma.cuh"

constexpr unsigned HALVES_65504 = 0x7bff7bff;
constexpr unsigned HALVES_LOWEST = 0xfc00fc00;  // minus infinity
constexpr unsigned HALVES_MINUS_64 = 0xd400d400;
__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// A whole number up to 2048 that is known at compile time, as f16 in both halves of a word.
__device__ constexpr unsigned halves_of(int number) {
    if (number == 0) return 0;
    int exponent = 0;
    while (number >> (exponent + 1) != 0) ++exponent;
    unsigned half = (exponent + 15) << 10 | (number << 10 >> exponent & 0x3ff);
    return half << 16 | half;
}

struct HalfScores {
    __device__ unsigned at(int i) const { return value[i / (SCORE_COLUMNS / 4)][i % (SCORE_COLUMNS / 4)]; }

    unsigned value[SCORE_PARTS][SCORE_COLUMNS / 4];  // [2j] row group, [2j+1] row group+8: keys 8j+2·quad and the next

    // Of each of the two rows, keys from `visible` on are out of sight, counted from the lane's first key; of no row of
    // the warp are the first `seen` keys of the tile. Only the keys from `first` on.
    __device__ void mask(const int (&visible)[2], int seen, int first) {
        unsigned odd[2] = {bounds(visible[0]), bounds(visible[1])};
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) > seen) hide(part, odd);
        }
    }

   private:
    __device__ unsigned& pair(int part, int i) {
        return value[part / (SCORE_COLUMNS / 64)][part % (SCORE_COLUMNS / 64) * 16 + i];
    }

    // In f16, two keys at a time: 2·(visible - key) - 1 is 1 or more for a visible key, and -1 or less for a hidden one;
    // times 65504, less 64, that is a bound at or above every score, or minus infinity.
    __device__ static unsigned bounds(int visible) {
        float twice = 2.0f * static_cast<float>(min(max(visible, -1), TILE_KEYS + 1));
        return pack_f16(twice - 1.0f, twice - 3.0f);
    }
    __device__ void hide(int part, const unsigned (&odd)[2]) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            unsigned left = subtract_halves(odd[i % 2], halves_of(2 * (64 * part + i / 2 * 8)));
            lower_halves(pair(part, i), multiply_add_halves(left, HALVES_65504, HALVES_MINUS_64));
        }
    }
};

// The largest score so far of each of the two rows, two keys at a time: of every other 8 keys, and of the rest.
struct HalfMaxima {
    unsigned even[2] = {HALVES_LOWEST, HALVES_LOWEST}, odd[2] = {HALVES_LOWEST, HALVES_LOWEST};

    // Keys from the first to before the last.
    __device__ void include(const HalfScores& scores, int first_key, int last_key) {
#pragma unroll
        for (int i = first_key / 4; i < last_key / 4; i += 4) {
            even[0] = max_halves(even[0], scores.at(i));
            even[1] = max_halves(even[1], scores.at(i + 1));
            odd[0] = max_halves(odd[0], scores.at(i + 2));
            odd[1] = max_halves(odd[1], scores.at(i + 3));
        }
    }

    // By the quad.
    __device__ void result(float (&maximum)[2]) const {
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

    __device__ void mask(const int (&visible)[2], int seen, int first) {
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) > seen) hide(part, visible);
        }
    }

   private:
    __device__ void hide(int part, const int (&visible)[2]) {
#pragma unroll
        for (int i = 32 * part; i < 32 * (part + 1); ++i) {
            int key = i / 4 * 8 + i % 2;
            if (key >= visible[i / 2 % 2]) value[i / (SCORE_COLUMNS / 2)][i % (SCORE_COLUMNS / 2)] = minus_infinity();
        }
    }
};

struct FloatMaxima {
    float even[2] = {minus_infinity(), minus_infinity()}, odd[2] = {minus_infinity(), minus_infinity()};

    __device__ void include(const FloatScores& scores, int first_key, int last_key) {
#pragma unroll
        for (int i = first_key / 2; i < last_key / 2; i += 4) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                even[row] = fmaxf(even[row], scores.at(i + 2 * row));
                odd[row] = fmaxf(odd[row], scores.at(i + 2 * row + 1));
            }
        }
    }

    __device__ void result(float (&maximum)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float both = fmaxf(even[row], odd[row]);
            both = fmaxf(both, __shfl_xor_sync(0xffffffff, both, 1));
            maximum[row] = fmaxf(both, __shfl_xor_sync(0xffffffff, both, 2));
        }
    }
};

#if SCORES_F32
using Scores = FloatScores;
using Maxima = FloatMaxima;
#else
using Scores = HalfScores;
using Maxima = HalfMaxima;
#endif

// The largest of keys in whole parts of 64, of which the first `absent` of the tile do not count.
__device__ inline void include_present(Maxima& maxima, const Scores& scores, int first_key, int last_key, int absent) {
#pragma unroll
    for (int part = first_key; part < last_key; part += 64) {
        Maxima with_part = maxima;
        with_part.include(scores, part, part + 64);
        if (part >= absent) maxima = with_part;
    }
}

// Starts the product of the parts from `first` to before `last`; the scores are there after wait_for_products.
__device__ inline void start_scores(Scores& scores, unsigned queries, unsigned keys, int first = 0,
                                    int last = SCORE_PARTS) {
    unsigned long long q = describe_matrix<HEAD_DIM>(queries);
    fence_products();
#pragma unroll
    for (int part = first; part < last; ++part) {
        unsigned long long k = describe_matrix<HEAD_DIM>(keys + part * SCORE_COLUMNS * HEAD_DIM);
#pragma unroll
        for (int step = 0; step < SCORE_STEPS; ++step) {
            multiply_shared<E5M2>(scores.value[part], q + step * STEP_32, k + step * STEP_32, step > 0);
        }
    }
    commit_products();
}
