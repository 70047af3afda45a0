// value / scale, and its code, without a division for every value.
#pragma once
#include "ptx/arithmetic.cuh"
#include "ptx/convert.cuh"

constexpr float SMALLEST_SCALE = 1.17549435e-38f;  // the smallest normal f32

// The scale that maps the largest magnitude to the largest code; it is never subnormal, and 1 for nothing but zeros.
__device__ inline float scale_for(float largest, float largest_code) {
    return largest == 0.0f ? 1.0f : fmaxf(divide(largest, largest_code), SMALLEST_SCALE);
}

// A scale, taken apart: 2^e · mantissa.
struct __align__(16) Divisor {
    float factor;    // 2^-e
    float mantissa;  // in [1, 2)
    float inverse;   // 1 / mantissa, rounded
};

__device__ inline Divisor divisor(float scale) {
    const unsigned bits = __float_as_uint(scale);
    const unsigned exponent = 254 - (bits >> 23);
    const float mantissa = __uint_as_float((bits & 0x007fffffu) | 0x3f800000u);
    // 2^-127 is subnormal.
    return {__uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23), mantissa, divide(1.0f, mantissa)};
}

// The quotient by Markstein's correction: a first guess, its exact remainder, and what that is worth. `quotient.rs` has
// the same steps and shows that the code is always that of the quotient rounded to f32 as the host rounds it: for every
// mantissa of a scale, and every value whose quotient is near a point where the code changes. Powers of two change
// nothing: the factor takes the scale's away, so that nothing overflows, and what underflows has the code of zero. The
// remainder is taken with its sign changed, so that a negative zero stays one.
__device__ inline float quotient(float value, const Divisor& by) {
    const float scaled = multiply(value, by.factor);
    const float guess = multiply(scaled, by.inverse);
    const float excess = multiply_add(by.mantissa, guess, -scaled);
    return multiply_add(excess, -by.inverse, guess);
}

// The nearest whole number, of two the even one, as a byte: next to 1.5·2^23 it is all that floats can say.
__device__ inline unsigned whole_byte(float number) { return __float_as_uint(number + 12582912.0f) & 0xff; }

// Two codes, the first in the low byte.
__device__ inline unsigned encode(float first, float second) {
    if constexpr (FORMAT_INT8) return whole_byte(first) | whole_byte(second) << 8;
    return pack_fp8<FORMAT_E5M2>(first, second);
}
