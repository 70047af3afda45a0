// Loads of 16 bytes that say how long they are needed, of memory that no launch at work writes. Each thread for itself.
#pragma once

// ld.global.nc: 16 bytes that will be read again.
__device__ inline uint4 load(const char* source) {
    uint4 words;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(source));
    return words;
}

// ld.global.cs: 16 bytes that are read for the last time and need not stay in a cache.
__device__ inline uint4 load_last(const char* source) {
    uint4 words;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(source));
    return words;
}

// The same where there is something to load, and else zeros. Without a branch: loads stay where they are issued.
__device__ inline uint4 load_last_if(bool exists, const char* source) {
    uint4 words = make_uint4(0, 0, 0, 0);
    asm volatile("{ .reg .pred exists; setp.ne.s32 exists, %5, 0; @exists ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)
                 : "l"(source), "r"(static_cast<int>(exists)));
    return words;
}
