// Debug mode: one tile of queries writes what it computed for every tile of keys to memory. For each, all f32: scores
// in powers of two, minus infinity where masked; weights without the 2^8 that they carry; the sums since the last
// promotion, of V's codes; maxima; row sums. Nothing of it is compiled into a kernel that is not asked for it.
#pragma once
#include "hopper/tile.cuh"

constexpr float WEIGHT_UNIT = 1.0f / 256.0f;
static_assert(WEIGHT_EXPONENT == 8.0f, "the unit of the weights follows from their exponent");

struct Dump {
    float* scores;
    float* weights;
    float* sums;
    float* maxima;
    float* totals;

    __device__ Dump(const Attention& problem, int key_tile) {
        constexpr int FLOATS = TILE_QUERIES * (2 * TILE_KEYS + VALUE_DIM + 2);
        scores = problem.dump + static_cast<long long>(key_tile) * FLOATS;
        weights = scores + TILE_QUERIES * TILE_KEYS;
        sums = weights + TILE_QUERIES * TILE_KEYS;
        maxima = sums + TILE_QUERIES * VALUE_DIM;
        totals = maxima + TILE_QUERIES;
    }
};

// An s32 score, minus infinity where it is out of sight.
__device__ inline float float_score(int score) {
    return score == HIDDEN ? minus_infinity() : static_cast<float>(score);
}

// The lane's two scores of a row among eight keys.
__device__ inline Floats2 two_scores(const HalfScores& scores, int eight, int row) {
    return to_floats(scores.at(2 * eight + row));
}
__device__ inline Floats2 two_scores(const FloatScores& scores, int eight, int row) {
    return {scores.at(4 * eight + 2 * row), scores.at(4 * eight + 2 * row + 1)};
}

__device__ inline Floats2 two_scores(const IntScores& scores, int eight, int row) {
    return {float_score(scores.at(4 * eight + 2 * row)), float_score(scores.at(4 * eight + 2 * row + 1))};
}

__device__ inline void dump_scores(const Tile& tile, const Scores& scores, int key_tile) {
    Dump dump(tile.problem, key_tile);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        int line = tile.first_row + 8 * row;
#pragma unroll
        for (int eight = 0; eight < TILE_KEYS / 8; ++eight) {
            Floats2 two = two_scores(scores, eight, row);
            float* place = dump.scores + line * TILE_KEYS + 8 * eight + 2 * tile.quad;
            place[0] = two.low * tile.rows.scale[row];
            place[1] = two.high * tile.rows.scale[row];
        }
        if (tile.quad == 0) dump.maxima[line] = tile.rows.row_max[row];
    }
}

// Weights of a step: a word holds a row's at the keys that the lane's scores are of, two among eight and two among the
// next eight.
__device__ inline void dump_weights(const Tile& tile, int step, int key_tile) {
    float* weights = Dump(tile.problem, key_tile).weights;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
        int line = tile.first_row + 8 * (word % 2);
        float* place = weights + line * TILE_KEYS + STEP * step + 16 * (word / 2) + 2 * tile.quad;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            auto both = [&](unsigned codes) {
                return to_floats(half == 0 ? widen_low<false>(codes) : widen_high<false>(codes));
            };
            Floats2 two = both(tile.weights.words[step][word]);
            if (is_split(step)) {
                Floats2 rest = both(tile.weights.rest[SPLIT_EIGHTHS > 0 ? step : 0][word]);
                two = {two.low + rest.low, two.high + rest.high};
            }
            place[8 * half] = two.low * WEIGHT_UNIT;
            place[8 * half + 1] = two.high * WEIGHT_UNIT;
        }
    }
}

// When the products of a tile are done.
__device__ inline void dump_sums(const Tile& tile, int key_tile) {
    Dump dump(tile.problem, key_tile);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        int line = tile.first_row + 8 * row;
#pragma unroll
        for (int eight = 0; eight < VALUE_DIM / 8; ++eight) {
            float* place = dump.sums + line * VALUE_DIM + 8 * eight + 2 * tile.quad;
            place[0] = tile.acc.o[4 * eight + 2 * row] * WEIGHT_UNIT;
            place[1] = tile.acc.o[4 * eight + 2 * row + 1] * WEIGHT_UNIT;
        }
        float total = tile.rows.row_sum[row] + tile.acc.o[VALUE_TILE / 2 + 2 * row];
        if (tile.quad == 0) dump.totals[line] = total * WEIGHT_UNIT;
    }
}
