// Shared memory: for each warp a ring of steps, keys before values, by rows of codes, and later
// the warps' results there; and the queries.
#pragma once
#include "paged/settings.cuh"
#include "ptx/address.cuh"

// Rows are as far apart as the next power of two, so that chunks can change places within them.
constexpr int ROW_CHUNKS = CHUNKS <= 4 ? 4 : CHUNKS <= 8 ? 8 : 16;
constexpr int ROW_BYTES = 16 * ROW_CHUNKS;
constexpr int STEP_BYTES = 2 * STEP_KEYS * ROW_BYTES;
constexpr int RING_BYTES = WARPS * STAGES * STEP_BYTES;

// A row of results; sixteen floats more than there are channels keep rows on different banks.
constexpr int RESULT_FLOATS = HEAD_DIM + 16;
constexpr int RESULT_BYTES = 4 * WARPS * TILE_ROWS * RESULT_FLOATS;
constexpr int ENDS = RESULT_BYTES;  // the maximum and the sum of every row of every warp
constexpr int RESULTS_END = ENDS + 8 * WARPS * TILE_ROWS;

// Queries as A fragments, a word of 16 bytes for every lane, and their units.
constexpr int QUERIES = RING_BYTES > RESULTS_END ? RING_BYTES : RESULTS_END;
constexpr int QUERY_UNITS = QUERIES + ROW_TILES * CHUNKS * 512;
constexpr int TOTAL_BYTES = QUERY_UNITS + 4 * TILE_ROWS;

static_assert(TOTAL_BYTES == Settings::SHARED_BYTES,
              "the host and the kernel must agree on the shared memory of a block");

// By how much the chunks of a row change places.
__device__ constexpr int turn_of(int row) { return ROW_CHUNKS == 4 ? row / 2 % 4 : row % 8; }

// Where a chunk of a row is. Eight rows that a tensor-core load reads at once are on different banks. Rows begin at
// multiples of their length, so that a chunk changes nothing but low bits.
__device__ inline unsigned chunk_address(unsigned rows, int row, int chunk) {
    return rows + (row * ROW_BYTES + 16 * turn_of(row) ^ 16 * chunk);
}

__device__ inline unsigned step_keys(unsigned shared, int warp, int stage) {
    return shared + (warp * STAGES + stage) * STEP_BYTES;
}
__device__ inline unsigned step_values(unsigned shared, int warp, int stage) {
    return step_keys(shared, warp, stage) + STEP_KEYS * ROW_BYTES;
}
