// K and V: from global memory to shared memory, one tile at a time.
#pragma once
#include "ladder/problem.cuh"
#include "ladder/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/copy.cuh"

// Keys are kept in fragment order where the weights go on to the value product from their registers in words.
__device__ inline int key_row(int key) { return PV == PV_UNPACK || PV == PV_FP8 ? fragment_order(key) : key; }

// Calls visit(row, chunk) for this thread's share of the chunks of a tile, thread by thread along its rows. The number
// of turns is a constant, so that they are unrolled and their addresses share most of the arithmetic; many turns would
// take too many registers for them.
template <int ROWS, int CHUNKS, int THREADS_SHARING, typename Visit>
__device__ inline void for_chunks(int thread, Visit visit) {
    constexpr int TURNS = (ROWS * CHUNKS + THREADS_SHARING - 1) / THREADS_SHARING;
    constexpr int UNROLLED = TURNS > 4 || HEAD_TILE > 192 || VALUE_TILE > 192 ? 2 : TURNS;
#pragma unroll UNROLLED
    for (int turn = 0; turn < TURNS; ++turn) {
        int index = thread + turn * THREADS_SHARING;
        if (ROWS * CHUNKS % THREADS_SHARING == 0 || index < ROWS * CHUNKS) visit(index / CHUNKS, index % CHUNKS);
    }
}

// Calls copy(row, chunk, source, valid bytes) for each 16-byte chunk of a tile of K, or of V as rows, that falls to
// this thread. Keys past the end and channels that pad a head have no valid bytes.
template <int CHANNELS, int PADDED, typename Copy>
__device__ inline void for_key_chunks(const Attention& problem, const Operand& operand, const Work& work, int key_tile,
                                      int thread, Copy copy) {
    const unsigned char* head = operand.head(work.batch, work.kv_head);
    for_chunks<TILE_KEYS, PADDED / 16, COPY_THREADS>(thread, [&](int row, int chunk) {
        int key = key_tile * TILE_KEYS + row;
        int bytes = CHANNELS == PADDED ? 16 : min(max(CHANNELS - 16 * chunk, 0), 16);
        bool exists = key < problem.key_len && bytes > 0;
        copy(row, chunk, exists ? operand.line(head, key) + 16 * chunk : head, exists ? bytes : 0);
    });
}

template <typename Copy>
__device__ inline void for_keys(const Attention& problem, const Work& work, int key_tile, int thread, Copy copy) {
    for_key_chunks<HEAD_DIM, HEAD_TILE>(problem, problem.k, work, key_tile, thread, copy);
}
template <typename Copy>
__device__ inline void for_value_rows(const Attention& problem, const Work& work, int key_tile, int thread, Copy copy) {
    for_key_chunks<VALUE_DIM, VALUE_TILE>(problem, problem.v, work, key_tile, thread, copy);
}

// The same for a tile of V transposed: row = channel, chunk = 16 keys.
template <typename Copy>
__device__ inline void for_channel_chunks(const Attention& problem, const Work& work, int key_tile, int thread,
                                          Copy copy) {
    const unsigned char* head = problem.v.head(work.batch, work.kv_head);
    for_chunks<VALUE_TILE, TILE_KEYS / 16, COPY_THREADS>(thread, [&](int channel, int chunk) {
        int key = key_tile * TILE_KEYS + 16 * chunk;
        bool is_padding = VALUE_DIM < VALUE_TILE && channel >= VALUE_DIM;
        int valid_bytes = is_padding ? 0 : min(max(problem.key_len - key, 0), 16);
        copy(channel, chunk, valid_bytes ? problem.v.line(head, channel) + key : head, valid_bytes);
    });
}

