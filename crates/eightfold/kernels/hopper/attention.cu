// FP8 attention for Hopper: TMA brings tiles, warpgroups multiply them on the FP8 tensor cores, scores and
// weights never leave the registers.
//
//   producer:   for each tile of queries: bring Q;  for each tile of keys that they see, the last first: bring K, V
//   the others: for each tile of keys:    S = Q·Kᵀ;  mask;  maximum;  for each 32 keys: P = 2^(S - maximum), O += P·V
//               store O / sum and the log-sum-exp
#include "hopper/dump.cuh"
#include "hopper/merge.cuh"
#include "hopper/problem.cuh"
#include "hopper/produce.cuh"
#include "hopper/settings.cuh"
#include "hopper/shared.cuh"
#include "hopper/store.cuh"
#include "hopper/tile.cuh"
#include "ptx/register.cuh"

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
    float reach;              // of INT8: no score is larger, in powers of two of K's scale

    __device__ Attend(const Attention& problem, Shared shared, int thread)
        : Tile(problem, Work(problem, 0), thread, shared.promoted(thread)),
          shared(shared),
          warpgroup(same_in_warp(thread / WARPGROUP)) {}

    __device__ void run() {
        int index = tile_index(problem, 0);
        if (index < 0) return;
        work = Work(problem, index);
        begin();
        for (;;) {
            attend();
            float scale = finish();
            store(work, scale);
            index = tile_index(problem, ++round);
            if (index < 0) return;
            work = Work(problem, index);
            begin();
        }
    }

   private:
    // Starts the first product of scores as soon as its operands are there. If the tile of queries sees no keys, a
    // product of whatever is there: one runs whichever way the code goes.
    __device__ void begin() {
        loaded_scales[0] = *query_scale(0);
        loaded_scales[1] = *query_scale(1);
        loaded_scales[2] = *key_scale(max(work.last_tile - 1, 0));
        if constexpr (SCORES_S32) {
            reach = problem.scale_log2 *
                    fmaxf(loaded_scales[0] * largest_product(0), loaded_scales[1] * largest_product(1));
        }
        if constexpr (WARPGROUPS == 1) {
            early_value_scale = *value_scale(work.first_tile);
            // What the end needs is fetched while the first tile is on its way.
            need_now(problem.output.values);
            need_now(problem.output.row_stride);
            need_now(problem.output.lse);
            need_now(problem.v_means);
        }
        sleep_until_phase(shared.queries_full(), round % 2);
        int tile = work.last_tile - 1;
        for (; tile > last_seen() && tile >= work.first_tile; --tile) skip();
        if (tile >= work.first_tile) {
            wait_for_keys();
        } else {
            release_unused(shared.queries_empty());
        }
        start();
    }

    // The tiles of keys, the last first. The product of the first of them is under way.
    __device__ void attend() {
        rows = RowState();
        set_scales(loaded_scales[0], loaded_scales[1], loaded_scales[2]);
        set_shifts();
        exponential.set(rows);
        acc.reset();
        visited = 0;
        // Key tiles that every row sees all of.
        int whole = work.visible(problem, least_query()).end / TILE_KEYS;
        int tile = last_seen();
        if (tile < work.first_tile) return wait_for_products<0>();
        if constexpr (WINDOW || SOFTCAP) {
            // One body of code serves all: masks pass over the parts of a tile that every row sees.
            do {
                visit<HAS_CUT_TILES>(tile);
            } while (start_next(tile));
        } else {
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
    }

    // Goes on to the tile of keys before and starts its product. Where there is none, no product is left under way.
    __device__ bool start_next(int& tile) {
        if (--tile < first_seen()) {
            wait_for_products<0>();
            return false;
        }
        wait_for_keys();
        start();
        return true;
    }

    // The warpgroup's first query, and that of its rows; the first and the last tile of keys of which some row of the
    // warpgroup sees something.
    __device__ int first_query() const { return work.first_query + warpgroup * WARPGROUP_ROWS; }
    __device__ int least_query() const { return problem.packed_heads > 1 ? 0 : first_query(); }
    __device__ int first_seen() const {
        if (!WINDOW || WARPGROUPS == 1) return work.first_tile;
        return max(min(work.visible(problem, least_query()).first / TILE_KEYS, last_seen()), work.first_tile);
    }
    __device__ int last_seen() const {
        if ((!CAUSAL && !WINDOW) || WARPGROUPS == 1) return work.last_tile - 1;
        int behind = problem.packed_heads > 1 ? problem.query_len : first_query() + WARPGROUP_ROWS;
        int tiles = (work.visible(problem, min(behind, work.query_len(problem)) - 1).end + TILE_KEYS - 1) / TILE_KEYS;
        // Of sequences of their own lengths every tile sees a key, and every warpgroup visits one tile.
        if constexpr (RAGGED) tiles = max(tiles, 1);
        if constexpr (VISITS_SOME_TILE) tiles = max(tiles, work.first_tile + 1);
        return min(work.last_tile, tiles) - 1;
    }

    __device__ void wait_for_keys() { sleep_until_phase(shared.keys_full(ring.stage), ring.parity); }
    __device__ void start() {
        Scores next;
        start_scores(next, shared.queries(warpgroup), shared.keys(ring.stage));
        scores = next;
    }

    __device__ void skip() {
        wait_for_keys();
        release_unused(shared.keys_empty(ring.stage));
        sleep_until_phase(shared.values_full(ring.stage), ring.parity);
        release_unused(shared.values_empty(ring.stage));
        ring.advance();
    }

    // One tile of keys, whose scores are being multiplied.
    template <bool MASKED>
    __device__ void visit(int tile) {
        finish_scores(tile);  // S = Q·Kᵀ
        if constexpr (SOFTCAP) scores.cap(problem, cap);
        if constexpr (MASKED) mask(scores, tile * TILE_KEYS);
        update_row_max();
        sleep_until_phase(shared.values_full(ring.stage), ring.parity);
        if constexpr (SCORES_S32) {
            keep_in_reach(exponential, rows, scores, reach * loaded_scales[2], MASKED);
        }
        if constexpr (DUMP) {
            if (is_shown()) dump_scores(*this, scores, tile);
        }
#pragma unroll
        for (int step = 0; step < VALUE_STEPS; ++step) {
            exponential.weigh(scores, step, weights);  // P = 2^(S·scale - row_max)
            if constexpr (DUMP) {
                if (is_shown()) dump_weights(*this, step, tile);
            }
            acc.multiply(weights, step, shared.values(ring.stage));  // O += P·V, while the next weights are made
        }
        if constexpr (DUMP) {
            wait_for_products<0>();
            acc.settle_o();
            if (is_shown()) dump_sums(*this, tile);
        }
        acc.fresh = false;
        ring.advance();
    }

    // Whether this is the tile of queries that shows what it computes.
    __device__ bool is_shown() const {
        if constexpr (DUMP) return work.tile == problem.dump_tile;
        return false;
    }

    // Of INT8, with those of the rows in registers.
    __device__ void read_scales(int tile) {
        if constexpr (!SCORES_S32) return Tile::read_scales(tile);
        loaded_scales[2] = *key_scale(tile);
        set_scales(loaded_scales[0], loaded_scales[1], loaded_scales[2]);
    }

    // Waits for a tile's scores, and with them for all products with V of the tile before; and hands their operands
    // back.
    __device__ void finish_scores(int tile) {
        if constexpr (KEY_BLOCK_SCALES) read_scales(tile);
        wait_for_products<0>();
        release(shared.keys_empty(ring.stage));
        if (tile == first_seen()) release(shared.queries_empty());
        release_values();
        settle_scores(scores);
        acc.settle_o();
        acc.take_row_sums(rows.row_sum);
        if constexpr (PROMOTE) {
            if (visited % PROMOTE_EVERY == 0 && visited > 0) acc.promote();
        }
        ++visited;
        if constexpr (VALUE_BLOCK_SCALES) change_unit(tile);
    }

    // Moves a row's maximum, and all that was summed relative to it, if the new scores are too far above.
    __device__ void update_row_max() {
        Maxima maxima;
        maxima.include(scores, 0, TILE_KEYS);
        float largest[2];
        maxima.result(largest);
        bool above[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            largest[row] = fmaxf(largest[row] * rows.scale[row], LOWEST);
            above[row] = largest[row] > rows.row_max[row] + RESCALE_THRESHOLD;
        }
        if (__any_sync(0xffffffff, above[0] || above[1])) {
            float before[2] = {rows.row_max[0], rows.row_max[1]}, factor[2];
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                if (above[row]) rows.row_max[row] = largest[row];
            }
            exponential.set(rows);
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                factor[row] = exp2_hardware(before[row] - rows.row_max[row]);
                rows.row_sum[row] *= factor[row];
            }
            acc.rescale(factor[0], factor[1]);
        } else if constexpr (KEY_BLOCK_SCALES) {
            exponential.set(rows);
        }
    }

    __device__ void change_unit(int tile) {
        if constexpr (!SPARE_REGISTERS) remake_work();
        float change = *value_scale(min(tile + 1, work.last_tile - 1)) * reciprocal(*value_scale(tile));
        acc.rescale(change, change);
    }

    // Ends the sums, which nothing changes while they are stored. Returns what they are in units of.
    __device__ float finish() {
        if constexpr (!SPARE_REGISTERS) remake_work();
        wait_for_products<0>();
        release_values();
        for (int tile = first_seen() - 1; tile >= work.first_tile; --tile) skip();
        acc.settle_o();
        if (visited == 0) acc.clear_o();
        finish_rows();
        float scale = WARPGROUPS == 1 ? early_value_scale : *value_scale(first_seen());
        if constexpr (!SPLIT_KEYS) add_means(problem, work, acc.o, rows.row_sum, scale, quad);
        return scale;
    }

    __device__ void store(Work done, float scale) {
        if constexpr (!SPARE_REGISTERS) {
            thread = thread_index_anew();
            quad = thread % 4;
            first_row = first_row_of(thread);
        }
        if constexpr (SPLIT_KEYS) {
            store_part(problem, done, acc, rows, scale, first_row, quad);
            if (is_last_part(problem, done, thread)) merge_parts(problem, done, thread);
        } else {
            RowPlace places[2] = {{problem, done, first_row}, {problem, done, first_row + 8}};
            add_sinks(problem, done, acc.o, rows, places, quad);
            store_rows(problem, done, acc.o, rows, places, scale, quad);
        }
    }

    // So that no register keeps it through the loop.
    __device__ void remake_work() {
        forget_origin(round);
        work = Work(problem, tile_index(problem, round));
    }

    // Every warp tells the producer that it needs a buffer no more. All its lanes must have passed their wait for it:
    // one that is late by a whole refill would wait for a phase that has gone by. After a product they have.
    __device__ void release(unsigned empty) {
        if (thread % 32 == 0) arrive(empty);
    }
    // The same for a buffer of which nothing was multiplied.
    __device__ void release_unused(unsigned empty) {
        __syncwarp();
        release(empty);
    }
    // Of the tile before, whose products are done.
    __device__ void release_values() {
        int before = ring.stage == 0 ? STAGES - 1 : ring.stage - 1;
        if (visited > 0) release(shared.values_empty(before));
    }
};

template <typename Producer>
__device__ inline void produce_all(const Attention& problem, Producer producer) {
    for (int round = 0;; ++round) {
        int index = tile_index(problem, round);
        if (index < 0) return;
        producer.produce(Work(problem, index));
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
