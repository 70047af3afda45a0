// The online softmax: weights relative to the largest score so far, and what corrects the sums when that grows.
#pragma once
#include "attention/lanes.cuh"
#include "attention/output.cuh"
#include "attention/scoring.cuh"
#include "ladder/scores.cuh"
#include "ptx/exponential.cuh"

// 2^x on the multiply-add units: 2^x = 2^round(x) · polynomial(x - round(x)), relative error 7.5e-5 (minimax,
// degree 3 on [-1/2, 1/2]), a third of what rounding to f16 costs. For x up to 127; below -126 it stays near 1e-38.
__device__ inline float exp2_polynomial(float x) {
    const float MAGIC = 12582912.0f;  // 1.5 · 2^23: adding it leaves round(x) in the low bits of the sum
    x = fmaxf(x, -126.0f);
    float shifted = x + MAGIC;
    float rest = x - (shifted - MAGIC);
    float power = fmaf(fmaf(fmaf(0.05517166f, rest, 0.24261112f), rest, 0.69326099f), rest, 0.99992807f);
    return __int_as_float(__float_as_int(power) + (__float_as_int(shifted) << 23));
}

__device__ inline float exp2_of(float x) { return EXP_POLYNOMIAL ? exp2_polynomial(x) : exp2_hardware(x); }

// Where softmax happens in shared memory: f32 scores and f16 weights by row, and the rows' maximum, sum and correction.
struct SharedRows {
    char* memory;

    __device__ float* scores(int row) const { return reinterpret_cast<float*>(memory + SCORES + row * SCORE_STRIDE); }
    __device__ unsigned short* weights(int row) const {
        return reinterpret_cast<unsigned short*>(memory + WEIGHTS + row * WEIGHT_STRIDE);
    }
    __device__ float& maximum(int row) const { return reinterpret_cast<float*>(memory + ROW_STATE)[row]; }
    __device__ float& sum(int row) const { return reinterpret_cast<float*>(memory + ROW_STATE)[TILE_QUERIES + row]; }
    __device__ float& correction(int row) const {
        return reinterpret_cast<float*>(memory + ROW_STATE)[2 * TILE_QUERIES + row];
    }
};

// What the means that were taken from K add to a row's scores, in powers of two. Every lane of the row's quad.
__device__ inline float shift_by_means(const Attention& problem, const Work& work, int query, int lane) {
    if (!problem.k_means) return 0.0f;
    query = min(query, problem.query_len - 1);
    const unsigned char* codes = problem.q.line(problem.q.head(work.batch, work.head), query);
    const float* means = problem.k_means + work.kv_head_index(problem) * HEAD_DIM;
    return product_with_means(codes, means, lane % 4) * problem.scale_log2 *
           problem.q.scale(work.head_index(problem), query);
}

// What the rows that a lane shares carry from tile to tile; row r of a lane is row 8·(r%2) + lane/4 of row tile r/2.
struct Rows {
    static constexpr int COUNT = 2 * ROW_TILES;
    // From products of codes to powers of two, as far as it does not change along the keys: with K's scale or without.
    float scale_log2[QUERY_BLOCK_SCALES ? COUNT : 1];
    float maximum[COUNT];     // of the scores so far, in powers of two
    float sum[COUNT];         // of the weights so far; of this lane's columns alone, where scores are in registers
    float normaliser[COUNT];  // at the end: what the sums are divided by
    float shift[SOFTCAP ? COUNT : 1];  // what is added to scores, in powers of two, before they are capped
    float share[SINKS ? COUNT : 1];    // at the end: of the keys in the sum of all weights

    __device__ void begin(const Attention& problem, const Work& work, int row_warp, int lane) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row) {
            maximum[row] = LOWEST;
            sum[row] = 0.0f;
        }
        float key_scale = KEY_BLOCK_SCALES ? 1.0f : problem.k.scale(work.kv_head_index(problem), 0);
#pragma unroll
        for (int row = 0; row < (QUERY_BLOCK_SCALES ? COUNT : 1); ++row) {
            int query = QUERY_BLOCK_SCALES ? min(query_of(work, row_warp, lane, row), problem.query_len - 1) : 0;
            scale_log2[row] = problem.scale_log2 * problem.q.scale(work.head_index(problem), query) * key_scale;
        }
        if constexpr (SOFTCAP) {
#pragma unroll
            for (int row = 0; row < COUNT; ++row) {
                shift[row] = shift_by_means(problem, work, query_of(work, row_warp, lane, row), lane);
            }
        }
    }

    // From scores to powers of two, in which capped ones are.
    __device__ float scale_of(int row) const { return SOFTCAP ? 1.0f : scale_of_products(row); }
    __device__ float scale_of_products(int row) const { return scale_log2[QUERY_BLOCK_SCALES ? row : 0]; }

    // The head's sink joins the sum of each row, when all keys are in it. The maximum and the sum may then be the
    // sink's; the normaliser stays in the units of the sums of V.
    __device__ void add_sink(const Attention& problem, const Work& work, int row_warp, int lane) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row) {
            float sink = sink_score(problem, work.head);
            // Scores are without what means add unless they are capped, and so is the sink.
            if constexpr (!SOFTCAP) sink -= shift_by_means(problem, work, query_of(work, row_warp, lane, row), lane);
            float larger = fmaxf(maximum[row], sink);
            float kept = exp2_hardware(maximum[row] - larger), added = exp2_hardware(sink - larger) * SINK_WEIGHT;
            float all = normaliser[row] * kept + added;
            share[row] = normaliser[row] * kept / all;
            normaliser[row] = all / kept;
            sum[row] = sum[row] * kept + added;
            maximum[row] = larger;
        }
    }

    // Scores in registers: the sum over all columns.
    __device__ void gather() {
#pragma unroll
        for (int row = 0; row < COUNT; ++row) sum[row] = quad_sum(sum[row]);
    }

    // Scores in shared memory: what is kept there.
    __device__ void read(const SharedRows& shared, int row_warp, int lane) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row) {
            int line = row_warp * WARP_ROWS + 8 * row + lane / 4;
            maximum[row] = shared.maximum(line);
            sum[row] = shared.sum(line);
        }
    }

    __device__ float share_of(int row) const { return SINKS ? share[SINKS ? row : 0] : 1.0f; }

    __device__ static int query_of(const Work& work, int row_warp, int lane, int row) {
        return work.first_query + row_warp * WARP_ROWS + 16 * (row / 2) + 8 * (row % 2) + lane / 4;
    }
};

