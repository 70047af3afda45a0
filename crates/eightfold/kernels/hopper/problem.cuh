// What is passed at launch, and how it is cut into units of work.
#pragma once
#include "hopper/settings.cuh"

// A CUtensorMap: how the copy engine walks through a tensor.
struct __align__(64) TensorMap {
    unsigned long long words[16];
};

// Scales of a tensor: that of a row is at head_index · head_stride + row / rows.
struct Scales {
    const float* values;
    int head_stride;
    int rows;

    __device__ const float* at(int head_index, int row) const {
        return values + static_cast<long long>(head_index) * head_stride + row / rows;
    }
};

// Where the lines of Q or K are, and how many bytes apart.
struct Lines {
    const unsigned char* codes;
    long long batch_stride, head_stride, row_stride;
};

// Division by a number that the host knows: n / divisor = n · multiplier >> shift, for n below 2^31.
struct Divider {
    unsigned multiplier, shift;

    __device__ int divide(int n) const {
        return static_cast<int>(static_cast<unsigned long long>(n) * multiplier >> shift);
    }
};

// The struct of `src/cuda/hopper/launch/argument.rs`, field by field.
struct Attention {
    TensorMap q;  // [batch, head, row, channel], boxes of the tile's rows
    TensorMap k;  // [batch, head, row, channel], boxes of TILE_KEYS rows
    TensorMap v;  // [batch, head, channel, key], keys exchanged within every 16, boxes of VALUE_ROW keys
    Scales q_scales, k_scales, v_scales;
    const float* k_means;  // what was taken from K and V: null if nothing was
    const float* v_means;
    Lines q_lines, k_lines;
    void* output;
    long long output_batch_stride, output_head_stride, output_row_stride;
    float* lse;
    float* partial;     // split keys: sums, maxima and row sums of every part; [unit, split, row, channel + 2]
    unsigned* tickets;  // split keys: parts that are done, of every unit; left zero
    const int* places;  // of every block's units, -1 behind the last; [block, listed]; null if they go in rounds
    int batch, query_heads, kv_heads, query_len, key_len;
    int packed_heads;  // query heads of one tile: more than one if a group's queries fit into it together
    int query_tiles, head_tiles;
    int splits;           // parts of the keys
    int tiles_per_split;  // key tiles of a part
    float scale_log2;
    Divider by_query_tiles, by_head_tiles, by_heads, by_group,
        by_query_len;  // heads: head tiles of all batches; group: of query heads
    // Places in the list of a block. Here, because dividers at multiples of eight bytes are read as pairs, for which not
    // every variant has the registers.
    int listed;

    // Known when the kernel is compiled: what is executed once a tile of queries is fetched anew every time, and to jump
    // over code is to wait for what lies behind it.
    __device__ bool has_lse() const { return WITH_LSE; }
    __device__ bool has_value_means() const { return CENTRED; }

    __device__ int units() const { return query_tiles * head_tiles * batch; }

    // How many keys, counted from the first, a query sees; all of them beyond the last query.
    __device__ int visible_keys(int query) const {
        if (!CAUSAL) return key_len;
        return min(max(query + 1 + key_len - query_len, 0), key_len);
    }
};

static_assert(sizeof(Scales) == 16 && sizeof(Attention) == 704, "the host lays these out field by field");

// One tile of queries, and the part of the keys that is this block's.
struct Work {
    int unit;
    int split;
    int batch, kv_head;
    int first_head;  // of the packed ones
    int first_query;
    int first_tile, last_tile;  // key tiles, from the first to before the last

    // Causal tiles differ in length: the longest, at the end of the sequence, come first.
    __device__ Work(const Attention& problem, int place) {
        split = SPLIT_KEYS ? place % problem.splits : 0;
        unit = SPLIT_KEYS ? place / problem.splits : place;
        int tiles = problem.query_tiles, head_tiles = problem.head_tiles, heads = head_tiles * problem.batch;
        int round = CAUSAL ? problem.by_heads.divide(unit) : 0;
        int head = CAUSAL ? unit - round * heads : problem.by_query_tiles.divide(unit);
        int tile = CAUSAL ? tiles - 1 - round : unit - head * tiles;
        batch = problem.by_head_tiles.divide(head);
        first_head = (head - batch * head_tiles) * problem.packed_heads;
        kv_head = problem.by_group.divide(first_head);
        first_query = tile * TILE_QUERIES;
        int tiles_seen = (seen_keys(problem) + TILE_KEYS - 1) / TILE_KEYS;
        first_tile = SPLIT_KEYS ? min(split * problem.tiles_per_split, tiles_seen) : 0;
        last_tile = SPLIT_KEYS ? min(first_tile + problem.tiles_per_split, tiles_seen) : tiles_seen;
    }

    // Keys that the last row sees, and so any.
    __device__ int seen_keys(const Attention& problem) const {
        return problem.visible_keys(min(first_query + TILE_QUERIES, problem.query_len) - 1);
    }

    __device__ int kv_index(const Attention& problem) const { return batch * problem.kv_heads + kv_head; }

    // Which query, of which head, is in a row of the tile. The queries of packed heads follow each other.
    __device__ int query(const Attention& problem, int row) const {
        return first_query + row - packed_head(problem, row) * problem.query_len;
    }
    __device__ int head(const Attention& problem, int row) const { return first_head + packed_head(problem, row); }
    __device__ int packed_head(const Attention& problem, int row) const {
        return problem.packed_heads > 1 ? problem.by_query_len.divide(row) : 0;
    }
    __device__ bool has_row(const Attention& problem, int row) const {
        return problem.packed_heads > 1 ? row < problem.packed_heads * problem.query_len
                                        : first_query + row < problem.query_len;
    }
};
