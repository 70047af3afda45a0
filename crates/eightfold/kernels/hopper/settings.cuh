// What the host compiles in: the kind of problem, the knobs, and what follows from them.
#pragma once

enum Format { FORMAT_F32, FORMAT_F16, FORMAT_BF16 };

constexpr bool E5M2 = INPUT_E5M2;

// A warpgroup (four warps) has 64 rows of the tile of queries: the height of a wgmma. One more warpgroup, the producer,
// only copies: one of its warps K, one V. Beside a single computing one, two warps are enough; and where all keys come at
// once, none.
constexpr int WARPGROUP = 128;
constexpr int WARPGROUP_ROWS = 64;
constexpr int TILE_QUERIES = WARPGROUPS * WARPGROUP_ROWS;
constexpr int PRODUCER_THREADS = KEYS_AT_ONCE ? 0 : WARPGROUPS > 1 ? WARPGROUP : 64;
constexpr int THREADS = WARPGROUPS * WARPGROUP + PRODUCER_THREADS;

// Registers are divided anew where there is something to divide: what the producer gives up goes to the others. The
// pool is what was allocated at launch, so 384 threads start with 168 each and may end with 240 + 240 + 24.
constexpr int PRODUCER_REGISTERS = 24;
constexpr int COMPUTE_REGISTERS = WARPGROUPS == 2 ? 240 : 160;

// FP8 products take 32 values at a time. A swizzled row is as long as a line of K (Q and K), or holds as many keys as
// divide the tile (V transposed).
constexpr int STEP = 32;
constexpr int SCORE_STEPS = HEAD_DIM / STEP;
constexpr int VALUE_ROW = TILE_KEYS % 128 == 0 ? 128 : 64;
constexpr int VALUE_BOXES = TILE_KEYS / VALUE_ROW;
constexpr int SCORE_COLUMNS = KEYS_AT_ONCE ? VALUE_ROW : TILE_KEYS < 256 ? TILE_KEYS : 256;  // keys of one product
constexpr int SCORE_PARTS = TILE_KEYS / SCORE_COLUMNS;
constexpr int VALUE_STEPS = TILE_KEYS / STEP;
constexpr int PAIR = 2;  // blocks that share V

// The tensor cores add up the weights of a row: eight rows of ones stand below V transposed, the product's next columns.
constexpr int SUM_COLUMNS = 8;
constexpr int VALUE_COLUMNS = HEAD_DIM + SUM_COLUMNS;

// Sums of weights, all of one sign, suffer most from what FP8 products cut off. They are taken out after every tile; where
// one tile is all and weights are precise, each of the eight rows has ones for a part of the keys alone.
constexpr bool SUMS_IN_PARTS = KEYS_AT_ONCE && SPLIT_EIGHTHS == 8;
constexpr int SUM_PART = 64;
static_assert(!SUMS_IN_PARTS || TILE_KEYS <= SUM_COLUMNS * SUM_PART, "there is a row for every part of the keys");

// Weights are 2^(score - maximum + 8), so that E4M3 keeps more of the small ones. A maximum may lag behind by as much
// as still fits below the largest code, 448.
constexpr float WEIGHT_EXPONENT = 8.0f;
constexpr float RESCALE_THRESHOLD = 0.7f;

// Every so many tiles the sums are promoted to f32, or never.
constexpr bool PROMOTE = PROMOTE_TILES > 0;
constexpr int PROMOTE_EVERY = PROMOTE ? PROMOTE_TILES : 1;

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "a row of Q or K is one swizzled line");
static_assert(TILE_KEYS % 64 == 0 && (TILE_KEYS <= 256 || TILE_KEYS == 512), "products have up to 256 columns");
static_assert(FLIGHT >= 1 && FLIGHT <= VALUE_STEPS, "a step is at least in flight itself");
static_assert(!KEYS_AT_ONCE || (WARPGROUPS <= 2 && STAGES == 1 && !PROMOTE && !SPLIT_KEYS), "one tile, and no more");
static_assert(!SHARE_VALUES || (KEYS_AT_ONCE && !CAUSAL), "blocks that share see the same keys");
static_assert(!SHARE_VALUES || VALUE_BOXES >= PAIR, "each brings something");
static_assert(!IN_ROUNDS || (KEYS_AT_ONCE && DEPENDENT), "places are held for the next launch");
static_assert(WARPGROUPS >= 1 && WARPGROUPS <= 3, "registers are divided for up to three warpgroups");
static_assert(!SCORES_F32 || LINEAR_EIGHTHS == 0, "the linear exponential is written for f16 scores");
static_assert(SPLIT_EIGHTHS == 0 || LINEAR_EIGHTHS == 0, "linear exponentials are not worth a second part");
