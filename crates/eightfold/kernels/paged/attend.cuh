// One step of a warp: S = Q·Kᵀ, mask, P = softmax so far, O = correction·O + P·V.
#pragma once
#include "attention/scoring.cuh"
#include "paged/load.cuh"
#include "paged/queries.cuh"
#include "paged/schedule.cuh"
#include "ptx/exponential.cuh"
#include "ptx/matrix.cuh"

// What a warp carries from step to step. Columns of the sums are in pairs of tiles: tiles 2c and 2c+1 of a lane hold
// channels 16c + 4·quad and +2, and +1 and +3.
struct RowState {
    static constexpr int COUNT = TILE_ROWS / 8;
    float row_max[COUNT];  // of the scores so far, in powers of two
    float row_sum[COUNT];  // of the weights so far; of this lane's columns alone
    float value_unit;      // the scale of V that the sums are in units of
    float o[ROW_TILES][2 * CHUNKS][4];

    __device__ void clear() {
        value_unit = 0.0f;
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            row_max[r] = LOWEST;
            row_sum[r] = 0.0f;
        }
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int n = 0; n < 2 * CHUNKS; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) o[tile][n][i] = 0.0f;
    }

    __device__ void multiply(const float (&factor)[COUNT]) {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int n = 0; n < 2 * CHUNKS; ++n)
#pragma unroll
                for (int i = 0; i < 4 && 2 * tile + i / 2 < COUNT; ++i) o[tile][n][i] *= factor[2 * tile + i / 2];
    }
};

// Scores of a step, unscaled, and then its weights: column 2·quad+i of tile j is key 8j + 2·quad + i.
struct Scores {
    static constexpr int TILES = STEP_KEYS / 8;
    float value[ROW_TILES][TILES][4] = {};

    // One of two neighbours in tile j, of a lane's row r.
    __device__ float& of_row(int r, int j, int i) { return value[r / 2][j][2 * (r % 2) + i]; }

    // S = Q·Kᵀ. A lane's word of four codes is both halves of a product of 16 channels, as in the queries.
    __device__ void compute(const QueryRows& queries, unsigned keys, int lane) {
        constexpr int SIDE_BY_SIDE = CHUNKS <= 8 ? CHUNKS : 4;
#pragma unroll SIDE_BY_SIDE
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            Words4 words = load_matrices(chunk_address(keys, lane, chunk));
            unsigned low[TILES], high[TILES];
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                low[j] = widen_low<E5M2>(words.word[j]);
                high[j] = widen_high<E5M2>(words.word[j]);
            }
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                unsigned fragment[4];
                queries.fragment(fragment, tile, chunk, lane);
#pragma unroll
                for (int j = 0; j < TILES; ++j) multiply_f16(value[tile][j], fragment, low[j], high[j]);
            }
        }
    }

    // Of every key its own factor, which lane `key` has.
    __device__ void scale(float of_key, int lane) {
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float factor = __shfl_sync(0xffffffff, of_key, 8 * j + 2 * (lane % 4) + i);
#pragma unroll
                for (int r = 0; r < RowState::COUNT; ++r) of_row(r, j, i) *= factor;
            }
    }

    // In powers of two, and capped.
    __device__ void cap(const Paged& problem, const float (&scale)[RowState::COUNT]) {
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) of_row(r, j, i) = cap_score(problem, of_row(r, j, i) * scale[r]);
    }

    // What a row does not see becomes minus infinity; what it sees counts from the first key of the step.
    __device__ void mask(const KeyRange (&seen)[RowState::COUNT], int lane) {
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    int key = 8 * j + 2 * (lane % 4) + i;
                    const KeyRange& keys = seen[r];
                    if (key >= keys.end || (WINDOW && key < keys.first)) of_row(r, j, i) = minus_infinity();
                }
    }

    // P = 2^(S − max), and what earlier sums are to be multiplied by.
    __device__ void weigh(RowState& rows, const float (&scale)[RowState::COUNT], float (&correction)[RowState::COUNT]) {
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r) {
            float largest = LOWEST, factor = SOFTCAP ? 1.0f : scale[r];
#pragma unroll
            for (int j = 0; j < TILES; ++j) largest = fmaxf(largest, fmaxf(of_row(r, j, 0), of_row(r, j, 1)));
            float row_max = fmaxf(rows.row_max[r], fmaxf(quad_max(largest) * factor, LOWEST));
            correction[r] = exp2_hardware(rows.row_max[r] - row_max);
            rows.row_max[r] = row_max;
            float shift = WEIGHT_EXPONENT - row_max, sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = of_row(r, j, i);
                    score = exp2_hardware(fmaf(score, factor, shift));
                    sum += score;
                }
            rows.row_sum[r] = fmaf(rows.row_sum[r], correction[r], sum);
        }
    }

    // O += P·V, with V by rows: a lane's word is two channels of two keys, whose bytes change places to be two keys of
    // two channels.
    __device__ void add_values(RowState& rows, unsigned values, int lane) const {
        unsigned weights[ROW_TILES][STEP_KEYS / 16][4];
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int step = 0; step < STEP_KEYS / 16; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&four)[4] = value[tile][2 * step + i / 2];
                    bool exists = 2 * tile + i % 2 < RowState::COUNT;
                    weights[tile][step][i] = exists ? pack_f16(four[2 * (i % 2)], four[2 * (i % 2) + 1]) : 0;
                }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            Words4 words = load_matrices_transposed(chunk_address(values, lane, chunk));
