// What the kernels of this folder are given, and how they cut it.
//
// Macros: ELEMENT (0 f32, 1 f16, 2 bf16), HEAD_DIM, FORMAT_E5M2, FORMAT_INT8 (else E4M3), TRANSPOSED (whether codes are
// written as rows of keys), PACKED (whether position 4q + 2h + e of every 16 keys of such a row holds key 8h + 2q + e),
// CENTERED (whether each channel's mean over the rows is subtracted).
#pragma once

#ifndef ELEMENT
#error "ELEMENT says what the values are"
#endif

// The struct of `src/cuda/quantize/argument.rs`, field by field.
struct Quantize {
    const void* values;
    long long batch_stride, head_stride;  // of the values, in elements
    unsigned char* codes;
    long long code_batch_stride, code_head_stride;
    unsigned* magnitudes;  // one for each scale: the bits of the largest magnitude, zero before they are looked for
    float* scales;
    double* sums;  // of SUM_ROWS rows each, [batch, head, group of rows, channel]
    float* means;  // [batch, head, channel]
    int row_stride, code_line_stride;
    int scale_head_stride;  // index of a scale = (batch * heads + head) * scale_head_stride + row / scale_rows
    int scale_rows;
    int heads, len;
    int blocks_per_head;  // of this launch, or clusters
    float largest_code;   // what the largest magnitude of a scale becomes
    int block_rows;       // rows of each block of a cluster
};
static_assert(sizeof(Quantize) == 120, "the host passes 120 bytes");

constexpr int BYTES = ELEMENT == 0 ? 4 : 2;  // of a value
constexpr int VECTOR = 16 / BYTES;           // values of a load
constexpr int ROW_VECTORS = HEAD_DIM / VECTOR;
constexpr int LINE = 16;  // lines of codes are padded to a multiple of this many bytes
static_assert(HEAD_DIM % 8 == 0, "a row is made of whole vectors");

// Where a block or a cluster works.
struct Place {
    int batch, head;
    int head_index;  // batch * heads + head
    int part;        // which of the head's blocks or clusters
};

__device__ inline Place place(const Quantize& problem, unsigned block) {
    const unsigned head_index = block / static_cast<unsigned>(problem.blocks_per_head);
    const unsigned batch = head_index / static_cast<unsigned>(problem.heads);
    return {static_cast<int>(batch), static_cast<int>(head_index - batch * problem.heads), static_cast<int>(head_index),
            static_cast<int>(block - head_index * problem.blocks_per_head)};
}

// The first value of a row.
__device__ inline const char* values_at(const Quantize& problem, const Place& at, int row) {
    const long long index = at.batch * problem.batch_stride + at.head * problem.head_stride +
                            static_cast<long long>(row) * problem.row_stride;
    return static_cast<const char*>(problem.values) + BYTES * index;
}

// The first code of a line.
__device__ inline unsigned char* codes_at(const Quantize& problem, const Place& at, int line) {
    return problem.codes + at.batch * problem.code_batch_stride + at.head * problem.code_head_stride +
           static_cast<long long>(line) * problem.code_line_stride;
}

__device__ inline long long first_scale_of_head(const Quantize& problem, const Place& at) {
    return at.head_index * static_cast<long long>(problem.scale_head_stride);
}
