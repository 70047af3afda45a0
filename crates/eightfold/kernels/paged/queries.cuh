// Q of a tile as A fragments in f16, in shared memory: one warp brings them, and all read them at every step. Codes are
// exact in f16. Values are brought into its range by a power of two for each row: nothing is calibrated, and nothing is
// lost but what f16 has less than they have.
#pragma once
#include "attention/lanes.cuh"
#include "paged/problem.cuh"
#include "paged/shared.cuh"
#include "ptx/convert.cuh"

// Which query and head a row of a tile is.
struct RowOf {
    int query, head;  // of the sequence; of the group
    bool exists;

    __device__ RowOf(const Paged& problem, const Sequence& sequence, int row_tile, int row) {
        int index = row_tile * TILE_ROWS + row;
        query = index / problem.group;
        head = index % problem.group;
        exists = query < sequence.queries;
    }
};

struct QueryRows {
    char* memory;

    // What the products of a row are to be multiplied by.
    __device__ float& unit(int row) const { return reinterpret_cast<float*>(memory + QUERY_UNITS)[row]; }

    __device__ void fragment(unsigned (&words)[4], int tile, int chunk, int lane) const {
        uint4 four = load_shared_16(shared_address(memory) + place(tile, chunk, lane));
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    }

    // By every warp, eight rows each at a time: a lane has a part of one of them.
    __device__ void load(const Paged& problem, const Sequence& sequence, int kv_head, int row_tile, int warp,
                         int lane) const {
#pragma unroll 1
        for (int half = warp; half < TILE_ROWS / 8; half += WARPS) {
            int line = 8 * half + lane / 4;
            RowOf row(problem, sequence, row_tile, line);
            unsigned low[CHUNKS], high[CHUNKS];
            float own = load_row(low, high, problem, sequence, kv_head, row, lane % 4);
            if (lane % 4 == 0) unit(line) = own;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                unsigned* words = reinterpret_cast<unsigned*>(memory + place(half / 2, chunk, lane)) + half % 2;
                words[0] = low[chunk];
                words[2] = high[chunk];
                if constexpr (TILE_ROWS == 8) words[1] = words[3] = 0;  // rows that are not there
            }
        }
    }

   private:
    __device__ static int place(int tile, int chunk, int lane) {
        return QUERIES + 16 * ((tile * CHUNKS + chunk) * 32 + lane);
    }

    // A row's words of this lane; returns its unit.
    __device__ static float load_row(unsigned (&low)[CHUNKS], unsigned (&high)[CHUNKS], const Paged& problem,
                                     const Sequence& sequence, int kv_head, const RowOf& row, int quad) {
        int head = kv_head * problem.group + row.head;
        long long place = sequence.index * problem.q.sequence_stride +
                          (sequence.first_query + row.query) * problem.q.token_stride + head * problem.q.head_stride;
        if constexpr (QUERY_FORMAT == FORMAT_CODES) {
            const unsigned* words =
                reinterpret_cast<const unsigned*>(static_cast<const unsigned char*>(problem.q.values) + place);
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                unsigned word = row.exists ? words[4 * chunk + quad] : 0;
                low[chunk] = widen_low<E5M2>(word);
                high[chunk] = widen_high<E5M2>(word);
            }
            if (!row.exists) return 1.0f;
            return problem.q.scales[static_cast<long long>(sequence.index) * problem.q.scale_sequence_stride +
                                    head * problem.q.scale_head_stride];
        } else {
            float4 values[CHUNKS];
            float largest = 0.0f;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                values[chunk] = row.exists ? load_values(problem.q.values, place + 16 * chunk + 4 * quad)
                                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                float4 x = values[chunk];
                largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
            }
            float to_f16 = power_below(quad_max(largest));
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                float4 x = values[chunk];
                low[chunk] = pack_f16(x.x * to_f16, x.y * to_f16);
                high[chunk] = pack_f16(x.z * to_f16, x.w * to_f16);
            }
            return 1.0f / to_f16;
        }
    }

    // Four neighbours as f32.
    __device__ static float4 load_values(const void* values, long long place) {
        if constexpr (QUERY_FORMAT == FORMAT_F32) {
            return *reinterpret_cast<const float4*>(static_cast<const float*>(values) + place);
        } else {
            uint2 words = *reinterpret_cast<const uint2*>(static_cast<const unsigned short*>(values) + place);
            if constexpr (QUERY_FORMAT == FORMAT_F16) {
                Floats2 low = to_floats(words.x), high = to_floats(words.y);
                return make_float4(low.low, low.high, high.low, high.high);
            } else {
                return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000),
                                   __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000));
            }
        }
    }

    // The power of two that brings a row with this largest magnitude to between 128 and 256; 1 for a row of zeros. Far
    // from the ends of f16, where products with codes cannot overflow f32 sums either.
    __device__ static float power_below(float largest) {
        int exponent = __float_as_int(largest) >> 23 & 255;
        int wanted = min(max(127 + 7 + 127 - exponent, 1), 253);
        return largest > 0.0f ? __int_as_float(wanted << 23) : 1.0f;
    }
};
