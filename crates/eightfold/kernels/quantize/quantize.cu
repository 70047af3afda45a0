// f32, f16 or bf16 → FP8 or INT8 codes and scales, in two launches: the largest magnitude of everything that shares a
// scale, then the scales and the codes; before them, where it is centred, the means. Every step rounds exactly as the
// host's quantiser does, and what is added is added in its order, so that the bits are the same.
//
// Macros: those of problem.cuh, and ROWS, the rows of a block that does not transpose.

#include "ptx/address.cuh"
#include "ptx/copy.cuh"
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/row_scales.cuh"
#include "quantize/rows.cuh"
#include "quantize/turn.cuh"
#include "quantize/values.cuh"

constexpr int THREADS = 256;
constexpr int LOADS = 8;  // of a thread, in flight at a time
static_assert(ROWS >= 1 && ROWS <= THREADS, "every row of a block has a thread that finds its scale");

// How many vectors a thread has, some of them perhaps beyond the rows.
constexpr int CELLS = (ROWS * ROW_VECTORS + THREADS - 1) / THREADS;

// First launch. A block scans ROWS rows; where they share one scale, as they mostly do, the threads meet once at the
// end.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_magnitudes(const __grid_constant__ Quantize problem) {
    __shared__ unsigned largest_of[ROWS];
    const Place at = place(problem, blockIdx.x);
    const int first_row = at.part * ROWS;
    const int rows = min(ROWS, problem.len - first_row);
    const char* values = values_at(problem, at, first_row);
    const int first_scale = first_row / problem.scale_rows;
    const int scales = (first_row + rows - 1) / problem.scale_rows - first_scale + 1;

    unsigned largest = 0;
    if (threadIdx.x < scales) largest_of[threadIdx.x] = 0;
    __syncthreads();
    for (int first = 0; first < CELLS; first += LOADS) {
        uint4 words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const auto [row, channel] = cell<THREADS>(first + i);
            words[i] = make_uint4(0, 0, 0, 0);
            if (row < rows) words[i] = load(address(problem, values, row, channel));
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const auto [row, channel] = cell<THREADS>(first + i);
            unsigned magnitude = largest_magnitude(problem, at, channel, words[i]);
            if (CENTERED && row >= rows) magnitude = 0;
            largest = max(largest, magnitude);
            if (scales > 1 && row < rows) {
                atomicMax(largest_of + (first_row + row) / problem.scale_rows - first_scale, magnitude);
            }
        }
    }
    if (scales == 1) {
        largest = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) atomicMax(largest_of, largest);
    }
    __syncthreads();
    if (threadIdx.x < scales && largest_of[threadIdx.x] != 0) {
        const long long index = first_scale_of_head(problem, at) + first_scale + threadIdx.x;
        atomicMax(problem.magnitudes + index, largest_of[threadIdx.x]);
    }
}

// The second launch begins with what the first read last, which is still in the cache.
__device__ inline Place place_from_the_end(const Quantize& problem) {
    return place(problem, gridDim.x - 1 - blockIdx.x);
}

// Finds the scales of rows, each by a thread, and writes those that begin there.
__device__ inline void find_divisors(const Quantize& problem, const Place& at, int first_row, int rows, bool write,
                                     Divisor* divisors) {
    if (threadIdx.x < rows) {
        const int row = first_row + threadIdx.x;
        const int block = row / problem.scale_rows;
        const long long index = first_scale_of_head(problem, at) + block;
        const float scale = scale_for(__uint_as_float(problem.magnitudes[index]), problem.largest_code);
        divisors[threadIdx.x] = divisor(scale);
        const bool first_head = problem.scale_head_stride != 0 || at.head_index == 0;
        if (write && first_head && row == block * problem.scale_rows) problem.scales[index] = scale;
    }
    __syncthreads();
}

#if TRANSPOSED

constexpr int CHANNELS = 64;                    // of a block: what it reads of a row of 16-bit values is a cache line
constexpr int SLOTS = CHANNELS / (8 * VECTOR);  // times that eight lanes side by side read of a row
static_assert(GROUPS == THREADS / 32, "every warp takes a group of keys");

// Second launch, transposed. A lane takes the four keys that make up a word of a line of codes, several channels of
// each, and packs the words; in shared memory they meet their neighbours, and are written as lines of keys; what pads a
// line is zero.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_codes(const __grid_constant__ Quantize problem) {
    __shared__ Divisor divisors[KEYS];
    __shared__ __align__(16) unsigned tile[CHANNELS * KEYS / 4];
    constexpr int CHANNEL_TILES = (HEAD_DIM + CHANNELS - 1) / CHANNELS;
    const Place at = place_from_the_end(problem);
    const int first_row = at.part / CHANNEL_TILES * KEYS;
    const int first_channel = at.part % CHANNEL_TILES * CHANNELS;
    const int rows = min(KEYS, problem.len - first_row);
    const int group = threadIdx.x / 32;
    const int quad = threadIdx.x % 32 / 8;

    const char* values = values_at(problem, at, first_row);
    uint4 words[SLOTS][4];
    int key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) key[i] = group * LINE + key_of_word(quad, i);
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        const int channel = first_channel + (slot * 8 + threadIdx.x % 8) * VECTOR;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            words[slot][i] = make_uint4(0, 0, 0, 0);
            if (key[i] < rows && channel < HEAD_DIM) {
                words[slot][i] = load_last(address(problem, values, key[i], channel));
            }
        }
    }
    find_divisors(problem, at, first_row, rows, first_channel == 0, divisors);
    // A key that pads the line has a zero for its factor, and so for its codes.
    Divisor by[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) by[i] = key[i] < rows ? divisors[key[i]] : Divisor{0.0f, 1.0f, 1.0f};

