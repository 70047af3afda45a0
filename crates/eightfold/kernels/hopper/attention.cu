// FP8 attention for Hopper: the copy engine brings tiles, warpgroups multiply them on the FP8 tensor cores, scores and
// weights never leave the registers.
//
//   producer:   for each tile of queries: bring Q;  for each tile of keys that they see, the last first: bring K, V
//   the others: for each tile of keys:    S = Q·Kᵀ;  mask;  maximum;  for each 32 keys: P = 2^(S - maximum), O += P·V
//               store O / sum and the log-sum-exp
#include "hopper/merge.cuh"
#include "hopper/problem.cuh"
#include "hopper/produce.cuh"
#include "hopper/settings.cuh"
#include "hopper/shared.cuh"
#include "hopper/store.cuh"
#include "hopper/tile.cuh"
#include "ptx/register.cuh"

// The place of the block's unit of work in a round, less than zero where there is none: as the host lists them
// (`src/cuda/hopper/launch/order.rs`), or dealt out in rounds, every other one backwards, since causal units are ordered
// by length. The list is complete before the launch is made, so that the compiler may move its loads before the wait for
// the launch before.
__device__ inline int place_of(const Attention& problem, int round) {
    if constexpr (CAUSAL && !SPLIT_KEYS && WARPGROUPS > 1) {
        if (problem.places) return __ldg(problem.places + blockIdx.x * problem.listed + round);
    }
    int block = CAUSAL && round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int place = round * gridDim.x + block;
    return place < problem.units() * (SPLIT_KEYS ? problem.splits : 1) ? place : -1;
}

// Keys come in tiles, through a ring of buffers.
struct Attend : Tile {
    // Three warpgroups with a body of code for masked tiles, weights of two kinds or in two parts, and three buffers to
    // count have none left for what can be found again.
    static constexpr bool SPARE_REGISTERS =
        !(WARPGROUPS == 3 && STAGES > 2 && HAS_CUT_TILES && (SPLIT_EIGHTHS > 0 || LINEAR_EIGHTHS % 8 > 0));

    Shared shared;
    int warpgroup;
    Ring ring;
    Scores scores;
    int round = 0;
    int visited = 0;
    float loaded_scales[3];   // of the two rows and of the keys, read before they are needed
    float early_value_scale;  // too, where there is a single warpgroup

    __device__ Attend(const Attention& problem, Shared shared, int thread)
        : Tile(problem, Work(problem, 0), thread, shared.promoted(thread)),
          shared(shared),
          warpgroup(same_in_warp(thread / WARPGROUP)) {}

    __device__ void run() {
        int place = place_of(problem, 0);
        if (place < 0) return;
        work = Work(problem, place);
        begin();
        for (;;) {
            attend();
            float scale = finish();
            store(work, scale);
            place = place_of(problem, ++round);
            if (place < 0) return;
            work = Work(problem, place);
            begin();
        }
    }

   private:
    // Starts the first product of scores as soon as its operands are there. If the tile of queries sees no keys, a product
    // of whatever is there: one runs whichever way the code goes.
    __device__ void begin() {
        loaded_scales[0] = *query_scale(0);
        loaded_scales[1] = *query_scale(1);
        loaded_scales[2] = *key_scale(max(work.last_tile - 1, 0));
        if constexpr (WARPGROUPS == 1) {
            early_value_scale = *value_scale(work.first_tile);
            // What the end needs is fetched while the first tile is on its way.
            need_now(problem.output);
            need_now(problem.output_row_stride);
            need_now(problem.lse);
            need_now(problem.v_means);
        }
        sleep_until_phase(shared.queries_full(), round % 2);
        int tile = work.last_tile - 1;
        for (; tile > last_seen() && tile >= work.first_tile; --tile) skip();
        if (tile >= work.first_tile) {
            await_keys();
        } else {
            leave_unused(shared.queries_empty());
        }
        start();
    }

