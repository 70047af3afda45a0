// O / sum and the log-sum-exp, to global memory.
#pragma once
#include "ladder/values.cuh"

// What a row needs at the end.
struct RowEnd {
    int query;
    bool sees_keys;
    float maximum;  // in powers of two
    float sum;      // of all weights
    float factor;   // from sums to outputs

    __device__ RowEnd(const Attention& problem, int query, float maximum, float sum, float normaliser,
                      float value_scale)
        : query(query),
          sees_keys(problem.visible_keys(query) > 0),
          maximum(maximum),
          sum(sum),
          factor(value_scale / normaliser) {}
};

// `COUNT` neighbouring channels of a row: normalised, centred V's mean added, rounded to the output's format.
template <int COUNT>
__device__ inline void store_channels(const Attention& problem, const Work& work, const RowEnd& row, int channel,
                                      const float (&sums)[COUNT]) {
    float value[COUNT];
    const float* means = problem.v_means ? problem.v_means + work.kv_head_index(problem) * HEAD_DIM + channel : nullptr;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        value[i] = row.sees_keys ? fmaf(sums[i], row.factor, means ? means[i] : 0.0f) : 0.0f;
    }
    long long place = work.batch * problem.output_batch_stride + work.head * problem.output_head_stride +
                      row.query * problem.output_row_stride + channel;
    if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
        float* out = static_cast<float*>(problem.output) + place;
        if constexpr (COUNT == 4) {
            *reinterpret_cast<float4*>(out) = make_float4(value[0], value[1], value[2], value[3]);
        } else {
            *reinterpret_cast<float2*>(out) = make_float2(value[0], value[1]);
        }
    } else {
        auto pack = [](float a, float b) { return OUTPUT_FORMAT == FORMAT_F16 ? pack_f16(a, b) : pack_bf16(a, b); };
        unsigned short* out = static_cast<unsigned short*>(problem.output) + place;
        if constexpr (COUNT == 4) {
            *reinterpret_cast<uint2*>(out) = make_uint2(pack(value[0], value[1]), pack(value[2], value[3]));
        } else {
            *reinterpret_cast<unsigned*>(out) = pack(value[0], value[1]);
        }
    }
}

// This lane's words of a row of Q against the means that were taken from K: softmax does not see them, but the
// log-sum-exp does. In products of codes; to be summed over the quad.
__device__ inline float product_with_means(const Attention& problem, const Work& work, int query, int lane) {
    const unsigned* words =
        reinterpret_cast<const unsigned*>(problem.q.line(problem.q.head(work.batch, work.head), query));
    const float* means = problem.k_means + work.kv_head_index(problem) * HEAD_DIM;
    float product = 0.0f;
    for (int chunk = lane % 4; chunk < HEAD_DIM / 4; chunk += 4) {
        unsigned word = words[chunk];
        Floats2 low = to_floats(widen_low<E5M2>(word));
        Floats2 high = to_floats(widen_high<E5M2>(word));
        product += low.low * means[4 * chunk] + low.high * means[4 * chunk + 1] + high.low * means[4 * chunk + 2] +
                   high.high * means[4 * chunk + 3];
    }
    return product;
}

// Every lane of the row's quad.
__device__ inline void store_lse(const Attention& problem, const Work& work, const RowEnd& row, int lane) {
    if (!problem.lse) return;
    float shift = 0.0f;
    if (problem.k_means) {
        int query = min(row.query, problem.query_len - 1);
        shift = quad_sum(product_with_means(problem, work, query, lane)) * problem.scale_log2 *
                problem.q.scale(work.head_index(problem), query);
    }
    if (row.query >= problem.query_len || lane % 4 != 0) return;
    const float LN_2 = 0.6931471805599453f;
    float lse =
        row.sees_keys ? (row.maximum - WEIGHT_EXPONENT + log2_hardware(row.sum) + shift) * LN_2 : minus_infinity();
    problem.lse[static_cast<long long>(work.head_index(problem)) * problem.query_len + row.query] = lse;
}

__device__ inline void store_sums(const Attention& problem, const Work& work, const MmaSums& sums, const Rows& rows,
                                  float value_scale, int row_warp, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        RowEnd end(problem, Rows::query_of(work, row_warp, lane, row), rows.maximum[row], rows.sum[row],
                   rows.normaliser[row], value_scale);
        store_lse(problem, work, end, lane);
        if (end.query >= problem.query_len) continue;
#pragma unroll
        for (int n = 0; n < DIM_TILES; n += 2) {
            const float (&a)[4] = sums.value[row / 2][n];
            const float (&b)[4] = sums.value[row / 2][n + 1];
            int i = 2 * (row % 2);
            const float channels[4] = {a[i], a[i + 1], b[i], b[i + 1]};
            store_channels(problem, work, end, 8 * n + 4 * (lane % 4), channels);
        }
    }
}

__device__ inline void store_sums(const Attention& problem, const Work& work, const LaneSums& sums, const Rows& rows,
                                  float value_scale, int row_warp, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        RowEnd end(problem, Rows::query_of(work, row_warp, lane, row), rows.maximum[row], rows.sum[row],
                   rows.normaliser[row], value_scale);
        store_lse(problem, work, end, lane);
    }
    // The lanes that hold a row's maximum and sum are not those that hold its channels.
    int row = LaneSums::row(lane);
    int holder = 4 * (row % 8);
    float maxima[2], totals[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        maxima[half] = __shfl_sync(0xffffffff, rows.maximum[half], holder);
        totals[half] = __shfl_sync(0xffffffff, rows.sum[half], holder);
    }
    int query = work.first_query + row_warp * WARP_ROWS + row;
    if (query >= problem.query_len) return;
    float total = row < 8 ? totals[0] : totals[1];
    RowEnd end(problem, query, row < 8 ? maxima[0] : maxima[1], total, total, value_scale);
#pragma unroll
    for (int i = 0; i < LaneSums::COUNT; i += 2) {
        const float channels[2] = {sums.value[i], sums.value[i + 1]};
        store_channels(problem, work, end, from_fragment_order(LaneSums::place(lane, i)), channels);
    }
}