// Scores as they are to be weighed where they have a bound. Before those are hidden that no query sees.
__device__ inline void cap_scores(Scores& scores, const Attention& problem, const Rows& rows, float key_scale) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        float scale = rows.scale_of_products(row) * key_scale;
#pragma unroll
        for (int j = 0; j < KEY_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores.value[row / 2][j][2 * (row % 2) + i];
                score = cap_score(problem, fmaf(score, scale, rows.shift[row]));
            }
        }
    }
}

// Scores of keys that a query does not see become minus infinity.
__device__ inline void mask_scores(Scores& scores, const Attention& problem, const Work& work, int key_tile,
                                   int row_warp, int group, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        KeyRange keys = visible_keys(problem, Rows::query_of(work, row_warp, lane, row));
        int first = keys.first - key_tile * TILE_KEYS, end = keys.end - key_tile * TILE_KEYS;
#pragma unroll
        for (int j = 0; j < KEY_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                int key = Scores::key(group, j, 2 * (lane % 4) + i);
                if (key >= end || (WINDOW && key < first)) {
                    scores.value[row / 2][j][2 * (row % 2) + i] = minus_infinity();
                }
            }
        }
    }
}

// Scores to weights, in their registers. `correction` is what earlier sums of each row are to be multiplied by.
__device__ inline void weigh_in_registers(Scores& scores, Rows& rows, float key_scale,
                                          float (&correction)[Rows::COUNT]) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        float scale = rows.scale_of(row) * key_scale;
        float largest = LOWEST;
#pragma unroll
        for (int j = 0; j < KEY_TILES; ++j) {
            const float(&pair)[4] = scores.value[row / 2][j];
            largest = fmaxf(largest, fmaxf(pair[2 * (row % 2)], pair[2 * (row % 2) + 1]));
        }
        float maximum = fmaxf(rows.maximum[row], quad_max(largest) * scale);
        correction[row] = exp2_hardware(rows.maximum[row] - maximum);
        rows.maximum[row] = maximum;
        float shift = WEIGHT_EXPONENT - maximum, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < KEY_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores.value[row / 2][j][2 * (row % 2) + i];
                score = exp2_of(fmaf(score, scale, shift));
                sum += score;
            }
        }
        rows.sum[row] = fmaf(rows.sum[row], correction[row], sum);
    }
}

// Before the first tile; a warp for its own rows.
__device__ inline void begin_rows(const SharedRows& shared, int warp, int lane) {
    if (lane < WARP_ROWS) {
        shared.maximum(warp * WARP_ROWS + lane) = LOWEST;
        shared.sum(warp * WARP_ROWS + lane) = 0.0f;
    }
    __syncwarp();
}

// A warp's accumulators to its rows of the score buffer, scaled to powers of two.
__device__ inline void store_scores(const SharedRows& shared, const Scores& scores, const Rows& rows, float key_scale,
                                    int warp, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        float scale = rows.scale_of(row) * key_scale;
        float* line = shared.scores(warp * WARP_ROWS + 8 * row + lane / 4);
#pragma unroll
        for (int j = 0; j < KEY_TILES; ++j) {
            const float(&pair)[4] = scores.value[0][j];
            *reinterpret_cast<float2*>(line + 8 * j + 2 * (lane % 4)) =
                make_float2(pair[2 * row] * scale, pair[2 * row + 1] * scale);
        }
    }
    __syncwarp();
}

// Scores to weights, one row after the other, the lanes of the warp side by side along the keys.
__device__ inline void weigh_in_shared(const SharedRows& shared, int warp, int lane) {
    constexpr int PAIRS = TILE_KEYS / 64 ? TILE_KEYS / 64 : 1;
    bool active = 2 * lane < TILE_KEYS;
#pragma unroll 4
    for (int row = warp * WARP_ROWS; row < (warp + 1) * WARP_ROWS; ++row) {
        float2 score[PAIRS];
        float largest = minus_infinity();
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            score[i] = active ? reinterpret_cast<const float2*>(shared.scores(row))[32 * i + lane]
                              : make_float2(minus_infinity(), minus_infinity());
            largest = fmaxf(largest, fmaxf(score[i].x, score[i].y));
        }
        float before = shared.maximum(row);
        float maximum = fmaxf(before, warp_max(largest));
        float shift = WEIGHT_EXPONENT - maximum, sum = 0.0f;
        __syncwarp();  // weights may lie where the scores were
#pragma unroll
        for (int i = 0; i < PAIRS; ++i) {
            float first = exp2_of(score[i].x + shift), second = exp2_of(score[i].y + shift);
            sum += active ? first + second : 0.0f;
            if (active) reinterpret_cast<unsigned*>(shared.weights(row))[32 * i + lane] = pack_f16(first, second);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            float correction = exp2_hardware(before - maximum);
            shared.maximum(row) = maximum;
            shared.correction(row) = correction;
            shared.sum(row) = fmaf(shared.sum(row), correction, sum);
        }
    }
    __syncwarp();
}
