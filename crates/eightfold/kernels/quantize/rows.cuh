// Codes that lie as the values do, in rows of channels: who takes which vector, and how it is written.
#pragma once
#include "quantize/problem.cuh"
#include "quantize/quotient.cuh"
#include "quantize/values.cuh"

// A vector of a block's rows.
struct Cell {
    int row, channel;
};

// The vectors of a thread, one after the other. Mostly they are of the same channels, which saves arithmetic.
template <int THREADS>
__device__ inline Cell cell(int number) {
    constexpr bool SAME_CHANNELS = THREADS % ROW_VECTORS == 0;
    const unsigned index = threadIdx.x + (SAME_CHANNELS ? 0 : number * THREADS);
    const int rows_above = SAME_CHANNELS ? number * (THREADS / ROW_VECTORS) : 0;
    return {static_cast<int>(index / ROW_VECTORS) + rows_above, static_cast<int>(index % ROW_VECTORS * VECTOR)};
}

// The codes of a vector of a line, the first in the lowest byte; the last of a line that is padded brings the zeros.
__device__ inline void store(unsigned char* line, int channel, const Vector& vector, const Divisor& by) {
    unsigned words[VECTOR / 4];
#pragma unroll
    for (int i = 0; i < VECTOR / 4; ++i) {
        float quotients[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) quotients[j] = quotient(vector.values[4 * i + j], by);
        words[i] = encode(quotients[0], quotients[1]) | encode(quotients[2], quotients[3]) << 16;
    }
    if constexpr (VECTOR == 4) {
        *reinterpret_cast<unsigned*>(line + channel) = words[0];
    } else {
        *reinterpret_cast<uint2*>(line + channel) = make_uint2(words[0], words[1]);
    }
    if (HEAD_DIM % LINE != 0 && channel + VECTOR == HEAD_DIM) {
        *reinterpret_cast<uint2*>(line + HEAD_DIM) = make_uint2(0, 0);
    }
}
