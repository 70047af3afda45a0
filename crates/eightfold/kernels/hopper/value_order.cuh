// V by rows of channels → lines of keys of one channel, the keys of every 16 permuted: position 4q + 2h + e holds key
// 8h + 2q + e. 128 keys × 64 channels at a time, through shared memory, by 128 threads.
#pragma once

constexpr int GROUP = 16;  // keys that are permuted among each other
constexpr int TURNED_KEYS = 128;
constexpr int TURNED_CHANNELS = 64;
constexpr int TURNING_THREADS = 128;
constexpr int VECTORS = 4;  // of 16 bytes, that a thread has on their way
constexpr int GROUPS = TURNED_KEYS / GROUP;
constexpr int ROW_WORDS = TURNED_CHANNELS / 4;
// Groups start four banks apart, so that a warp, four words of each of eight groups, reads every bank once.
constexpr int GROUP_WORDS = GROUP * ROW_WORDS + 4;
static_assert(TURNED_KEYS * TURNED_CHANNELS == TURNING_THREADS * VECTORS * 16,
              "a thread copies VECTORS times 16 bytes");
static_assert(GROUPS * ROW_WORDS == TURNING_THREADS, "a thread turns four channels of a group");

// Which of a tile's vectors a thread has: so many keys behind the first, so many chunks of 16 channels.
struct VectorOf {
    int key, chunk;

    __device__ explicit VectorOf(int i) {
        int vector = i * TURNING_THREADS + threadIdx.x;
        key = vector / (TURNED_CHANNELS / 16);
        chunk = vector % (TURNED_CHANNELS / 16);
    }
};

// A tile in shared memory. What is put there is there for all after a barrier.
struct TurnedTile {
    unsigned words[GROUPS * GROUP_WORDS];

    __device__ void put(const uint4 (&vectors)[VECTORS]) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            VectorOf of(i);
            unsigned* row = words + of.key / GROUP * GROUP_WORDS + of.key % GROUP * ROW_WORDS;
            *reinterpret_cast<uint4*>(row + of.chunk * 4) = vectors[i];
        }
    }

    // The 16 keys of a group, of four channels from 4·quad on.
    __device__ void turn(int group, int quad, uint4 (&lines)[4]) const {
        const unsigned* word = words + group * GROUP_WORDS + quad;
        unsigned turned[4][4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const unsigned a = word[(2 * q) * ROW_WORDS], b = word[(2 * q + 1) * ROW_WORDS];
            const unsigned c = word[(2 * q + 8) * ROW_WORDS], d = word[(2 * q + 9) * ROW_WORDS];
            const unsigned ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
            const unsigned cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
            turned[0][q] = __byte_perm(ab_low, cd_low, 0x5410);
            turned[1][q] = __byte_perm(ab_low, cd_low, 0x7632);
            turned[2][q] = __byte_perm(ab_high, cd_high, 0x5410);
            turned[3][q] = __byte_perm(ab_high, cd_high, 0x7632);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) lines[i] = make_uint4(turned[i][0], turned[i][1], turned[i][2], turned[i][3]);
    }
};
