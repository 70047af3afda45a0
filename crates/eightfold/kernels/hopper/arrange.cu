// V as rows of channels, or transposed, → V transposed with the keys of every 16 permuted: position 4q + 2h + e holds
// key 8h + 2q + e. What pads a line to 16 keys is zero.
//
// Macros: FROM_ROWS (whether V lies in rows of channels).

#ifndef FROM_ROWS
#error "FROM_ROWS says how V lies"
#endif

#include "hopper/value_order.cuh"

// The struct of `src/cuda/hopper/launch/arrange.rs`, field by field.
struct Arrange {
    const unsigned char* codes;
    long long batch_stride, head_stride, line_stride;
    unsigned char* arranged;
    long long arranged_batch_stride, arranged_head_stride, arranged_line_stride;
    int heads, len, head_dim;
    int blocks_per_head;
};
static_assert(sizeof(Arrange) == 80, "the host passes 80 bytes");

constexpr int THREADS = TURNING_THREADS;

#if FROM_ROWS

// A block turns 128 keys × 64 channels.
extern "C" __global__ void __launch_bounds__(THREADS) hopper_arrange(const __grid_constant__ Arrange problem) {
    __shared__ __align__(16) TurnedTile tile;
    const int head_index = blockIdx.x / problem.blocks_per_head;
    const int part = blockIdx.x % problem.blocks_per_head;
    const int channel_tiles = (problem.head_dim + TURNED_CHANNELS - 1) / TURNED_CHANNELS;
    const int first_key = part / channel_tiles * TURNED_KEYS;
    const int first_channel = part % channel_tiles * TURNED_CHANNELS;
    const long long batch = head_index / problem.heads, head = head_index % problem.heads;

    const unsigned char* rows =
        problem.codes + batch * problem.batch_stride + head * problem.head_stride + first_channel;
    uint4 vectors[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const VectorOf of(i);
        vectors[i] = make_uint4(0, 0, 0, 0);
        // A row is padded to a multiple of 16 channels.
        if (first_key + of.key < problem.len && first_channel + of.chunk * 16 < problem.head_dim) {
            const unsigned char* row = rows + (first_key + of.key) * problem.line_stride;
            vectors[i] = *reinterpret_cast<const uint4*>(row + of.chunk * 16);
        }
    }
    tile.put(vectors);
    __syncthreads();

    const int group = threadIdx.x % GROUPS;
    const int quad = threadIdx.x / GROUPS;
    const int first = first_key + group * GROUP;
    // A group that starts within the line is written whole: the line is padded to a multiple of 16.
    if (first >= problem.len) return;
    uint4 lines[4];
    tile.turn(group, quad, lines);
    unsigned char* arranged =
        problem.arranged + batch * problem.arranged_batch_stride + head * problem.arranged_head_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const long long channel = first_channel + 4 * quad + i;
        if (channel >= problem.head_dim) break;
        *reinterpret_cast<uint4*>(arranged + channel * problem.arranged_line_stride + first) = lines[i];
    }
}

#else

// The bytes of a word that are keys of the sequence, of as many as are left from its first on.
__device__ inline unsigned keep(unsigned word, int left) {
    if (left >= 4) return word;
    return left <= 0 ? 0 : word & ((1u << (8 * left)) - 1);
}

// A thread exchanges four groups of 16 keys.
extern "C" __global__ void __launch_bounds__(THREADS) hopper_arrange(const __grid_constant__ Arrange problem) {
    const int head_index = blockIdx.x / problem.blocks_per_head;
    const int part = blockIdx.x % problem.blocks_per_head;
    const int groups = (problem.len + GROUP - 1) / GROUP;
    const long long batch = head_index / problem.heads, head = head_index % problem.heads;
    const unsigned char* codes = problem.codes + batch * problem.batch_stride + head * problem.head_stride;
    unsigned char* arranged =
        problem.arranged + batch * problem.arranged_batch_stride + head * problem.arranged_head_stride;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const long long index = (static_cast<long long>(part) * VECTORS + i) * THREADS + threadIdx.x;
        const long long channel = index / groups;
        const int first = static_cast<int>(index % groups) * GROUP;
        if (channel >= problem.head_dim) break;
        const uint4 word = *reinterpret_cast<const uint4*>(codes + channel * problem.line_stride + first);
        const int left = problem.len - first;
        const unsigned a = keep(word.x, left), b = keep(word.y, left - 4);
        const unsigned c = keep(word.z, left - 8), d = keep(word.w, left - 12);
        *reinterpret_cast<uint4*>(arranged + channel * problem.arranged_line_stride + first) = make_uint4(
            __byte_perm(a, c, 0x5410), __byte_perm(a, c, 0x7632), __byte_perm(b, d, 0x5410), __byte_perm(b, d, 0x7632));
    }
}

#endif
