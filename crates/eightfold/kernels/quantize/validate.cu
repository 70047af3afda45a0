// Where values are that nothing quantises: the first row with a NaN, and the first with an infinity.
//
// Macros: those of problem.cuh, and ROWS, the rows of a block.

#include "ptx/address.cuh"
#include "quantize/problem.cuh"
#include "quantize/rows.cuh"
#include "quantize/values.cuh"

constexpr int THREADS = 256;
constexpr int CELLS = (ROWS * ROW_VECTORS + THREADS - 1) / THREADS;  // vectors of a thread
constexpr unsigned INFINITE = 0x7f800000u;
enum Kind { NOT_A_NUMBER, INFINITY_OF_A_SIGN };

// In place of magnitudes: of each kind 0, or the largest number less the first row, counted over all heads.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_validate(const __grid_constant__ Quantize problem) {
    const Place at = place(problem, blockIdx.x);
    const int first_row = at.part * ROWS;
    const int rows = min(ROWS, problem.len - first_row);
    const char* values = values_at(problem, at, first_row);
    for (int i = 0; i < CELLS; ++i) {
        const auto [row, channel] = cell<THREADS>(i);
        if (row >= rows) break;
        const unsigned largest = largest_magnitude(problem, at, channel, load(address(problem, values, row, channel)));
        if (largest < INFINITE) continue;
        const Kind kind = largest > INFINITE ? NOT_A_NUMBER : INFINITY_OF_A_SIGN;
        const unsigned index = static_cast<unsigned>(at.head_index) * problem.len + first_row + row;
        atomicMax(problem.magnitudes + kind, 0xffffffffu - index);
    }
}
