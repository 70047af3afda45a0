// S = Q·Kᵀ of one warpgroup's rows and one tile of keys, in f16, f32 or s32, and what is done to it before the
// exponentials.
#pragma once
#include "attention/lanes.cuh"
#include "attention/scoring.cuh"
#include "hopper/descriptor.cuh"
#include "hopper/problem.cuh"
#include "hopper/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/half.cuh"
#include "ptx/wgmma.cuh"

constexpr unsigned HALVES_65504 = 0x7bff7bff, HALVES_MINUS_65504 = 0xfbfffbff;
constexpr unsigned HALVES_LOWEST = 0xfc00fc00;  // minus infinity
constexpr unsigned HALVES_MINUS_64 = 0xd400d400;
constexpr unsigned HALVES_2_TO_MINUS_10 = 0x14001400;
constexpr int HIDDEN = -0x7fffffff - 1;  // an s32 score of a key out of sight: below all sums of products

// A whole number up to 2048 that is known at compile time, as f16 in both halves of a word.
__device__ constexpr unsigned halves_of(int number) {
    if (number == 0) return 0;
    int exponent = 0;
    while (number >> (exponent + 1) != 0) ++exponent;
    unsigned half = (exponent + 15) << 10 | (number << 10 >> exponent & 0x3ff);
    return half << 16 | half;
}

// How the scores of a lane's two rows are capped, in f16: score / bound = score · 2^-10 · steepness + shift, in two
// steps because a steepness that is not multiplied by 2^10 may be too small for f16. A capped score is in units of the
// bound.
struct HalfCap {
    unsigned steepness[2], shift[2] = {0, 0};

    // The bound, in powers of two.
    __device__ static float unit(const Attention& problem) { return problem.softcap; }

    // `scale`: from products of codes to powers of two.
    __device__ void set(const Attention& problem, int row, float scale) {
        float scaled = 1024.0f * scale * reciprocal(problem.softcap);
        steepness[row] = both_halves(fminf(fmaxf(scaled, 6e-8f), 6e4f));
    }
    // What is added to the row's scores, in powers of two.
    __device__ void set_shift(const Attention& problem, int row, float added) {
        shift[row] = both_halves(fminf(fmaxf(added * reciprocal(problem.softcap), -6e4f), 6e4f));
    }
};

struct HalfScores {
    __device__ void cap(const Attention&, const HalfCap& by) {
#pragma unroll
        for (int part = 0; part < SCORE_PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < SCORE_COLUMNS / 4; ++i) {
                unsigned small = multiply_add_halves(value[part][i], HALVES_2_TO_MINUS_10, 0);
                value[part][i] = tanh_halves(multiply_add_halves(small, by.steepness[i % 2], by.shift[i % 2]));
            }
        }
    }

    __device__ unsigned at(int i) const { return value[i / (SCORE_COLUMNS / 4)][i % (SCORE_COLUMNS / 4)]; }

    unsigned value[SCORE_PARTS][SCORE_COLUMNS / 4];  // [2j] row group, [2j+1] row group+8: keys 8j+2·quad and the next

    // Of each of the two rows, keys from its `end` on are out of sight, counted from the lane's first key; of no row of
    // the warp are the first `seen` keys of the tile. Only the keys from `first` on.
    __device__ void hide_behind(const int (&end)[2], int seen, int first) {
        unsigned odd[2] = {bounds(end[0]), bounds(end[1])};
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) > seen) hide(part, odd, HALVES_65504);
        }
    }
    // The same for keys before a row's `begin`; of no row of the warp are those of the tile from `seen` on.
    __device__ void hide_before(const int (&begin)[2], int seen, int first) {
        unsigned odd[2] = {bounds(begin[0]), bounds(begin[1])};
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * part < seen) hide(part, odd, HALVES_MINUS_65504);
        }
    }

   private:
    __device__ unsigned& pair(int part, int i) {
        return value[part / (SCORE_COLUMNS / 64)][part % (SCORE_COLUMNS / 64) * 16 + i];
    }

    // In f16, two keys at a time: 2·(visible - key) - 1 is 1 or more for a key before `visible`, and -1 or less for any
    // other; times 65504 or -65504, less 64, that is a bound at or above every score, or minus infinity.
    __device__ static unsigned bounds(int visible) {
        float twice = 2.0f * static_cast<float>(min(max(visible, -1), TILE_KEYS + 1));
        return pack_f16(twice - 1.0f, twice - 3.0f);
    }
    __device__ void hide(int part, const unsigned (&odd)[2], unsigned sides) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            unsigned left = subtract_halves(odd[i % 2], halves_of(2 * (64 * part + i / 2 * 8)));
            lower_halves(pair(part, i), multiply_add_halves(left, sides, HALVES_MINUS_64));
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

// The same in f32, where a capped score is in powers of two.
struct FloatCap {
    float scale[2], shift[2] = {0.0f, 0.0f};

    __device__ static float unit(const Attention&) { return 1.0f; }
    __device__ void set(const Attention&, int row, float of_row) { scale[row] = of_row; }
    __device__ void set_shift(const Attention&, int row, float added) { shift[row] = added; }
};

// In 32 bits each, with the number that stands for a key out of sight.
template <typename Number>
struct WideScores {
    __device__ Number at(int i) const { return value[i / (SCORE_COLUMNS / 2)][i % (SCORE_COLUMNS / 2)]; }

