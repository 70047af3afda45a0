// Powers and logarithms of two. Each thread for itself.
#pragma once

// ex2.approx.ftz: one instruction of the special-function unit, 16 a clock per multiprocessor; 2 units in the last
// place.
__device__ inline float exp2_hardware(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// The same on the multiply-add units: 2^x = 2^round(x) · polynomial(x - round(x)), relative error 7.5e-5 (minimax,
// degree 3 on [-1/2, 1/2]), a third of what rounding to f16 costs. For x up to 127; below -126 it stays near 1e-38.
__device__ inline float exp2_polynomial(float x) {
    const float MAGIC = 12582912.0f;  // 1.5 · 2^23: adding it leaves round(x) in the low bits of the sum
    x = fmaxf(x, -126.0f);
    float shifted = x + MAGIC;
    float rest = x - (shifted - MAGIC);
    float power = fmaf(fmaf(fmaf(0.05517166f, rest, 0.24261112f), rest, 0.69326099f), rest, 0.99992807f);
    return __int_as_float(__float_as_int(power) + (__float_as_int(shifted) << 23));
}

// rcp.approx: good to 1 unit in the last place.
__device__ inline float reciprocal(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

// lg2.approx.
__device__ inline float log2_hardware(float x) {
    float logarithm;
    asm("lg2.approx.f32 %0, %1;" : "=f"(logarithm) : "f"(x));
    return logarithm;
}
