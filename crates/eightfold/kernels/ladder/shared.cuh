// Shared memory: tiles of 16-byte chunks, laid out against bank conflicts, and where each lies.
#pragma once
#include "ladder/settings.cuh"
#include "ptx/address.cuh"

// A tile of rows of 16-byte chunks. Eight rows that a tensor-core load reads at once must start in eight different
// groups of four banks: the row stride is an odd number of chunks, or the chunks of a row change places with the row,
// within the largest power of two that divides them.
template <int ROWS, int CHUNKS>
struct Tile {
    static constexpr int STRIDE = 16 * (CHUNKS + (BANKS == BANKS_PADDED));
    static constexpr int BYTES = ROWS * STRIDE;
    static constexpr int EXCHANGED = CHUNKS % 8 == 0 ? 8 : CHUNKS & -CHUNKS;  // chunks that change places
    static constexpr int ROWS_ALIKE = 8 / EXCHANGED;  // rows that start in different groups by themselves

    __device__ static unsigned address(unsigned base, int row, int chunk) {
        if (BANKS == BANKS_SWIZZLED) chunk ^= row / ROWS_ALIKE % EXCHANGED;
        return base + row * STRIDE + 16 * chunk;
    }

    // What this lane passes to load_matrices for four matrices of 8 rows: `WIDTH` chunks side by side, then down.
    template <int WIDTH>
    __device__ static unsigned matrix_address(unsigned base, int first_row, int first_chunk, int lane) {
        int matrix = lane / 8;
        return address(base, first_row + 8 * (matrix / WIDTH) + lane % 8, first_chunk + matrix % WIDTH);
    }
};

// Within 16 neighbours, tensor cores hand a thread elements 2q, 2q+1 of one product and of the next, but a thread that
// reads 8-bit words has elements 4q…4q+3. Rows in this order make the one the other: element 4q+2h+e is at 8h+2q+e.
__device__ inline int fragment_order(int index) {
    return (index & ~15) | (index & 2) << 2 | (index & 12) >> 1 | (index & 1);
}

// Its inverse.
__device__ inline int from_fragment_order(int place) {
    return (place & ~15) | (place & 8) >> 2 | (place & 6) << 1 | (place & 1);
}

using KeyCodes = Tile<TILE_KEYS, HEAD_TILE / 16>;
using ValueCodes = Tile<TRANSPOSED_VALUES ? VALUE_TILE : TILE_KEYS, (TRANSPOSED_VALUES ? TILE_KEYS : VALUE_TILE) / 16>;
using WideKeys = Tile<TILE_KEYS, HEAD_TILE / 8>;  // f16
using WideValues = Tile<TILE_KEYS, VALUE_TILE / 8>;

constexpr int SCORE_STRIDE = 4 * TILE_KEYS + 16;  // bytes of a row of f32 scores
constexpr int WEIGHT_STRIDE = SOFTMAX == SOFTMAX_REUSE ? SCORE_STRIDE : 2 * TILE_KEYS + 16;

// Byte offsets of everything, one after the other.
constexpr int STAGE_BYTES = KEEP_KEY_CODES * KeyCodes::BYTES + KEEP_VALUE_CODES * ValueCodes::BYTES;
constexpr int WIDE_KEYS = COPY_STAGES * STAGE_BYTES;
constexpr int WIDE_VALUES = WIDE_KEYS + WIDEN_KEYS * WideKeys::BYTES;
constexpr int TILES_END = WIDE_VALUES + WIDEN_VALUES * WideValues::BYTES;
// When the tiles are no longer needed, the sums of all groups of keys but the first take their place.
constexpr int MERGED_FLOATS = ROW_TILES * (4 * DIM_TILES + 6);  // of a lane
constexpr int MERGED_BYTES = (KEY_GROUPS - 1) * ROW_WARPS * 32 * 4 * MERGED_FLOATS;
constexpr int SCORES = TILES_END > MERGED_BYTES ? TILES_END : MERGED_BYTES;
constexpr int WEIGHTS =
    SOFTMAX == SOFTMAX_REUSE ? SCORES : SCORES + (SOFTMAX == SOFTMAX_SEPARATE) * TILE_QUERIES * SCORE_STRIDE;
constexpr int AFTER_WEIGHTS = WEIGHTS + (SOFTMAX == SOFTMAX_SEPARATE ? TILE_QUERIES * WEIGHT_STRIDE
                                         : SOFTMAX == SOFTMAX_REUSE  ? TILE_QUERIES * SCORE_STRIDE
                                                                     : 0);
constexpr int ROW_STATE = AFTER_WEIGHTS;  // maximum, sum and correction of each row
constexpr int BARRIERS = ROW_STATE + (SOFTMAX != SOFTMAX_FUSED) * 3 * 4 * TILE_QUERIES;
constexpr int NEXT_WORK = BARRIERS + (PRODUCERS > 0) * 16 * COPY_STAGES;
constexpr int TOTAL_BYTES = NEXT_WORK + PERSISTENT * 16;

static_assert(TOTAL_BYTES == Settings::SHARED_BYTES,
              "the host and the kernel must agree on the shared memory of a block");

__device__ inline unsigned key_codes(unsigned shared, int stage) { return shared + stage * STAGE_BYTES; }
__device__ inline unsigned value_codes(unsigned shared, int stage) {
    return shared + stage * STAGE_BYTES + KEEP_KEY_CODES * KeyCodes::BYTES;
}
__device__ inline unsigned filled_barrier(unsigned shared, int stage) { return shared + BARRIERS + 16 * stage; }
__device__ inline unsigned emptied_barrier(unsigned shared, int stage) { return shared + BARRIERS + 16 * stage + 8; }
