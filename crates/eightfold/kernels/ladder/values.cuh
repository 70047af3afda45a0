// O = correction · O + P · V, for the rows of one warp.
#pragma once
#include "ladder/softmax.cuh"

// Sums of a warp as accumulators of the tensor cores. Channels are in fragment order: tiles 2i and 2i+1 of a lane hold
// channels 16i + 4·quad … +3.
struct MmaSums {
    float value[ROW_TILES][DIM_TILES][4] = {};
    // Weights that were rounded to FP8 are divided by their own sum: the output stays a weighted mean of V's rows, and
    // the errors of a row's largest weights cancel. One more column of the product, of ones, gives it.
    float rounded_sum[PV == PV_FP8 ? ROW_TILES : 1][4] = {};

    // Most tiles bring no larger score to any row of the warp, and then the factors are one; but a branch around the
    // multiplications would keep the softmax apart from the product that follows, which costs more. `unit_change` is
    // for sums that are in units of V's scale, where that changes.
    __device__ void correct(const float (&row_correction)[Rows::COUNT], float unit_change) {
#pragma unroll
        for (int row = 0; row < Rows::COUNT; ++row) {
            float correction = VALUE_BLOCK_SCALES ? row_correction[row] * unit_change : row_correction[row];
#pragma unroll
            for (int n = 0; n < DIM_TILES; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) value[row / 2][n][2 * (row % 2) + i] *= correction;
            if constexpr (PV == PV_FP8) rounded_sum[row / 2][2 * (row % 2)] *= row_correction[row];
        }
    }

    __device__ void correct(const SharedRows& shared, float unit_change, int warp, int lane) {
        float correction[Rows::COUNT];
#pragma unroll
        for (int row = 0; row < Rows::COUNT; ++row) {
            correction[row] = shared.correction(warp * WARP_ROWS + 8 * row + lane / 4);
        }
        correct(correction, unit_change);
    }

