// O = P·V: the sums of one warpgroup's rows, kept on the tensor cores and promoted to f32 from time to time.
//
// FP8 products align what they add to the largest term, the accumulator included, and drop what lies 13 bits below: a
// long sum stops growing. So every PROMOTE_TILES tiles the accumulator is added to an f32 sum and started anew.
#pragma once
#include "hopper/weights.cuh"

struct Accumulator {
    float o[VALUE_COLUMNS / 2];  // [4j], [4j+1] row group, channels 8j+2·quad and the next; [4j+2], [4j+3] row+8
    float promoted[PROMOTE && !PROMOTE_SHARED ? VALUE_TILE / 2 : 1];
    float promoted_factor[2] = {1.0f, 1.0f};  // what the total in shared memory is still to be multiplied by
    unsigned promoted_address;
    bool has_promoted = false;
    bool fresh = true;  // nothing has been added since the start or the last promotion

    __device__ explicit Accumulator(unsigned promoted_address) : promoted_address(promoted_address) {
        clear_o();
        clear_promoted();
    }

    // For other rows: the first product starts the accumulator anew, and so it is not touched while products run.
    __device__ void reset() {
        clear_promoted();
        promoted_factor[0] = promoted_factor[1] = 1.0f;
        has_promoted = false;
        fresh = true;
    }

    // After a wait for products: what it holds, and no copy from before.
    __device__ void settle_o(int first = 0) {
#pragma unroll
        for (int i = first; i < VALUE_COLUMNS / 2; ++i) settle(o[i]);
    }

    __device__ void clear_o() {
#pragma unroll
        for (int i = 0; i < VALUE_COLUMNS / 2; ++i) clear(o[i]);
    }

    // Multiplies both rows, each by its factor.
    __device__ void rescale(float first, float second) {
        if (!fresh) {
#pragma unroll
            for (int i = 0; i < VALUE_TILE / 2; ++i) o[i] *= i % 4 < 2 ? first : second;
        }
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            promoted_factor[0] *= first;
            promoted_factor[1] *= second;
        } else if constexpr (PROMOTE) {
            if (!has_promoted) return;
#pragma unroll
            for (int i = 0; i < VALUE_TILE / 2; ++i) promoted[i] *= i % 4 < 2 ? first : second;
        }
    }

    // Takes the sums of the weights out of the columns of ones, every tile: they are positive and suffer most.
    __device__ void take_row_sums(float (&row_sum)[2]) {
        settle_o(VALUE_TILE / 2);
#pragma unroll
        for (int i = 0; i < (SUMS_IN_PARTS ? 2 : 1); ++i) {
            row_sum[0] += o[VALUE_TILE / 2 + i];
            row_sum[1] += o[VALUE_TILE / 2 + 2 + i];
        }
#pragma unroll
        for (int i = VALUE_TILE / 2; i < VALUE_COLUMNS / 2; ++i) clear(o[i]);
    }

    // Adds the accumulator to the total; the next product starts it anew.
    __device__ void promote() {
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            for_each_quarter([&](unsigned address, float* sums) {
                uint4 words = make_uint4(__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]),
                                         __float_as_uint(sums[3]));
                store_shared_16(address, words);
            });
            promoted_factor[0] = promoted_factor[1] = 1.0f;
        } else if constexpr (PROMOTE) {
#pragma unroll
            for (int i = 0; i < VALUE_TILE / 2; ++i) promoted[i] += o[i];
        }
        has_promoted = true;
        fresh = true;
    }

    // Everything that was added, into the accumulator.
    __device__ void finish() {
        if constexpr (PROMOTE && PROMOTE_SHARED) {
            if (has_promoted) for_each_quarter([](unsigned, float*) {});
        } else if constexpr (PROMOTE) {
#pragma unroll
            for (int i = 0; i < VALUE_TILE / 2; ++i) o[i] += promoted[i];
        }
    }

    // Starts P·V of one step of a tile, 32 keys; steps from the tile's `first` on are added to each other.
    __device__ void multiply(const Weights& weights, int step, unsigned values, int first = 0) {
        constexpr int STEPS_PER_ROW = VALUE_ROW / STEP;
        unsigned long long v = describe_matrix<VALUE_ROW>(values + step / STEPS_PER_ROW * VALUE_BOX_BYTES) +
                               step % STEPS_PER_ROW * STEP_32;
        fence_products();
        add_product(weights.words[step], v, step > first || !fresh);
        if (is_split(step)) add_product(weights.rest[step], v, true);
        commit_products();
        wait_for_products<FLIGHT - 1>();
    }

   private:
    // A product has up to 256 columns: of more, the first 128 have one of their own.
    template <int COLUMNS = VALUE_COLUMNS>
    __device__ void add_product(const unsigned (&weights)[4], unsigned long long v, bool accumulate) {
        if constexpr (COLUMNS <= 256) {
            multiply_registers<E5M2>(reinterpret_cast<float(&)[COLUMNS / 2]>(o), weights, v, accumulate);
        } else {
            constexpr int FIRST = 128;
            auto& first = reinterpret_cast<float(&)[FIRST / 2]>(o[0]);
            auto& rest = reinterpret_cast<float(&)[(COLUMNS - FIRST) / 2]>(o[FIRST / 2]);
            multiply_registers<E5M2>(first, weights, v, accumulate);
            multiply_registers<E5M2>(rest, weights, v + FIRST * VALUE_ROW / 16, accumulate);
        }
    }

    __device__ void clear_promoted() {
        if constexpr (PROMOTE && !PROMOTE_SHARED) {
#pragma unroll
            for (int i = 0; i < VALUE_TILE / 2; ++i) promoted[i] = 0.0f;
        }
    }

    // Four sums at a time with what is in shared memory added to them.
    template <typename Function>
    __device__ void for_each_quarter(Function function) {
#pragma unroll
        for (int i = 0; i < VALUE_TILE / 8; ++i) {
            unsigned address = promoted_address + i * WARPGROUPS * WARPGROUP * 16;
            float sums[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[j] = o[4 * i + j];
            if (has_promoted) {
                uint4 words = load_shared_16(address);
                sums[0] += __uint_as_float(words.x) * promoted_factor[0];
                sums[1] += __uint_as_float(words.y) * promoted_factor[0];
                sums[2] += __uint_as_float(words.z) * promoted_factor[1];
                sums[3] += __uint_as_float(words.w) * promoted_factor[1];
            }
            function(address, sums);
#pragma unroll
            for (int j = 0; j < 4; ++j) o[4 * i + j] = sums[j];
        }
    }
};
