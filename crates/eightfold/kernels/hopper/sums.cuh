// O = P·V: the sums of one warpgroup's rows, kept on the tensor cores and promoted to f32 from time to time.
//
// FP8 products align what they add to the largest term, the accumulator included, and drop what lies 13 bits below: a
// long sum stops growing. So every PROMOTE_TILES tiles the accumulator is added to an f32 sum and started anew.
#pragma once
#include "hopper/weights.cuh"

struct Sums {
    float value[VALUE_COLUMNS / 2];  // [4j], [4j+1] row group, channels 8j+2·quad and the next; [4j+2], [4j+3] row+8
    float total[PROMOTE && !PROMOTE_SHARED ? HEAD_DIM / 2 : 1];
    float total_factor[2] = {1.0f, 1.0f};  // what the total in shared memory is still to be multiplied by
    unsigned total_address;
    bool has_total = false;
    bool fresh = true;  // nothing has been added since the start or the last promotion

    __device__ explicit Sums(unsigned total_address) : total_address(total_address) {
        clear_value();
        clear_total();
    }

    // For other rows: the first product starts the accumulator anew, and so it is not touched while products run.
    __device__ void reset() {
        clear_total();
        total_factor[0] = total_factor[1] = 1.0f;
        has_total = false;
        fresh = true;
    }

    __device__ void clear_value() {
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS / 2; ++i) clear(value[i]);
    }

    // Multiplies both rows, each by its factor.
    __device__ void scale(float first, float second) {
        if (!fresh) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) value[i] *= i % 4 < 2 ? first : second;
        }
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            total_factor[0] *= first;
            total_factor[1] *= second;
        } else if constexpr (PROMOTE) {
            if (!has_total) return;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) total[i] *= i % 4 < 2 ? first : second;
        }
    }

    // Takes the sums of the weights out of the columns of ones, every tile: they are positive and suffer most.
    __device__ void take_row_sums(float (&row_sum)[2]) {
#pragma unroll
        for (int i = 0; i < (SUMS_IN_PARTS ? 2 : 1); ++i) {
            row_sum[0] += value[HEAD_DIM / 2 + i];
            row_sum[1] += value[HEAD_DIM / 2 + 2 + i];
        }
#pragma unroll
        for (int i = HEAD_DIM / 2; i < VALUE_COLUMNS / 2; ++i) clear(value[i]);
    }

    // Adds the accumulator to the total; the next product starts it anew.
    __device__ void promote() {
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            for_each_quarter([&](unsigned address, float* sums) {
                uint4 words = make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                                         __float_as_uint(sums[3]));
                store_shared_16(address, words);
            });
            total_factor[0] = total_factor[1] = 1.0f;
        } else if constexpr (PROMOTE) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) total[i] += value[i];
        }
        has_total = true;
        fresh = true;
    }

    // Everything that was added, into the accumulator.
    __device__ void finish() {
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            if (has_total) for_each_quarter([](unsigned, float*) {});
        } else if constexpr (PROMOTE) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) value[i] += total[i];
        }
    }

    // Starts P·V of a tile, or of some steps of it: the weights of 32 keys, their product, the next 32 while it runs.
    __device__ void start(const Scores& scores, const Weights& weights, unsigned values, int first = 0,
                          int last = VALUE_STEPS) {
#pragma unroll
        for (int step = first; step < last; ++step) {
            constexpr int STEPS_PER_ROW = VALUE_ROW / STEP;
            unsigned long long v = describe_matrix<VALUE_ROW>(values + step / STEPS_PER_ROW * VALUE_BOX_BYTES) +
                                   step % STEPS_PER_ROW * STEP_32;
            bool accumulate = step > first || !fresh;
            weights.words(scores, step, words[step], rest[SPLIT_EIGHTHS > 0 ? step : 0]);
            fence_products();
            multiply_registers<E5M2>(value, words[step], v, accumulate);
            if (is_split(step)) multiply_registers<E5M2>(value, rest[step], v, true);
            commit_products();
            wait_for_products<FLIGHT - 1>();
        }
        fresh = false;
    }

   private:
    __device__ void clear_total() {
        if constexpr (PROMOTE && !PROMOTE_SHARED) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) total[i] = 0.0f;
        }
    }

    // Products read a step's registers while the next are made; FLIGHT says for how many steps.
    unsigned words[VALUE_STEPS][4];
    unsigned rest[SPLIT_EIGHTHS > 0 ? VALUE_STEPS : 1][4];

    // Four sums at a time with what is in shared memory added to them.
    template <typename Function>
    __device__ void for_each_quarter(Function function) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; ++i) {
            unsigned address = total_address + i * WARPGROUPS * WARPGROUP * 16;
            float sums[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[j] = value[4 * i + j];
            if (has_total) {
                uint4 words = load_shared_16(address);
                sums[0] += __uint_as_float(words.x) * total_factor[0];
                sums[1] += __uint_as_float(words.y) * total_factor[0];
                sums[2] += __uint_as_float(words.z) * total_factor[1];
                sums[3] += __uint_as_float(words.w) * total_factor[1];
            }
            function(address, sums);
#pragma unroll
            for (int j = 0; j < 4; ++j) value[4 * i + j] = sums[j];
        }
    }
};
