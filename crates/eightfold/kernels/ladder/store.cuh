// O / sum and the log-sum-exp, to global memory.
#pragma once
#include "attention/output.cuh"
#include "ladder/values.cuh"

// What a row needs at the end.
struct RowEnd {
    int query;
    bool sees_keys;
    float maximum;  // in powers of two
    float sum;      // of all weights
    float factor;   // from sums to outputs
    float share;    // of the keys in the sum

    __device__ RowEnd(const Attention& problem, int query, float maximum, float sum, float normaliser, float share,
                      float value_scale)
        : query(query),
          sees_keys(!visible_keys(problem, query).is_empty()),
          maximum(maximum),
          sum(sum),
          factor(value_scale / normaliser),
          share(share) {}

    // What a channel's mean in V adds to the output.
    __device__ float of_means(float mean) const { return SINKS ? mean * share : mean; }
};

// Whether a channel only pads the head.
__device__ inline bool is_padding(int channel) { return VALUE_DIM < VALUE_TILE && channel >= VALUE_DIM; }

// `COUNT` neighbouring channels of a row: normalised, centred V's mean added, rounded to the output's format.
template <int COUNT>
__device__ inline void store_channels(const Attention& problem, const Work& work, const RowEnd& row, int channel,
                                      const float (&sums)[COUNT]) {
    float value[COUNT];
    const float* means =
        problem.v_means ? problem.v_means + work.kv_head_index(problem) * VALUE_DIM + channel : nullptr;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        value[i] = row.sees_keys ? fmaf(sums[i], row.factor, means ? row.of_means(means[i]) : 0.0f) : 0.0f;
    }
    long long place = problem.output.place(work.batch, work.head, row.query) + channel;
    if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
        float* out = static_cast<float*>(problem.output.values) + place;
        if constexpr (COUNT == 4) {
            *reinterpret_cast<float4*>(out) = make_float4(value[0], value[1], value[2], value[3]);
        } else {
            *reinterpret_cast<float2*>(out) = make_float2(value[0], value[1]);
        }
    } else {
        unsigned short* out = static_cast<unsigned short*>(problem.output.values) + place;
        if constexpr (COUNT == 4) {
            *reinterpret_cast<uint2*>(out) =
                make_uint2(pack_output(value[0], value[1]), pack_output(value[2], value[3]));
        } else {
            *reinterpret_cast<unsigned*>(out) = pack_output(value[0], value[1]);
        }
    }
}

// Every lane of the row's quad.
__device__ inline void store_lse(const Attention& problem, const Work& work, const RowEnd& row, int lane) {
    if (!problem.output.lse) return;
    float shift = SOFTCAP ? 0.0f : shift_by_means(problem, work, row.query, lane);
    if (row.query >= problem.query_len || lane % 4 != 0) return;
    float lse = row.sees_keys || SINKS ? log_sum_exp(row.maximum, row.sum, shift) : minus_infinity();
    problem.output.lse[static_cast<long long>(work.head_index(problem)) * problem.query_len + row.query] = lse;
}

__device__ inline void store_sums(const Attention& problem, const Work& work, const MmaSums& sums, const Rows& rows,
                                  float value_scale, int row_warp, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        RowEnd end(problem, Rows::query_of(work, row_warp, lane, row), rows.maximum[row], rows.sum[row],
                   rows.normaliser[row], rows.share_of(row), value_scale);
        store_lse(problem, work, end, lane);
        if (end.query >= problem.query_len) continue;
#pragma unroll
        for (int n = 0; n < DIM_TILES; n += 2) {
            const float(&a)[4] = sums.value[row / 2][n];
            const float(&b)[4] = sums.value[row / 2][n + 1];
            int i = 2 * (row % 2), channel = 8 * n + 4 * (lane % 4);
            const float channels[4] = {a[i], a[i + 1], b[i], b[i + 1]};
            if (!is_padding(channel)) store_channels(problem, work, end, channel, channels);
        }
    }
}

__device__ inline void store_sums(const Attention& problem, const Work& work, const LaneSums& sums, const Rows& rows,
                                  float value_scale, int row_warp, int lane) {
#pragma unroll
    for (int row = 0; row < Rows::COUNT; ++row) {
        RowEnd end(problem, Rows::query_of(work, row_warp, lane, row), rows.maximum[row], rows.sum[row],
                   rows.normaliser[row], rows.share_of(row), value_scale);
        store_lse(problem, work, end, lane);
    }
    // The lanes that hold a row's maximum and sum are not those that hold its channels.
    int row = LaneSums::row(lane);
    int holder = 4 * (row % 8);
    float maxima[2], normalisers[2], shares[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        maxima[half] = __shfl_sync(0xffffffff, rows.maximum[half], holder);
        normalisers[half] = __shfl_sync(0xffffffff, SINKS ? rows.normaliser[half] : rows.sum[half], holder);
        shares[half] = SINKS ? __shfl_sync(0xffffffff, rows.share_of(half), holder) : 1.0f;
    }
    int query = work.first_query + row_warp * WARP_ROWS + row;
    if (query >= problem.query_len) return;
    float normaliser = row < 8 ? normalisers[0] : normalisers[1];
    RowEnd end(problem, query, row < 8 ? maxima[0] : maxima[1], normaliser, normaliser, row < 8 ? shares[0] : shares[1],
               value_scale);
#pragma unroll
    for (int i = 0; i < LaneSums::COUNT; i += 2) {
        const float channels[2] = {sums.value[i], sums.value[i + 1]};
        int channel = from_fragment_order(LaneSums::place(lane, i));
        if (!is_padding(channel)) store_channels(problem, work, end, channel, channels);
    }
}