    // The tiles of keys, the last first. The product of the first of them is under way.
    __device__ void attend() {
        rows = Rows();
        set_scales(loaded_scales[0], loaded_scales[1], loaded_scales[2]);
        weights.set(rows);
        sums.reset();
        visited = 0;
        // Key tiles that every row sees all of.
        int whole = problem.visible_keys(problem.packed_heads > 1 ? 0 : first_query()) / TILE_KEYS;
        int tile = last_seen();
        if (tile < work.first_tile) return wait_for_products<0>();
        if constexpr (HAS_CUT_TILES) {
            while (tile >= whole) {
                visit<true>(tile);
                if (!start_next(tile)) return;
            }
        }
        do {
            visit<false>(tile);
        } while (start_next(tile));
    }

    // Goes on to the tile of keys before and starts its product. Where there is none, no product is left under way.
    __device__ bool start_next(int& tile) {
        if (--tile < work.first_tile) {
            wait_for_products<0>();
            return false;
        }
        await_keys();
        start();
        return true;
    }

    // The warpgroup's first, and the last tile of keys of which some row of the warpgroup sees something.
    __device__ int first_query() const { return work.first_query + warpgroup * WARPGROUP_ROWS; }
    __device__ int last_seen() const {
        if (!CAUSAL || WARPGROUPS == 1) return work.last_tile - 1;
        int behind = problem.packed_heads > 1 ? problem.query_len : first_query() + WARPGROUP_ROWS;
        int tiles = (problem.visible_keys(min(behind, problem.query_len) - 1) + TILE_KEYS - 1) / TILE_KEYS;
        return min(work.last_tile, tiles) - 1;
    }

    __device__ void await_keys() { sleep_until_phase(shared.keys_full(ring.stage), ring.parity); }
    __device__ void start() {
        Scores next;
        start_scores(next, shared.queries(warpgroup), shared.keys(ring.stage));
        scores = next;
    }

    __device__ void skip() {
        await_keys();
        leave_unused(shared.keys_empty(ring.stage));
        sleep_until_phase(shared.values_full(ring.stage), ring.parity);
        leave_unused(shared.values_empty(ring.stage));
        ring.advance();
    }

    template <bool MASKED>
    __device__ void visit(int tile) {
        if constexpr (KEY_BLOCK_SCALES) read_scales(tile);
        wait_for_products<0>();
        leave(shared.keys_empty(ring.stage));
        if (tile == work.first_tile) leave(shared.queries_empty());
        leave_values();
        sums.take_row_sums(rows.sum);
        if constexpr (PROMOTE) {
            if (visited % PROMOTE_EVERY == 0 && visited > 0) sums.promote();
        }
        ++visited;
        if constexpr (VALUE_BLOCK_SCALES) change_unit(tile);
        if constexpr (MASKED) mask(scores, tile * TILE_KEYS);
        follow_maximum(scores);
        sleep_until_phase(shared.values_full(ring.stage), ring.parity);
        sums.start(scores, weights, shared.values(ring.stage));
        ring.advance();
    }

