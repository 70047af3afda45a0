// Where the warps share the keys of every tile: their sums brought to a common maximum and added, in shared memory.
#pragma once
#include "ladder/pipeline.cuh"
#include "ladder/values.cuh"

// What a lane hands over: sums, then maxima, row sums and normalisers, each a column of 32 lanes.
struct Handover {
    float* column;

    __device__ Handover(char* memory, int row_warp, int group, int lane)
        : column(reinterpret_cast<float*>(memory) + ((group - 1) * ROW_WARPS + row_warp) * 32 * MERGED_FLOATS + lane) {}

    __device__ float& sum(int tile, int n, int i) const { return column[32 * ((tile * DIM_TILES + n) * 4 + i)]; }
    __device__ float& maximum(int row) const { return column[32 * (4 * ROW_TILES * DIM_TILES + row)]; }
    __device__ float& total(int row) const { return column[32 * (4 * ROW_TILES * DIM_TILES + Rows::COUNT + row)]; }
    __device__ float& normaliser(int row) const {
        return column[32 * (4 * ROW_TILES * DIM_TILES + 2 * Rows::COUNT + row)];
    }
};

static_assert(MERGED_FLOATS == ROW_TILES * DIM_TILES * 4 + 3 * Rows::COUNT, "room for all that is handed over");

// After it the first group has everything.
__device__ inline void merge_groups(MmaSums& sums, Rows& rows, char* memory, int row_warp, int group, int lane) {
    sync_compute_warps();  // everyone is done with the tiles, whose place is taken now
    if (group > 0) {
        Handover mine(memory, row_warp, group, lane);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int n = 0; n < DIM_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) mine.sum(tile, n, i) = sums.value[tile][n][i];
#pragma unroll
        for (int row = 0; row < Rows::COUNT; ++row) {
            mine.maximum(row) = rows.maximum[row];
            mine.total(row) = rows.sum[row];
            mine.normaliser(row) = rows.normaliser[row];
        }
    }
    sync_compute_warps();
    if (group > 0) return;
#pragma unroll
    for (int other = 1; other < KEY_GROUPS; ++other) {
        Handover theirs(memory, row_warp, other, lane);
        float my_factor[Rows::COUNT], their_factor[Rows::COUNT];
#pragma unroll
        for (int row = 0; row < Rows::COUNT; ++row) {
            float maximum = fmaxf(rows.maximum[row], theirs.maximum(row));
            my_factor[row] = exp2_hardware(rows.maximum[row] - maximum);
            their_factor[row] = exp2_hardware(theirs.maximum(row) - maximum);
            rows.maximum[row] = maximum;
            rows.sum[row] = rows.sum[row] * my_factor[row] + theirs.total(row) * their_factor[row];
            rows.normaliser[row] = rows.normaliser[row] * my_factor[row] + theirs.normaliser(row) * their_factor[row];
        }
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int n = 0; n < DIM_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int row = 2 * tile + i / 2;
                    sums.value[tile][n][i] =
                        sums.value[tile][n][i] * my_factor[row] + theirs.sum(tile, n, i) * their_factor[row];
                }
    }
}
