// Every instruction of `ptx/` whose result is a number, on numbers drawn at random, each kind by itself: what an H200
// makes of them, the simulator must make of them.
//
// Macros: KIND, one of those below; IS_E5M2.
#include "hopper/descriptor.cuh"
#include "ptx/address.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/bulk.cuh"
#include "ptx/convert.cuh"
#include "ptx/exponential.cuh"
#include "ptx/half.cuh"
#include "ptx/matrix.cuh"
#include "ptx/wgmma.cuh"

#define KIND_WGMMA_F32 0
#define KIND_WGMMA_F16 1
#define KIND_MMA_F16 2
#define KIND_MMA_FP8 3
#define KIND_CONVERT 4
#define KIND_HALVES 5
#define KIND_EXP2_HALVES 6
#define KIND_APPROXIMATE 7

struct Numbers {
    const unsigned* in;
    unsigned* out;
};

#if KIND == KIND_WGMMA_F32 || KIND == KIND_WGMMA_F16

#if KIND == KIND_WGMMA_F32
using Sum = float;
constexpr int SUMS = 32;
__device__ inline float from_word(unsigned word) { return __uint_as_float(word); }
__device__ inline unsigned to_word(float sum) { return __float_as_uint(sum); }
#else
using Sum = unsigned;
constexpr int SUMS = 16;
__device__ inline unsigned from_word(unsigned word) { return word; }
__device__ inline unsigned to_word(unsigned sum) { return sum; }
#endif

// A block: D = C + A·Bᵀ of 64 rows of 32 values each, in lines of 64 bytes of which half is not read.
extern "C" __global__ void numbers(const __grid_constant__ Numbers numbers) {
    extern __shared__ __align__(1024) char memory[];
    constexpr int WORDS = 64 * 32 / 4;
    const unsigned* in = numbers.in + blockIdx.x * (2 * WORDS + 128 * SUMS);
    unsigned base = shared_address(memory);
    for (int i = threadIdx.x; i < 64 * 2; i += 128) {
        int row = i / 2, chunk = i % 2, place = row * 64 + (chunk ^ row / 2 % 4) * 16;
        for (int matrix = 0; matrix < 2; ++matrix) {
            const unsigned* from = in + matrix * WORDS + row * 8 + chunk * 4;
            store_shared_16(base + matrix * 4096 + place, make_uint4(from[0], from[1], from[2], from[3]));
        }
    }
    publish_stores();
    __syncthreads();
    Sum sums[SUMS];
    for (int i = 0; i < SUMS; ++i) sums[i] = from_word(in[2 * WORDS + threadIdx.x * SUMS + i]);
    fence_products();
    multiply_shared<IS_E5M2>(sums, describe_matrix<64>(base), describe_matrix<64>(base + 4096), true);
    commit_products();
    wait_for_products<0>();
    for (int i = 0; i < SUMS; ++i) numbers.out[(blockIdx.x * 128 + threadIdx.x) * SUMS + i] = to_word(sums[i]);
}

#elif KIND == KIND_MMA_F16 || KIND == KIND_MMA_FP8

extern "C" __global__ void numbers(const __grid_constant__ Numbers numbers) {
    int thread = blockIdx.x * 32 + threadIdx.x;
    const unsigned* in = numbers.in + thread * 10;
    unsigned a[4] = {in[0], in[1], in[2], in[3]};
    float sum[4];
    for (int i = 0; i < 4; ++i) sum[i] = __uint_as_float(in[6 + i]);
#if KIND == KIND_MMA_F16
    multiply_f16(sum, a, in[4], in[5]);
#else
    multiply_fp8<IS_E5M2, IS_E5M2>(sum, a, in[4], in[5]);
#endif
    for (int i = 0; i < 4; ++i) numbers.out[thread * 4 + i] = __float_as_uint(sum[i]);
}

#else

extern "C" __global__ void numbers(const __grid_constant__ Numbers numbers) {
    int thread = blockIdx.x * 128 + threadIdx.x;
    unsigned a = numbers.in[3 * thread], b = numbers.in[3 * thread + 1], c = numbers.in[3 * thread + 2];
    float x = __uint_as_float(a), y = __uint_as_float(b), z = __uint_as_float(c);
    unsigned* out = numbers.out + 8 * thread;
#if KIND == KIND_CONVERT
    out[0] = pack_e4m3(x, y, z, x);
    out[1] = pack_fp8<false>(x, y) | pack_fp8<true>(x, y) << 16;
    out[2] = pack_f16(x, y);
    out[3] = pack_bf16(x, y);
    out[4] = widen_low<IS_E5M2>(a);
    out[5] = widen_high<IS_E5M2>(a);
    out[6] = __float_as_uint(to_floats(a).low);
    out[7] = __float_as_uint(divide(x, y));
#elif KIND == KIND_HALVES
    out[0] = multiply_add_halves(a, b, c);
    out[1] = multiply_add_halves_clamped(a, b, c);
    out[2] = max_halves(a, b);
    out[3] = subtract_halves(a, b);
    unsigned lower = a;
    lower_halves(lower, b);
    out[4] = lower;
    out[5] = both_halves(x);
    out[6] = both_halves_down(x);
    out[7] = pack_e4m3_halves(a, b);
#elif KIND == KIND_EXP2_HALVES
    for (int i = 0; i < 8; ++i) out[i] = 0;
    out[0] = exp2_halves(thread * 0x10001u);
#else
    for (int i = 3; i < 8; ++i) out[i] = 0;
    out[0] = __float_as_uint(exp2_hardware(x));
    out[1] = __float_as_uint(reciprocal(x));
    out[2] = __float_as_uint(log2_hardware(fabsf(x)));
#endif
}

#endif
