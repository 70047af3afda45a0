// Which rows are whose, and in which order tiles of queries are computed: by one block.
//
//   of every sequence its keys, in blocks, and its tiles of queries;  sums over all sequences
//   tiles by the number of keys that they see, the most first
#include "ragged/problem.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr int BUCKETS = 256;

// Exclusive sums in place, and the sum of all behind them. By one warp.
template <typename Count>
__device__ inline void add_up(Count* counts, int count, int lane) {
    int before = 0;
    for (int first = 0; first < count; first += 32) {
        int own = first + lane < count ? static_cast<int>(counts[first + lane]) : 0, sum = own;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            int other = __shfl_sync(0xffffffff, sum, lane - distance & 31);
            if (lane >= distance) sum += other;
        }
        if (first + lane < count) counts[first + lane] = before + sum - own;
        before += __shfl_sync(0xffffffff, sum, 31);
    }
    __syncwarp();
    if (lane == 0) counts[count] = before;
}

struct Plan {
    int blocks[MOST_SEQUENCES + 1], tiles[MOST_SEQUENCES + 1];  // before each sequence, and in all
    unsigned places[BUCKETS + 1];                               // of the next tile of a bucket

    // Tiles of which no query sees a key come first, and are not computed.
    __device__ static int first_tile(const Ragged& problem, int sequence) {
        int queries = problem.queries_of(sequence), keys = problem.keys_of(sequence);
        if (keys == 0) return tiles_of(problem, sequence);
        int right = CAUSAL ? 0 : problem.window_right;
        return CAUSAL || WINDOW ? max(queries - keys - right, 0) / problem.tile_queries : 0;
    }
    __device__ static int tiles_of(const Ragged& problem, int sequence) {
        return (problem.queries_of(sequence) + problem.tile_queries - 1) / problem.tile_queries;
    }

    // The bucket of a tile: the more keys its last query sees, the earlier.
    __device__ static int bucket(const Ragged& problem, int sequence, int tile) {
        int last = min((tile + 1) * problem.tile_queries, problem.queries_of(sequence)) - 1;
        return BUCKETS - 1 - min(problem.keys_seen(sequence, last) / problem.bucket_keys, BUCKETS - 1);
    }

    // All tiles that are computed, each by one lane.
    template <typename Function>
    __device__ void for_each_tile(const Ragged& problem, int warp, int lane, Function function) const {
        for (int sequence = warp; sequence < problem.sequence_count; sequence += WARPS) {
            int count = tiles[sequence + 1] - tiles[sequence];
            int first = first_tile(problem, sequence);
            for (int i = lane; i < count; i += 32) function(sequence, first + i);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) ragged_plan(const __grid_constant__ Ragged problem) {
    __shared__ Plan plan;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int sequence = threadIdx.x; sequence < problem.sequence_count; sequence += THREADS) {
        int queries = problem.queries_of(sequence);
        plan.blocks[sequence] = queries > 0 ? (problem.keys_of(sequence) + BLOCK_ROWS - 1) / BLOCK_ROWS : 0;
        plan.tiles[sequence] = Plan::tiles_of(problem, sequence) - Plan::first_tile(problem, sequence);
    }
    for (int bucket = threadIdx.x; bucket < BUCKETS; bucket += THREADS) plan.places[bucket] = 0;
    __syncthreads();
    if (warp == 0) add_up(plan.blocks, problem.sequence_count, lane);
    if (warp == 1) add_up(plan.tiles, problem.sequence_count, lane);
    __syncthreads();

    for (int sequence = threadIdx.x; sequence < problem.sequence_count; sequence += THREADS) {
        problem.sequences[sequence] = {problem.first_query(sequence), problem.queries_of(sequence),
                                       plan.blocks[sequence] * BLOCK_ROWS, problem.keys_of(sequence)};
        for (int head = 0; head < problem.kv_heads; ++head) {
            int place = sequence * problem.kv_heads + head;
            problem.scales[place] = problem.k_scales.of_sequence(sequence, head);
            problem.scales[problem.sequence_count * problem.kv_heads + place] =
                problem.v_scales.of_sequence(sequence, head);
        }
    }
    for (int sequence = warp; sequence < problem.sequence_count; sequence += WARPS) {
        for (int block = plan.blocks[sequence] + lane; block < plan.blocks[sequence + 1]; block += 32) {
            problem.blocks[1 + block] = sequence;
        }
    }
    plan.for_each_tile(problem, warp, lane, [&](int sequence, int tile) {
        atomicAdd(&plan.places[Plan::bucket(problem, sequence, tile)], 1);
    });
    __syncthreads();
    if (warp == 0) add_up(plan.places, BUCKETS, lane);
    __syncthreads();
    plan.for_each_tile(problem, warp, lane, [&](int sequence, int tile) {
        unsigned place = atomicAdd(&plan.places[Plan::bucket(problem, sequence, tile)], 1);
        problem.tile_order[2 + 2 * place] = sequence;
        problem.tile_order[3 + 2 * place] = tile;
    });
    if (threadIdx.x == 0) {
        problem.tile_order[0] = plan.tiles[problem.sequence_count];
        // Blocks look at the first tile before they know whether there is one.
        if (problem.tile_order[0] == 0) problem.tile_order[2] = problem.tile_order[3] = 0;
        problem.blocks[0] = plan.blocks[problem.sequence_count];
        problem.blocks[1 + plan.blocks[problem.sequence_count]] = -1;
    }
}
