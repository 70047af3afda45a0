// f32, f16 or bf16 → FP8 codes and scales, in three launches: the largest magnitude of everything that shares a scale,
// the scales, the codes. Every step rounds exactly as the host's quantiser does, so that the bits are the same.
//
// Macros: ELEMENT (0 f32, 1 f16, 2 bf16), FORMAT_E5M2, TRANSPOSED (whether codes are written as rows of keys),
// EXCHANGED (whether position 4q + 2h + e of every 16 keys of such a row holds key 8h + 2q + e).

#ifndef ELEMENT
#error "ELEMENT says what the values are"
#endif

// The struct of `src/cuda/quantize/argument.rs`, field by field.
struct Quantize {
    const void* values;
    long long batch_stride, head_stride, row_stride;  // of the values, in elements
    unsigned char* codes;
    long long code_batch_stride, code_head_stride, code_line_stride;
    unsigned* magnitudes;  // one for each scale: the bits of the largest magnitude, zero before the first launch
    float* scales;
    int scale_count;
    int scale_head_stride;  // index of a scale = (batch * heads + head) * scale_head_stride + row / scale_rows
    int scale_rows;
    int heads, len, head_dim;
    int parts_per_scale;  // first launch: blocks that share a scale's rows of one head
    int blocks_per_head;  // first and third launch
    float largest_code;   // what the largest magnitude of a scale becomes
};
static_assert(sizeof(Quantize) == 120, "the host passes 120 bytes");

constexpr int THREADS = 256;
constexpr int TILE = 64;                           // rows of a block, and channels of a transposed one
constexpr int VECTOR = 8;                          // values that a thread takes at a time
constexpr int LINE = 16;                           // lines of codes are padded to a multiple of this many bytes
constexpr float SMALLEST_SCALE = 1.17549435e-38f;  // the smallest normal f32

struct Vector {
    float values[VECTOR];
};

// div.rn: the quotient that the host computes, whatever the compiler's flags.
__device__ inline float divide(float a, float b) {
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a), "f"(b));
    return quotient;
}

// cvt.f32.f16 of both halves of a word.
__device__ inline void widen_f16(unsigned word, float& low, float& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }"
        : "=f"(low), "=f"(high)
        : "r"(word));
}

__device__ inline void widen_bf16(unsigned word, float& low, float& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}

// cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32: two codes, the first in the low byte.
__device__ inline unsigned short encode(float first, float second) {
    unsigned short codes;
#if FORMAT_E5M2
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
#else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
#endif
    return codes;
}

// Eight neighbours, in loads of 16 bytes; `index` is a multiple of 8.
__device__ inline Vector load(const void* values, long long index) {
    Vector vector;
#if ELEMENT == 0
    const float4* source = reinterpret_cast<const float4*>(static_cast<const float*>(values) + index);
    const float4 low = source[0], high = source[1];
    vector.values[0] = low.x, vector.values[1] = low.y, vector.values[2] = low.z, vector.values[3] = low.w;
    vector.values[4] = high.x, vector.values[5] = high.y, vector.values[6] = high.z, vector.values[7] = high.w;
#else
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(values) + index);
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == 1
        widen_f16(word[i], vector.values[2 * i], vector.values[2 * i + 1]);
#else
        widen_bf16(word[i], vector.values[2 * i], vector.values[2 * i + 1]);
#endif
    }
#endif
    return vector;
}

// Where a block works.
struct Place {
    int batch, head;
    int head_index;  // batch * heads + head
    int part;        // which of the head's blocks
};

__device__ inline Place place(const Quantize& problem) {
    const int head_index = blockIdx.x / problem.blocks_per_head;
    return {head_index / problem.heads, head_index % problem.heads, head_index,
            static_cast<int>(blockIdx.x % problem.blocks_per_head)};
}

__device__ inline long long row_offset(const Quantize& problem, const Place& at, int row) {
    return at.batch * problem.batch_stride + at.head * problem.head_stride + row * problem.row_stride;
}

__device__ inline float scale_of(const Quantize& problem, const Place& at, int row) {
    return problem.scales[at.head_index * static_cast<long long>(problem.scale_head_stride) + row / problem.scale_rows];
}

// First launch. A block scans at most TILE rows that share a scale. Without the sign, the bits of floats order as the
// floats do, with infinity and NaN above the rest.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_magnitudes(const __grid_constant__ Quantize problem) {
    const Place at = place(problem);
    const int scale = at.part / problem.parts_per_scale;
    // In 64 bits, because the rows of a scale may be as many as there are numbers.
    const long long scale_begin = static_cast<long long>(scale) * problem.scale_rows;
    const long long begin = scale_begin + static_cast<long long>(at.part % problem.parts_per_scale) * TILE;
    const long long end = min(min(begin + TILE, scale_begin + problem.scale_rows), static_cast<long long>(problem.len));
    const int vectors_per_row = problem.head_dim / VECTOR;
    const int vectors = end > begin ? static_cast<int>(end - begin) * vectors_per_row : 0;

    unsigned largest = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const int row = static_cast<int>(begin) + i / vectors_per_row;
        const int channel = i % vectors_per_row * VECTOR;
        const Vector vector = load(problem.values, row_offset(problem, at, row) + channel);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) largest = max(largest, __float_as_uint(vector.values[j]) & 0x7fffffffu);
    }

    __shared__ unsigned of_warp[THREADS / 32];
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int warp = 1; warp < THREADS / 32; ++warp) largest = max(largest, of_warp[warp]);
        const long long index = at.head_index * static_cast<long long>(problem.scale_head_stride) + scale;
        if (largest != 0) atomicMax(problem.magnitudes + index, largest);
    }
}

