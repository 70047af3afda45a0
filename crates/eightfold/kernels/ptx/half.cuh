// Arithmetic on two f16 in a word. Each thread for itself.
#pragma once

__device__ inline unsigned max_halves(unsigned a, unsigned b) {
    unsigned larger;
    asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// min.f16x2 in place: written so that it takes no other register, and is not moved.
__device__ inline void lower_halves(unsigned& pair, unsigned bound) {
    asm volatile("min.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(bound));
}

// a · b + c, rounded once.
__device__ inline unsigned multiply_add_halves(unsigned a, unsigned b, unsigned c) {
    unsigned sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// The same, then clamped to [0, 1]; NaN becomes 0.
__device__ inline unsigned multiply_add_halves_clamped(unsigned a, unsigned b, unsigned c) {
    unsigned sum;
    asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

__device__ inline unsigned subtract_halves(unsigned a, unsigned b) {
    unsigned difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}

// ex2.approx.f16x2: two values, each as dear as one of f32.
__device__ inline unsigned exp2_halves(unsigned x) {
    unsigned power;
    asm("ex2.approx.f16x2 %0, %1;" : "=r"(power) : "r"(x));
    return power;
}

// tanh.approx.f16x2: off by 2^-11 at most, and of what is small by 2^-11 of it.
__device__ inline unsigned tanh_halves(unsigned x) {
    unsigned tangent;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(tangent) : "r"(x));
    return tangent;
}

// One f32 as f16 in both halves of a word.
__device__ inline unsigned both_halves(float x) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(pair) : "f"(x));
    return pair;
}

// The same, rounded down.
__device__ inline unsigned both_halves_down(float x) {
    unsigned pair;
    asm("{ .reg .b16 half; cvt.rm.f16.f32 half, %1; mov.b32 %0, {half, half}; }" : "=r"(pair) : "f"(x));
    return pair;
}

// Four f16 to four E4M3 codes, the low half of `a` lowest; rounds to nearest even, saturates.
__device__ inline unsigned pack_e4m3_halves(unsigned a, unsigned b) {
    unsigned codes;
    asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f16x2 low, %1; cvt.rn.satfinite.e4m3x2.f16x2 high, %2; "
        "mov.b32 %0, {low, high}; }"
        : "=r"(codes)
        : "r"(a), "r"(b));
    return codes;
}

// prmt: byte i of the result is byte selector[i] of {a, b}.
__device__ inline unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
    return bytes;
}
