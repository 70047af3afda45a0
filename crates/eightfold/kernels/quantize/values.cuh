// 16 bytes of neighbouring values: how they are loaded, widened to f32, centred, and how large they are.
#pragma once
#include "ptx/address.cuh"
#include "ptx/convert.cuh"
#include "ptx/load.cuh"
#include "quantize/problem.cuh"

struct Vector {
    float values[VECTOR];
};

__device__ inline void widen_f16(unsigned word, float& low, float& high) {
    const Floats2 floats = to_floats(word);
    low = floats.low, high = floats.high;
}

__device__ inline void widen_bf16(unsigned word, float& low, float& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}

// Where a vector of a row lies that is so many rows below another.
__device__ inline const char* address(const Quantize& problem, const char* first, int row, int channel) {
    return first + (static_cast<long long>(row) * problem.row_stride + channel) * BYTES;
}

__device__ inline Vector widen(uint4 words) {
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
    Vector vector;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
        vector.values[i] = __uint_as_float(word[i]);
#elif ELEMENT == 1
        widen_f16(word[i], vector.values[2 * i], vector.values[2 * i + 1]);
#else
        widen_bf16(word[i], vector.values[2 * i], vector.values[2 * i + 1]);
#endif
    }
    return vector;
}

// What is subtracted from the values of these channels.
__device__ inline Vector shift(const Quantize& problem, const Place& at, int channel) {
    Vector means;
    const float* source = problem.means + at.head_index * static_cast<long long>(HEAD_DIM) + channel;
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(source + i);
        means.values[i] = four.x, means.values[i + 1] = four.y;
        means.values[i + 2] = four.z, means.values[i + 3] = four.w;
    }
    return means;
}

// The values that are quantised.
__device__ inline Vector centered(const Quantize& problem, const Place& at, int channel, uint4 words) {
    Vector vector = widen(words);
    if constexpr (CENTERED) {
        const Vector means = shift(problem, at, channel);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) vector.values[i] -= means.values[i];
    }
    return vector;
}

__device__ inline unsigned largest_magnitude(const Vector& vector) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) largest = max(largest, __float_as_uint(vector.values[i]) & 0x7fffffffu);
    return largest;
}

// The bits of the largest magnitude. Without the sign, the bits of floats order as the floats do, with infinity and NaN
// above the rest; so do those of the two halves of a word, and what is below the upper one changes nothing.
__device__ inline unsigned largest_magnitude(uint4 words) {
    if constexpr (ELEMENT == 0) {
        return largest_magnitude(widen(words));
    } else {
        const unsigned word[4] = {words.x, words.y, words.z, words.w};
        unsigned high = 0, low = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            high = max(high, word[i] & 0x7fff0000u);
            low = max(low, word[i] & 0x00007fffu);
        }
        const unsigned largest = max(high, low << 16);
        if constexpr (ELEMENT == 2) return largest;
        float first, second;
        widen_f16(largest, first, second);
        return __float_as_uint(second);
    }
}

// The same of what is quantised.
__device__ inline unsigned largest_magnitude(const Quantize& problem, const Place& at, int channel, uint4 words) {
    if constexpr (CENTERED) return largest_magnitude(centered(problem, at, channel, words));
    return largest_magnitude(words);
}
