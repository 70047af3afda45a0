// What the host compiles in: the kind of problem, the knobs, and what follows from them.
#pragma once
#include "attention/settings.cuh"

// Values of the knobs, in the order of the host's enums.
enum QkOperands { QK_F16, QK_UNPACK, QK_FP8 };
enum SoftmaxPlace { SOFTMAX_SEPARATE, SOFTMAX_REUSE, SOFTMAX_FUSED };
enum PvMethod { PV_SCALAR, PV_SIMD, PV_MMA, PV_UNPACK, PV_FP8 };
enum BankLayout { BANKS_PLAIN, BANKS_PADDED, BANKS_SWIZZLED };

// The knobs.
constexpr int QK = Settings::QK, SOFTMAX = Settings::SOFTMAX, PV = Settings::PV, BANKS = Settings::BANKS;
constexpr int COPY_STAGES = Settings::COPY_STAGES, PRODUCERS = Settings::PRODUCERS;
constexpr bool COPY_ASYNC = Settings::COPY_ASYNC, EXP_POLYNOMIAL = Settings::EXP_POLYNOMIAL;
constexpr bool PERSISTENT = Settings::PERSISTENT, DUMP = Settings::DUMP;
constexpr int TILE_QUERIES = Settings::TILE_QUERIES, TILE_KEYS = Settings::TILE_KEYS;
constexpr int WARPS = Settings::WARPS, KEY_GROUPS = Settings::KEY_GROUPS;

constexpr int COMPUTE_THREADS = 32 * WARPS;
constexpr int COPY_THREADS = 32 * (PRODUCERS ? PRODUCERS : WARPS);
constexpr int THREADS = 32 * (WARPS + PRODUCERS);

// Blocks that a multiprocessor must have room for. Registers are given out by fours of warps: left alone, the compiler
// takes more than 168 for a block of five, and then one fits where two did. Wider heads need them all.
constexpr int BLOCKS = THREADS == 160 && HEAD_DIM <= 64 && VALUE_DIM <= 64 ? 2 : 1;

// Heads are padded with zeros to what FP8 products take at a time, on their way into registers and shared memory.
constexpr int STEP = 32;
constexpr int HEAD_TILE = (HEAD_DIM + STEP - 1) / STEP * STEP;
constexpr int VALUE_TILE = (VALUE_DIM + STEP - 1) / STEP * STEP;

// A warp has some rows of the tile of queries and, of every tile of keys, the part of its group.
constexpr int ROW_WARPS = WARPS / KEY_GROUPS;
constexpr int WARP_ROWS = TILE_QUERIES / ROW_WARPS;
constexpr int WARP_KEYS = TILE_KEYS / KEY_GROUPS;
constexpr int ROW_TILES = WARP_ROWS / 16;  // of 16 rows, the height of a tensor-core product
constexpr int KEY_TILES = WARP_KEYS / 8;   // of 8 keys, its width in the score product
constexpr int DIM_TILES = VALUE_TILE / 8;  // of 8 channels, its width in the value product

// K and V are widened to f16 in shared memory, or stay FP8 there; V that stays FP8 arrives transposed.
constexpr bool WIDEN_KEYS = QK == QK_F16;
constexpr bool WIDEN_VALUES = PV <= PV_MMA;
constexpr bool TRANSPOSED_VALUES = !WIDEN_VALUES;

// Without cp.async, tiles that are widened go from registers straight to their f16 tile.
constexpr bool KEEP_KEY_CODES = COPY_ASYNC || !WIDEN_KEYS;
constexpr bool KEEP_VALUE_CODES = COPY_ASYNC || !WIDEN_VALUES;

static_assert(WARP_ROWS == 16 || WARP_ROWS == 32, "a warp has one or two tiles of 16 rows");
static_assert(WARPS % KEY_GROUPS == 0, "every part of the keys has the same number of warps");
static_assert(WARP_KEYS % STEP == 0, "FP8 products take 32 values at a time");
static_assert(HEAD_DIM % 8 == 0 && VALUE_DIM % 8 == 0, "a lane reads four codes and stores four channels");
static_assert(PRODUCERS == 0 || COPY_ASYNC, "warps that only copy need buffers to copy ahead into");
static_assert(SOFTMAX == SOFTMAX_FUSED || WARP_ROWS == 16, "softmax in shared memory is written for 16 rows a warp");
static_assert(SOFTMAX == SOFTMAX_FUSED || WIDEN_VALUES, "weights in shared memory are f16");
static_assert(SOFTMAX != SOFTMAX_FUSED || PV >= PV_MMA, "weights in registers need a tensor-core product");
static_assert(SOFTMAX == SOFTMAX_FUSED || KEY_GROUPS == 1, "parts of the keys are merged from registers");