    // Moves a row's maximum, and all that was summed relative to it, if the new scores are too far above.
    __device__ void follow_maximum(const Scores& scores) {
        Maxima maxima;
        maxima.include(scores, 0, TILE_KEYS);
        float largest[2];
        maxima.result(largest);
        bool above[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            largest[row] = fmaxf(largest[row] * rows.scale[row], LOWEST);
            above[row] = largest[row] > rows.maximum[row] + RESCALE_THRESHOLD;
        }
        if (__any_sync(0xffffffff, above[0] || above[1])) {
            float before[2] = {rows.maximum[0], rows.maximum[1]}, factor[2];
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                if (above[row]) rows.maximum[row] = largest[row];
            }
            weights.set(rows);
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                factor[row] = exp2_hardware(before[row] - rows.maximum[row]);
                rows.sum[row] *= factor[row];
            }
            sums.scale(factor[0], factor[1]);
        } else if constexpr (KEY_BLOCK_SCALES) {
            weights.set(rows);
        }
    }

    __device__ void change_unit(int tile) {
        if constexpr (!SPARE_REGISTERS) remake_work();
        float change = *value_scale(min(tile + 1, work.last_tile - 1)) * reciprocal(*value_scale(tile));
        sums.scale(change, change);
    }

    // Ends the sums, which nothing changes while they are stored. Returns what they are in units of.
    __device__ float finish() {
        if constexpr (!SPARE_REGISTERS) remake_work();
        wait_for_products<0>();
        leave_values();
        if (visited == 0) sums.clear_value();
        close();
        float scale = WARPGROUPS == 1 ? early_value_scale : *value_scale(work.first_tile);
        if constexpr (!SPLIT_KEYS) add_means(problem, work, sums.value, rows.sum, scale, quad);
        return scale;
    }

    __device__ void store(Work done, float scale) {
        if constexpr (!SPARE_REGISTERS) {
            thread = thread_index_anew();
            quad = thread % 4;
            first_row = first_row_of(thread);
        }
        if constexpr (SPLIT_KEYS) {
            store_part(problem, done, sums, rows, scale, first_row, quad);
            if (is_last_part(problem, done, thread)) merge_parts(problem, done, thread);
        } else {
            RowPlace places[2] = {{problem, done, first_row}, {problem, done, first_row + 8}};
            store_rows(problem, done, sums.value, rows, places, scale, quad);
        }
    }

    // So that no register keeps it through the loop.
    __device__ void remake_work() {
        forget_origin(round);
        work = Work(problem, place_of(problem, round));
    }

    // Every warp tells the producer that it needs a buffer no more. All its lanes must have passed their wait for it: one
    // that is late by a whole refill would wait for a phase that has gone by. After a product they have.
    __device__ void leave(unsigned empty) {
        if (thread % 32 == 0) arrive(empty);
    }
    // The same for a buffer of which nothing was multiplied.
    __device__ void leave_unused(unsigned empty) {
        __syncwarp();
        leave(empty);
    }
    // Of the tile before, whose products are done.
    __device__ void leave_values() {
        int before = ring.stage == 0 ? STAGES - 1 : ring.stage - 1;
        if (visited > 0) leave(shared.values_empty(before));
    }
};

template <typename Producer>
__device__ inline void produce_all(const Attention& problem, Producer producer) {
    for (int round = 0;; ++round) {
        int place = place_of(problem, round);
        if (place < 0) return;
        producer.produce(Work(problem, place));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) hopper_attention(const __grid_constant__ Attention problem) {
    constexpr int COMPUTING = WARPGROUPS * WARPGROUP;
    constexpr int READY = 4;  // the numbered barrier at which computing threads wait for the producers' barriers
    extern __shared__ __align__(1024) char memory[];
    Shared shared{shared_address(memory)};
    if constexpr (DEPENDENT) let_next_launch_start();
    if (threadIdx.x >= COMPUTING) {
        int warp = (threadIdx.x - COMPUTING) / 32;
        bool leads = threadIdx.x % 32 == 0;
        if (leads && warp == 0) {
            prefetch_map(&problem.q);
            prefetch_map(&problem.k);
            shared.make_key_barriers();
        } else if (leads && warp == 1) {
            prefetch_map(&problem.v);
            shared.make_value_barriers();
        }
        arrive_numbered(READY, THREADS);
        if constexpr (WARPGROUPS > 1) give_up_registers<PRODUCER_REGISTERS>();
        if constexpr (DEPENDENT) wait_for_last_launch();
        if (leads && warp == 0) {
            produce_all(problem, KeyProducer{problem, shared});
        } else if (leads && warp == 1) {
            produce_all(problem, ValueProducer{problem, shared});
        }
    } else {
        if constexpr (WARPGROUPS > 1) take_registers<COMPUTE_REGISTERS>();
        shared.write_ones();
        if (problem.packed_heads > 1) shared.clear_queries(problem.packed_heads * problem.query_len);
        sync_threads_of_role<READY, THREADS>();
        if constexpr (DEPENDENT) wait_for_last_launch();
        Attend(problem, shared, threadIdx.x).run();
    }
}
