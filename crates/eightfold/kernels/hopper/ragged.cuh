// Sequences of different lengths: what the launch before (`kernels/ragged/plan.cu`) found out about them.
#pragma once

// Where the rows of a sequence begin, in Q and in the gathered keys, and how many there are.
struct __align__(16) RaggedRows {
    int first_query, query_len, first_key, key_len;
};

// What masks ask about a sequence.
struct RaggedLengths {
    int query_len, key_len, window_left, window_right;
};

// Behind every other field of a ragged launch; the struct of `src/cuda/hopper/launch/argument.rs`, field by field.
struct RaggedLaunch {
    const RaggedRows* sequences;
    const int*
        tile_order;  // how many tiles of queries there are, nothing, and of each its sequence and its place there
    long long lse_sequence_stride, lse_head_stride, lse_token_stride;
    int packed, unused;  // whether the output's rows are counted through all sequences
};
static_assert(sizeof(RaggedRows) == 16 && sizeof(RaggedLaunch) == 48, "the host lays these out field by field");

// What every other launch has in its place: nothing.
struct NotRagged {
    static constexpr const RaggedRows* sequences = nullptr;
    static constexpr const int* tile_order = nullptr;
    static constexpr long long lse_sequence_stride = 0, lse_head_stride = 0, lse_token_stride = 0;
    static constexpr int packed = 0;
};
