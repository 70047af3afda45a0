// What is passed to the launches before a ragged one of the hopper kernel: where queries and keys lie, and where what
// that kernel reads is put.
#pragma once
#include "attention/operands.cuh"
#include "hopper/ragged.cuh"
#include "paged/pages.cuh"

constexpr int BLOCK_ROWS = 128;       // gathered at a time; every sequence's keys begin at a multiple of it
constexpr int MOST_SEQUENCES = 2048;  // of a launch

// The struct of `src/cuda/ragged/argument.rs`, field by field.
struct EveryRagged {
    Pages k, v;  // of packed keys one page has all tokens
    CacheScales k_scales, v_scales;
    Queries q;
    Output output;
    long long lse_sequence_stride, lse_head_stride, lse_token_stride;
    const int* block_table;   // null where keys are packed
    const int* lengths;       // the keys of every sequence; null where the starts say it
    const int* key_starts;    // of packed keys, of every sequence and behind the last
    const int* query_starts;  // the same of queries; null where all sequences have `query_len`
    RaggedRows* sequences;
    int* tile_order;         // the number of tiles of queries, nothing, and of each its sequence and its place in it
    int* blocks;             // the number of blocks of keys, and of each its sequence; −1 is the last
    float* scales;           // [K and V, sequence, head]
    unsigned char* q_codes;  // [query, head, channel]
    float* q_codes_scales;   // [head, query]
    unsigned char* k_codes;  // [head, key, channel]
    unsigned char* v_codes;  // [head, channel, key], permuted
    long long table_stride;
    int sequence_count, query_heads, kv_heads, query_len;
    int page_tokens;
    int tile_queries;
    int bucket_keys;           // tiles that see as many keys but for so many are in no order
    int query_rows, key_rows;  // there is room for
    int unused;
};
static_assert(sizeof(EveryRagged) == 384, "the host lays it out field by field");

// With what only some problems have behind it.
struct Ragged : EveryRagged, Extras {
    __device__ int first_query(int sequence) const {
        return query_starts ? query_starts[sequence] : sequence * query_len;
    }
    __device__ int queries_of(int sequence) const { return first_query(sequence + 1) - first_query(sequence); }
    __device__ int keys_of(int sequence) const {
        if (lengths) return max(lengths[sequence], 0);
        return key_starts[sequence + 1] - key_starts[sequence];
    }

    // Keys that a query of a sequence sees.
    __device__ int keys_seen(int sequence, int query) const {
        RaggedLengths lengths = {queries_of(sequence), keys_of(sequence), window_left, window_right};
        KeyRange seen = visible_keys(lengths, query);
        return max(seen.end - seen.first, 0);
    }
};
