// What the host compiles in: the kind of problem, the knobs, and what follows from them.
#pragma once
#include "attention/settings.cuh"

// The kind of problem. Queries are values, whose format is one of the output's, or codes as those of the cache.
constexpr int QUERY_FORMAT = Settings::QUERY_FORMAT, FORMAT_CODES = 3;
constexpr bool TOKEN_SCALES = Settings::TOKEN_SCALES;  // every token of the cache has scales of its own
constexpr bool GATHER = Settings::GATHER;              // pages are not of 16·n tokens
constexpr bool FIXED_CUTS = Settings::FIXED_CUTS;      // every unit is a part of its own, whoever computes it

// The knobs.
constexpr int WARPS = Settings::WARPS, STAGES = Settings::STAGES;
constexpr int TILE_ROWS = Settings::TILE_ROWS;   // of (query, head of the group)
constexpr int UNIT_KEYS = Settings::UNIT_KEYS;   // that are dealt out together
constexpr bool DEPENDENT = Settings::DEPENDENT;  // begins before the launch before has ended

constexpr int THREADS = 32 * WARPS;
constexpr int ROW_TILES = (TILE_ROWS + 15) / 16;  // 16 is the height of a product; of 8 rows it computes the upper half
constexpr int STEP_KEYS = 32;                     // that a warp takes at a time
constexpr int CHUNKS = HEAD_DIM / 16;             // of 16 codes, in a row

static_assert(HEAD_DIM % 16 == 0, "rows are copied 16 bytes at a time");
static_assert(STAGES >= 2, "one step is copied while another is computed");
static_assert(TILE_ROWS % 8 == 0 && UNIT_KEYS % STEP_KEYS == 0, "rows and keys come in whole steps");
