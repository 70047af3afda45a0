// O / sum and the log-sum-exp, to global memory.
#pragma once
#include "hopper/sums.cuh"

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
          sees_keys(problem.visible_keys(query) > 0),
          place(work.batch * problem.output_batch_stride + head * problem.output_head_stride +
                query * problem.output_row_stride) {}

    __device__ long long index(const Attention& problem, const Work& work) const {
        return (static_cast<long long>(work.batch) * problem.query_heads + head) * problem.query_len + query;
    }
};

// A row of Q against the means that were taken from K, in powers of two: softmax does not see them, but the log-sum-exp
// does. Every lane of the quad.
__device__ inline float product_with_means(const Attention& problem, const Work& work, const RowPlace& row, int quad) {
    const unsigned* words =
        reinterpret_cast<const unsigned*>(problem.q_lines.codes + work.batch * problem.q_lines.batch_stride +
                                          row.head * problem.q_lines.head_stride +
                                          row.query * problem.q_lines.row_stride);
    const float* means = problem.k_means + work.kv_index(problem) * HEAD_DIM;
    float product = 0.0f;
    for (int word = quad % 4; word < HEAD_DIM / 4; word += 4) {
        Floats2 low = to_floats(widen_low<E5M2>(words[word])), high = to_floats(widen_high<E5M2>(words[word]));
        product += low.low * means[4 * word] + low.high * means[4 * word + 1] + high.low * means[4 * word + 2] +
                   high.high * means[4 * word + 3];
    }
    product += __shfl_xor_sync(0xffffffff, product, 1);
    product += __shfl_xor_sync(0xffffffff, product, 2);
    return product * problem.scale_log2 * *problem.q_scales.at(work.batch * problem.query_heads + row.head, row.query);
}

// From the maximum, in powers of two, and the sum of all weights. Every lane of the row's quad.
__device__ inline void store_lse(const Attention& problem, const Work& work, const RowPlace& row, float maximum,
                                 float sum, int quad) {
    if (!problem.has_lse()) return;
    RowPlace safe = row;
    if (!row.exists) safe.query = 0, safe.head = work.first_head;
    float shift = problem.k_means ? product_with_means(problem, work, safe, quad) : 0.0f;
    if (!row.exists || quad != 0) return;
    const float LN_2 = 0.6931471805599453f;
    float lse = (maximum - WEIGHT_EXPONENT + log2_hardware(sum) + shift) * LN_2;
    problem.lse[row.index(problem, work)] = row.sees_keys ? lse : minus_infinity();
}

__device__ inline unsigned pack_output(float a, float b) {
    return OUTPUT_FORMAT == FORMAT_F16 ? pack_f16(a, b) : pack_bf16(a, b);
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
    const float* means = problem.v_means + work.kv_index(problem) * HEAD_DIM;
    float weight[2] = {row_sum[0] * reciprocal(value_scale), row_sum[1] * reciprocal(value_scale)};
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; ++i) sums[i] += means[i / 4 * 8 + 2 * quad + i % 2] * weight[i / 2 % 2];
}

// A lane's two rows: normalised, rounded to the output's format.
__device__ inline void store_rows(const Attention& problem, const Work& work, const float (&sums)[VALUE_COLUMNS / 2],
                                  const Rows& rows, const RowPlace (&places)[2], float value_scale, int quad) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const RowPlace& row = places[half];
        store_lse(problem, work, row, rows.maximum[half], rows.sum[half], quad);
        float factor = row.sees_keys ? value_scale * reciprocal(rows.sum[half]) : 0.0f;
        auto output = [&](int block, int i) { return sums[4 * block + 2 * half + i] * factor; };
        if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
            float* out = static_cast<float*>(problem.output) + row.place + 2 * quad;
            if (!row.exists) continue;
#pragma unroll
            for (int block = 0; block < HEAD_DIM / 8; ++block) {
                *reinterpret_cast<float2*>(out + 8 * block) = make_float2(output(block, 0), output(block, 1));
            }
        } else {
            unsigned short* out = static_cast<unsigned short*>(problem.output) + row.place + 8 * quad;
#pragma unroll
            for (int group = 0; group < HEAD_DIM / 32; ++group) {
                unsigned words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = pack_output(output(4 * group + i, 0), output(4 * group + i, 1));
                uint4 turned = turn_in_quad(words, quad);
                store_global_16(out + 32 * group, turned, row.exists);
            }
        }
    }
}
