// S = Q · Kᵀ, for the rows of one warp.
#pragma once
#include "ladder/problem.cuh"
#include "ladder/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/matrix.cuh"
#include "ptx/register.cuh"

// Whether queries stay FP8 in registers, of which f16 would take 56 or 64, and are widened for every tile of keys.
constexpr bool WIDEN_QUERIES_ANEW = QK != QK_FP8 && HEAD_TILE > 192;

// Q of a warp as A fragments. All three kinds of operands read the same words of four codes; the f16 kinds take their
// low and high halves as the two halves of k, in which order does not matter as long as K follows it.
struct Queries {
    static constexpr int CHANNELS = QK == QK_FP8 ? 32 : 16;  // of a step
    static constexpr int STEPS = (HEAD_DIM + CHANNELS - 1) / CHANNELS;
    static constexpr int WORDS = WIDEN_QUERIES_ANEW ? 2 : 4;
    unsigned fragment[ROW_TILES][STEPS][WORDS];

    __device__ void load(const Attention& problem, const Work& work, int row_warp, int lane) {
        const unsigned char* head = problem.q.head(work.batch, work.head);
        int group = lane / 4, quad = lane % 4;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int query = work.first_query + row_warp * WARP_ROWS + 16 * tile + 8 * half + group;
                bool exists = query < problem.query_len;
                const unsigned* words = reinterpret_cast<const unsigned*>(problem.q.line(head, query)) + quad;
#pragma unroll
                for (int chunk = 0; chunk < STEPS * CHANNELS / 16; ++chunk) {
                    bool is_padding = 16 * chunk + 16 > HEAD_DIM && 16 * chunk + 4 * quad >= HEAD_DIM;
                    unsigned word = exists && !is_padding ? words[4 * chunk] : 0;
                    if constexpr (QK == QK_FP8) {
                        fragment[tile][chunk / 2][2 * (chunk % 2) + half] = word;
                    } else if constexpr (WIDEN_QUERIES_ANEW) {
                        fragment[tile][chunk][half] = word;
                    } else {
                        fragment[tile][chunk][half] = widen_low<E5M2>(word);
                        fragment[tile][chunk][2 + half] = widen_high<E5M2>(word);
                    }
                }
            }
        }
    }

    // One step for one tile of rows. Where it is widened anew, the compiler must not do so once for all tiles of keys.
    __device__ void read(int tile, int step, unsigned (&words)[4]) const {
        if constexpr (WIDEN_QUERIES_ANEW) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned word = fragment[tile][step][half];
                forget_origin(word);
                words[half] = widen_low<E5M2>(word);
                words[2 + half] = widen_high<E5M2>(word);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) words[i] = fragment[tile][step][i];
        }
    }
};

// Scores of a warp's rows against its keys of a tile, unscaled, as accumulators.
struct Scores {
    float value[ROW_TILES][KEY_TILES][4] = {};

    // Step by step along the channels, all keys of a step before the next: the products of a step do not wait for each
    // other.
    __device__ void compute(const Queries& queries, unsigned shared, int stage, int group, int lane) {
        using KeyTile = typename Either<WIDEN_KEYS, WideKeys, KeyCodes>::Type;
        constexpr int CHUNKS = QK == QK_UNPACK ? 1 : 2;  // of a step
        unsigned keys = WIDEN_KEYS ? shared + WIDE_KEYS : key_codes(shared, stage);
#pragma unroll
        for (int step = 0; step < Queries::STEPS; ++step) {
            unsigned fragment[ROW_TILES][4];
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) queries.read(tile, step, fragment[tile]);
#pragma unroll
            for (int j = 0; j < KEY_TILES; j += 4 / CHUNKS) {
                int row = group * WARP_KEYS + 8 * j;
                Words4 words = load_matrices(KeyTile::template matrix_address<CHUNKS>(keys, row, step * CHUNKS, lane));
#pragma unroll
                for (int i = 0; i < 4; i += CHUNKS) {
#pragma unroll
                    for (int tile = 0; tile < ROW_TILES; ++tile) {
                        multiply(value[tile][j + i / CHUNKS], fragment[tile], words.word[i],
                                 words.word[i + CHUNKS - 1]);
                    }
                }
            }
        }
    }

    // The key, within its tile, of a column of the accumulators.
    __device__ static int key(int group, int j, int column) {
        int place = 8 * j + column;
        return group * WARP_KEYS + (PV == PV_UNPACK || PV == PV_FP8 ? from_fragment_order(place) : place);
    }

   private:
    // One step for eight keys. A single chunk of FP8 is both words of the f16 product.
    __device__ static void multiply(float (&sum)[4], const unsigned (&queries)[4], unsigned first, unsigned second) {
        if constexpr (QK == QK_F16) {
            multiply_f16(sum, queries, first, second);
        } else if constexpr (QK == QK_FP8) {
            multiply_fp8<E5M2, E5M2>(sum, queries, first, second);
        } else {
            multiply_f16(sum, queries, widen_low<E5M2>(first), widen_high<E5M2>(first));
        }
    }
};
