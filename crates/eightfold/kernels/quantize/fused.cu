// f32, f16 or bf16 → FP8 or INT8 codes and scales in one launch that reads every value once (sm_90 and later): the
// blocks of a cluster hold all that shares a scale, in registers and in shared memory, until they know its largest
// magnitude. The steps round as those of quantize.cu do.
//
// Macros: those of problem.cuh, VECTORS, the vectors that a thread holds, and BLOCK_SCALES, the scales of a block's
// rows; 0 where the cluster has one. Where it is centred, a cluster holds a whole head, and its means are added in
// another order than the host's.

#include "ptx/address.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#if CENTERED
#include "quantize/means.cuh"
#endif
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/row_scales.cuh"
#include "quantize/rows.cuh"
#include "quantize/turn.cuh"
#include "quantize/values.cuh"

// Registers and shared memory take half of the vectors each, so that several blocks fit a multiprocessor, and some can
// load while others encode. Where a thread's vectors are not of the same channels, their addresses take registers, too;
// so do means.
constexpr int THREADS = 512;
constexpr int KEPT = VECTORS / 2;  // vectors of a thread that are in registers
constexpr int SHARING = CENTERED && TRANSPOSED ? 1
                                               : (VECTORS <= 8 && THREADS % ROW_VECTORS == 0 ? 3 : 2) -
                                                     CENTERED;  // blocks of a multiprocessor
constexpr int MOST_BLOCKS = 16;                                 // of a cluster
static_assert(!CENTERED || THREADS % ROW_VECTORS == 0, "a thread adds up vectors of the same channels");
static_assert(BLOCK_SCALES == 0 || (CENTERED && !TRANSPOSED && VECTORS % BLOCK_SCALES == 0), "a block has whole ones");

#if TRANSPOSED
constexpr int CHANNELS = 8 * VECTOR;  // of a tile: as many as eight lanes side by side read
constexpr int CHANNEL_TILES = (HEAD_DIM + CHANNELS - 1) / CHANNELS;
constexpr int TILE_THREADS = 32 * GROUPS;
constexpr int TILES = THREADS / TILE_THREADS;  // that are turned at a time, four vectors of every thread
static_assert(KEPT % 4 == 0 && VECTORS % 4 == 0, "a thread takes four keys at a time");
static_assert(!CENTERED || TILES % CHANNEL_TILES == 0, "a thread's tiles are of the same channels");

// Which tile of the block, in rows of channels.
__device__ inline int tile_of(int round) { return round * TILES + threadIdx.x / TILE_THREADS; }

// Where the vectors of a thread are, one after the other; some are beyond the rows or the channels.
__device__ inline Cell vector_at(int number) {
    const int tile = tile_of(number / 4);
    const int group = threadIdx.x % TILE_THREADS / 32;
    return {tile / CHANNEL_TILES * KEYS + group * LINE + key_of_word(threadIdx.x % 32 / 8, number % 4),
            tile % CHANNEL_TILES * CHANNELS + static_cast<int>(threadIdx.x % 8) * VECTOR};
}
#else
__device__ inline Cell vector_at(int number) { return cell<THREADS>(number); }
#endif

// The vectors of a thread.
struct Vectors {
    uint4 kept[KEPT];
    unsigned held;  // shared memory for the first of the others; the next is THREADS vectors on

    __device__ unsigned held_at(int number) const { return held + (number - KEPT) * THREADS * 16; }
    __device__ uint4 at(int number) const { return number < KEPT ? kept[number] : load_shared_16(held_at(number)); }
};

// All of a thread's loads, none of which waits for another. What is beyond the rows is zero, and so are its codes.
__device__ inline void load_vectors(const Quantize& problem, const char* values, int rows, Vectors& vectors) {
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const auto [row, channel] = vector_at(i);
        const bool exists = row < rows && channel < HEAD_DIM;
        const char* source = strides_on(values + channel * BYTES, row, problem.row_stride * BYTES);
        if (i < KEPT) {
            vectors.kept[i] = load_last_if(exists, source);
        } else {
            copy_async_16(vectors.held_at(i), source, exists ? 16 : 0);
        }
    }
    commit_copies();
}

#if CENTERED
constexpr int SCALE_VECTORS = VECTORS / (BLOCK_SCALES > 0 ? BLOCK_SCALES : 1);  // of a thread that share a scale

using HeadMeans = Means<THREADS / 32, MOST_BLOCKS>;

// Adds up all vectors of the head, of which those beyond the rows are zero.
__device__ inline void find_means(const Quantize& problem, const Place& at, const Vectors& vectors, HeadMeans& means) {
    Vector sums = {};
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (i == KEPT) wait_for_copies<0>();
        const Vector vector = widen(vectors.at(i));
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) sums.values[j] += vector.values[j];
    }
    leave_sums(means, sums);
    find_means(problem, at, means);
}

