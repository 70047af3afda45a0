// Tensor-core products and the loads that feed them. All are for a whole warp, its lanes converged.
//
// Who holds what, with group = lane / 4 and quad = lane % 4:
//   accumulator m16n8:  [0],[1] row group, columns 2·quad and 2·quad+1;  [2],[3] the same of row group+8
//   A of m16n8k16:      [0] row group, [1] row group+8: k 2·quad…+1;  [2],[3] the same rows, k 8+2·quad…+1
//   B of m16n8k16:      [0] column group, k 2·quad…+1;  [1] k 8+2·quad…+1
//   A, B of m16n8k32 (8-bit): the same with words of four, k 4·quad…+3 and 16+4·quad…+3
#pragma once

struct Words4 {
    unsigned word[4];
};

// ldmatrix .x4: four matrices of 8 rows × 16 bytes; lane l gives the address of row l%8 of matrix l/8. Word i of a
// lane holds bytes 4·quad…+3 of row `group` of matrix i.
__device__ inline Words4 load_matrices(unsigned row_address) {
    Words4 words;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                 : "r"(row_address)
                 : "memory");
    return words;
}

// ldmatrix .x4.trans: the same, each matrix transposed as 8 × 8 elements of 16 bits.
__device__ inline Words4 load_matrices_transposed(unsigned row_address) {
    Words4 words;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
                 : "r"(row_address)
                 : "memory");
    return words;
}

// mma.sync m16n8k16, f16 operands, f32 sums: sum += a · b.
__device__ inline void multiply_f16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// mma.sync m16n8k32, FP8 operands, f32 sums. Native on sm_89; on sm_90 the compiler widens to f16.
template <bool A_E5M2, bool B_E5M2>
__device__ inline void multiply_fp8(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define MULTIPLY_FP8(FORMATS)                                                                                         \
    asm("mma.sync.aligned.m16n8k32.row.col.f32." FORMATS ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (A_E5M2 && B_E5M2) {
        MULTIPLY_FP8("e5m2.e5m2");
    } else if constexpr (B_E5M2) {
        MULTIPLY_FP8("e4m3.e5m2");
    } else {
        static_assert(!A_E5M2, "an E5M2 A with an E4M3 B is never needed");
        MULTIPLY_FP8("e4m3.e4m3");
    }
#undef MULTIPLY_FP8
}
