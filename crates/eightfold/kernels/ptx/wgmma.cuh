// Products by a warpgroup on the FP8 and INT8 tensor cores (sm_90a). All are for the four warps of a warpgroup,
// converged.
//
// Who holds what, with group = lane / 4, quad = lane % 4 and the rows of a warp 16·(warp % 4)…+15:
//   f32 accumulator:  [4j], [4j+1] row group, columns 8j+2·quad and the next;  [4j+2], [4j+3] the same of row group+8
//   f16 accumulator:  the same in pairs: [2j] row group, [2j+1] row group+8
//   s32 accumulator:  as f32
//   A in registers:   [0] row group, [1] row group+8: k 4·quad…+3;  [2], [3] the same rows, k 16+4·quad…+3
// An accumulator is the product's from the first wgmma on until wait_for_products: what lies between must not touch it.
#pragma once

// wgmma.fence: registers that the warpgroup wrote are seen by the products that follow.
__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// wgmma.commit_group: closes the group of products since the last one.
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// wgmma.wait_group: until at most `PENDING` groups are on their way.
template <int PENDING>
__device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// No instruction: an accumulator that is read behind this place is read after the wait before it. To the compiler its
// value is there as soon as the product is issued, and it might copy it then: no wait stands in a register's way.
__device__ inline void settle(float& accumulator) { asm volatile("" : "+f"(accumulator)); }
__device__ inline void settle(unsigned& accumulator) { asm volatile("" : "+r"(accumulator)); }
__device__ inline void settle(int& accumulator) { asm volatile("" : "+r"(accumulator)); }

// Setting an accumulator to zero in a way that the compiler leaves where it is.
__device__ inline void clear(float& accumulator) { asm volatile("mov.b32 %0, 0;" : "+f"(accumulator)); }

// The registers of an accumulator by their numbers, and as operands.
#define WG_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WG_32 WG_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WG_48 WG_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define WG_64 WG_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WG_80 WG_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WG_96 WG_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WG_112 WG_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define WG_128 WG_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WG_36 WG_32 ", %32, %33, %34, %35"
#define WG_52 WG_48 ", %48, %49, %50, %51"
#define WG_68 WG_64 ", %64, %65, %66, %67"
#define WG_100 WG_96 ", %96, %97, %98, %99"
#define WGMMA_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define WGMMA_16(c, i) WGMMA_4(c, i), WGMMA_4(c, i + 4), WGMMA_4(c, i + 8), WGMMA_4(c, i + 12)
#define WGMMA_32(c, i) WGMMA_16(c, i), WGMMA_16(c, i + 16)
#define WGMMA_36(c, i) WGMMA_32(c, i), WGMMA_4(c, i + 32)
#define WGMMA_48(c, i) WGMMA_32(c, i), WGMMA_16(c, i + 32)
#define WGMMA_52(c, i) WGMMA_48(c, i), WGMMA_4(c, i + 48)
#define WGMMA_64(c, i) WGMMA_32(c, i), WGMMA_32(c, i + 32)
#define WGMMA_68(c, i) WGMMA_64(c, i), WGMMA_4(c, i + 64)
#define WGMMA_96(c, i) WGMMA_64(c, i), WGMMA_32(c, i + 64)
#define WGMMA_100(c, i) WGMMA_96(c, i), WGMMA_4(c, i + 96)
#define WGMMA_128(c, i) WGMMA_64(c, i), WGMMA_64(c, i + 64)

// wgmma.mma_async: d = a · bᵀ, added to what d holds if `accumulate`. `A` names a's operands, `B` and `P` are the
// numbers of the next two.
#define WGMMA(KIND, N, COUNT, CONSTRAINT, A, B, P, ...) \
    WGMMA_AS(KIND, N, COUNT, CONSTRAINT, A, B, P, ", 1, 1", __VA_ARGS__)
