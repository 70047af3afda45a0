// What the host compiles in: the kind of problem, the knobs, and what follows from them.
#pragma once
#include "attention/settings.cuh"

// The knobs.
constexpr int WARPGROUPS = Settings::WARPGROUPS, TILE_KEYS = Settings::TILE_KEYS, STAGES = Settings::STAGES;
constexpr bool SCORES_F32 = Settings::SCORES == 1, SCORES_S32 = Settings::SCORES == 2;  // else f16
constexpr int SPLIT_EIGHTHS = Settings::SPLIT_EIGHTHS;    // of the weights, that have two parts
constexpr int LINEAR_EIGHTHS = Settings::LINEAR_EIGHTHS;  // of the weights, by the linear exponential
constexpr int PROMOTE_TILES = Settings::PROMOTE_TILES;    // after which sums are promoted to f32; 0: never
constexpr bool PROMOTE_SHARED = Settings::PROMOTE_SHARED, SPLIT_KEYS = Settings::SPLIT_KEYS;
constexpr bool DEPENDENT = Settings::DEPENDENT;  // on the launch before: it starts while that one ends
constexpr int FLIGHT = Settings::FLIGHT;         // steps of the value product under way
constexpr bool KEYS_AT_ONCE = Settings::KEYS_AT_ONCE, SHARE_VALUES = Settings::SHARE_VALUES;
constexpr bool IN_ROUNDS = Settings::IN_ROUNDS;
constexpr bool HAS_CUT_TILES = Settings::HAS_CUT_TILES;  // whether mask or length cut tiles of keys
constexpr bool RAGGED = Settings::RAGGED;                // whether every sequence has lengths of its own
constexpr bool DUMP = Settings::DUMP;                    // whether a tile of queries shows what it computes

// A warpgroup (four warps) has 64 rows of the tile of queries: the height of a wgmma. One more warpgroup, the producer,
// only copies: one of its warps K, one V. Beside a single computing one, two warps are enough; and where all keys come
// at once, none.
constexpr int WARPGROUP = 128;
constexpr int WARPGROUP_ROWS = 64;
constexpr int WARP_ROWS = WARPGROUP_ROWS / 4;
constexpr int TILE_QUERIES = WARPGROUPS * WARPGROUP_ROWS;
constexpr int PRODUCER_THREADS = KEYS_AT_ONCE ? 0 : WARPGROUPS > 1 ? WARPGROUP : 64;
constexpr int THREADS = WARPGROUPS * WARPGROUP + PRODUCER_THREADS;

// Registers are divided anew where there is something to divide: what the producer gives up goes to the others. The
// pool is what was allocated at launch, so 384 threads start with 168 each and may end with 240 + 240 + 24.
constexpr int PRODUCER_REGISTERS = 24;
constexpr int COMPUTE_REGISTERS = WARPGROUPS == 2 ? 240 : 160;

// Heads are padded: rows of Q and K with zeros to one swizzled line or several, V to the next tile that products are
// written for. TMA brings the zeros, for what lies outside of a tensor.
constexpr int ROW_BYTES = (HEAD_DIM + 63) / 64 * 64;
constexpr int LINE = ROW_BYTES % 128 == 0 ? 128 : 64;
constexpr int ROW_LINES = ROW_BYTES / LINE;
constexpr int VALUE_TILE = VALUE_DIM <= 64    ? 64
                           : VALUE_DIM <= 96  ? 96
                           : VALUE_DIM <= 128 ? 128
                           : VALUE_DIM <= 192 ? 192
                                              : 256;

// FP8 products take 32 values at a time. A swizzled row is a line (Q and K), or holds as many keys as divide the tile
// (V transposed).
constexpr int STEP = 32;
constexpr int SCORE_STEPS = (HEAD_DIM + STEP - 1) / STEP;
constexpr int VALUE_ROW = TILE_KEYS % 128 == 0 ? 128 : 64;
constexpr int VALUE_BOXES = TILE_KEYS / VALUE_ROW;
constexpr int SCORE_COLUMNS = KEYS_AT_ONCE ? VALUE_ROW : TILE_KEYS < 256 ? TILE_KEYS : 256;  // keys of one product
constexpr int SCORE_PARTS = TILE_KEYS / SCORE_COLUMNS;
constexpr int VALUE_STEPS = TILE_KEYS / STEP;
constexpr int PAIR = 2;  // blocks that share V

// The tensor cores add up the weights of a row: eight rows of ones stand below V transposed, the product's next
// columns.
constexpr int SUM_COLUMNS = 8;
constexpr int VALUE_COLUMNS = VALUE_TILE + SUM_COLUMNS;

// Sums of weights, all of one sign, suffer most from what FP8 products cut off. They are taken out after every tile;
// where one tile is all and weights are precise, each of the eight rows has ones for a part of the keys alone.
constexpr bool SUMS_IN_PARTS = KEYS_AT_ONCE && SPLIT_EIGHTHS == 8;
constexpr int SUM_PART = 64;
static_assert(!SUMS_IN_PARTS || TILE_KEYS <= SUM_COLUMNS * SUM_PART, "there is a row for every part of the keys");

// A maximum may lag behind by as much as leaves the largest weight, 2^8 more, below the largest code, 448.
constexpr float RESCALE_THRESHOLD = 0.7f;

constexpr bool PROMOTE = PROMOTE_TILES > 0;
constexpr int PROMOTE_EVERY = PROMOTE ? PROMOTE_TILES : 1;

static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= 256 && VALUE_DIM % 8 == 0 && VALUE_DIM <= 256, "tiles end at 256");
static_assert(!KEYS_AT_ONCE || (ROW_LINES == 1 && VALUE_TILE <= 128), "a thread copies part of one line");
static_assert(TILE_KEYS % 64 == 0 && (TILE_KEYS <= 256 || TILE_KEYS == 512), "products have up to 256 columns");
static_assert(FLIGHT >= 1 && FLIGHT <= VALUE_STEPS, "a step is at least in flight itself");
static_assert(!KEYS_AT_ONCE || (WARPGROUPS <= 2 && STAGES == 1 && !PROMOTE && !SPLIT_KEYS), "one tile, and no more");
static_assert(!SHARE_VALUES || (KEYS_AT_ONCE && !CAUSAL && !WINDOW), "blocks that share see the same keys");
static_assert(!SHARE_VALUES || VALUE_BOXES >= PAIR, "each brings something");
static_assert(!IN_ROUNDS || (KEYS_AT_ONCE && DEPENDENT), "places are held for the next launch");
static_assert(WARPGROUPS >= 1 && WARPGROUPS <= 3, "registers are divided for up to three warpgroups");
static_assert(!RAGGED || !SOFTCAP, "the host refuses it");
static_assert(!RAGGED || !(KEYS_AT_ONCE || SPLIT_KEYS || DEPENDENT), "lengths are found by the launch before");
static_assert(!SCORES_F32 || LINEAR_EIGHTHS == 0, "the linear exponential is written for f16 and s32 scores");
static_assert(SCORES_S32 == INT8, "products of INT8 are whole numbers");
static_assert(!SCORES_S32 || !(KEYS_AT_ONCE || SOFTCAP || RAGGED), "the host refuses it");
static_assert(SPLIT_EIGHTHS == 0 || LINEAR_EIGHTHS == 0, "linear exponentials are not worth a second part");