// The largest magnitude of a thread's values from a vector on that share a scale, without what is beyond the rows.
__device__ inline unsigned largest_of_thread(const Vectors& vectors, int rows, const HeadMeans& means, int first = 0) {
    unsigned largest = 0;
#pragma unroll
    for (int i = first; i < first + SCALE_VECTORS; ++i) {
        const auto [row, channel] = vector_at(i);
        if (row >= rows) break;
        const Vector vector = less_means(means, channel, vectors.at(i));
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) largest = max(largest, __float_as_uint(vector.values[j]) & 0x7fffffffu);
    }
    return largest;
}
#else
// The largest magnitude of a thread's values.
__device__ inline unsigned largest_of_thread(const Quantize& problem, const Place& at, const Vectors& vectors) {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (i == KEPT) wait_for_copies<0>();
        largest = max(largest, largest_magnitude(problem, at, 0, vectors.at(i)));
    }
    return largest;
}
#endif

// The largest magnitude of the block's threads, in every thread of it.
__device__ inline unsigned largest_of_block(unsigned largest) {
    __shared__ unsigned of_warps[THREADS / 32];
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, of_warps[threadIdx.x % (THREADS / 32)]);
}

// The largest magnitude of the cluster's vectors, in every thread of it. Every block tells every other; when all have
// arrived, none reaches into another any more, and each may end when it likes.
__device__ inline unsigned largest_of_cluster(unsigned of_block) {
    __shared__ unsigned of_blocks[MOST_BLOCKS];
    const int lane = threadIdx.x % 32;
    const bool has_block = lane < cluster_blocks();
    if (threadIdx.x < 32) {
        if (has_block) {
            store_in_cluster(in_block_of_cluster(shared_address(of_blocks + cluster_rank()), lane), of_block);
        }
        __syncwarp();
        arrive_at_cluster();
    } else {
        arrive_at_cluster_relaxed();
    }
    wait_for_cluster();
    return __reduce_max_sync(0xffffffffu, has_block ? of_blocks[lane] : 0);
}

#if TRANSPOSED

// A round turns TILES tiles: each is packed, and then written as lines of keys.
__device__ inline void store_codes(const Quantize& problem, const Place& at, int first_row, int rows,
                                   const Vectors& vectors, const Divisor& divisor
#if CENTERED
                                   ,
                                   const HeadMeans& means
#endif
) {
    __shared__ __align__(16) unsigned tiles[TILES][CHANNELS * KEYS / 4];
    unsigned* tile = tiles[threadIdx.x / TILE_THREADS];
    const int thread = threadIdx.x % TILE_THREADS;
    const Divisor by[4] = {divisor, divisor, divisor, divisor};
#pragma unroll
    for (int round = 0; round < VECTORS / 4; ++round) {
        // The same for all threads of the block.
        if (round * TILES / CHANNEL_TILES * KEYS >= rows) break;
        Vector four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#if CENTERED
            const auto [row, channel] = vector_at(4 * round + i);
            four[i] = row < rows ? less_means(means, channel, vectors.at(4 * round + i)) : Vector{};
#else
            four[i] = widen(vectors.at(4 * round + i));
#endif
        }
        if (round > 0) __syncthreads();
        turn(tile, thread % 8 * VECTOR, thread / 32, thread % 32 / 8, four, by);
        __syncthreads();

        const int first_channel = tile_of(round) % CHANNEL_TILES * CHANNELS;
        const int first_key = tile_of(round) / CHANNEL_TILES * KEYS;
        unsigned char* lines = codes_at(problem, at, first_channel) + first_row + first_key;
        const int written = thread % GROUPS;
#pragma unroll
        for (int first = 0; first < CHANNELS; first += TILE_THREADS / GROUPS) {
            const int column = first + thread / GROUPS;
            // A group that starts within the row is written whole: the line is padded to a multiple of 16.
            if (first_key + written * LINE >= rows || first_channel + column >= HEAD_DIM) continue;
            store_group(strides_on(lines, column, problem.code_line_stride), tile, column, written);
        }
    }
}

#else

#if CENTERED
__device__ inline void store_codes(const Quantize& problem, const Place& at, int first_row, int rows,
                                   const Vectors& vectors, const Divisor& divisor, const HeadMeans& means,
                                   int first = 0) {
    unsigned char* lines = codes_at(problem, at, first_row);
#pragma unroll
    for (int i = first; i < first + SCALE_VECTORS; ++i) {
        const auto [row, channel] = vector_at(i);
        if (row >= rows) break;
        store(strides_on(lines, row, problem.code_line_stride), channel, less_means(means, channel, vectors.at(i)),
              divisor);
    }
}
#else
__device__ inline void store_codes(const Quantize& problem, const Place& at, int first_row, int rows,
                                   const Vectors& vectors, const Divisor& divisor) {
    unsigned char* lines = codes_at(problem, at, first_row);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const auto [row, channel] = vector_at(i);
        if (row >= rows) break;
        store(strides_on(lines, row, problem.code_line_stride), channel, widen(vectors.at(i)), divisor);
    }
}
#endif

