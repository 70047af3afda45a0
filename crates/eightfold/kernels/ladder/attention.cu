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

// The scale of V of the tile that the sums are in units of; where it changes along the keys, the sums follow it.
struct ValueScale {
    float current = 0.0f;

    __device__ float change_to(float next) {
        float ratio = current == 0.0f ? 1.0f : current / next;
        current = next;
        return ratio;
    }
};

// One tile of queries, by the warps that compute.
template <typename Sums>
__device__ inline void attend(const Attention& problem, const Work& work, char* memory, Ring& ring, int warp, int lane) {
    int row_warp = warp % ROW_WARPS, group = warp / ROW_WARPS;
    unsigned shared = shared_address(memory);
    SharedRows shared_rows{memory};
    int kv_head = work.kv_head_index(problem);
    bool dumped = DUMP && work.index == problem.dump_work;

    TileReader reader(problem, work, shared, ring, warp, lane);
    Queries queries;
    queries.load(problem, work, row_warp, lane);
    Rows rows;
    rows.begin(problem, work, row_warp, lane);
    if constexpr (SOFTMAX != SOFTMAX_FUSED) begin_rows(shared_rows, warp, lane);
    Sums sums;
    sums.begin();
    float key_scale = problem.k.scale(kv_head, 0);
    ValueScale value_scale;
    value_scale.change_to(problem.v.scale(kv_head, 0));

    for (int tile = 0; tile < work.key_tiles; ++tile) {
        int stage = reader.acquire(tile);

        Scores scores;
        scores.compute(queries, shared, stage, group, lane);
        if (tile >= work.first_masked) mask_scores(scores, problem, work, tile, row_warp, group, lane);
        if constexpr (KEY_BLOCK_SCALES) key_scale = problem.k.scale(kv_head, tile * TILE_KEYS);
        if (dumped) dump_scores(problem, scores, rows, key_scale, tile, row_warp, group, lane);

        float unit_change = 1.0f;
        if constexpr (VALUE_BLOCK_SCALES) unit_change = value_scale.change_to(problem.v.scale(kv_head, tile * TILE_KEYS));
        if constexpr (SOFTMAX == SOFTMAX_FUSED) {
            float correction[Rows::COUNT];
            weigh_in_registers(scores, rows, key_scale, correction);
            if (dumped) dump_weights(problem, scores, tile, row_warp, group, lane);
            sums.correct(correction, unit_change);
            sums.add(scores, shared, stage, group, lane);
        } else {
            store_scores(shared_rows, scores, rows, key_scale, warp, lane);
            weigh_in_shared(shared_rows, warp, lane);
            if (dumped) dump_weights(problem, shared_rows, tile, warp, lane);
            sums.correct(shared_rows, unit_change, warp, lane);
            sums.add_from_shared(shared_rows, shared, warp, lane);
            rows.read(shared_rows, warp, lane);
        }
        if (dumped && group == 0) {
            dump_rows(problem, rows, tile, warp, lane);
            dump_sums(problem, sums, tile, warp, lane);
        }
        reader.release(stage);
    }

    if constexpr (SOFTMAX == SOFTMAX_FUSED) rows.gather();
    if constexpr (KEY_GROUPS > 1) {
        merge_groups(sums, rows, memory, row_warp, group, lane);
        if (group > 0) return;
    }
    store_sums(problem, work, sums, rows, value_scale.current, warp, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ladder_attention(const __grid_constant__ Attention problem) {
    extern __shared__ __align__(128) char memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool produces = PRODUCERS > 0 && warp >= WARPS;
    Ring ring;
    if constexpr (PRODUCERS > 0) init_ring(shared_address(memory));

    WorkQueue queue(problem, memory);
    for (int index = queue.first(); index < problem.work_units(); index = queue.next()) {
        Work work(problem, index);
        if (produces) {
            produce(problem, work, shared_address(memory), ring, threadIdx.x - COMPUTE_THREADS);
        } else {
            attend<Sums>(problem, work, memory, ring, warp, lane);
        }
    }
    queue.finish();
}
