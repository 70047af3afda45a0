// Addresses of shared memory, as the 32-bit numbers that the instructions take, and accesses of it and of global
// memory.
#pragma once

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ld.global.cg: 8 or 16 bytes from where all multiprocessors meet, past this one's own cache.
__device__ inline float2 load_fresh_8(const float* address) {
    float2 values;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(values.x), "=f"(values.y) : "l"(address) : "memory");
    return values;
}
__device__ inline float4 load_fresh_16(const float* address) {
    float4 values;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
                 : "l"(address)
                 : "memory");
    return values;
}

// mad.wide.s32: the address so many strides on. One instruction, where the compiler would multiply 64 bits by 64.
template <class Byte>
__device__ inline Byte* strides_on(Byte* first, int count, int stride_bytes) {
    unsigned long long address;
    asm("mad.wide.s32 %0, %1, %2, %3;"
        : "=l"(address)
        : "r"(count), "r"(stride_bytes), "l"(reinterpret_cast<unsigned long long>(first)));
    return reinterpret_cast<Byte*>(address);
}

// st.global.v4: 16 bytes, if there is a place for them. The condition stays with the store: as a branch, the compiler
// may take what was computed before into it, shuffles too.
__device__ inline void store_global_16(void* address, uint4 words, bool exists) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(address),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(static_cast<int>(exists))
                 : "memory");
}

// ld.shared.v4: 16 bytes.
__device__ inline uint4 load_shared_16(unsigned address) {
    uint4 words;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(address)
                 : "memory");
    return words;
}

// st.shared.v4: 16 bytes.
__device__ inline void store_shared_16(unsigned address, uint4 words) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
                 : "memory");
}