#endif

#if BLOCK_SCALES > 0
// A block finds the scales of its rows without the others. Every thread.
__device__ inline void store_blocks(const Quantize& problem, const Place& at, int first_row, int rows,
                                    const Vectors& vectors, const HeadMeans& means) {
    constexpr int WARPS = THREADS / 32;
    __shared__ unsigned of_warps[BLOCK_SCALES][WARPS];
#pragma unroll
    for (int part = 0; part < BLOCK_SCALES; ++part) {
        const unsigned largest = largest_of_thread(vectors, rows, means, part * SCALE_VECTORS);
        const unsigned of_warp = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) of_warps[part][threadIdx.x / 32] = of_warp;
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < BLOCK_SCALES; ++part) {
        // The same for all threads of the block.
        if (part * problem.scale_rows >= rows) break;
        const unsigned largest = __reduce_max_sync(0xffffffffu, of_warps[part][threadIdx.x % WARPS]);
        const float scale = scale_for(__uint_as_float(largest), problem.largest_code);
        if (threadIdx.x == 0) {
            const long long index = first_scale_of_head(problem, at) + first_row / problem.scale_rows + part;
            problem.magnitudes[index] = largest;
            problem.scales[index] = scale;
        }
        store_codes(problem, at, first_row, rows, vectors, divisor(scale), means, part * SCALE_VECTORS);
    }
}
#endif

// A cluster takes the rows of a scale, and each of its blocks `block_rows` of them, the last perhaps fewer or none.
__device__ inline void quantize_in_cluster(const Quantize& problem) {
    extern __shared__ uint4 held[];
    arrive_at_cluster_relaxed();
    const Place at = place(problem, cluster_index());
    const int rank = cluster_rank();
    const int scale_row = at.part * problem.scale_rows;
    const int first_row = scale_row + rank * problem.block_rows;
    const int end_row = BLOCK_SCALES > 0 ? problem.len : scale_row + min(problem.scale_rows, problem.len - scale_row);
    const int rows = min(problem.block_rows, end_row - first_row);
    Vectors vectors;
    vectors.held = shared_address(held + threadIdx.x);
    load_vectors(problem, values_at(problem, at, first_row), rows, vectors);
    // While the values are on their way: all blocks of the cluster have started.
    wait_for_cluster();

#if CENTERED
    __shared__ HeadMeans means;
    find_means(problem, at, vectors, means);
#endif
#if BLOCK_SCALES > 0
    store_blocks(problem, at, first_row, rows, vectors, means);
#else
#if CENTERED
    const unsigned largest = largest_of_cluster(largest_of_block(largest_of_thread(vectors, rows, means)));
#else
    const unsigned largest = largest_of_cluster(largest_of_block(largest_of_thread(problem, at, vectors)));
#endif
    const float scale = scale_for(__uint_as_float(largest), problem.largest_code);
    if (rank == 0 && threadIdx.x == 0) {
        const long long index = first_scale_of_head(problem, at) + at.part;
        problem.magnitudes[index] = largest;
        problem.scales[index] = scale;
    }
#if CENTERED
    store_codes(problem, at, first_row, rows, vectors, divisor(scale), means);
#else
    store_codes(problem, at, first_row, rows, vectors, divisor(scale));
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, SHARING)
    quantize_fused(const __grid_constant__ Quantize problem) {
    quantize_in_cluster(problem);
}

#if FORMAT_INT8 && CENTERED && !TRANSPOSED
// Two tensors in one launch; the struct of `src/cuda/quantize/pair.rs`, field by field.
struct KeysAndQueries {
    Quantize keys, queries;
    unsigned key_clusters;  // those of the queries come after them
    unsigned query_blocks;  // the last cluster may have more
};
static_assert(sizeof(KeysAndQueries) == 248, "the host passes 248 bytes");

constexpr int QUERY_LOADS = 4;                                   // of a thread, in flight at a time
constexpr int QUERY_ROWS = QUERY_LOADS * THREADS / ROW_VECTORS;  // of a block

// K, and after it Q, of which every row has a scale of its own: its blocks need no others.
extern "C" __global__ void __launch_bounds__(THREADS, SHARING)
    quantize_keys_and_queries(const __grid_constant__ KeysAndQueries both) {
    const unsigned cluster = cluster_index();
    if (cluster < both.key_clusters) return quantize_in_cluster(both.keys);
    const unsigned block = (cluster - both.key_clusters) * cluster_blocks() + cluster_rank();
    if (block < both.query_blocks) quantize_row_by_row<THREADS, QUERY_LOADS>(both.queries, block, QUERY_ROWS);
}
#endif
