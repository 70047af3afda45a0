// Attention of rows to all keys, from their attention to parts of them: each part weighs the exponential of its
// log-sum-exp. A warp for each row.
#include "attention/output.cuh"

constexpr int MOST_PARTS = 16;
constexpr int THREADS = 256;
constexpr int CHANNELS = (HEAD_DIM + 31) / 32;  // of a lane, 32 apart

// The struct of `src/cuda/paged/merge.rs`, field by field.
struct Merge {
    const void* values[MOST_PARTS];
    const float* lse[MOST_PARTS];
    void* output;
    float* output_lse;
    long long rows;
    int parts, unused;
};
static_assert(sizeof(Merge) == 288, "the host lays it out field by field");

__device__ inline float load_value(const void* values, long long place) {
    if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
        return static_cast<const float*>(values)[place];
    } else {
        unsigned short half = static_cast<const unsigned short*>(values)[place];
        return OUTPUT_FORMAT == FORMAT_F16 ? to_float(half) : __uint_as_float(static_cast<unsigned>(half) << 16);
    }
}

__device__ inline void store_value(void* values, long long place, float value) {
    if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
        static_cast<float*>(values)[place] = value;
    } else {
        static_cast<unsigned short*>(values)[place] = static_cast<unsigned short>(pack_output(value, 0.0f));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) paged_merge(const __grid_constant__ Merge problem) {
    const float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;
    long long row = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (row >= problem.rows) return;
    float largest = minus_infinity();
    for (int part = 0; part < problem.parts; ++part) largest = fmaxf(largest, problem.lse[part][row]);
    bool sees_keys = largest > minus_infinity();
    float sum = 0.0f, values[CHANNELS] = {};
    for (int part = 0; part < problem.parts && sees_keys; ++part) {
        float weight = exp2_hardware((problem.lse[part][row] - largest) * LOG2_E);
        sum += weight;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            int channel = 32 * i + lane;
            if (channel < HEAD_DIM) values[i] += weight * load_value(problem.values[part], row * HEAD_DIM + channel);
        }
    }
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        int channel = 32 * i + lane;
        if (channel < HEAD_DIM) {
            store_value(problem.output, row * HEAD_DIM + channel, sees_keys ? values[i] / sum : 0.0f);
        }
    }
    __syncwarp();  // the result may take the place of a part, whose log-sum-exp every lane has read
    if (lane == 0 && problem.output_lse) {
        problem.output_lse[row] = sees_keys ? largest + log2_hardware(sum) * LN_2 : minus_infinity();
    }
}
