// The ladder kernel: tiled attention with an online softmax, FP8 in, every optimisation a compile-time knob.
//
//   for each tile of queries:
//       for each tile of keys that they see:
//           load K, V;  S = Q·Kᵀ;  mask;  P = softmax so far;  O = correction·O + P·V
//       store O / sum and the log-sum-exp
#include "ladder/dump.cuh"
#include "ladder/load.cuh"
#include "ladder/merge.cuh"
#include "ladder/pipeline.cuh"
#include "ladder/problem.cuh"
#include "ladder/scores.cuh"
#include "ladder/settings.cuh"
#include "ladder/shared.cuh"
#include "ladder/softmax.cuh"
#include "ladder/store.cuh"
#include "ladder/values.cuh"

using Sums = Either<(PV >= PV_MMA), MmaSums, LaneSums>::Type;

// One tile of queries, by one of the warps that compute.
template <typename Sums>
struct Attend {
    const Attention& problem;
    const Work& work;
    SharedRows shared_rows;
    unsigned shared;
    int row_warp, group, lane;
    TileReader reader;
    Queries queries;
    Rows rows;
    Sums sums;

    __device__ Attend(const Attention& problem, const Work& work, char* memory, Ring& ring, int warp, int lane)
        : problem(problem),
          work(work),
          shared_rows{memory},
          shared(shared_address(memory)),
          row_warp(warp % ROW_WARPS),
          group(warp / ROW_WARPS),
          lane(lane),
          reader(problem, work, shared, ring, warp, lane) {
        queries.load(problem, work, row_warp, lane);
        rows.begin(problem, work, row_warp, lane);
        if constexpr (SOFTMAX != SOFTMAX_FUSED) begin_rows(shared_rows, row_warp, lane);
    }

    __device__ void run() {
        for (int tile = work.first_tile(problem); tile < work.last_tile; ++tile) visit(tile);
        finish();
    }

   private:
    __device__ void visit(int tile) {
        bool dumped = DUMP && work.index == problem.dump_work;
        float key_scale = KEY_BLOCK_SCALES ? problem.k.scale(work.kv_head_index(problem), tile * TILE_KEYS) : 1.0f;
        float unit_change = VALUE_BLOCK_SCALES ? value_scale(max(tile - 1, 0)) / value_scale(tile) : 1.0f;
        int stage = reader.acquire(tile);

        Scores scores;
        scores.compute(queries, shared, stage, group, lane);
        if constexpr (SOFTCAP) {
            cap_scores(scores, problem, rows, key_scale);
            key_scale = 1.0f;
        }
        if (!work.sees_all(tile)) mask_scores(scores, problem, work, tile, row_warp, group, lane);
        if (dumped) dump_scores(problem, scores, rows, key_scale, tile, row_warp, group, lane);

        if constexpr (SOFTMAX == SOFTMAX_FUSED) {
            float correction[Rows::COUNT];
            weigh_in_registers(scores, rows, key_scale, correction);
            if (dumped) dump_weights(problem, scores, tile, row_warp, group, lane);
            sums.correct(correction, unit_change);
            sums.add(scores, shared, stage, group, lane);
        } else {
            store_scores(shared_rows, scores, rows, key_scale, row_warp, lane);
            weigh_in_shared(shared_rows, row_warp, lane);
            if (dumped) dump_weights(problem, shared_rows, tile, row_warp, lane);
            sums.correct(shared_rows, unit_change, row_warp, lane);
            sums.add_from_shared(shared_rows, shared, row_warp, lane);
            rows.read(shared_rows, row_warp, lane);
        }
        if (dumped && group == 0) {
            dump_rows(problem, rows, tile, row_warp, lane);
            dump_sums(problem, sums, tile, row_warp, lane);
        }
        reader.release(stage);
    }

    __device__ void finish() {
        if constexpr (SOFTMAX == SOFTMAX_FUSED) rows.gather();
#pragma unroll
        for (int row = 0; row < Rows::COUNT; ++row) rows.normaliser[row] = sums.normaliser(row, rows.sum[row]);
        if constexpr (KEY_GROUPS > 1) {
            merge_groups(sums, rows, shared_rows.memory, row_warp, group, lane);
            if (group > 0) return;
        }
        if constexpr (SINKS) rows.add_sink(problem, work, row_warp, lane);
        store_sums(problem, work, sums, rows, value_scale(max(work.last_tile - 1, 0)), row_warp, lane);
    }

    // The scale of V in a tile. Sums are in units of the last tile's.
    __device__ float value_scale(int tile) const {
        return problem.v.scale(work.kv_head_index(problem), VALUE_BLOCK_SCALES ? tile * TILE_KEYS : 0);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    ladder_attention(const __grid_constant__ Attention problem) {
    extern __shared__ __align__(128) char memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool produces = PRODUCERS > 0 && warp >= WARPS;
    Ring ring;
    if constexpr (PRODUCERS > 0) init_ring(shared_address(memory));

    TileScheduler scheduler(problem, memory);
    for (int index = scheduler.first(); index < problem.work_units(); index = scheduler.next()) {
        Work work(problem, index);
        if (produces) {
            produce(problem, work, shared_address(memory), ring, threadIdx.x - COMPUTE_THREADS);
        } else {
            Attend<Sums>(problem, work, memory, ring, warp, lane).run();
        }
    }
    scheduler.finish();
}
