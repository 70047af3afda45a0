// f32, f16 or bf16 → FP8 codes and scales in one launch that reads every value once (sm_90 and later): the blocks of a
// cluster hold all that shares a scale, in registers and in shared memory, until they know its largest magnitude. The
// steps round as those of quantize.cu do, whose launches find the means first where it is centred.
//
// Macros: those of problem.cuh, and VECTORS, the vectors that a thread holds.

#include "ptx/address.cuh"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/rows.cuh"
#include "quantize/turn.cuh"
#include "quantize/values.cuh"

// Two blocks share a multiprocessor, so that one can load while the other encodes.
constexpr int THREADS = 512;
constexpr int KEPT = 8;          // vectors of a thread that are in registers; shared memory has room for as many
constexpr int MOST_BLOCKS = 16;  // of a cluster
static_assert(VECTORS == KEPT || VECTORS == 2 * KEPT, "a thread keeps its first vectors in registers");
static_assert(!CENTERED || (!TRANSPOSED && THREADS % ROW_VECTORS == 0),
              "a thread has registers for the means of one vector's channels, and not for turning beside them");

// Shared memory has the other vectors of a scale, or, where there are none, those of the scale that comes next: they are
// on their way while this one is encoded.
constexpr bool AHEAD = VECTORS == KEPT;

#if TRANSPOSED
constexpr int CHANNELS = 8 * VECTOR;  // of a tile: as many as eight lanes side by side read
constexpr int CHANNEL_TILES = (HEAD_DIM + CHANNELS - 1) / CHANNELS;
constexpr int TILE_THREADS = 32 * GROUPS;
constexpr int TILES = THREADS / TILE_THREADS;  // that are turned at a time, four vectors of every thread
static_assert(KEPT % 4 == 0 && VECTORS % 4 == 0, "a thread takes four keys at a time");

// Which tile of the block, in rows of channels.
__device__ inline int tile_of(unsigned thread, int round) { return round * TILES + thread / TILE_THREADS; }

// Where the vectors of a thread are, one after the other; some are beyond the rows or the channels.
__device__ inline Cell vector_at(unsigned thread, int number) {
    const int tile = tile_of(thread, number / 4);
    const int group = thread % TILE_THREADS / 32;
    return {tile / CHANNEL_TILES * KEYS + group * LINE + key_of_word(thread % 32 / 8, number % 4),
            tile % CHANNEL_TILES * CHANNELS + static_cast<int>(thread % 8) * VECTOR};
}
#else
__device__ inline Cell vector_at(unsigned thread, int number) { return cell<THREADS>(thread, number); }
#endif

// The same number, of which the compiler does not know: what follows from it is found again in every step, and not kept
// in registers from one step to the next.
__device__ inline unsigned anew(unsigned number) {
    asm volatile("" : "+r"(number));
    return number;
}

// What a block does for a scale: the rows of a cluster's scale that are its own, the last perhaps fewer or none.
struct Share {
    Place at;
    int first_row, rows;
};

__device__ inline Share share_of(const Quantize& problem, unsigned part) {
    const Place at = place(problem, part);
    const int scale_row = at.part * problem.scale_rows;
    const int first_row = scale_row + cluster_rank() * problem.block_rows;
    const int end_row = scale_row + min(problem.scale_rows, problem.len - scale_row);
    return {at, first_row, min(problem.block_rows, end_row - first_row)};
}

// The vectors of a thread.
struct Vectors {
    uint4 kept[KEPT];
    unsigned held;  // the thread's own room in shared memory, for a vector; the next is THREADS vectors on

    __device__ unsigned held_at(int number) const { return held + number % KEPT * THREADS * 16; }
    __device__ uint4 at(int number) const { return number < KEPT ? kept[number] : load_shared_16(held_at(number)); }
};

// Where a vector comes from, if there is one.
struct Source {
    const char* address;
    bool exists;
};

__device__ inline Source source_of(const Quantize& problem, const char* values, int rows, const Cell& cell) {
    const auto [row, channel] = cell;
    return {strides_on(values + channel * BYTES, row, problem.row_stride * BYTES), row < rows && channel < HEAD_DIM};
}

// All of a thread's loads, none of which waits for another. What is beyond the rows is zero, and so are its codes.
__device__ inline void load_vectors(const Quantize& problem, const Share& share, Vectors& vectors) {
    const char* values = values_at(problem, share.at, share.first_row);
    const unsigned thread = anew(threadIdx.x);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const auto [address, exists] = source_of(problem, values, share.rows, vector_at(thread, i));
        if (i < KEPT) {
            vectors.kept[i] = load_last_if(exists, address);
        } else {
            copy_async_16(vectors.held_at(i), address, exists ? 16 : 0);
        }
    }
    commit_copies();
}

// The same for the scale that comes next, into shared memory; and from there, when it is its turn.
__device__ inline void load_ahead(const Quantize& problem, const Share& share, const Vectors& vectors) {
    const char* values = values_at(problem, share.at, share.first_row);
    const unsigned thread = anew(threadIdx.x);
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        const auto [address, exists] = source_of(problem, values, share.rows, vector_at(thread, i));
        copy_async_16(vectors.held_at(i), address, exists ? 16 : 0);
    }
    commit_copies();
}

__device__ inline void take_ahead(Vectors& vectors) {
    wait_for_copies<0>();
#pragma unroll
    for (int i = 0; i < KEPT; ++i) vectors.kept[i] = load_shared_16(vectors.held_at(i));
}

