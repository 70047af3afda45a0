// Powers and logarithms of two. Each thread for itself.
#pragma once

// ex2.approx.ftz: one instruction of the special-function unit, 16 a clock per multiprocessor; 2 units in the last
// place.
__device__ inline float exp2_hardware(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
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
