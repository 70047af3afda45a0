// Between FP8, f16, bf16 and f32 (sm_89 and later). Each thread for itself.
#pragma once

// cvt.rn.f16x2.e4m3x2 / .e5m2x2: the two codes in the low half of a word to two f16. Exact.
template <bool E5M2>
__device__ inline unsigned widen_low(unsigned word) {
    unsigned pair;
    if constexpr (E5M2) {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e5m2x2 %0, low; }" : "=r"(pair) : "r"(word));
    } else {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(pair) : "r"(word));
    }
    return pair;
}

// The two codes in its high half, which the instruction reads there without a shift.
template <bool E5M2>
__device__ inline unsigned widen_high(unsigned word) {
    unsigned pair;
    if constexpr (E5M2) {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e5m2x2 %0, high; }" : "=r"(pair) : "r"(word));
    } else {
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high; }" : "=r"(pair) : "r"(word));
    }
    return pair;
}

// Two f32 to two f16, `first` in the low half; rounds to nearest even.
__device__ inline unsigned pack_f16(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Two f32 to two bf16, `first` in the low half; rounds to nearest even.
__device__ inline unsigned pack_bf16(float first, float second) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32: two f32 to two codes, the first in the low byte.
template <bool E5M2>
__device__ inline unsigned pack_fp8(float first, float second) {
    unsigned short codes;
    if constexpr (E5M2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    }
    return codes;
}

// Four f32 to four E4M3 codes, `a` lowest; rounds to nearest even, saturates.
__device__ inline unsigned pack_e4m3(float a, float b, float c, float d) {
    return pack_fp8<false>(a, b) | pack_fp8<false>(c, d) << 16;
}

struct Floats2 {
    float low, high;
};

// The two f16 of a word as f32.
__device__ inline Floats2 to_floats(unsigned pair) {
    Floats2 floats;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(floats.low), "=f"(floats.high)
        : "r"(pair));
    return floats;
}

// One f16 as f32.
__device__ inline float to_float(unsigned short half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
