// The means of a head's channels, where a cluster holds the whole head: added in f32, in an order that depends on the
// launch alone. Any numbers near the means would do, as long as the codes and whoever undoes it have the same.
//
// A thread's vectors are all of the same channels.
#pragma once
#include "ptx/address.cuh"
#include "ptx/cluster.cuh"
#include "quantize/problem.cuh"
#include "quantize/values.cuh"

// Lanes that read neighbouring vectors of a row; and, where codes are turned, the parts of the channels that warps
// share out among themselves.
constexpr int SIDE_BY_SIDE = TRANSPOSED ? 8 : ROW_VECTORS;
constexpr int CHANNEL_PARTS = ROW_VECTORS / SIDE_BY_SIDE;
constexpr int PART_CHANNELS = HEAD_DIM / CHANNEL_PARTS;

// What all blocks of the cluster write for each other, and the result.
template <int WARPS, int MOST_BLOCKS>
struct Means {
    float of_warps[WARPS][HEAD_DIM];
    float of_blocks[MOST_BLOCKS][HEAD_DIM];
    __align__(16) float values[HEAD_DIM];
};

// Adds up the sums of a warp's threads that have the same channels, and leaves them to the block.
template <int WARPS, int MOST_BLOCKS>
__device__ inline void leave_sums(Means<WARPS, MOST_BLOCKS>& shared, Vector& sums) {
    static_assert(32 % SIDE_BY_SIDE == 0 && ROW_VECTORS % SIDE_BY_SIDE == 0 && WARPS % CHANNEL_PARTS == 0,
                  "lanes that are so far apart have the same channels");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int channel = warp / (WARPS / CHANNEL_PARTS) * PART_CHANNELS + lane * VECTOR;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
#pragma unroll
        for (int distance = SIDE_BY_SIDE; distance < 32; distance *= 2) {
            sums.values[j] += __shfl_xor_sync(0xffffffffu, sums.values[j], distance);
        }
        if (lane < SIDE_BY_SIDE) shared.of_warps[warp][channel + j] = sums.values[j];
    }
}

// Every block tells every other its sums, adds up all, and divides by the rows. The blocks must have started. Every
// thread of the cluster takes part.
template <int WARPS, int MOST_BLOCKS>
__device__ inline void find_means(const Quantize& problem, const Place& at, Means<WARPS, MOST_BLOCKS>& shared) {
    __syncthreads();
    const int channel = threadIdx.x;
    const int blocks = cluster_blocks();
    if (channel < HEAD_DIM) {
        float sum = 0.0f;
        constexpr int PART_WARPS = WARPS / CHANNEL_PARTS;
        const int first = channel / PART_CHANNELS * PART_WARPS;
        for (int warp = 0; warp < PART_WARPS; ++warp) sum += shared.of_warps[first + warp][channel];
        const unsigned place = shared_address(&shared.of_blocks[cluster_rank()][channel]);
        for (int block = 0; block < blocks; ++block) {
            store_in_cluster(in_block_of_cluster(place, block), __float_as_uint(sum));
        }
    }
    __syncwarp();
    arrive_at_cluster();
    wait_for_cluster();
    if (channel < HEAD_DIM) {
        float sum = 0.0f;
        for (int block = 0; block < blocks; ++block) sum += shared.of_blocks[block][channel];
        const float mean = sum / static_cast<float>(problem.len);
        shared.values[channel] = mean;
        if (cluster_rank() == 0) problem.means[at.head_index * static_cast<long long>(HEAD_DIM) + channel] = mean;
    }
    __syncthreads();
}

// The values that are quantised. The means are read anew for every vector: to keep them would take registers.
template <typename Shared>
__device__ inline Vector less_means(const Shared& shared, int channel, uint4 words) {
    Vector vector = widen(words);
#pragma unroll
    for (int i = 0; i < VECTOR; i += 4) {
        const uint4 four = load_shared_16(shared_address(shared.values + channel + i));
        vector.values[i] -= __uint_as_float(four.x), vector.values[i + 1] -= __uint_as_float(four.y);
        vector.values[i + 2] -= __uint_as_float(four.z), vector.values[i + 3] -= __uint_as_float(four.w);
    }
    return vector;
}
