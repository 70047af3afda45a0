// FP8 attention for Hopper where all keys fit into shared memory at once: a block for every one or two warpgroups of 64
// queries, for which nothing counts but the time from the launch to the last store.
//
//   every thread brings lines of Q and K, TMA V; of two blocks that share it, each brings half to both
//   for each part of the keys, as it arrives: S = Q·Kᵀ;  mask;  maximum
//   for each part: P = 2^(S - maximum), O += P·V
//   store O / sum and the log-sum-exp
#include "hopper/problem.cuh"
#include "hopper/settings.cuh"
#include "hopper/shared.cuh"
#include "hopper/store.cuh"
#include "hopper/tile.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"

// Lines of Q and K are brought 16 bytes at a time: a thread has the same place in every so many lines.
constexpr int CHUNKS = ROW_BYTES / 16;
constexpr int LINES = THREADS / CHUNKS;
constexpr int QUERY_LINES = TILE_QUERIES / LINES;  // of a thread
constexpr int KEY_LINES = TILE_KEYS / LINES;

// Everything that can be known without reading a tensor is made out before the launch before has ended. One body of
// code serves all tiles, whatever they see: fetching another one's instructions takes longer than what it would save.
//
// Keys are placed so that the last one that any row sees is among the last 64: then of 64 rows only the last 128 can be
// out of some row's sight, since the first sees at most 63 keys less than the last; behind a window any can be. What
// lies before the first key has no part in maxima, zeros for values, and zeros for ones where weights are summed up.
struct AttendAtOnce : Tile {
    static constexpr int PARTS = VALUE_BOXES;
    // Keys that a mask may hide, in whole parts.
    static constexpr int HIDDEN = (TILE_QUERIES + 64 + VALUE_ROW - 1) / VALUE_ROW * VALUE_ROW;
    static constexpr int CUT = SOFTCAP                        ? TILE_KEYS
                               : !HAS_CUT_TILES               ? 0
                               : WINDOW || TILE_KEYS < HIDDEN ? TILE_KEYS
                                                              : HIDDEN;

    Shared shared;
    int seen_keys;  // by the row of the tile that sees most
    int start;      // the keys are those from here on; less than zero if they are fewer than fit
    const unsigned char* queries[QUERY_LINES];
    bool is_query[QUERY_LINES];
    const unsigned char* keys[KEY_LINES];
    int line;             // the first that this thread brings
    unsigned line_place;  // of the first of them in shared memory
    RowPlace places[2];

    __device__ AttendAtOnce(const Attention& problem, const Work& work, Shared shared)
        : Tile(problem, work, threadIdx.x % THREADS, 0),  // so that its range is known
          shared(shared),
          seen_keys(work.seen_keys(problem).end),
          start(!HAS_CUT_TILES ? 0 : (seen_keys + 63) / 64 * 64 - TILE_KEYS),
          line(thread / CHUNKS),
          places{{problem, work, first_row}, {problem, work, first_row + 8}} {
        int chunk = thread % CHUNKS;
        // The pattern of a swizzle is the same every eight lines.
        line_place = line * LINE + 16 * swizzled<LINE>(line, chunk);
        const Lines &q = problem.q_lines, &k = problem.k_lines;
#pragma unroll
        for (int i = 0; i < QUERY_LINES; ++i) {
            int row = line + i * LINES;
            queries[i] = q.codes + work.batch * q.batch_stride + work.head(problem, row) * q.head_stride +
                         work.query(problem, row) * q.line_stride + 16 * chunk;
            is_query[i] = work.has_row(problem, row);
        }
        keys[0] = k.head(work.batch, work.kv_head) + (start + line) * k.line_stride + 16 * chunk;
#pragma unroll
        for (int i = 1; i < KEY_LINES; ++i) keys[i] = keys[0] + i * LINES * k.line_stride;
    }

    __device__ void run() {
        const float *first = query_scale(0), *second = query_scale(1), *of_keys = key_scale(0),
                    *of_values = value_scale(0);
        if constexpr (DEPENDENT) wait_for_last_launch();
        float scales[4] = {*first, *second, *of_keys, *of_values};
        copy_queries();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) copy_keys(part);
        copy_values();