#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        const int column = (slot * 8 + threadIdx.x % 8) * VECTOR;
        if (first_channel + column >= HEAD_DIM) break;
        Vector vectors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            vectors[i] = centered(problem, at, first_channel + column, words[slot][i]);
            if (CENTERED && key[i] >= rows) vectors[i] = Vector{};
        }
        turn(tile, column, group, quad, vectors, by);
    }
    __syncthreads();

    unsigned char* lines = codes_at(problem, at, first_channel) + first_row;
    const int written = threadIdx.x % GROUPS;
    // A group that starts within the row is written whole: the line is padded to a multiple of 16.
    if (written * LINE >= rows) return;
#pragma unroll
    for (int first = 0; first < CHANNELS; first += THREADS / GROUPS) {
        const int column = first + threadIdx.x / GROUPS;
        if (first_channel + column >= HEAD_DIM) break;
        unsigned char* line = lines + static_cast<long long>(column) * problem.code_line_stride;
        store_group(line, tile, column, written);
    }
}

#else

// Second launch. A block encodes ROWS rows.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_codes(const __grid_constant__ Quantize problem) {
    __shared__ Divisor divisors[ROWS];
    const Place at = place_from_the_end(problem);
    const int first_row = at.part * ROWS;
    const int rows = min(ROWS, problem.len - first_row);
    const char* values = values_at(problem, at, first_row);
    unsigned char* lines = codes_at(problem, at, first_row);
    for (int first = 0; first < CELLS; first += LOADS) {
        uint4 words[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const auto [row, channel] = cell<THREADS>(first + i);
            words[i] = make_uint4(0, 0, 0, 0);
            if (row < rows) words[i] = load_last(address(problem, values, row, channel));
        }
        if (first == 0) find_divisors(problem, at, first_row, rows, true, divisors);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const auto [row, channel] = cell<THREADS>(first + i);
            if (row >= rows) break;
            unsigned char* line = lines + static_cast<long long>(row) * problem.code_line_stride;
            store(line, channel, centered(problem, at, channel, words[i]), divisors[row]);
        }
    }
}

// One launch, where every row has a scale of its own.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_rows(const __grid_constant__ Quantize problem) {
    if constexpr (LANES_HOLD_ROWS && !CENTERED) quantize_row_by_row<THREADS, LOADS>(problem, blockIdx.x, ROWS);
}

#endif

#if CENTERED

constexpr int SUM_THREADS = 128;  // of a block: few, so that short heads find a multiprocessor for each
constexpr int SUM_ROWS = 64;      // rows that are summed one after the other; ROWS_PER_SUM of the host
constexpr int SUM_BATCH = 4;      // of them that a thread asks for at a time
constexpr int SUM_BUFFERS = 4;

// Before the others. A thread adds up SUM_ROWS rows of its channels, one after the other. The next are on their way to
// shared memory meanwhile, where only their own thread looks: of loads into registers the compiler leaves one in
// flight.
extern "C" __global__ void __launch_bounds__(SUM_THREADS) quantize_sums(const __grid_constant__ Quantize problem) {
    __shared__ uint4 held[SUM_BUFFERS][SUM_BATCH][SUM_THREADS];
    const Place at = place(problem, blockIdx.x);
    const long long index = static_cast<long long>(at.part) * SUM_THREADS + threadIdx.x;
    const long long group = index / ROW_VECTORS;
    if (group * SUM_ROWS >= problem.len) return;
    const int channel = index % ROW_VECTORS * VECTOR;
    const int first_row = group * SUM_ROWS;
    const int rows = min(SUM_ROWS, problem.len - first_row);
    const char* values = values_at(problem, at, first_row);
    auto place_of = [&](int row) {
        return shared_address(&held[row / SUM_BATCH % SUM_BUFFERS][row % SUM_BATCH][threadIdx.x]);
    };
    // What is beyond the rows adds zero, which changes no sum.
    auto bring = [&](int first) {
#pragma unroll
        for (int i = 0; i < SUM_BATCH; ++i) {
            const int row = first + i;
            copy_async_16(place_of(row), address(problem, values, row, channel), row < rows ? 16 : 0);
        }
        commit_copies();
    };
    constexpr int AHEAD = (SUM_BUFFERS - 1) * SUM_BATCH;
    for (int first = 0; first < AHEAD; first += SUM_BATCH) bring(first);
    double sums[VECTOR] = {};
    for (int first = 0; first < rows; first += SUM_BATCH) {
        bring(first + AHEAD);
        wait_for_copies<SUM_BUFFERS - 1>();
#pragma unroll
        for (int i = 0; i < SUM_BATCH; ++i) {
            const Vector vector = widen(load_shared_16(place_of(first + i)));
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) sums[j] += vector.values[j];
        }
    }
    const long long groups = (problem.len + SUM_ROWS - 1) / SUM_ROWS;
    double* target = problem.sums + (at.head_index * groups + group) * HEAD_DIM + channel;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) target[j] = sums[j];
}

// Then a thread adds up those sums of a channel, one after the other.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_means(const __grid_constant__ Quantize problem) {
    const Place at = place(problem, blockIdx.x);
    const int channel = at.part * THREADS + threadIdx.x;
    if (channel >= HEAD_DIM) return;
    const int groups = (problem.len + SUM_ROWS - 1) / SUM_ROWS;
    const double* source = problem.sums + static_cast<long long>(at.head_index) * groups * HEAD_DIM + channel;
    double sum = 0.0;
#pragma unroll 16
    for (int group = 0; group < groups; ++group) sum += source[static_cast<long long>(group) * HEAD_DIM];
    problem.means[at.head_index * static_cast<long long>(HEAD_DIM) + channel] =
        __double2float_rn(__ddiv_rn(sum, problem.len));
}

#endif