    // Weights as f16 A fragments times V, f16 and by rows in shared memory.
    __device__ void add_widened(const unsigned (&weights)[ROW_TILES][WARP_KEYS / 16][4], unsigned values, int group,
                                int lane) {
#pragma unroll
        for (int step = 0; step < WARP_KEYS / 16; ++step) {
            int row = group * WARP_KEYS + 16 * step + lane % 16;
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 2) {
                Words4 words = load_matrices_transposed(WideValues::address(values, row, n + lane / 16));
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; ++tile) {
                    multiply_f16(value[tile][n], weights[tile][step], words.word[0], words.word[1]);
                    multiply_f16(value[tile][n + 1], weights[tile][step], words.word[2], words.word[3]);
                }
            }
        }
    }

    // Weights as f16 A fragments times V, FP8 and transposed in shared memory.
    __device__ void add_unpacked(const unsigned (&weights)[ROW_TILES][WARP_KEYS / 16][4], unsigned values, int group,
                                 int lane) {
#pragma unroll
        for (int step = 0; step < WARP_KEYS / 16; ++step) {
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 4) {
                int chunk = group * WARP_KEYS / 16 + step;
                Words4 words = load_matrices(ValueCodes::matrix_address<1>(values, 8 * n, chunk, lane));
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    unsigned low = widen_low<E5M2>(words.word[i]), high = widen_high<E5M2>(words.word[i]);
#pragma unroll
                    for (int tile = 0; tile < ROW_TILES; ++tile)
                        multiply_f16(value[tile][n + i], weights[tile][step], low, high);
                }
            }
        }
    }

    // Weights as E4M3 A fragments times V, FP8 and transposed in shared memory.
    __device__ void add_fp8(const unsigned (&weights)[ROW_TILES][WARP_KEYS / 32][4], unsigned values, int group,
                            int lane) {
#pragma unroll
        for (int step = 0; step < WARP_KEYS / 32; ++step) {
            const unsigned ONES = 0x38383838;  // in E4M3
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                multiply_fp8<false, false>(rounded_sum[tile], weights[tile][step], ONES, ONES);
            }
#pragma unroll
            for (int n = 0; n < DIM_TILES; n += 2) {
                int chunk = group * WARP_KEYS / 16 + 2 * step;
                Words4 words = load_matrices(ValueCodes::matrix_address<2>(values, 8 * n, chunk, lane));
#pragma unroll
                for (int tile = 0; tile < ROW_TILES; ++tile) {
                    multiply_fp8<false, E5M2>(value[tile][n], weights[tile][step], words.word[0], words.word[1]);
                    multiply_fp8<false, E5M2>(value[tile][n + 1], weights[tile][step], words.word[2], words.word[3]);
                }
            }
        }
    }

    // What a row's sums are to be divided by, if not by the sum of the weights before they were rounded.
    __device__ float normaliser(int row, float sum) const {
        return PV == PV_FP8 ? rounded_sum[PV == PV_FP8 ? row / 2 : 0][2 * (row % 2)] : sum;
    }

    // P · V with the weights where the scores were.
    __device__ void add(const Scores& weights, unsigned shared, int stage, int group, int lane) {
        if constexpr (PV == PV_FP8) {
            unsigned fragment[ROW_TILES][WARP_KEYS / 32][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
                for (int step = 0; step < WARP_KEYS / 32; ++step)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float(&a)[4] = weights.value[tile][4 * step + 2 * (i / 2)];
                        const float(&b)[4] = weights.value[tile][4 * step + 2 * (i / 2) + 1];
                        int row = 2 * (i % 2);
                        fragment[tile][step][i] = pack_e4m3(a[row], a[row + 1], b[row], b[row + 1]);
                    }
            add_fp8(fragment, value_codes(shared, stage), group, lane);
        } else {
            unsigned fragment[ROW_TILES][WARP_KEYS / 16][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
                for (int step = 0; step < WARP_KEYS / 16; ++step)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float(&pair)[4] = weights.value[tile][2 * step + i / 2];
                        fragment[tile][step][i] = pack_f16(pair[2 * (i % 2)], pair[2 * (i % 2) + 1]);
                    }
            if constexpr (PV == PV_UNPACK) {
                add_unpacked(fragment, value_codes(shared, stage), group, lane);
            } else {
                add_widened(fragment, shared + WIDE_VALUES, group, lane);
            }
        }
    }

    // P · V with the weights in shared memory.
    __device__ void add_from_shared(const SharedRows& rows, unsigned shared, int warp, int lane) {
        unsigned fragment[ROW_TILES][WARP_KEYS / 16][4];
        unsigned line = shared_address(rows.weights(warp * WARP_ROWS + lane % 16)) + 16 * (lane / 16);
#pragma unroll
        for (int step = 0; step < WARP_KEYS / 16; ++step) {
            Words4 words = load_matrices(line + 32 * step);
#pragma unroll
            for (int i = 0; i < 4; ++i) fragment[0][step][i] = words.word[i];
        }
        add_widened(fragment, shared + WIDE_VALUES, 0, lane);
    }
};

// Sums of a warp without tensor cores: two lanes to a row, each with one half of the channels, in fragment order.
struct LaneSums {
    static constexpr int COUNT = VALUE_TILE / 2;
    float value[COUNT] = {};

    __device__ static float normaliser(int, float sum) { return sum; }
    __device__ static int row(int lane) { return lane / 2; }
    __device__ static int place(int lane, int i) { return lane % 2 * COUNT + i; }

    __device__ void correct(const SharedRows& shared, float unit_change, int warp, int lane) {
        float correction = shared.correction(warp * WARP_ROWS + row(lane)) * unit_change;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) value[i] *= correction;
    }

    __device__ void add_from_shared(const SharedRows& rows, unsigned shared, int warp, int lane) {
        const unsigned short* weights = rows.weights(warp * WARP_ROWS + row(lane));
        const char* tile = rows.memory + WIDE_VALUES;
        for (int key = 0; key < TILE_KEYS; ++key) {
            float weight = to_float(weights[key]);
            if constexpr (PV == PV_SCALAR) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    unsigned offset = WideValues::address(0, key, place(lane, i) / 8) + 2 * (i % 8);
                    value[i] =
                        fmaf(weight, to_float(*reinterpret_cast<const unsigned short*>(tile + offset)), value[i]);
                }
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; i += 8) {
                    uint4 words = load_shared_16(WideValues::address(shared + WIDE_VALUES, key, place(lane, i) / 8));
                    const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                    for (int pair = 0; pair < 4; ++pair) {
                        Floats2 values = to_floats(pairs[pair]);
                        value[i + 2 * pair] = fmaf(weight, values.low, value[i + 2 * pair]);
                        value[i + 2 * pair + 1] = fmaf(weight, values.high, value[i + 2 * pair + 1]);
                    }
                }
            }
        }
    }
};