// Second launch. The scale maps the largest magnitude to the largest code; it is never subnormal, and 1 for nothing but
// zeros.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_scales(const __grid_constant__ Quantize problem) {
    const long long index = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    if (index >= problem.scale_count) return;
    const float largest = __uint_as_float(problem.magnitudes[index]);
    problem.scales[index] = largest == 0.0f ? 1.0f : fmaxf(divide(largest, problem.largest_code), SMALLEST_SCALE);
}

// Eight values as eight codes, the first in the lowest byte.
__device__ inline uint2 encode_vector(const Vector& vector, float scale) {
    unsigned pairs[VECTOR / 2];
#pragma unroll
    for (int i = 0; i < VECTOR / 2; ++i) {
        pairs[i] = encode(divide(vector.values[2 * i], scale), divide(vector.values[2 * i + 1], scale));
    }
    return make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
}

__device__ inline unsigned char* code_line(const Quantize& problem, const Place& at, int line) {
    return problem.codes + at.batch * problem.code_batch_stride + at.head * problem.code_head_stride +
           line * problem.code_line_stride;
}

#if TRANSPOSED

// Third launch, transposed. A block turns TILE rows × TILE channels in shared memory and writes, for each channel, its
// codes of these rows; what pads a line is zero.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_codes(const __grid_constant__ Quantize problem) {
    // Neighbours in a column are 66 bytes apart, so that the four groups of 16 rows that are read at a time start
    // in banks 8 apart.
    constexpr int PITCH = TILE + 2;
    __shared__ __align__(16) unsigned char tile[TILE * PITCH];
    const Place at = place(problem);
    const int channel_tiles = (problem.head_dim + TILE - 1) / TILE;
    const int first_row = at.part / channel_tiles * TILE;
    const int first_channel = at.part % channel_tiles * TILE;

    for (int i = threadIdx.x; i < TILE * (TILE / VECTOR); i += THREADS) {
        const int row = first_row + i / (TILE / VECTOR);
        const int column = i % (TILE / VECTOR) * VECTOR;
        uint2 codes = make_uint2(0, 0);
        if (row < problem.len && first_channel + column < problem.head_dim) {
            const Vector vector = load(problem.values, row_offset(problem, at, row) + first_channel + column);
            codes = encode_vector(vector, scale_of(problem, at, row));
        }
        unsigned short* target = reinterpret_cast<unsigned short*>(tile + i / (TILE / VECTOR) * PITCH + column);
        target[0] = static_cast<unsigned short>(codes.x);
        target[1] = static_cast<unsigned short>(codes.x >> 16);
        target[2] = static_cast<unsigned short>(codes.y);
        target[3] = static_cast<unsigned short>(codes.y >> 16);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < TILE * (TILE / LINE); i += THREADS) {
        const int column = i / (TILE / LINE);
        const int first = i % (TILE / LINE) * LINE;
        // A group that starts within the row is written whole: the line is padded to a multiple of 16.
        if (first_channel + column >= problem.head_dim || first_row + first >= problem.len) continue;
        unsigned words[LINE / 4];
#pragma unroll
        for (int word = 0; word < LINE / 4; ++word) {
            words[word] = 0;
#pragma unroll
            for (int byte = 0; byte < 4; ++byte) {
                const int row = EXCHANGED ? 8 * (byte / 2) + 2 * word + byte % 2 : 4 * word + byte;
                words[word] |= static_cast<unsigned>(tile[(first + row) * PITCH + column]) << (8 * byte);
            }
        }
        unsigned char* line = code_line(problem, at, first_channel + column);
        *reinterpret_cast<uint4*>(line + first_row + first) = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

#else

// Third launch. A block encodes TILE rows; where a row of channels is padded, its last thread writes the zeros.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_codes(const __grid_constant__ Quantize problem) {
    const Place at = place(problem);
    const int first_row = at.part * TILE;
    const int rows = min(TILE, problem.len - first_row);
    const int vectors_per_row = problem.head_dim / VECTOR;
    for (int i = threadIdx.x; i < rows * vectors_per_row; i += THREADS) {
        const int row = first_row + i / vectors_per_row;
        const int channel = i % vectors_per_row * VECTOR;
        const Vector vector = load(problem.values, row_offset(problem, at, row) + channel);
        unsigned char* line = code_line(problem, at, row);
        *reinterpret_cast<uint2*>(line + channel) = encode_vector(vector, scale_of(problem, at, row));
        const int end = channel + VECTOR;
        if (end == problem.head_dim && end % LINE != 0) *reinterpret_cast<uint2*>(line + end) = make_uint2(0, 0);
    }
}

#endif
