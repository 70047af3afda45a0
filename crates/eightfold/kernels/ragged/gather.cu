// From packed rows or pages to what the hopper kernel reads: K by heads, V by channels with the keys of every 16
// permuted, and Q in FP8.
//
//   for each block of 128 keys of a head:  K to its place;  V through shared memory, turned
//   for each query of a head:  a power of two brings the row to where scores fit f16;  round
//                              zeros and minus infinity are its results if it sees no keys
#include "attention/output.cuh"
#include "hopper/value_order.cuh"
#include "ptx/convert.cuh"
#include "ragged/problem.cuh"

constexpr int QUERY_FORMAT = Settings::QUERY_FORMAT, FORMAT_CODES = 3;
constexpr int THREADS = TURNING_THREADS;
constexpr int PARTS = HEAD_DIM / TURNED_CHANNELS;
static_assert(BLOCK_ROWS == TURNED_KEYS, "a block of keys is turned at a time");
static_assert(!E5M2, "scores of E5M2 codes do not fit f16");

// The block's keys behind its end are zeros: what lay there before might be no number.
__device__ inline void gather_keys(const Ragged& problem, TurnedTile& tile, int item) {
    int part = item % PARTS, head = item / PARTS % problem.kv_heads, block = item / PARTS / problem.kv_heads;
    int sequence = problem.blocks[1 + block], first = 0, left = 0;
    if (sequence >= 0) {
        RaggedRows rows = problem.sequences[sequence];
        first = block * BLOCK_ROWS - rows.first_key;
        left = rows.key_len - first;
    }
    const unsigned char* k = problem.k.codes + head * problem.k.head_stride + part * TURNED_CHANNELS;
    const unsigned char* v = problem.v.codes + head * problem.v.head_stride + part * TURNED_CHANNELS;
    uint4 keys[VECTORS], values[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        VectorOf of(i);
        keys[i] = values[i] = make_uint4(0, 0, 0, 0);
        if (of.key < left) {
            int page = 0, token = first + of.key;
            if (problem.block_table) {
                page = problem.block_table[sequence * problem.table_stride + token / problem.page_tokens];
                token %= problem.page_tokens;
            } else {
                token += problem.key_starts[sequence];
            }
            keys[i] = *reinterpret_cast<const uint4*>(problem.k.token(k, page, token) + 16 * of.chunk);
            values[i] = *reinterpret_cast<const uint4*>(problem.v.token(v, page, token) + 16 * of.chunk);
        }
    }
    long long first_row = static_cast<long long>(block) * BLOCK_ROWS;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        VectorOf of(i);
        long long row = static_cast<long long>(head) * problem.key_rows + first_row + of.key;
        *reinterpret_cast<uint4*>(problem.k_codes + row * HEAD_DIM + part * TURNED_CHANNELS + 16 * of.chunk) = keys[i];
    }
    __syncthreads();  // everyone is done with the tile before
    tile.put(values);
    __syncthreads();
    int group = threadIdx.x % GROUPS, quad = threadIdx.x / GROUPS;
    uint4 lines[4];
    tile.turn(group, quad, lines);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        long long line = static_cast<long long>(head) * HEAD_DIM + part * TURNED_CHANNELS + 4 * quad + i;
        *reinterpret_cast<uint4*>(problem.v_codes + line * problem.key_rows + first_row + group * GROUP) = lines[i];
    }
}

// A lane's channels of a row.
constexpr int CHANNELS = HEAD_DIM / 32;
struct Channels {
    struct __align__(2 * CHANNELS) Words {
        unsigned word[CHANNELS / 2];
    };
    float value[CHANNELS];

    __device__ void load(const void* values, long long place) {
        const unsigned char* bytes = static_cast<const unsigned char*>(values);
        if constexpr (QUERY_FORMAT == FORMAT_F32) {
#pragma unroll
            for (int i = 0; i < CHANNELS; ++i) value[i] = static_cast<const float*>(values)[place + i];
        } else if constexpr (QUERY_FORMAT == FORMAT_CODES) {
#pragma unroll
            for (int i = 0; i < CHANNELS; i += 2) {
                Floats2 pair = to_floats(widen_low<E5M2>(*reinterpret_cast<const unsigned short*>(bytes + place + i)));
                value[i] = pair.low;
                value[i + 1] = pair.high;
            }
        } else {
            Words words = *reinterpret_cast<const Words*>(bytes + 2 * place);
#pragma unroll
            for (int i = 0; i < CHANNELS; i += 2) {
                unsigned word = words.word[i / 2];
                Floats2 pair = {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)};
                if constexpr (QUERY_FORMAT == FORMAT_F16) pair = to_floats(word);
                value[i] = pair.low;
                value[i + 1] = pair.high;
            }
        }
    }

    __device__ float largest() const {
        float magnitude = 0.0f;
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) magnitude = fmaxf(magnitude, fabsf(value[i]));
        return warp_max(magnitude);
    }
};

