#pragma once
inline float without_subnormal(float x) {
    return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x;
}
inline float exp2_hardware(float x) { return without_subnormal(__builtin_exp2f(without_subnormal(x))); }
inline float reciprocal(float x) { return without_subnormal(1.0f / without_subnormal(x)); }
inline float log2_hardware(float x) { return __builtin_log2f(x); }