// Starts the copies of one tile of K and V into a stage.
__device__ inline void start_copy(const Attention& problem, const Work& work, int key_tile, unsigned shared, int stage,
                                  int thread) {
    unsigned keys = key_codes(shared, stage), values = value_codes(shared, stage);
    for_keys(problem, work, key_tile, thread, [&](int row, int chunk, const void* source, int bytes) {
        copy_async_16(KeyCodes::address(keys, key_row(row), chunk), source, bytes);
    });
    if constexpr (TRANSPOSED_VALUES) {
        for_channel_chunks(problem, work, key_tile, thread, [&](int channel, int chunk, const void* source, int bytes) {
            copy_async_16(ValueCodes::address(values, fragment_order(channel), chunk), source, bytes);
        });
    } else {
        for_value_rows(problem, work, key_tile, thread, [&](int row, int chunk, const void* source, int bytes) {
            copy_async_16(ValueCodes::address(values, row, chunk), source, bytes);
        });
    }
}

// 16 codes to 16 f16 in fragment order, which is where low and high halves of their words fall by themselves.
template <typename WideTile>
__device__ inline void store_widened(unsigned tile, int row, int chunk, uint4 codes) {
    store_shared_16(WideTile::address(tile, row, 2 * chunk),
                    make_uint4(widen_low<E5M2>(codes.x), widen_low<E5M2>(codes.y), widen_low<E5M2>(codes.z),
                               widen_low<E5M2>(codes.w)));
    store_shared_16(WideTile::address(tile, row, 2 * chunk + 1),
                    make_uint4(widen_high<E5M2>(codes.x), widen_high<E5M2>(codes.y), widen_high<E5M2>(codes.z),
                               widen_high<E5M2>(codes.w)));
}

// Widens the tiles of a stage that the products want in f16.
__device__ inline void widen_stage(unsigned shared, int stage, int thread) {
    constexpr int WIDEST = HEAD_TILE > VALUE_TILE ? HEAD_TILE : VALUE_TILE;
    for_chunks<TILE_KEYS, WIDEST / 16, COMPUTE_THREADS>(thread, [&](int row, int chunk) {
        if (WIDEN_KEYS && (HEAD_TILE == WIDEST || chunk < HEAD_TILE / 16)) {
            uint4 codes = load_shared_16(KeyCodes::address(key_codes(shared, stage), key_row(row), chunk));
            store_widened<WideKeys>(shared + WIDE_KEYS, key_row(row), chunk, codes);
        }
        if (WIDEN_VALUES && (VALUE_TILE == WIDEST || chunk < VALUE_TILE / 16)) {
            uint4 codes = load_shared_16(ValueCodes::address(value_codes(shared, stage), row, chunk));
            store_widened<WideValues>(shared + WIDE_VALUES, row, chunk, codes);
        }
    });
}

// The valid bytes at `source`, zeros for the rest.
__device__ inline uint4 load_global_16(const void* source, int valid_bytes) {
    if (valid_bytes == 16) return *static_cast<const uint4*>(source);
    auto word = [&](int first) {
        unsigned word = 0;
        for (int byte = 0; byte < 4; ++byte) {
            if (first + byte < valid_bytes) word |= static_cast<const unsigned char*>(source)[first + byte] << 8 * byte;
        }
        return word;
    };
    return make_uint4(word(0), word(4), word(8), word(12));
}

// Copies one tile of K and V through registers, widened where the products want it so.
__device__ inline void copy_tile(const Attention& problem, const Work& work, int key_tile, unsigned shared,
                                 int thread) {
    for_keys(problem, work, key_tile, thread, [&](int row, int chunk, const void* source, int bytes) {
        uint4 codes = load_global_16(source, bytes);
        if constexpr (WIDEN_KEYS) {
            store_widened<WideKeys>(shared + WIDE_KEYS, key_row(row), chunk, codes);
        } else {
            store_shared_16(KeyCodes::address(key_codes(shared, 0), key_row(row), chunk), codes);
        }
    });
    if constexpr (TRANSPOSED_VALUES) {
        for_channel_chunks(problem, work, key_tile, thread, [&](int channel, int chunk, const void* source, int bytes) {
            store_shared_16(ValueCodes::address(value_codes(shared, 0), fragment_order(channel), chunk),
                            load_global_16(source, bytes));
        });
    } else {
        for_value_rows(problem, work, key_tile, thread, [&](int row, int chunk, const void* source, int bytes) {
            store_widened<WideValues>(shared + WIDE_VALUES, row, chunk, load_global_16(source, bytes));
        });
    }
}