    // [4j], [4j+1] row group, keys 8j+2·quad and the next; [4j+2], [4j+3] row group+8
    Number value[SCORE_PARTS][SCORE_COLUMNS / 2];

    __device__ void hide_behind(const int (&end)[2], int seen, int first) {
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * (part + 1) > seen) hide(part, [&](int key, int row) { return key >= end[row]; });
        }
    }
    __device__ void hide_before(const int (&begin)[2], int seen, int first) {
#pragma unroll
        for (int part = first / 64; part < TILE_KEYS / 64; ++part) {
            if (64 * part < seen) hide(part, [&](int key, int row) { return key < begin[row]; });
        }
    }

   private:
    template <typename Rule>
    __device__ void hide(int part, Rule is_hidden) {
#pragma unroll
        for (int i = 32 * part; i < 32 * (part + 1); ++i) {
            if (is_hidden(i / 4 * 8 + i % 2, i / 2 % 2)) {
                value[i / (SCORE_COLUMNS / 2)][i % (SCORE_COLUMNS / 2)] = hidden(Number());
            }
        }
    }
    __device__ static float hidden(float) { return minus_infinity(); }
    __device__ static int hidden(int) { return HIDDEN; }
};

struct FloatScores : WideScores<float> {
    __device__ void cap(const Attention& problem, const FloatCap& by) {
#pragma unroll
        for (int part = 0; part < SCORE_PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < SCORE_COLUMNS / 2; ++i) {
                float score = fmaf(value[part][i], by.scale[i / 2 % 2], by.shift[i / 2 % 2]);
                value[part][i] = cap_score(problem, score);
            }
        }
    }
};

// Sums of products of INT8 codes, which are exact.
struct IntScores : WideScores<int> {
    __device__ void cap(const Attention&, const FloatCap&) {}

    // Puts every score of a row between two bounds.
    __device__ void clamp(const int (&lowest)[2], const int (&highest)[2]) {
#pragma unroll
        for (int part = 0; part < SCORE_PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < SCORE_COLUMNS / 2; ++i) {
                int row = i / 2 % 2;
                value[part][i] = min(max(value[part][i], lowest[row]), highest[row]);
            }
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
            maximum[row] = quad_max(fmaxf(even[row], odd[row]));
        }
    }
};

// One instruction.
__device__ inline int max_of_three(int a, int b, int c) { return max(max(a, b), c); }

struct IntMaxima {
    int even[2] = {HIDDEN, HIDDEN}, odd[2] = {HIDDEN, HIDDEN};

    __device__ void include(const IntScores& scores, int first_key, int last_key) {
#pragma unroll
        for (int i = first_key / 2; i < last_key / 2; i += 8) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                even[row] = max_of_three(even[row], scores.at(i + 2 * row), scores.at(i + 2 * row + 1));
                odd[row] = max_of_three(odd[row], scores.at(i + 4 + 2 * row), scores.at(i + 5 + 2 * row));
            }
        }
    }

    // By the quad; minus infinity where every key is out of sight.
    __device__ void result(float (&maximum)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            int largest = max(even[row], odd[row]);
            largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 2));
            maximum[row] = largest == HIDDEN ? minus_infinity() : static_cast<float>(largest);
        }
    }
};

using Wide = Either<SCORES_S32, IntScores, FloatScores>::Type;
using WideMaxima = Either<SCORES_S32, IntMaxima, FloatMaxima>::Type;
using Scores = Either<SCORES_F32 || SCORES_S32, Wide, HalfScores>::Type;
using Maxima = Either<SCORES_F32 || SCORES_S32, WideMaxima, HalfMaxima>::Type;
using Cap = Either<SCORES_F32 || SCORES_S32, FloatCap, HalfCap>::Type;

// After a wait for their products: what scores are, and no copy from before.
__device__ inline void settle_scores(Scores& scores) {
#pragma unroll
    for (int part = 0; part < SCORE_PARTS; ++part) {
#pragma unroll
        for (int i = 0; i < sizeof(scores.value[part]) / 4; ++i) settle(scores.value[part][i]);
    }
}

// The largest of keys in whole parts of 64, of which the first `absent` of the tile do not count.
__device__ inline void include_present(Maxima& maxima, const Scores& scores, int first_key, int last_key, int absent) {
#pragma unroll
    for (int part = first_key; part < last_key; part += 64) {
        Maxima with_part = maxima;
        with_part.include(scores, part, part + 64);
        if (part >= absent) maxima = with_part;
    }
}

// What a descriptor of Q or K is more at a step of 32 channels: it may be on another line of as many rows.
template <int ROWS>
__device__ constexpr unsigned long long to_step(int step) {
    return step * STEP / LINE * (ROWS * LINE / 16) + step * STEP % LINE / STEP * STEP_32;
}

// Starts the product of the parts from `first` to before `last`; the scores are there after wait_for_products.
__device__ inline void start_scores(Scores& scores, unsigned queries, unsigned keys, int first = 0,
                                    int last = SCORE_PARTS) {
    unsigned long long q = describe_matrix<LINE>(queries);
    fence_products();
#pragma unroll
    for (int part = first; part < last; ++part) {
        unsigned long long k = describe_matrix<LINE>(keys + part * SCORE_COLUMNS * LINE);
#pragma unroll
        for (int step = 0; step < SCORE_STEPS; ++step) {
            multiply_shared<E5M2>(scores.value[part], q + to_step<TILE_QUERIES>(step), k + to_step<TILE_KEYS>(step),
                                  step > 0);
        }
    }
    commit_products();
}
