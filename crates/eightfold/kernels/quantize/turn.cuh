// Codes that lie turned, in rows of keys. A lane takes the four keys that make up a word of such a row, several
// channels of each, and packs the words; in shared memory they meet their neighbours.
#pragma once
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/values.cuh"

constexpr int KEYS = 128;            // of a tile: what is written of a channel is a cache line
constexpr int GROUPS = KEYS / LINE;  // of 16 keys, one for each warp

// Which key of a group is at a place of the word of a quad.
__device__ inline int key_of_word(int quad, int place) {
    return PACKED ? 8 * (place / 2) + 2 * quad + place % 2 : 4 * quad + place;
}

// The word of shared memory for keys 4q … 4q + 3 of a group. Groups change places with the channel, so that neither
// eight lanes that write the same group of VECTOR-distant channels nor eight that read the groups of a channel meet in
// a bank.
__device__ inline int word_of(int channel, int group) {
    return channel * (KEYS / 4) + (group ^ (channel / VECTOR % GROUPS)) * (LINE / 4);
}

// Puts the codes of four keys into the tile, at its columns from this one on, which is the first of a vector.
__device__ inline void turn(unsigned* tile, int column, int group, int quad, const Vector (&vectors)[4],
                            const Divisor (&by)[4]) {
    // The columns of a vector have their groups in the same places.
    unsigned* words = tile + word_of(column, group) + quad;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
        float quotients[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) quotients[i] = quotient(vectors[i].values[j], by[i]);
        words[j * (KEYS / 4)] = encode(quotients[0], quotients[1]) | encode(quotients[2], quotients[3]) << 16;
    }
}

// Writes a group of keys of a column to its line.
__device__ inline void store_group(unsigned char* line, const unsigned* tile, int column, int group) {
    *reinterpret_cast<uint4*>(line + group * LINE) = *reinterpret_cast<const uint4*>(tile + word_of(column, group));
}
