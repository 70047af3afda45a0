// O / sum and the log-sum-exp, to global memory.
#pragma once
#include "attention/output.cuh"
#include "attention/scoring.cuh"
#include "hopper/accumulator.cuh"

// Where a row of the tile goes.
struct RowPlace {
    int query, head;
    bool exists;      // in the problem; a tile may reach beyond it
    bool sees_keys;   // if not, its output is zero
    long long place;  // of its output

    __device__ RowPlace(const Attention& problem, const Work& work, int row)
        : query(work.query(problem, row)),
          head(work.head(problem, row)),
          exists(work.has_row(problem, row)),
          sees_keys(!work.visible(problem, query).is_empty()),
          place(work.output_place(problem, head, query)) {}
};

// What the means that were taken from K add to a row's scores, in powers of two. Every lane of the row's quad.
__device__ inline float shift_by_means(const Attention& problem, const Work& work, const RowPlace& row, int quad) {
    RowPlace safe = row;
    if (!row.exists) safe.query = 0, safe.head = work.first_head;
    float shift = 0.0f;
    if (problem.k_means) {
        const unsigned char* codes =
            problem.q_lines.head(work.batch, safe.head) + safe.query * problem.q_lines.line_stride;
        shift = product_with_means(codes, problem.k_means + work.kv_head_index(problem) * HEAD_DIM, quad % 4) *
                problem.scale_log2 * *work.query_scale(problem, safe.head, safe.query);
    }
    return shift;
}

// From the maximum, in powers of two, and the sum of all weights. Every lane of the row's quad.
__device__ inline void store_lse(const Attention& problem, const Work& work, const RowPlace& row, float maximum,
                                 float sum, int quad) {
    if (!problem.has_lse()) return;
    float shift = SOFTCAP ? 0.0f : shift_by_means(problem, work, row, quad);
    if (!row.exists || quad != 0) return;
    float lse = log_sum_exp(maximum, sum, shift);
    problem.output.lse[work.lse_place(problem, row.head, row.query)] = row.sees_keys || SINKS ? lse : minus_infinity();
}

// The sink of a row's head joins the sum of its keys' weights, once all of them are in it. Returns what its outputs are
// to be multiplied by, because the sink may be the new maximum. Every lane of the row's quad.
__device__ inline float add_sink(const Attention& problem, const Work& work, const RowPlace& row, float& maximum,
                                 float& sum, int quad) {
    float sink = sink_score(problem, row.exists ? row.head : work.first_head);
    // Scores are without what means add unless they are capped, and so is the sink.
    if constexpr (!SOFTCAP) sink -= shift_by_means(problem, work, row, quad);
    float larger = fmaxf(maximum, sink), kept = exp2_hardware(maximum - larger);
    sum = sum * kept + exp2_hardware(sink - larger) * SINK_WEIGHT;
    maximum = larger;
    return kept;
}

// Turns four words of each lane of a quad: lane q gets word q of all four lanes.
__device__ inline uint4 turn_in_quad(const unsigned (&word)[4], int quad) {
    bool odd = quad & 1, high = quad & 2;
    unsigned a = __shfl_xor_sync(0xffffffff, odd ? word[0] : word[1], 1);
    unsigned b = __shfl_xor_sync(0xffffffff, odd ? word[2] : word[3], 1);
    unsigned t[4] = {odd ? a : word[0], odd ? word[1] : a, odd ? b : word[2], odd ? word[3] : b};
    unsigned c = __shfl_xor_sync(0xffffffff, high ? t[0] : t[2], 2);
    unsigned d = __shfl_xor_sync(0xffffffff, high ? t[1] : t[3], 2);
    return high ? make_uint4(c, d, t[2], t[3]) : make_uint4(t[0], t[1], c, d);
}

// What was taken from V, as if it had been summed with everything else.
__device__ inline void add_means(const Attention& problem, const Work& work, float (&sums)[VALUE_COLUMNS / 2],
                                 const float (&row_sum)[2], float value_scale, int quad) {
    if (!problem.has_value_means()) return;
    const float* means = problem.v_means + work.kv_head_index(problem) * VALUE_DIM;
    float weight[2] = {row_sum[0] * reciprocal(value_scale), row_sum[1] * reciprocal(value_scale)};
#pragma unroll
    for (int i = 0; i < VALUE_DIM / 2; ++i) sums[i] += means[i / 4 * 8 + 2 * quad + i % 2] * weight[i / 2 % 2];
}

// The sinks of a lane's two rows.
__device__ inline void add_sinks(const Attention& problem, const Work& work, float (&sums)[VALUE_COLUMNS / 2],
                                 RowState& rows, const RowPlace (&places)[2], int quad) {
    if constexpr (SINKS) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float kept = add_sink(problem, work, places[half], rows.row_max[half], rows.row_sum[half], quad);
#pragma unroll
            for (int i = 0; i < VALUE_DIM / 2; ++i) {
                if (i / 2 % 2 == half) sums[i] *= kept;
            }
        }
    }
}

// A lane's two rows: normalised, rounded to the output's format.
__device__ inline void store_rows(const Attention& problem, const Work& work, const float (&sums)[VALUE_COLUMNS / 2],
                                  const RowState& rows, const RowPlace (&places)[2], float value_scale, int quad) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const RowPlace& row = places[half];
        store_lse(problem, work, row, rows.row_max[half], rows.row_sum[half], quad);
        float factor = row.sees_keys ? value_scale * reciprocal(rows.row_sum[half]) : 0.0f;
        auto output = [&](int block, int i) { return sums[4 * block + 2 * half + i] * factor; };
        if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
            float* out = static_cast<float*>(problem.output.values) + row.place + 2 * quad;
            if (!row.exists) continue;
#pragma unroll
            for (int block = 0; block < VALUE_DIM / 8; ++block) {
                *reinterpret_cast<float2*>(out + 8 * block) = make_float2(output(block, 0), output(block, 1));
            }
        } else {
            unsigned short* out = static_cast<unsigned short*>(problem.output.values) + row.place + 8 * quad;
#pragma unroll
            for (int group = 0; group < (VALUE_DIM + 31) / 32; ++group) {
                unsigned words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = pack_output(output(4 * group + i, 0), output(4 * group + i, 1));
                uint4 turned = turn_in_quad(words, quad);
                bool in_row = VALUE_DIM % 32 == 0 || 32 * group + 8 * quad < VALUE_DIM;
                store_global_16(out + 32 * group, turned, row.exists && in_row);
            }
        }
    }
}
