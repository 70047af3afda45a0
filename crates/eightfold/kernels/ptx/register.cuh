// What the compiler keeps in registers, and when. Each thread for itself.
#pragma once

// %tid.x, read again: so that no register keeps it from its last use to this one.
__device__ inline int thread_index_anew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// No instruction: the value is in a register from here on.
template <typename Word>
__device__ inline void need_now(Word value) {
    static_assert(sizeof(Word) == 8, "a register of 64 bits");
    asm volatile("" ::"l"(value));
}

// No instruction: the compiler no longer knows how the number came about, and makes nothing of it before this place.
__device__ inline void forget_origin(int& number) { asm volatile("" : "+r"(number)); }
__device__ inline void forget_origin(unsigned& number) { asm volatile("" : "+r"(number)); }