        Scores scores;
        start_parts(scores);  // S = Q·Kᵀ
        set_scales(scales[0], scales[1], scales[2]);
        set_shifts();
        Maxima maxima;
        include_uncut_parts(scores, maxima);
        if constexpr (CUT > 0) {
            wait_for_products<0>();
            if constexpr (SOFTCAP) {
                settle_scores(scores);
                scores.cap(problem, cap);
            }
            if constexpr (HAS_CUT_TILES) mask(scores, start, TILE_KEYS - CUT);
            include_present(maxima, scores, TILE_KEYS - CUT, TILE_KEYS, -start);
        }
        set_row_max(maxima);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            constexpr int STEPS = VALUE_ROW / STEP;
            sleep_until_phase(shared.part_full(part), 0);
#pragma unroll
            for (int step = part * STEPS; step < (part + 1) * STEPS; ++step) {
                exponential.weigh(scores, step, weights);                     // P = 2^(S·scale - row_max)
                acc.multiply(weights, step, shared.values(0), part * STEPS);  // O += P·V
            }
            acc.fresh = false;
        }
        wait_for_products<0>();
        // Sums of channels that pad a head have registers until here, though nobody reads them.
        if constexpr (VALUE_DIM < VALUE_TILE) acc.settle_o();
        finish_rows();
        add_means(problem, work, acc.o, rows.row_sum, scales[3], quad);
        add_sinks(problem, work, acc.o, rows, places, quad);
        store_rows(problem, work, acc.o, rows, places, scales[3], quad);
    }

   private:
    // Of this thread's part of a line: what lies behind the head is zero, whatever pads the row.
    __device__ int bytes() const {
        return HEAD_DIM == ROW_BYTES ? 16 : min(max(HEAD_DIM - 16 * (thread % CHUNKS), 0), 16);
    }

    __device__ void copy_queries() const {
#pragma unroll
        for (int i = 0; i < QUERY_LINES; ++i) {
            copy_async_16(shared.queries() + line_place + i * LINES * LINE, queries[i], is_query[i] ? bytes() : 0);
        }
    }

    // Keys that do not exist or that no row sees are not read, and zero.
    __device__ void copy_keys(int part) const {
#pragma unroll
        for (int i = part * VALUE_ROW; i < (part + 1) * VALUE_ROW; i += LINES) {
            int key = start + line + i;
            bool seen = !HAS_CUT_TILES || (key >= 0 && key < seen_keys);
            copy_async_16(shared.keys(0) + line_place + i * LINE, keys[i / LINES], seen ? bytes() : 0);
        }
        commit_copies();
    }

    // Each warp tells TMA of some parts. What lies before the first key arrives as zeros.
    __device__ void copy_values() const {
        // Before anything arrives from the other block, it has its barriers.
        if constexpr (SHARE_VALUES) wait_for_cluster();
        for (int part = threadIdx.x / 32; thread % 32 == 0 && part < PARTS; part += THREADS / 32) {
            unsigned place = shared.values(0) + part * VALUE_BOX_BYTES, full = shared.part_full(part);
            int first_key = start + part * VALUE_ROW;
            arrive_expecting(full, VALUE_ROW * VALUE_TILE);
            if constexpr (!SHARE_VALUES) {
                copy_box(place, &problem.v, full, first_key, 0, work.kv_head, work.batch);
            } else if (part % PAIR == cluster_rank()) {
                copy_box_to_blocks((1 << PAIR) - 1, place, &problem.v, full, first_key, 0, work.kv_head, work.batch);
            }
        }
        __syncwarp();
    }

    __device__ int warpgroup() const { return WARPGROUPS == 1 ? 0 : same_in_warp(thread / WARPGROUP); }

    template <int PART = 0>
    __device__ void start_parts(Scores& scores) const {
        wait_for_copies<PARTS - 1 - PART>();
        publish_stores();
        __syncthreads();
        start_scores(scores, shared.queries(warpgroup()), shared.keys(0), PART, PART + 1);
        if constexpr (PART + 1 < PARTS) start_parts<PART + 1>(scores);
    }

    __device__ void set_row_max(const Maxima& maxima) {
        float largest[2];
        maxima.result(largest);
#pragma unroll
        for (int row = 0; row < 2; ++row) rows.row_max[row] = fmaxf(largest[row] * rows.scale[row], LOWEST);
        exponential.set(rows);
    }

    // A part's maxima are found while the next ones are multiplied; parts that may be cut wait for their mask.
    template <int PART = 0>
    __device__ void include_uncut_parts(const Scores& scores, Maxima& maxima) const {
        if constexpr (PART < (TILE_KEYS - CUT) / VALUE_ROW) {
            wait_for_products<PARTS - 1 - PART>();
            include_present(maxima, scores, PART * VALUE_ROW, (PART + 1) * VALUE_ROW, -start);
            include_uncut_parts<PART + 1>(scores, maxima);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) hopper_short(const __grid_constant__ Attention problem) {
    extern __shared__ __align__(1024) char memory[];
    Shared shared{shared_address(memory)};
    if constexpr (DEPENDENT) let_next_launch_start();
    // Blocks without work hold a place until their launch begins. Else the next one, which starts early, would find
    // some multiprocessors emptier than others, put two of its blocks there, and end when those end.
    if constexpr (IN_ROUNDS) {
        if (blockIdx.x >= problem.tiles()) {
            wait_for_last_launch();
            return;
        }
    }
    if (threadIdx.x == 0) {
        prefetch_map(&problem.v);
        shared.make_part_barriers();
    }
    if constexpr (SHARE_VALUES) {
        __syncwarp();
        arrive_at_cluster();
    }
    AttendAtOnce tile(problem, Work(problem, blockIdx.x), shared);
    shared.write_ones(-tile.start);
    __syncthreads();
    tile.run();
}
