// What is stored of a row: values in the output's format, and the log-sum-exp.
#pragma once
#include "attention/operands.cuh"
#include "attention/lanes.cuh"
#include "ptx/convert.cuh"
#include "ptx/exponential.cuh"

// A byte of a word, with its sign.
template <int BYTE>
__device__ inline int signed_byte(unsigned word) {
    return static_cast<int>(word << (24 - 8 * BYTE)) >> 24;
}

__device__ inline unsigned pack_output(float a, float b) {
    return OUTPUT_FORMAT == FORMAT_F16 ? pack_f16(a, b) : pack_bf16(a, b);
}

// Two of the four codes of a word of Q.
__device__ inline Floats2 low_codes(unsigned word) {
    if constexpr (INT8) return {static_cast<float>(signed_byte<0>(word)), static_cast<float>(signed_byte<1>(word))};
    return to_floats(widen_low<E5M2>(word));
}
__device__ inline Floats2 high_codes(unsigned word) {
    return INT8 ? low_codes(word >> 16) : to_floats(widen_high<E5M2>(word));
}

// A row of Q against the means that were taken from K, in products of codes: softmax does not see them, but the
// log-sum-exp does. Every lane of the quad.
__device__ inline float product_with_means(const unsigned char* query, const float* means, int quad) {
    const unsigned* words = reinterpret_cast<const unsigned*>(query);
    float product = 0.0f;
    for (int word = quad; word < HEAD_DIM / 4; word += 4) {
        Floats2 low = low_codes(words[word]), high = high_codes(words[word]);
        product += low.low * means[4 * word] + low.high * means[4 * word + 1] + high.low * means[4 * word + 2] +
                   high.high * means[4 * word + 3];
    }
    return quad_sum(product);
}

// The square of a row of INT8 codes: a lane's part of it.
__device__ inline int square_of_codes(const unsigned char* query, int quad) {
    const unsigned* words = reinterpret_cast<const unsigned*>(query);
    int square = 0;
#pragma unroll
    for (int word = quad; word < HEAD_DIM / 4; word += 4) {
        int bytes[4] = {signed_byte<0>(words[word]), signed_byte<1>(words[word]), signed_byte<2>(words[word]),
                        signed_byte<3>(words[word])};
#pragma unroll
        for (int i = 0; i < 4; ++i) square += bytes[i] * bytes[i];
    }
    return square;
}

// From the maximum, in powers of two, the sum of all weights, and what the means of K add.
__device__ inline float log_sum_exp(float row_max, float row_sum, float shift) {
    const float LN_2 = 0.6931471805599453f;
    return (row_max - WEIGHT_EXPONENT + log2_hardware(row_sum) + shift) * LN_2;
}
