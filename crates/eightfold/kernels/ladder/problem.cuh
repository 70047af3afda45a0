// What is passed at launch, and how it is cut into units of work.
#pragma once
#include "ladder/settings.cuh"

// An FP8 tensor. A line is a row of channels or, of V transposed, a row of keys of one channel.
struct Operand {
    const unsigned char* codes;
    long long batch_stride, head_stride, line_stride;
    const float* scales;
    int scale_head_stride;
    int scale_rows;

    __device__ const unsigned char* head(int batch, int head) const {
        return codes + batch * batch_stride + head * head_stride;
    }

    // The host has checked that a line is shorter than 4 GiB: one multiply-add instead of four.
    __device__ const unsigned char* line(const unsigned char* head, int line) const {
        return head + static_cast<unsigned long long>(static_cast<unsigned>(line)) * static_cast<unsigned>(line_stride);
    }

    __device__ float scale(int head_index, int row) const {
        return scales[static_cast<long long>(head_index) * scale_head_stride + row / scale_rows];
    }
};

struct Attention {
    Operand q, k, v;
    const float* k_means;
    const float* v_means;
    void* output;
    long long output_batch_stride, output_head_stride, output_row_stride;
    float* lse;
    unsigned* queue;
    float* dump;
    int batch, query_heads, kv_heads, query_len, key_len;
    float scale_log2;
    int dump_work;
    int paired_from;

    __device__ int query_tiles() const { return (query_len + TILE_QUERIES - 1) / TILE_QUERIES; }
    __device__ int work_units() const { return query_tiles() * query_heads * batch; }

    // How many keys, counted from the first, a query sees; all of them beyond the last query.
    __device__ int visible_keys(int query) const {
        if (!CAUSAL) return key_len;
        return min(max(query + 1 + key_len - query_len, 0), key_len);
    }
};

static_assert(sizeof(Operand) == 48 && sizeof(Attention) == 248, "the host lays these out field by field");

// One tile of queries of one head.
struct Work {
    int index;
    int batch, head, kv_head;
    int first_query;
    int key_tiles;     // that at least one query of the tile sees
    int first_masked;  // the first key tile of which some query does not see all

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
        key_tiles = (problem.visible_keys(last_query) + TILE_KEYS - 1) / TILE_KEYS;
        first_masked = problem.visible_keys(first_query) / TILE_KEYS;
    }

    __device__ int head_index(const Attention& problem) const { return batch * problem.query_heads + head; }
    __device__ int kv_head_index(const Attention& problem) const { return batch * problem.kv_heads + kv_head; }
};
