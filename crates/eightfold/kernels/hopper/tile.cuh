// One warpgroup's rows of one tile of queries: what is the same whichever way the keys come.
#pragma once
#include "hopper/problem.cuh"
#include "hopper/scores.cuh"
#include "hopper/sums.cuh"
#include "hopper/weights.cuh"

// A number that all lanes of the warp have in common, so that the compiler knows: loops that it bounds need no
// predicates, and descriptors made of it stay in uniform registers. All lanes of the warp.
__device__ inline int same_in_warp(int number) { return __shfl_sync(0xffffffff, number, 0); }

struct Tile {
    const Attention& problem;
    Work work;
    int thread, quad;
    int first_row;  // of this lane's two, in the tile
    Rows rows;
    Weights weights;
    Sums sums;

    __device__ Tile(const Attention& problem, const Work& work, int thread, unsigned promoted)
        : problem(problem),
          work(work),
          thread(thread),
          quad(thread % 4),
          first_row(first_row_of(thread)),
          sums(promoted) {}

    __device__ static int first_row_of(int thread) {
        return thread / WARPGROUP * WARPGROUP_ROWS + thread % WARPGROUP / 32 * 16 + thread % 32 / 4;
    }

    // Where the scales of a tile of keys are, and of the lane's two rows.
    __device__ const float* key_scale(int tile) const {
        return problem.k_scales.at(work.kv_index(problem), KEY_BLOCK_SCALES ? tile * TILE_KEYS : 0);
    }
    __device__ const float* value_scale(int tile) const {
        return problem.v_scales.at(work.kv_index(problem), VALUE_BLOCK_SCALES ? tile * TILE_KEYS : 0);
    }
    __device__ const float* query_scale(int half) const {
        int row = first_row + 8 * half;
        bool exists = work.has_row(problem, row);
        int head = exists ? work.head(problem, row) : work.first_head;
        int query = exists && QUERY_BLOCK_SCALES ? work.query(problem, row) : 0;
        return problem.q_scales.at(work.batch * problem.query_heads + head, query);
    }

    // From products of codes to powers of two: exactly, or as the weights' arithmetic can say it.
    __device__ float exact_scale(float query, float key) const { return query * key * problem.scale_log2; }
    __device__ void set_scales(float first, float second, float key) {
        rows.scale[0] = Weights::rounded(exact_scale(first, key));
        rows.scale[1] = Weights::rounded(exact_scale(second, key));
    }
    __device__ void read_scales(int tile) { set_scales(*query_scale(0), *query_scale(1), *key_scale(tile)); }

    // Hides keys of a tile, which starts there, from rows that must not see them; only those from `first` on.
    __device__ void mask(Scores& scores, int start, int first = 0) const {
        int visible[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int query = work.query(problem, first_row + 8 * half);
            visible[half] = problem.visible_keys(query) - start - 2 * quad;
        }
        // Of the warp's rows the first sees least; what it sees needs no mask.
        int least = first_row - thread % 32 / 4;
        int seen = problem.visible_keys(problem.packed_heads > 1 ? 0 : work.first_query + least) - start;
        scores.mask(visible, seen, first);
    }

    // When all products are done: row sums and maxima as the output needs them.
    __device__ void close() {
        sums.take_row_sums(rows.sum);
        sums.finish();
        if constexpr (SUMS_IN_PARTS) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                rows.sum[row] += __shfl_xor_sync(0xffffffff, rows.sum[row], 1);
                rows.sum[row] += __shfl_xor_sync(0xffffffff, rows.sum[row], 2);
            }
        }
        if (problem.has_lse() && !KEY_BLOCK_SCALES) {
            // Maxima are in powers of two of the scale as it was rounded.
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                rows.maximum[row] *= exact_scale(*query_scale(row), *key_scale(0)) * reciprocal(rows.scale[row]);
            }
        }
    }
};
