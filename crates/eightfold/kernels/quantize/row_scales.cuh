// A scale for every row, which the lanes that hold the row find.
#pragma once
#include "ptx/load.cuh"
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/rows.cuh"
#include "quantize/values.cuh"

// Whether the lanes of a warp hold whole rows.
constexpr bool LANES_HOLD_ROWS = ROW_VECTORS <= 32 && 32 % (ROW_VECTORS <= 32 ? ROW_VECTORS : 1) == 0;

// Quantises the rows of a block of so many threads, each of which has so many loads in flight; what is centred is not
// quantised so, nor rows that lanes do not hold.
template <int THREADS, int LOADS>
__device__ inline void quantize_row_by_row(const Quantize& problem, unsigned block, int rows_of_block) {
    const Place at = place(problem, block);
    const int first_row = at.part * rows_of_block;
    const int rows = min(rows_of_block, problem.len - first_row);
    const char* values = values_at(problem, at, first_row);
    unsigned char* lines = codes_at(problem, at, first_row);
    const long long scale = first_scale_of_head(problem, at) + first_row;
    uint4 words[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const auto [row, channel] = cell<THREADS>(i);
        words[i] = make_uint4(0, 0, 0, 0);
        if (row < rows) words[i] = load_last(address(problem, values, row, channel));
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const auto [row, channel] = cell<THREADS>(i);
        unsigned largest = largest_magnitude(words[i]);
#pragma unroll
        for (int distance = 1; distance < ROW_VECTORS; distance *= 2) {
            largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        }
        if (row >= rows) continue;
        const float of_row = scale_for(__uint_as_float(largest), problem.largest_code);
        if (channel == 0) {
            problem.magnitudes[scale + row] = largest;
            problem.scales[scale + row] = of_row;
        }
        unsigned char* line = lines + static_cast<long long>(row) * problem.code_line_stride;
        store(line, channel, widen(words[i]), divisor(of_row));
    }
}