__device__ inline unsigned largest_of_thread(const Quantize& problem, const Share& share, const Vectors& vectors) {
    const unsigned thread = anew(threadIdx.x);
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (i == KEPT) wait_for_copies<0>();
        const auto [row, channel] = vector_at(thread, i);
        // Beyond the rows there is zero, which is not to be centred.
        if (CENTERED && row >= share.rows) continue;
        largest = max(largest, largest_magnitude(problem, share.at, channel, vectors.at(i)));
    }
    return largest;
}

__device__ inline unsigned largest_of_block(unsigned of_thread) {
    __shared__ unsigned of_warps[THREADS / 32];
    const unsigned of_warp = __reduce_max_sync(0xffffffffu, of_thread);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
    __syncthreads();
    return __reduce_max_sync(0xffffffffu, of_warps[threadIdx.x % (THREADS / 32)]);
}

// In every thread of the cluster. Every block tells every other; when all have arrived, none reaches into another any
// more, and each may end when it likes. Who is a turn ahead writes where nobody of this turn reads, and none can be two
// ahead.
__device__ inline unsigned largest_of_cluster(unsigned of_block, int turn) {
    __shared__ unsigned of_blocks[2][MOST_BLOCKS];
    unsigned* of_turn = of_blocks[turn % 2];
    const int lane = threadIdx.x % 32;
    const bool has_block = lane < cluster_blocks();
    if (threadIdx.x < 32) {
        if (has_block) {
            store_in_cluster(in_block_of_cluster(shared_address(of_turn + cluster_rank()), lane), of_block);
        }
        __syncwarp();
        arrive_at_cluster();
    } else {
        arrive_at_cluster_relaxed();
    }
    wait_for_cluster();
    return __reduce_max_sync(0xffffffffu, has_block ? of_turn[lane] : 0);
}

#if TRANSPOSED

// A round turns TILES tiles: each is packed, and then written as lines of keys.
__device__ inline void store_codes(const Quantize& problem, const Share& share, const Vectors& vectors,
                                   const Divisor& divisor) {
    __shared__ __align__(16) unsigned tiles[TILES][CHANNELS * KEYS / 4];
    const unsigned of_block = anew(threadIdx.x);
    unsigned* tile = tiles[of_block / TILE_THREADS];
    const int thread = of_block % TILE_THREADS;
    const Divisor by[4] = {divisor, divisor, divisor, divisor};
#pragma unroll
    for (int round = 0; round < VECTORS / 4; ++round) {
        // The same for all threads of the block.
        if (round * TILES / CHANNEL_TILES * KEYS >= share.rows) break;
        Vector four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] = widen(vectors.at(4 * round + i));
        if (round > 0) __syncthreads();
        turn(tile, thread % 8 * VECTOR, thread / 32, thread % 32 / 8, four, by);
        __syncthreads();

        const int first_channel = tile_of(of_block, round) % CHANNEL_TILES * CHANNELS;
        const int first_key = tile_of(of_block, round) / CHANNEL_TILES * KEYS;
        unsigned char* lines = codes_at(problem, share.at, first_channel) + share.first_row + first_key;
        const int written = thread % GROUPS;
#pragma unroll
        for (int first = 0; first < CHANNELS; first += TILE_THREADS / GROUPS) {
            const int column = first + thread / GROUPS;
            // A group that starts within the row is written whole: the line is padded to a multiple of 16.
            if (first_key + written * LINE >= share.rows || first_channel + column >= HEAD_DIM) continue;
            store_group(strides_on(lines, column, problem.code_line_stride), tile, column, written);
        }
    }
}

#else

__device__ inline void store_codes(const Quantize& problem, const Share& share, const Vectors& vectors,
                                   const Divisor& divisor) {
    unsigned char* lines = codes_at(problem, share.at, share.first_row);
    const unsigned thread = anew(threadIdx.x);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const auto [row, channel] = vector_at(thread, i);
        if (row >= share.rows) break;
        unsigned char* line = strides_on(lines, row, problem.code_line_stride);
        store(line, channel, centered(problem, share.at, channel, vectors.at(i)), divisor);
    }
}

#endif

// A cluster takes the rows of a scale, and each of its blocks `block_rows` of them; where there are more scales than
// clusters, one after the other.
extern "C" __global__ void __launch_bounds__(THREADS, 2) quantize_fused(const __grid_constant__ Quantize problem) {
    extern __shared__ uint4 held[];
    arrive_at_cluster_relaxed();
    unsigned part = cluster_index();
    Vectors vectors;
    vectors.held = shared_address(held + threadIdx.x);
    load_vectors(problem, share_of(problem, part), vectors);
    // While the values are on their way: all blocks of the cluster have started.
    wait_for_cluster();

    for (int turn = 0;; ++turn) {
        const unsigned of_thread = largest_of_thread(problem, share_of(problem, part), vectors);
        const unsigned next = part + clusters();
        const bool goes_on = AHEAD && next < problem.parts;
        if (goes_on) load_ahead(problem, share_of(problem, next), vectors);

        const unsigned largest = largest_of_cluster(largest_of_block(of_thread), turn);
        const float scale = scale_for(__uint_as_float(largest), problem.largest_code);
        const Share share = share_of(problem, anew(part));
        if (cluster_rank() == 0 && threadIdx.x == 0) {
            const long long index = first_scale_of_head(problem, share.at) + share.at.part;
            problem.magnitudes[index] = largest;
            problem.scales[index] = scale;
        }
        store_codes(problem, share, vectors, divisor(scale));
        if (!goes_on) break;
        part = next;
        take_ahead(vectors);
    }
}
