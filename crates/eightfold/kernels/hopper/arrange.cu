// V as rows of channels, or transposed, → V transposed with the keys of every 16 exchanged: position 4q + 2h + e holds
// key 8h + 2q + e. What pads a line to 16 keys is zero.
//
// Macros: FROM_ROWS (whether V lies in rows of channels).

#ifndef FROM_ROWS
#error "FROM_ROWS says how V lies"
#endif

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

constexpr int THREADS = 128;
constexpr int GROUP = 16;   // keys that are exchanged among each other
constexpr int VECTORS = 4;  // of 16 bytes, that a thread has on their way

// prmt.b32: four of the eight bytes of two words, each by its number, the first in the lowest byte.
__device__ inline unsigned pick(unsigned low, unsigned high, unsigned selector) {
    return __byte_perm(low, high, selector);
}

#if FROM_ROWS

constexpr int TILE_KEYS = 128;
constexpr int TILE_CHANNELS = 64;
constexpr int GROUPS = TILE_KEYS / GROUP;
constexpr int ROW_WORDS = TILE_CHANNELS / 4;
// Groups start four banks apart, so that a warp, four words of each of eight groups, reads every bank once.
constexpr int GROUP_WORDS = GROUP * ROW_WORDS + 4;
static_assert(TILE_KEYS * TILE_CHANNELS == THREADS * VECTORS * 16, "a thread copies VECTORS times 16 bytes");
static_assert(GROUPS * ROW_WORDS == THREADS, "a thread turns four channels of a group");

// A block turns 128 keys × 64 channels.
extern "C" __global__ void __launch_bounds__(THREADS) hopper_arrange(const __grid_constant__ Arrange problem) {
    __shared__ __align__(16) unsigned tile[GROUPS * GROUP_WORDS];
    const int head_index = blockIdx.x / problem.blocks_per_head;
    const int part = blockIdx.x % problem.blocks_per_head;
    const int channel_tiles = problem.head_dim / TILE_CHANNELS;
    const int first_key = part / channel_tiles * TILE_KEYS;
    const int first_channel = part % channel_tiles * TILE_CHANNELS;
    const long long batch = head_index / problem.heads, head = head_index % problem.heads;

    const unsigned char* rows =
        problem.codes + batch * problem.batch_stride + head * problem.head_stride + first_channel;
    uint4 vectors[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int vector = i * THREADS + threadIdx.x;
        const int key = vector / (TILE_CHANNELS / 16);
        vectors[i] = make_uint4(0, 0, 0, 0);
        if (first_key + key < problem.len) {
            const unsigned char* row = rows + (first_key + key) * problem.line_stride;
            vectors[i] = *reinterpret_cast<const uint4*>(row + vector % (TILE_CHANNELS / 16) * 16);
        }
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int vector = i * THREADS + threadIdx.x;
        const int key = vector / (TILE_CHANNELS / 16);
        unsigned* row = tile + key / GROUP * GROUP_WORDS + key % GROUP * ROW_WORDS;
        *reinterpret_cast<uint4*>(row + vector % (TILE_CHANNELS / 16) * 4) = vectors[i];
    }
    __syncthreads();

    const int group = threadIdx.x % GROUPS;
    const int quad = threadIdx.x / GROUPS;
    const int first = first_key + group * GROUP;
    // A group that starts within the line is written whole: the line is padded to a multiple of 16.
    if (first >= problem.len) return;
    const unsigned* words = tile + group * GROUP_WORDS + quad;
    unsigned lines[4][4];  // of four channels, four words of four keys
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const unsigned a = words[(2 * q) * ROW_WORDS], b = words[(2 * q + 1) * ROW_WORDS];
        const unsigned c = words[(2 * q + 8) * ROW_WORDS], d = words[(2 * q + 9) * ROW_WORDS];
        const unsigned ab_low = pick(a, b, 0x5140), ab_high = pick(a, b, 0x7362);
        const unsigned cd_low = pick(c, d, 0x5140), cd_high = pick(c, d, 0x7362);
        lines[0][q] = pick(ab_low, cd_low, 0x5410);
        lines[1][q] = pick(ab_low, cd_low, 0x7632);
        lines[2][q] = pick(ab_high, cd_high, 0x5410);
        lines[3][q] = pick(ab_high, cd_high, 0x7632);
    }
    unsigned char* arranged =
        problem.arranged + batch * problem.arranged_batch_stride + head * problem.arranged_head_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const long long channel = first_channel + 4 * quad + i;
        *reinterpret_cast<uint4*>(arranged + channel * problem.arranged_line_stride + first) =
            make_uint4(lines[i][0], lines[i][1], lines[i][2], lines[i][3]);
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
        *reinterpret_cast<uint4*>(arranged + channel * problem.arranged_line_stride + first) =
            make_uint4(pick(a, c, 0x5410), pick(a, c, 0x7632), pick(b, d, 0x5410), pick(b, d, 0x7632));
    }
}

#endif
