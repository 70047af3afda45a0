// New tokens into the pages of a cache, quantised on the way: each row of K and of V by a few lanes of a warp.
//
//   for each token with a slot, for each head, for K and V:
//       load the row;  scale = the one given, or that of its largest magnitude, stored beside it
//       store value / scale, rounded, saturated
#include "attention/settings.cuh"
#include "paged/pages.cuh"
#include "ptx/bulk.cuh"
#include "ptx/convert.cuh"
#include "ptx/load.cuh"

constexpr bool FORMAT_E5M2 = E5M2, FORMAT_INT8 = false;
#include "quantize/quotient.cuh"

constexpr int VALUE_FORMAT = Settings::VALUE_FORMAT;  // as formats of the output
constexpr bool COMPUTED = Settings::COMPUTED;         // a scale for every token and head
constexpr bool DEPENDENT = Settings::DEPENDENT;       // begins before the launch before has ended
constexpr int VECTOR = VALUE_FORMAT == FORMAT_F32 ? 4 : 8;
constexpr int VECTORS = HEAD_DIM / VECTOR;
constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : 8;  // of a row
constexpr int LOADS = (VECTORS + LANES - 1) / LANES;
constexpr int THREADS = 256;
static_assert(HEAD_DIM % 8 == 0, "a row is made of whole vectors");

// New keys or values; distances in elements.
struct Rows {
    const char* values;
    long long token_stride, head_stride;
};

// The struct of `src/cuda/paged/append.rs`, field by field.
struct Append {
    Rows k, v;
    Pages k_pages, v_pages;
    CacheScales k_scales, v_scales;
    const long long* slots;
    int tokens, heads, page_tokens, pages;
};
static_assert(sizeof(Append) == 200, "the host lays it out field by field");

struct Vector {
    float values[VECTOR];

    __device__ void load_from(const char* source) {
        uint4 words = load_last(source);
        const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (VALUE_FORMAT == FORMAT_F32) {
                values[i] = __uint_as_float(word[i]);
            } else if constexpr (VALUE_FORMAT == FORMAT_F16) {
                Floats2 pair = to_floats(word[i]);
                values[2 * i] = pair.low;
                values[2 * i + 1] = pair.high;
            } else {
                values[2 * i] = __uint_as_float(word[i] << 16);
                values[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
            }
        }
    }

    __device__ float largest() const {
        float magnitude = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) magnitude = fmaxf(magnitude, fabsf(values[i]));
        return magnitude;
    }

    __device__ void store_to(unsigned char* codes, const Divisor& by) const {
#pragma unroll
        for (int i = 0; i < VECTOR; i += 4) {
            unsigned low = encode(quotient(values[i], by), quotient(values[i + 1], by));
            unsigned high = encode(quotient(values[i + 2], by), quotient(values[i + 3], by));
            *reinterpret_cast<unsigned*>(codes + i) = low | high << 16;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) paged_append(const __grid_constant__ Append problem) {
    if constexpr (DEPENDENT) {
        let_next_launch_start();
        wait_for_last_launch();
    }
    constexpr float LARGEST_CODE = E5M2 ? 57344.0f : 448.0f;
    int index = (blockIdx.x * THREADS + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    int of_pair = index / 2, token = of_pair / problem.heads, head = of_pair % problem.heads;
    bool exists = token < problem.tokens;
    long long slot = exists ? problem.slots[token] : -1;
    // Rows are on their way before anyone knows where they go.
    bool is_kept = slot >= 0 && slot < static_cast<long long>(problem.pages) * problem.page_tokens;
    bool is_value = index % 2 != 0;
    const Rows& rows = is_value ? problem.v : problem.k;
    const Pages& pages = is_value ? problem.v_pages : problem.k_pages;
    const CacheScales& scales = is_value ? problem.v_scales : problem.k_scales;

    constexpr int BYTES = VALUE_FORMAT == FORMAT_F32 ? 4 : 2;
    const char* row = rows.values + (token * rows.token_stride + head * rows.head_stride) * BYTES;
    Vector vectors[LOADS];
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        int vector = lane + i * LANES;
        if (exists && vector < VECTORS) {
            vectors[i].load_from(row + 16 * vector);
            if constexpr (COMPUTED) largest = fmaxf(largest, vectors[i].largest());
        }
    }
    // The cache has fewer tokens than 2^31.
    unsigned kept = is_kept ? static_cast<unsigned>(slot) : 0, page_tokens = problem.page_tokens;
    int page = kept / page_tokens, place = kept % page_tokens;
    float scale = 1.0f;
    if constexpr (COMPUTED) {
#pragma unroll
        for (int distance = LANES / 2; distance > 0; distance /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, distance));
        scale = scale_for(largest, LARGEST_CODE);
        if (is_kept && lane == 0) scales.of_token(page, place, head) = scale;
    } else if (exists) {
        scale = scales.of_sequence(0, head);
    }
    if (!is_kept) return;
    Divisor by = divisor(scale);
    unsigned char* codes =
        pages.codes + page * pages.page_stride + head * pages.head_stride + place * pages.token_stride;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        int vector = lane + i * LANES;
        if (vector < VECTORS) vectors[i].store_to(codes + VECTOR * vector, by);
    }
}