#define WGMMA_AS(KIND, N, COUNT, CONSTRAINT, A, B, P, SIGNS, ...)                                              \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #P ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k32." KIND \
                 " {" WG_##COUNT "}, " A ", %" #B ", p" SIGNS "; }"                                            \
                 : WGMMA_##COUNT(CONSTRAINT, 0)                                                                \
                 : __VA_ARGS__, "l"(b), "r"(static_cast<int>(accumulate)))

// Both matrices in shared memory.
#define WGMMA_SHARED(TYPE, SUMS, CONSTRAINT, N, COUNT, A, B, P)                                         \
    template <bool E5M2>                                                                                \
    __device__ inline void multiply_shared(TYPE(&d)[COUNT], unsigned long long a, unsigned long long b, \
                                           bool accumulate) {                                           \
        if constexpr (E5M2) {                                                                           \
            WGMMA(SUMS ".e5m2.e5m2", N, COUNT, CONSTRAINT, "%" #A, B, P, "l"(a));                       \
        } else {                                                                                        \
            WGMMA(SUMS ".e4m3.e4m3", N, COUNT, CONSTRAINT, "%" #A, B, P, "l"(a));                       \
        }                                                                                               \
    }

WGMMA_SHARED(unsigned, "f16", "+r", 64, 16, 16, 17, 18)
WGMMA_SHARED(unsigned, "f16", "+r", 128, 32, 32, 33, 34)
WGMMA_SHARED(unsigned, "f16", "+r", 192, 48, 48, 49, 50)
WGMMA_SHARED(unsigned, "f16", "+r", 256, 64, 64, 65, 66)
WGMMA_SHARED(float, "f32", "+f", 64, 32, 32, 33, 34)
WGMMA_SHARED(float, "f32", "+f", 128, 64, 64, 65, 66)
WGMMA_SHARED(float, "f32", "+f", 192, 96, 96, 97, 98)
WGMMA_SHARED(float, "f32", "+f", 256, 128, 128, 129, 130)

// The same of INT8, whose sums are exact; there is nothing to choose.
#define WGMMA_INTEGERS(N, COUNT, A, B, P)                                                              \
    template <bool>                                                                                    \
    __device__ inline void multiply_shared(int(&d)[COUNT], unsigned long long a, unsigned long long b, \
                                           bool accumulate) {                                          \
        WGMMA_AS("s32.s8.s8", N, COUNT, "+r", "%" #A, B, P, "", "l"(a));                               \
    }

WGMMA_INTEGERS(64, 32, 32, 33, 34)
WGMMA_INTEGERS(128, 64, 64, 65, 66)
WGMMA_INTEGERS(192, 96, 96, 97, 98)
WGMMA_INTEGERS(256, 128, 128, 129, 130)

// The first matrix (E4M3) in registers.
#define WGMMA_REGISTERS(N, COUNT, A0, A1, A2, A3, B, P)                                                         \
    template <bool B_E5M2>                                                                                      \
    __device__ inline void multiply_registers(float(&d)[COUNT], const unsigned(&a)[4], unsigned long long b,    \
                                              bool accumulate) {                                                \
        if constexpr (B_E5M2) {                                                                                 \
            WGMMA("f32.e4m3.e5m2", N, COUNT, "+f", "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", B, P, "r"(a[0]), \
                  "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                             \
        } else {                                                                                                \
            WGMMA("f32.e4m3.e4m3", N, COUNT, "+f", "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}", B, P, "r"(a[0]), \
                  "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                             \
        }                                                                                                       \
    }

WGMMA_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA_REGISTERS(72, 36, 36, 37, 38, 39, 40, 41)
WGMMA_REGISTERS(104, 52, 52, 53, 54, 55, 56, 57)
WGMMA_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69)
WGMMA_REGISTERS(136, 68, 68, 69, 70, 71, 72, 73)
WGMMA_REGISTERS(200, 100, 100, 101, 102, 103, 104, 105)

#undef WGMMA_SHARED
#undef WGMMA_INTEGERS
#undef WGMMA_REGISTERS
#undef WGMMA
#undef WGMMA_AS
