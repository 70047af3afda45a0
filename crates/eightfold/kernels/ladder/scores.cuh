// S = Q · Kᵀ, for the rows of one warp.
#pragma once
#include "ladder/problem.cuh"
#include "ladder/shared.cuh"
#include "ptx/convert.cuh"
#include "ptx/matrix.cuh"

// Q of a warp as A fragments. All three kinds of operands read the same words of four codes; the f16 kinds take their
// low and high halves as the two halves of k, in which order does not matter as long as K follows it.
struct Queries {
    static constexpr int STEPS = HEAD_DIM / (QK == QK_FP8 ? 32 : 16);
    unsigned fragment[ROW_TILES][STEPS][4];

    void load(const Attention& problem, const Work& work, int warp, int lane) {
        const unsigned char* head = problem.q.head(work.batch, work.head);
        int group = lane / 4, quad = lane % 4;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int query = work.first_query + warp * WARP_ROWS + 16 * tile + 8 * half + group;
                bool exists = query < problem.query_len;
                const unsigned* words = reinterpret_cast<const unsigned*>(problem.q.line(head, query)) + quad;
#pragma unroll
                for (int chunk = 0; chunk < HEAD_DIM / 16; ++chunk) {
                    unsigned word = exists ? words[4 * chunk] : 0;
                    if constexpr (QK == QK_FP8) {
                        fragment[tile][chunk / 2][2 * (chunk % 2) + half] = word;
                    } else {
                        fragment[tile][chunk][half] = widen_pair<E5M2>(static_cast<unsigned short>(word));
                        fragment[tile][chunk][2 + half] = widen_pair<E5M2>(static_cast<unsigned short>(word >> 16));
                    }
                }
            }
        }
    }
};

// Scores of a warp's rows against a tile of keys, unscaled, as accumulators.
struct Scores {
    float value[ROW_TILES][KEY_TILES][4];

    void compute(const Queries& queries, unsigned shared, int stage, int lane) {
        using KeyTile = typename Either<WIDEN_KEYS, WideTile, KeyCodes>::Type;
        constexpr int CHUNKS = HEAD_DIM / (WIDEN_KEYS ? 8 : 16);
        unsigned keys = WIDEN_KEYS ? shared + WIDE_KEYS : key_codes(shared, stage);
#pragma unroll
        for (int key_tile = 0; key_tile < KEY_TILES; ++key_tile) {
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) value[tile][key_tile][i] = 0.0f;
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk += 4) {
                Words4 words = load_matrices(KeyTile::matrix_address(keys, key_tile * CHUNKS + chunk, lane));
                multiply(queries, key_tile, chunk, words);
            }
        }
    }

    // The key, within its tile, of a column of the accumulators.
    static int key(int key_tile, int column) {
        int place = 8 * key_tile + column;
        return PV == PV_UNPACK || PV == PV_FP8 ? from_fragment_order(place) : place;
    }

   private:
    // Four chunks of eight keys: 2, 4 or 2 steps along k.
    void multiply(const Queries& queries, int key_tile, int chunk, const Words4& words) {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            float(&sum)[4] = value[tile][key_tile];
            if constexpr (QK == QK_F16) {
                multiply_f16(sum, queries.fragment[tile][chunk / 2], words.word[0], words.word[1]);
                multiply_f16(sum, queries.fragment[tile][chunk / 2 + 1], words.word[2], words.word[3]);
            } else if constexpr (QK == QK_FP8) {
                multiply_fp8<E5M2, E5M2>(sum, queries.fragment[tile][chunk / 2], words.word[0], words.word[1]);
                multiply_fp8<E5M2, E5M2>(sum, queries.fragment[tile][chunk / 2 + 1], words.word[2], words.word[3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    multiply_f16(sum, queries.fragment[tile][chunk + i],
                                 widen_pair<E5M2>(static_cast<unsigned short>(words.word[i])),
                                 widen_pair<E5M2>(static_cast<unsigned short>(words.word[i] >> 16)));
                }
            }
        }
    }
};
