// One warpgroup's rows of one tile of queries: what is the same whichever way the keys come.
#pragma once
#include "hopper/problem.cuh"
#include "hopper/scores.cuh"
#include "hopper/accumulator.cuh"
#include "hopper/store.cuh"
#include "hopper/weights.cuh"

// A number that all lanes of the warp have in common, so that the compiler knows: loops that it bounds need no
// predicates, and descriptors made of it stay in uniform registers. All lanes of the warp.
__device__ inline int same_in_warp(int number) { return __shfl_sync(0xffffffff, number, 0); }

struct Tile {
    const Attention& problem;
    Work work;
    int thread, quad;
    int first_row;  // of this lane's two, in the tile
    RowState rows;
    Exponential exponential;
    Cap cap;
    Weights weights;
    Accumulator acc;

    __device__ Tile(const Attention& problem, const Work& work, int thread, unsigned promoted)
        : problem(problem),
          work(work),
          thread(thread),
          quad(thread % 4),
          first_row(first_row_of(thread)),
          acc(promoted) {}

    __device__ static int first_row_of(int thread) {
        return thread / WARPGROUP * WARPGROUP_ROWS + thread % WARPGROUP / 32 * 16 + thread % 32 / 4;
    }

    // Where the scales of a tile of keys are, and of the lane's two rows.
    __device__ const float* key_scale(int tile) const {
        return problem.k_scales.at(work.kv_head_index(problem), KEY_BLOCK_SCALES ? tile * TILE_KEYS : 0);
    }
    __device__ const float* value_scale(int tile) const {
        // Of split keys behind a window a block may have no part, but it asks.
        int row = WINDOW && SPLIT_KEYS ? min(tile * TILE_KEYS, problem.key_len - 1) : tile * TILE_KEYS;
        return problem.v_scales.at(work.kv_head_index(problem), VALUE_BLOCK_SCALES ? row : 0);
    }
    __device__ const float* query_scale(int half) const {
        int row = first_row + 8 * half;
        bool exists = work.has_row(problem, row);
        int head = exists ? work.head(problem, row) : work.first_head;
        int query = exists && QUERY_BLOCK_SCALES ? work.query(problem, row) : 0;
        return work.query_scale(problem, head, query);
    }

    // From products of codes to powers of two: exactly, or as the weights' arithmetic can say it.
    __device__ float exact_scale(float query, float key) const { return query * key * problem.scale_log2; }
    __device__ void set_scales(float first, float second, float key) {
        if constexpr (SOFTCAP) {
            cap.set(problem, 0, exact_scale(first, key));
            cap.set(problem, 1, exact_scale(second, key));
            rows.scale[0] = rows.scale[1] = Exponential::rounded(Cap::unit(problem));
        } else {
            rows.scale[0] = Exponential::rounded(exact_scale(first, key));
            rows.scale[1] = Exponential::rounded(exact_scale(second, key));
        }
    }
    // A bound is of scores with what means add.
    __device__ void set_shifts() {
        if constexpr (SOFTCAP) {
            if (!problem.k_means) return;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                RowPlace row{problem, work, first_row + 8 * half};
                cap.set_shift(problem, half, shift_by_means(problem, work, row, quad));
            }
        }
    }
    __device__ void read_scales(int tile) { set_scales(*query_scale(0), *query_scale(1), *key_scale(tile)); }

    // No product of a row of INT8 with a key is larger: by Cauchy and Schwarz, with as large a key as there may be.
    // Every lane of the row's quad.
    __device__ float largest_product(int half) const {
        RowPlace row{problem, work, first_row + 8 * half};
        int square = 0;
        if (row.exists) {
            const unsigned char* codes =
                problem.q_lines.head(work.batch, row.head) + row.query * problem.q_lines.line_stride;
            square = square_of_codes(codes, quad);
        }
        const float LARGEST_KEY = 127.0f * sqrtf(static_cast<float>(HEAD_DIM));
        return LARGEST_KEY * sqrtf(quad_sum(static_cast<float>(square)));
    }

    // Hides keys of a tile, which starts there, from rows that must not see them; only those from `first` on.
    __device__ void mask(Scores& scores, int start, int first = 0) const {
        int end[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int query = work.query(problem, first_row + 8 * half);
            end[half] = work.visible(problem, query).end - start - 2 * quad;
        }
        // Of the warp's rows the first sees least behind; what it sees needs no mask.
        int least = first_row - thread % 32 / 4;
        int seen = work.visible(problem, problem.packed_heads > 1 ? 0 : work.first_query + least).end - start;
        scores.hide_behind(end, seen, first);
        if constexpr (WINDOW) hide_before_window(scores, start, first);
    }
    __device__ void hide_before_window(Scores& scores, int start, int first) const {
        int begin[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int query = work.query(problem, first_row + 8 * half);
            begin[half] = work.visible(problem, query).first - start - 2 * quad;
        }
        // And the last sees least before.
        int last = work.first_query + first_row - thread % 32 / 4 + WARP_ROWS - 1;
        int seen = work.visible(problem, problem.packed_heads > 1 ? problem.query_len - 1 : last).first - start;
        scores.hide_before(begin, seen, first);
    }

    // When all products are done: row sums and maxima as the output needs them.
    __device__ void finish_rows() {
        acc.take_row_sums(rows.row_sum);
        acc.finish();
        if constexpr (SUMS_IN_PARTS) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                rows.row_sum[row] = quad_sum(rows.row_sum[row]);
            }
        }
        if constexpr (SOFTCAP) {
#pragma unroll
            for (int row = 0; row < 2; ++row) rows.row_max[row] *= Cap::unit(problem) * reciprocal(rows.scale[row]);
        } else if ((problem.has_lse() || SINKS) && !KEY_BLOCK_SCALES) {
            // Maxima are in powers of two of the scale as it was rounded.
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                rows.row_max[row] *= exact_scale(*query_scale(row), *key_scale(0)) * reciprocal(rows.scale[row]);
            }
        }
    }
};
