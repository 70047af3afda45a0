// Debug mode: one unit of work writes its intermediate tiles to memory. For each key tile: scores, weights, sums so
// far, maxima, row sums, all f32; scores and maxima in powers of two, weights without the 2^8 that they carry.
#pragma once
#include "ladder/values.cuh"

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

__device__ inline void dump_accumulators(float* matrix, const Scores& scores, const float (&factor)[Rows::COUNT],
                                         int row_warp, int group, int lane) {
    for (int row = 0; row < Rows::COUNT; ++row) {
        float* line = matrix + (row_warp * WARP_ROWS + 8 * row + lane / 4) * TILE_KEYS;
        for (int j = 0; j < KEY_TILES; ++j) {
            for (int i = 0; i < 2; ++i) {
                line[Scores::key(group, j, 2 * (lane % 4) + i)] =
                    scores.value[row / 2][j][2 * (row % 2) + i] * factor[row];
            }
        }
    }
}

__device__ inline void dump_scores(const Attention& problem, const Scores& scores, const Rows& rows, float key_scale,
                                   int key_tile, int row_warp, int group, int lane) {
    float factor[Rows::COUNT];
    for (int row = 0; row < Rows::COUNT; ++row) factor[row] = rows.scale_of(row) * key_scale;
    dump_accumulators(Dump(problem, key_tile).scores, scores, factor, row_warp, group, lane);
}

__device__ inline void dump_weights(const Attention& problem, const Scores& weights, int key_tile, int row_warp,
                                    int group, int lane) {
    float factor[Rows::COUNT];
    for (int row = 0; row < Rows::COUNT; ++row) factor[row] = WEIGHT_UNIT;
    dump_accumulators(Dump(problem, key_tile).weights, weights, factor, row_warp, group, lane);
}

__device__ inline void dump_weights(const Attention& problem, const SharedRows& shared, int key_tile, int row_warp,
                                    int lane) {
    for (int row = row_warp * WARP_ROWS; row < (row_warp + 1) * WARP_ROWS; ++row) {
        for (int key = lane; key < TILE_KEYS; key += 32) {
            Dump(problem, key_tile).weights[row * TILE_KEYS + key] = to_float(shared.weights(row)[key]) * WEIGHT_UNIT;
        }
    }
}

// `total` of a row as the whole quad sees it; its first lane writes.
__device__ inline void dump_rows(const Attention& problem, const Rows& rows, int key_tile, int row_warp, int lane) {
    Dump dump(problem, key_tile);
    for (int row = 0; row < Rows::COUNT; ++row) {
        float total = SOFTMAX == SOFTMAX_FUSED ? quad_sum(rows.sum[row]) : rows.sum[row];
        int line = row_warp * WARP_ROWS + 8 * row + lane / 4;
        if (lane % 4 != 0) continue;
        dump.maxima[line] = rows.maximum[row];
        dump.totals[line] = total * WEIGHT_UNIT;
    }
}

__device__ inline void dump_sums(const Attention& problem, const MmaSums& sums, int key_tile, int row_warp, int lane) {
    for (int row = 0; row < Rows::COUNT; ++row) {
        float* line = Dump(problem, key_tile).sums + (row_warp * WARP_ROWS + 8 * row + lane / 4) * VALUE_DIM;
        for (int n = 0; n < DIM_TILES; ++n) {
            for (int i = 0; i < 2; ++i) {
                int channel = from_fragment_order(8 * n + 2 * (lane % 4) + i);
                if (channel < VALUE_DIM) line[channel] = sums.value[row / 2][n][2 * (row % 2) + i] * WEIGHT_UNIT;
            }
        }
    }
}

__device__ inline void dump_sums(const Attention& problem, const LaneSums& sums, int key_tile, int row_warp, int lane) {
    float* line = Dump(problem, key_tile).sums + (row_warp * WARP_ROWS + LaneSums::row(lane)) * VALUE_DIM;
    for (int i = 0; i < LaneSums::COUNT; ++i) {
        int channel = from_fragment_order(LaneSums::place(lane, i));
        if (channel < VALUE_DIM) line[channel] = sums.value[i] * WEIGHT_UNIT;
    }
}
