// What is passed at launch, and how it is cut into units of work.
#pragma once
#include "attention/operands.cuh"
#include "ladder/settings.cuh"

// An FP8 tensor.
struct Operand {
    Lines lines;
    Scales scales;

    __device__ const unsigned char* head(int batch, int head) const { return lines.head(batch, head); }

    // The host has checked that a line is shorter than 4 GiB: one multiply-add instead of four.
    __device__ const unsigned char* line(const unsigned char* head, int line) const {
        return head +
               static_cast<unsigned long long>(static_cast<unsigned>(line)) * static_cast<unsigned>(lines.line_stride);
    }

    __device__ float scale(int head_index, int row) const { return *scales.at(head_index, row); }
};

// The struct of `src/cuda/ladder/launch/argument.rs`, field by field.
struct EveryAttention {
    Operand q, k, v;
    const float* k_means;
    const float* v_means;
    Output output;
    unsigned* queue;
    float* dump;
    int batch, query_heads, kv_heads, query_len, key_len;
    float scale_log2;
    int dump_work;
    int paired_from;

    __device__ int query_tiles() const { return (query_len + TILE_QUERIES - 1) / TILE_QUERIES; }
    __device__ int work_units() const { return query_tiles() * query_heads * batch; }
};

// With what only some problems have behind it.
struct Attention : EveryAttention, Extras {};

static_assert(sizeof(Operand) == 48 && sizeof(EveryAttention) == 248, "the host lays these out field by field");

// One tile of queries of one head.
struct Work {
    int index;
    int batch, head, kv_head;
    int first_query;
    int last_tile;     // of keys, behind the last that some query of the tile sees
    int first_masked;  // the first key tile of which some query does not see the end
    int seen_whole;    // the first key tile of which every query sees the beginning

    // Causal tiles differ in length: the longest, at the end of the sequence, go first. Where all blocks are on the
    // device at once, those from `paired_from` on share a multiprocessor with an earlier one: then the shortest goes to
    // the longest.
    __device__ Work(const Attention& problem, int place) {
        bool paired = CAUSAL && problem.paired_from > 0 && place >= problem.paired_from;
        index = paired ? problem.work_units() - 1 - (place - problem.paired_from) : place;
        int heads = problem.query_heads * problem.batch;
        int tiles = problem.query_tiles();
        int head_index = CAUSAL ? index % heads : index / tiles;
        int tile = CAUSAL ? tiles - 1 - index / heads : index % tiles;
        batch = head_index / problem.query_heads;
        head = head_index % problem.query_heads;
        kv_head = head / (problem.query_heads / problem.kv_heads);
        first_query = tile * TILE_QUERIES;
        int last_query = min(first_query + TILE_QUERIES, problem.query_len) - 1;
        last_tile = (visible_keys(problem, last_query).end + TILE_KEYS - 1) / TILE_KEYS;
        first_masked = visible_keys(problem, first_query).end / TILE_KEYS;
        seen_whole = (visible_keys(problem, last_query).first + TILE_KEYS - 1) / TILE_KEYS;
    }

    // The first tile of keys that some query of the tile sees.
    __device__ int first_tile(const Attention& problem) const {
        return visible_keys(problem, first_query).first / TILE_KEYS;
    }

    // Whether every query of the tile sees all keys of a tile.
    __device__ bool sees_all(int key_tile) const {
        return (!WINDOW || seen_whole <= key_tile) && key_tile < first_masked;
    }

    __device__ int head_index(const Attention& problem) const { return batch * problem.query_heads + head; }
    __device__ int kv_head_index(const Attention& problem) const { return batch * problem.kv_heads + kv_head; }
};
