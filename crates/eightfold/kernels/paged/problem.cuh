// What is passed at launch: a cache in pages, the queries of every sequence, and where results go.
#pragma once
#include "attention/operands.cuh"
#include "paged/pages.cuh"
#include "paged/settings.cuh"

// The log-sum-exp; distances in numbers.
struct RowEnds {
    float* values;
    long long sequence_stride, head_stride, token_stride;
};

// The struct of `src/cuda/paged/argument.rs`, field by field.
struct EveryPaged {
    Pages k, v;
    CacheScales k_scales, v_scales;
    Queries q;
    Output output;  // its rows are tokens
    RowEnds lse;
    const int* block_table;
    const int* lengths;       // of every sequence, its new tokens included
    const int* query_starts;  // of every sequence and behind the last; null where all have `query_len`
    float* parts;
    unsigned* tickets;
    long long table_stride;
    int sequences, query_heads, kv_heads, query_len;
    int group;  // query heads of a KV head
    int page_tokens;
    float scale_log2;
    int unused;
};

// With what only some problems have behind it.
struct Paged : EveryPaged, Extras {};

static_assert(sizeof(RowEnds) == 32 && sizeof(EveryPaged) == 328, "the host lays these out field by field");

// A sequence as it is when the launch runs.
struct Sequence {
    int index, length, first_query, queries;

    __device__ void look_up(const Paged& problem, int number) {
        index = number;
        length = max(problem.lengths[index], 0);
        first_query = problem.query_starts ? problem.query_starts[index] : 0;
        queries = problem.query_starts ? problem.query_starts[index + 1] - first_query : problem.query_len;
    }

    __device__ int row_tiles(const Paged& problem) const {
        return (queries * problem.group + TILE_ROWS - 1) / TILE_ROWS;
    }

    // The first unit of which a query sees a key.
    __device__ int first_unit(const Paged& problem) const { return WINDOW ? visible(problem, 0).first / UNIT_KEYS : 0; }

    // One even without keys: someone must store what that gives.
    __device__ int key_units(const Paged& problem) const {
        return max((length + UNIT_KEYS - 1) / UNIT_KEYS - first_unit(problem), 1);
    }

    __device__ int units(const Paged& problem) const {
        return row_tiles(problem) * problem.kv_heads * key_units(problem);
    }

    // The keys that a query sees; under the causal mask alone the last query sees all.
    __device__ KeyRange visible(const Paged& problem, int query) const {
        if constexpr (!CAUSAL && !WINDOW) return {0, length};
        int own = length - queries + query, right = CAUSAL ? 0 : problem.window_right;
        return {WINDOW ? max(own - problem.window_left, 0) : 0, min(max(own + right + 1, 0), length)};
    }
};
