// What is passed at launch, and how it is cut into tiles of queries.
#pragma once
#include "attention/operands.cuh"
#include "hopper/ragged.cuh"
#include "hopper/settings.cuh"
#include "ptx/register.cuh"

// A CUtensorMap: how TMA walks through a tensor.
struct __align__(64) TensorMap {
    unsigned long long words[16];
};

// Division by a number that the host knows: n / divisor = n · multiplier >> shift, for n below 2^31.
struct Divider {
    unsigned multiplier, shift;

    __device__ int divide(int n) const {
        return static_cast<int>(static_cast<unsigned long long>(n) * multiplier >> shift);
    }
};

// The struct of `src/cuda/hopper/launch/argument.rs`, field by field.
struct EveryAttention {
    TensorMap q;  // [batch, head, row, channel], boxes of the tile's rows
    TensorMap k;  // [batch, head, row, channel], boxes of TILE_KEYS rows
    TensorMap v;  // [batch, head, channel, key], keys permuted within every 16, boxes of VALUE_ROW keys
    Scales q_scales, k_scales, v_scales;
    const float* k_means;  // what was taken from K and V: null if nothing was
    const float* v_means;
    Lines q_lines, k_lines;
    Output output;
    float* partial;        // split keys: sums, maxima and row sums of every part; [tile, split, row, channel + 2]
    unsigned* tickets;     // split keys: parts that are done, of every tile; left zero
    const int* tile_list;  // the tiles of every block, -1 behind the last; [block, tile_list_len]; null: in rounds
    int batch, query_heads, kv_heads, query_len, key_len;
    int packed_heads;  // query heads of one tile: more than one if a group's queries fit into it together
    int query_tiles, head_tiles;
    int splits;           // parts of the keys
    int tiles_per_split;  // key tiles of a part
    float scale_log2;
    Divider by_query_tiles, by_head_tiles, by_heads, by_group,
        by_query_len;  // heads: head tiles of all batches; group: of query heads
    // Of a block's part of the list. Here, because dividers at multiples of eight bytes are read as pairs, for which
    // not every variant has the registers.
    int tile_list_len;

    // Known when the kernel is compiled: what is executed once a tile of queries is fetched anew every time, and to
    // jump over code is to wait for what lies behind it.
    __device__ bool has_lse() const { return Settings::WITH_LSE; }
    __device__ bool has_value_means() const { return Settings::CENTRED; }

    __device__ int tiles() const { return query_tiles * head_tiles * batch; }
};

// Debug mode: where a tile of queries writes what it computes (`hopper/dump.cuh`), and which.
struct SomeDebug {
    float* dump;
    int dump_tile;
};
struct NoDebug {
    static constexpr float* dump = nullptr;
    static constexpr int dump_tile = -1;
};

// With what only some problems have behind it.
struct Attention : EveryAttention,
                   Extras,
                   Either<RAGGED, RaggedLaunch, NotRagged>::Type,
                   Either<DUMP, SomeDebug, NoDebug>::Type {};

static_assert(sizeof(EveryAttention) == 704, "the host lays it out field by field");

// Whether queries that see no key visit a tile of keys all the same, of which they see nothing.
constexpr bool VISITS_SOME_TILE = WINDOW && !SPLIT_KEYS;

// One tile of queries, and the part of the keys that is this block's.
struct Work {
    int tile;   // of queries, counted through all heads
    int split;  // the part of the keys
    int batch, kv_head;
    int first_head;  // of the packed ones
    int first_query;
    int first_tile, last_tile;  // key tiles, from the first to before the last

    // Causal tiles differ in length: the longest, at the end of the sequence, come first.
    __device__ Work(const Attention& problem, int index) {
        if constexpr (RAGGED) {
            find(problem, index);
        } else {
            split = SPLIT_KEYS ? index % problem.splits : 0;
            tile = SPLIT_KEYS ? index / problem.splits : index;
            int tiles = problem.query_tiles, head_tiles = problem.head_tiles, heads = head_tiles * problem.batch;
            int round = CAUSAL ? problem.by_heads.divide(tile) : 0;
            int head = CAUSAL ? tile - round * heads : problem.by_query_tiles.divide(tile);
            int tile_of_head = CAUSAL ? tiles - 1 - round : tile - head * tiles;
            batch = problem.by_head_tiles.divide(head);
            first_head = (head - batch * head_tiles) * problem.packed_heads;
            kv_head = problem.by_group.divide(first_head);
            first_query = tile_of_head * TILE_QUERIES;
        }
        KeyRange keys = seen_keys(problem);
        first_tile = keys.first / TILE_KEYS;
        last_tile = (keys.end + TILE_KEYS - 1) / TILE_KEYS;
        if constexpr (VISITS_SOME_TILE) {
            last_tile = max(last_tile, first_tile + 1);
            forget_origin(last_tile);  // what holds for every tile makes the compiler order products otherwise
        }
        if constexpr (SPLIT_KEYS) {
            first_tile = min(first_tile + split * problem.tiles_per_split, last_tile);
            last_tile = min(first_tile + problem.tiles_per_split, last_tile);
        }
    }

