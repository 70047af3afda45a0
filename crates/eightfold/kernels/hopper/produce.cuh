// The producers: two threads that tell TMA what to bring, Q and K the one, V the other.
#pragma once
#include "hopper/problem.cuh"
#include "hopper/shared.cuh"

// The tiles of keys go from the last to the first: those that a mask cuts come first.
struct KeyProducer {
    const Attention& problem;
    Shared shared;
    Ring ring;
    unsigned queries_parity = 0;

    // The first tile of keys is brought before the queries, whose buffer is the last to become empty.
    __device__ void produce(const Work& work) {
        int tile = work.last_tile - 1;
        if (tile >= work.first_tile) load_keys(work, tile);
        load_queries(work);
        while (--tile >= work.first_tile) load_keys(work, tile);
    }

   private:
    __device__ void load_queries(const Work& work) {
        int rows = problem.packed_heads > 1 ? problem.packed_heads * problem.query_len : TILE_QUERIES;
        sleep_until_phase(shared.queries_empty(), queries_parity ^ 1);
        arrive_expecting(shared.queries_full(), rows * ROW_BYTES);
#pragma unroll
        for (int line = 0; line < ROW_LINES; ++line) {
            copy_box(shared.queries() + line * TILE_QUERIES * LINE, &problem.q, shared.queries_full(), line * LINE,
                     work.query_row(problem), work.first_head, work.part());
        }
        queries_parity ^= 1;
    }

    __device__ void load_keys(const Work& work, int tile) {
        unsigned full = shared.keys_full(ring.stage);
        sleep_until_phase(shared.keys_empty(ring.stage), ring.parity ^ 1);
        arrive_expecting(full, KEY_BYTES);
#pragma unroll
        for (int line = 0; line < ROW_LINES; ++line) {
#pragma unroll
            for (int part = 0; part < SCORE_PARTS; ++part) {
                copy_box(shared.keys(ring.stage) + (line * TILE_KEYS + part * SCORE_COLUMNS) * LINE, &problem.k, full,
                         line * LINE, work.key_row(problem) + tile * TILE_KEYS + part * SCORE_COLUMNS, work.kv_head,
                         work.part());
            }
        }
        ring.advance();
    }
};

struct ValueProducer {
    const Attention& problem;
    Shared shared;
    Ring ring;

    __device__ void produce(const Work& work) {
        for (int tile = work.last_tile - 1; tile >= work.first_tile; --tile, ring.advance()) {
            unsigned full = shared.values_full(ring.stage);
            sleep_until_phase(shared.values_empty(ring.stage), ring.parity ^ 1);
            arrive_expecting(full, TILE_KEYS * VALUE_TILE);
#pragma unroll
            for (int box = 0; box < VALUE_BOXES; ++box) {
                copy_box(shared.values(ring.stage) + box * VALUE_BOX_BYTES, &problem.v, full,
                         work.key_row(problem) + tile * TILE_KEYS + box * VALUE_ROW, 0, work.kv_head, work.part());
            }
        }
    }
};
