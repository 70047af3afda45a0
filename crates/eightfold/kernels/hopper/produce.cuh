// The producers: two threads that tell the copy engine what to bring, Q and K the one, V the other.
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
        if (tile >= work.first_tile) bring_keys(work, tile);
        bring_queries(work);
        while (--tile >= work.first_tile) bring_keys(work, tile);
    }

   private:
    __device__ void bring_queries(const Work& work) {
        int rows = problem.packed_heads > 1 ? problem.packed_heads * problem.query_len : TILE_QUERIES;
        sleep_until_phase(shared.queries_empty(), queries_parity ^ 1);
        arrive_expecting(shared.queries_full(), rows * HEAD_DIM);
        copy_box(shared.queries(), &problem.q, shared.queries_full(), 0, work.first_query, work.first_head, work.batch);
        queries_parity ^= 1;
    }

    __device__ void bring_keys(const Work& work, int tile) {
        unsigned full = shared.keys_full(ring.stage);
        sleep_until_phase(shared.keys_empty(ring.stage), ring.parity ^ 1);
        arrive_expecting(full, KEY_BYTES);
#pragma unroll
        for (int part = 0; part < SCORE_PARTS; ++part) {
            copy_box(shared.keys(ring.stage) + part * SCORE_COLUMNS * HEAD_DIM, &problem.k, full, 0,
                     tile * TILE_KEYS + part * SCORE_COLUMNS, work.kv_head, work.batch);
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
            arrive_expecting(full, TILE_KEYS * HEAD_DIM);
#pragma unroll
            for (int box = 0; box < VALUE_BOXES; ++box) {
                copy_box(shared.values(ring.stage) + box * VALUE_BOX_BYTES, &problem.v, full,
                         tile * TILE_KEYS + box * VALUE_ROW, 0, work.kv_head, work.batch);
            }
        }
    }
};
