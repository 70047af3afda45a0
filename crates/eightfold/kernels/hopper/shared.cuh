// Where everything lies in a block's shared memory, and the barriers between those who fill it and those who use it.
#pragma once
#include "attention/ring.cuh"
#include "hopper/settings.cuh"
#include "ptx/address.cuh"
#include "ptx/bulk.cuh"

constexpr int KEY_BYTES = TILE_KEYS * ROW_BYTES;
constexpr int VALUE_BOX_BYTES = VALUE_COLUMNS * VALUE_ROW;
constexpr int VALUE_BYTES = (VALUE_BOXES * VALUE_BOX_BYTES + 1023) / 1024 * 1024;
constexpr int PROMOTED_BYTES = PROMOTE_SHARED ? WARPGROUPS * WARPGROUP * VALUE_TILE / 2 * 4 : 0;

constexpr int QUERIES_AT = 0;
constexpr int KEYS_AT = TILE_QUERIES * ROW_BYTES;
constexpr int VALUES_AT = KEYS_AT + STAGES * KEY_BYTES;
constexpr int PROMOTED_AT = VALUES_AT + STAGES * VALUE_BYTES;
constexpr int BARRIERS_AT = PROMOTED_AT + PROMOTED_BYTES;
static_assert(BARRIERS_AT + 8 * (4 * STAGES + 2) == Settings::SHARED_BYTES, "the host allows as much");

// Where TMA puts the 16 bytes of a line: swizzled, as products read them.
template <int LINE>
__device__ inline int swizzled(int row, int chunk) {
    return LINE == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
}

// Addresses of tiles and barriers. Of every buffer there is a barrier that it is full and one that it is empty.
struct Shared {
    unsigned base;

    // Of Q and K the first lines of all rows come first, then the second ones.
    __device__ unsigned queries(int warpgroup = 0) const {
        return base + QUERIES_AT + warpgroup * WARPGROUP_ROWS * LINE;
    }
    __device__ unsigned keys(int stage) const { return base + KEYS_AT + stage * KEY_BYTES; }
    __device__ unsigned values(int stage) const { return base + VALUES_AT + stage * VALUE_BYTES; }
    __device__ unsigned promoted(int thread) const { return base + PROMOTED_AT + thread * 16; }

    __device__ unsigned keys_full(int stage) const { return barrier(stage); }
    __device__ unsigned keys_empty(int stage) const { return barrier(STAGES + stage); }
    __device__ unsigned values_full(int stage) const { return barrier(2 * STAGES + stage); }
    __device__ unsigned values_empty(int stage) const { return barrier(3 * STAGES + stage); }
    __device__ unsigned queries_full() const { return barrier(4 * STAGES); }
    __device__ unsigned queries_empty() const { return barrier(4 * STAGES + 1); }

    // All keys at once: V arrives in parts.
    __device__ unsigned part_full(int part) const { return barrier(part); }
    __device__ void make_part_barriers() const {
        static_assert(!KEYS_AT_ONCE || VALUE_BOXES <= 4 * STAGES + 2, "there is a barrier for every part");
#pragma unroll
        for (int part = 0; part < VALUE_BOXES; ++part) init_barrier(part_full(part), 1);
        publish_barriers();
    }

    // Each producer makes its own barriers: buffers are filled by TMA and emptied by every computing warp.
    __device__ void make_key_barriers() const {
        make_pair(queries_full(), queries_empty());
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) make_pair(keys_full(stage), keys_empty(stage));
        publish_barriers();
    }
    __device__ void make_value_barriers() const {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) make_pair(values_full(stage), values_empty(stage));
        publish_barriers();
    }

    // Every computing thread: rows of the tile of queries that no copy touches. Whatever lay there would be multiplied,
    // too, and have a say where a warp decides together.
    __device__ void clear_queries(int first_row) const {
        constexpr int CHUNKS = LINE / 16;
        for (int i = first_row * CHUNKS + threadIdx.x; i < TILE_QUERIES * CHUNKS; i += WARPGROUPS * WARPGROUP) {
#pragma unroll
            for (int line = 0; line < ROW_LINES; ++line) {
                store_shared_16(queries() + line * TILE_QUERIES * LINE + 16 * i, make_uint4(0, 0, 0, 0));
            }
        }
        publish_stores();
    }

    // Every computing thread: the rows of ones below V, which no copy touches; zeros for the first `absent` keys.
    __device__ void write_ones(int absent = 0) const {
        constexpr int CHUNKS = VALUE_ROW / 16;  // of 16 keys; of a box, in eight rows
        constexpr unsigned ONES = E5M2 ? 0x3c3c3c3c : 0x38383838;
        for (int i = threadIdx.x; i < STAGES * VALUE_BOXES * 8 * CHUNKS; i += WARPGROUPS * WARPGROUP) {
            int box = i / (8 * CHUNKS), row = i / CHUNKS % 8, chunk = i % CHUNKS;
            unsigned address = values(box / VALUE_BOXES) + box % VALUE_BOXES * VALUE_BOX_BYTES +
                               (VALUE_TILE + row) * VALUE_ROW + swizzled<VALUE_ROW>(row, chunk) * 16;
            int key = box * VALUE_ROW + chunk * 16;
            bool counts = key >= absent && (!SUMS_IN_PARTS || key / SUM_PART == row);
            unsigned word = counts ? ONES : 0;
            store_shared_16(address, make_uint4(word, word, word, word));
        }
        publish_stores();
    }

   private:
    __device__ void make_pair(unsigned full, unsigned empty) const {
        init_barrier(full, 1);
        init_barrier(empty, 4 * WARPGROUPS);
    }
    __device__ unsigned barrier(int index) const { return base + BARRIERS_AT + 8 * index; }
};

using Ring = RingOf<STAGES>;
