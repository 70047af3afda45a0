// How wgmma is told where a matrix lies.
#pragma once

// The descriptor of a matrix in shared memory whose rows are swizzled lines of `LINE` bytes: eight rows follow each
// other, and so do their groups. 32 values further along a row is STEP_32 more.
template <int LINE>
__device__ inline unsigned long long describe_matrix(unsigned shared_address) {
    static_assert(LINE == 64 || LINE == 128, "rows are swizzled in 64 or 128 bytes");
    unsigned long long group_stride = LINE * 8 / 16;
    unsigned long long swizzle = LINE == 128 ? 1 : 2;
    return (shared_address & 0x3ffff) >> 4 | 1ull << 16 | group_stride << 32 | swizzle << 62;
}
constexpr unsigned long long STEP_32 = 32 / 16;