// The power of two that brings a row below 128 / HEAD_DIM: then its products with codes of K up to 448 sum to less than
// f16's 65504. What FP8 has below 2^-6 is so far below the largest that it does not count.
__device__ inline float power_below(float largest) {
    constexpr int EXPONENT = HEAD_DIM == 64 ? 1 : 0;
    int exponent = __float_as_int(largest) >> 23 & 255;
    int wanted = min(max(253 + EXPONENT - exponent, 1), 253);
    return largest > 0.0f ? __int_as_float(wanted << 23) : 1.0f;
}
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "the exponent follows from the channels");

__device__ inline int sequence_of(const Ragged& problem, int query) {
    if (!problem.query_starts) return query / problem.query_len;
    int low = 0, high = problem.sequence_count;  // the last sequence that begins there or before
    while (high - low > 1) {
        int middle = (low + high) / 2;
        (problem.query_starts[middle] <= query ? low : high) = middle;
    }
    return low;
}

// What a row gives that sees no keys.
__device__ inline void store_nothing(const Ragged& problem, int sequence, int row, int head, int lane) {
    long long place = problem.output.place(sequence, head, row) + lane * CHANNELS;
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        if constexpr (OUTPUT_FORMAT == FORMAT_F32) {
            static_cast<float*>(problem.output.values)[place + i] = 0.0f;
        } else {
            static_cast<unsigned short*>(problem.output.values)[place + i] = 0;
        }
    }
    if (lane == 0 && problem.output.lse) {
        problem.output.lse[sequence * problem.lse_sequence_stride + head * problem.lse_head_stride +
                           row * problem.lse_token_stride] = SINKS ? problem.sinks[head] : minus_infinity();
    }
}

// Some heads of a query, by one warp: all are on their way together.
constexpr int HEADS_AT_ONCE = 4;
__device__ inline void quantize_query(const Ragged& problem, int query, int first_head, int lane) {
    int sequence = sequence_of(problem, query);
    int row = problem.query_starts ? query : query - sequence * problem.query_len;
    bool sees_keys = problem.keys_seen(sequence, query - problem.first_query(sequence)) > 0;
    Channels of_head[HEADS_AT_ONCE];
#pragma unroll
    for (int i = 0; i < HEADS_AT_ONCE; ++i) {
        int head = min(first_head + i, problem.query_heads - 1);
        of_head[i].load(problem.q.values, sequence * problem.q.sequence_stride + row * problem.q.token_stride +
                                              head * problem.q.head_stride + lane * CHANNELS);
    }
#pragma unroll
    for (int i = 0; i < HEADS_AT_ONCE; ++i) {
        const Channels& channels = of_head[i];
        int head = first_head + i;
        if (head >= problem.query_heads) break;
        if (!sees_keys) store_nothing(problem, sequence, row, head, lane);
        float factor = power_below(channels.largest()), scale = 1.0f;
        if constexpr (QUERY_FORMAT == FORMAT_CODES) {
            scale = problem.q.scales[static_cast<long long>(sequence) * problem.q.scale_sequence_stride +
                                     head * problem.q.scale_head_stride];
        }
        long long place = static_cast<long long>(query) * problem.query_heads + head;
        unsigned char* codes = problem.q_codes + place * HEAD_DIM + lane * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += 2) {
            *reinterpret_cast<unsigned short*>(codes + c) = static_cast<unsigned short>(
                pack_fp8<false>(channels.value[c] * factor, channels.value[c + 1] * factor));
        }
        if (lane == 0) {
            problem.q_codes_scales[static_cast<long long>(head) * problem.query_rows + query] = scale / factor;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ragged_gather(const __grid_constant__ Ragged problem) {
    __shared__ __align__(16) TurnedTile tile;
    // One block more than there are, of zeros: a tile of keys may reach beyond the last.
    int items = (problem.blocks[0] + 1) * problem.kv_heads * PARTS;
    for (int item = blockIdx.x; item < items; item += gridDim.x) gather_keys(problem, tile, item);
    constexpr int WARPS = THREADS / 32;
    int parts = (problem.query_heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
    int all = problem.first_query(problem.sequence_count) * parts;
    for (int item = blockIdx.x * WARPS + threadIdx.x / 32; item < all; item += gridDim.x * WARPS) {
        quantize_query(problem, item / parts, HEADS_AT_ONCE * (item % parts), threadIdx.x % 32);
    }
}
