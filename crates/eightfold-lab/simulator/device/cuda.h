// What NVRTC knows by itself, for a C++ compiler of the host. Included before everything else.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "numbers.h"
#include "simulated.h"

#define __device__
#define __global__ __attribute__((visibility("default")))
#define __shared__ thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (sim::position().thread)
#define blockIdx (sim::position().block)
#define gridDim (sim::position().grid)

// A block's shared memory: what the launch asks for, under both names that kernels use, and then what they declare. One
// block's is in place at a time; the runtime keeps the others'.
constexpr unsigned MOST_SHARED = 227 << 10;
extern "C" {
alignas(1024) thread_local char memory[MOST_SHARED];
SIMULATED char* sim_shared_memory() { return memory; }
}
asm(".globl held\n.type held, @tls_object\n.set held, memory");

struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }

inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline float fabsf(float x) { return __builtin_fabsf(x); }
inline float rintf(float x) { return __builtin_rintf(x); }
inline float sqrtf(float x) { return __builtin_sqrtf(x); }

inline float __int_as_float(int x) { return sim::from_bits(static_cast<uint32_t>(x)); }
inline float __uint_as_float(unsigned x) { return sim::from_bits(x); }
inline int __float_as_int(float x) { return static_cast<int>(sim::bits(x)); }
inline unsigned __float_as_uint(float x) { return sim::bits(x); }
// cvt.rni.s32.f32: saturates, and makes zero of NaN.
inline int __float2int_rn(float x) {
    float whole = __builtin_rintf(x);
    if (whole != whole) return 0;
    return whole >= 0x1p31f ? 0x7fffffff : whole < -0x1p31f ? -0x7fffffff - 1 : static_cast<int>(whole);
}
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline double __ddiv_rn(double a, double b) { return a / b; }
template <typename T>
T __ldg(const T* place) {
    return *place;
}
inline size_t __cvta_generic_to_shared(const void* pointer) { return sim::address_of(pointer); }

// prmt.b32: byte i of the result is the one of {a, b} that selector[i] numbers; with its highest bit set, the sign of
// it.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned number = selector >> 4 * i & 15, byte = both >> 8 * (number & 7) & 255;
        if (number & 8) byte = byte & 128 ? 255 : 0;
        result |= byte << 8 * i;
    }
    return result;
}

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
    sim::Shown shown = {};
    memcpy(shown.words, &value, sizeof value);
    T result;
    memcpy(&result, sim::meet_in_warp(sim::Meeting::SHUFFLE, shown)[lane & 31].words, sizeof result);
    return result;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ distance);
}
inline int __any_sync(unsigned, int condition) {
    const sim::Shown* lanes = sim::meet_in_warp(sim::Meeting::ANY, {{condition != 0}});
    bool any = false;
    for (int lane = 0; lane < 32; ++lane) any |= lanes[lane].words[0] != 0;
    return any;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    const sim::Shown* lanes = sim::meet_in_warp(sim::Meeting::REDUCE, {{value}});
    unsigned most = 0;
    for (int lane = 0; lane < 32; ++lane) most = max(most, static_cast<unsigned>(lanes[lane].words[0]));
    return most;
}
inline void __syncwarp() { sim::sync_warp(); }
inline void __syncthreads() { sim::sync_block(); }
inline void __threadfence() { sim::fence_memory(); }
inline unsigned atomicAdd(unsigned* place, unsigned value) { return sim::update(place, sim::Atomic::ADD, value); }
inline unsigned atomicMax(unsigned* place, unsigned value) { return sim::update(place, sim::Atomic::MAX, value); }

// How the runtime calls a kernel: with a copy of its one argument. Put before every kernel of a file.
#define SIMULATED_ENTRY(entry, Argument)                                                               \
    extern "C" void entry(Argument);                                                                   \
    extern "C" SIMULATED void sim_call_##entry(void* it) { entry(*static_cast<const Argument*>(it)); } \
    extern "C" SIMULATED size_t sim_argument_bytes_##entry() { return sizeof(Argument); }