#pragma unroll
            for (int step = 0; step < STEP_KEYS / 16; ++step) {
                unsigned even[2], odd[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned word = __byte_perm(words.word[2 * step + half], 0, 0x3120);
                    even[half] = widen_low<E5M2>(word);
                    odd[half] = widen_high<E5M2>(word);
                }
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; ++tile) {
                    multiply_f16(rows.o[tile][2 * chunk], weights[tile][step], even[0], even[1]);
                    multiply_f16(rows.o[tile][2 * chunk + 1], weights[tile][step], odd[0], odd[1]);
                }
            }
        }
    }
};

// The keys of a run, as far as one warp takes them.
struct Attend {
    const Paged& problem;
    const Run& run;
    Steps steps;
    QueryRows queries;
    RowState rows;
    float scale[RowState::COUNT];    // from products to powers of two
    KeyRange seen[RowState::COUNT];  // keys that a row sees

    __device__ Attend(const Paged& problem, const Run& run, char* memory, int warp, int lane)
        : problem(problem), run(run), steps(problem, run, warp, lane), queries{memory} {}

    // Every warp of the block.
    __device__ void attend(unsigned shared) {
        Copies copies(steps, shared);
#pragma unroll
        for (int step = 0; step < STAGES - 1; ++step) copies.start(step);
        queries.load(problem, run.sequence, run.kv_head, run.row_tile, steps.warp, steps.lane);
        __syncthreads();
        begin();
        using Scales = typename Either<TOKEN_SCALES, TokenScales, Nothing>::Type;
        Scales scales(steps);
        for (int step = 0; step < steps.count(); ++step) {
            scales.advance(step);
            wait_for_copies<STAGES - 2>();
            __syncwarp();  // every lane's copies have landed, and every lane is done with the step before
            copies.start(step + STAGES - 1);
            visit(step, shared, scales);
        }
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r) rows.row_sum[r] = quad_sum(rows.row_sum[r]);
    }

   private:
    struct Nothing {
        float k = 1.0f, v = 1.0f;
        __device__ Nothing(const Steps&) {}
        __device__ void advance(int) {}
    };

    // Row r of a lane is row 8·(r%2) + lane/4 of row tile r/2.
    __device__ void begin() {
        rows.clear();
        float key_scale = TOKEN_SCALES ? 1.0f : problem.k_scales.of_sequence(run.sequence.index, run.kv_head);
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r) {
            int line = 16 * (r / 2) + 8 * (r % 2) + steps.lane / 4;
            RowOf row(problem, run.sequence, run.row_tile, line);
            seen[r] = row.exists ? run.sequence.visible(problem, row.query) : KeyRange{0, run.sequence.length};
            scale[r] = problem.scale_log2 * queries.unit(line) * key_scale;
        }
        if constexpr (!TOKEN_SCALES) rows.value_unit = problem.v_scales.of_sequence(run.sequence.index, run.kv_head);
    }

    template <typename Scales>
    __device__ void visit(int step, unsigned shared, const Scales& scales) {
        int stage = step % STAGES, first = steps.first_key(step), lane = steps.lane;
        Scores scores;
        scores.compute(queries, step_keys(shared, steps.warp, stage), lane);
        if constexpr (TOKEN_SCALES) scores.scale(scales.k, lane);
        if constexpr (SOFTCAP) scores.cap(problem, scale);
        bool cut = first + STEP_KEYS > run.uncut.end || (WINDOW && first < run.uncut.first);
        if (cut) {
            KeyRange here[RowState::COUNT];
#pragma unroll
            for (int r = 0; r < RowState::COUNT; ++r) here[r] = {seen[r].first - first, seen[r].end - first};
            scores.mask(here, lane);
        }
        float correction[RowState::COUNT];
        scores.weigh(rows, scale, correction);
        if constexpr (TOKEN_SCALES) {
            float largest = warp_max(scales.v), unit = fmaxf(rows.value_unit, largest);
            scores.scale(unit > 0.0f ? scales.v / unit : 0.0f, lane);
            float change = unit > 0.0f ? rows.value_unit / unit : 1.0f;
#pragma unroll
            for (int r = 0; r < RowState::COUNT; ++r) correction[r] *= change;
            rows.value_unit = unit;
        }
        bool changed = false;
#pragma unroll
        for (int r = 0; r < RowState::COUNT; ++r) changed |= correction[r] != 1.0f;
        // Most steps bring no larger score to any row.
        if (__any_sync(0xffffffff, changed)) rows.multiply(correction);
        scores.add_values(rows, step_values(shared, steps.warp, stage), lane);
    }
};