    // Keys that some row sees: from the first row's first to the last row's last.
    __device__ KeyRange seen_keys(const Attention& problem) const {
        int last_query = min(first_query + TILE_QUERIES, query_len(problem)) - 1;
        return {visible(problem, first_query).first, visible(problem, last_query).end};
    }

    // Lengths are the sequence's own, or those of all.
    __device__ KeyRange visible(const Attention& problem, int query) const {
        if constexpr (RAGGED) {
            RaggedRows own = rows(problem);
            RaggedLengths lengths = {own.query_len, own.key_len, problem.window_left, problem.window_right};
            return visible_keys(lengths, query);
        }
        return visible_keys(problem, query);
    }
    __device__ int query_len(const Attention& problem) const {
        if constexpr (RAGGED) return rows(problem).query_len;
        return problem.query_len;
    }

    // Where the tile's queries and the sequence's keys begin in their tensors, and which part of those is the
    // sequence's.
    __device__ int query_row(const Attention& problem) const {
        if constexpr (RAGGED) return rows(problem).first_query + first_query;
        return first_query;
    }
    __device__ int key_row(const Attention& problem) const {
        if constexpr (RAGGED) return rows(problem).first_key;
        return 0;
    }
    __device__ int part() const { return RAGGED ? 0 : batch; }

    // Where scale, output and log-sum-exp of a query are.
    __device__ const float* query_scale(const Attention& problem, int head, int query) const {
        if constexpr (RAGGED) return problem.q_scales.at(head, rows(problem).first_query + query);
        return problem.q_scales.at(batch * problem.query_heads + head, query);
    }
    __device__ long long output_place(const Attention& problem, int head, int query) const {
        if constexpr (RAGGED) query += problem.packed ? rows(problem).first_query : 0;
        return problem.output.place(batch, head, query);
    }
    __device__ long long lse_place(const Attention& problem, int head, int query) const {
        if constexpr (RAGGED) {
            int row = query + (problem.packed ? rows(problem).first_query : 0);
            return batch * problem.lse_sequence_stride + head * problem.lse_head_stride +
                   row * problem.lse_token_stride;
        } else {
            return (static_cast<long long>(batch) * problem.query_heads + head) * problem.query_len + query;
        }
    }

    __device__ int kv_head_index(const Attention& problem) const { return batch * problem.kv_heads + kv_head; }

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
                                        : first_query + row < query_len(problem);
    }

   private:
    __device__ RaggedRows rows(const Attention& problem) const { return problem.sequences[batch]; }

    // A tile of the list, for each head in turn.
    __device__ void find(const Attention& problem, int index) {
        tile = index;
        split = 0;
        int place = problem.by_heads.divide(index);
        first_head = index - place * problem.query_heads;
        kv_head = problem.by_group.divide(first_head);
        batch = problem.tile_order[2 + 2 * place];
        first_query = problem.tile_order[3 + 2 * place] * TILE_QUERIES;
    }
};

// The tile scheduler: the tile of the block in a round, less than zero where there is none: as the host lists them
// (`src/cuda/hopper/launch/order.rs`), or dealt out in rounds, every other one backwards, since causal tiles are
// ordered by length. The list is complete before the launch is made, so that the compiler may move its loads before the
// wait for the launch before.
__device__ inline int tile_index(const Attention& problem, int round) {
    if constexpr (CAUSAL && !SPLIT_KEYS && WARPGROUPS > 1 && !RAGGED) {
        if (problem.tile_list) return __ldg(problem.tile_list + blockIdx.x * problem.tile_list_len + round);
    }
    int block = (CAUSAL || RAGGED) && round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int index = round * gridDim.x + block;
    if constexpr (RAGGED) return index < problem.tile_order[0] * problem.query_heads ? index : -1;
    return index < problem.tiles() * (SPLIT_KEYS ? problem.splits : 1) ? index : -1;
}
