// Who copies which tile when, who waits for whom, and which block takes which work.
#pragma once
#include "attention/ring.cuh"
#include "ladder/load.cuh"
#include "ptx/barrier.cuh"

using Ring = RingOf<COPY_STAGES>;

__device__ inline void sync_compute_warps() { sync_threads_of_role<1, COMPUTE_THREADS>(); }

// Every thread of the block, once, before the ring is used.
__device__ inline void init_ring(unsigned shared) {
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < COPY_STAGES; ++stage) {
            init_barrier(filled_barrier(shared, stage), COPY_THREADS);
            init_barrier(emptied_barrier(shared, stage), COMPUTE_THREADS);
        }
    }
    __syncthreads();
}

// What a warp that only copies does for a unit of work: fill each stage as soon as it is empty.
__device__ inline void produce(const Attention& problem, const Work& work, unsigned shared, Ring& ring, int thread) {
    for (int tile = work.first_tile(problem); tile < work.last_tile; ++tile) {
        wait_for_phase(emptied_barrier(shared, ring.stage), ring.parity ^ 1);
        start_copy(problem, work, tile, shared, ring.stage, thread);
        arrive_when_copied(filled_barrier(shared, ring.stage));
        ring.advance();
    }
}

// How the warps that compute come by their tiles.
struct TileReader {
    static constexpr bool ALL_WIDENED = WIDEN_KEYS && WIDEN_VALUES;
    static constexpr int AHEAD = COPY_STAGES - 1;

    const Attention& problem;
    const Work& work;
    unsigned shared;
    Ring& ring;
    int thread;

    __device__ TileReader(const Attention& problem, const Work& work, unsigned shared, Ring& ring, int warp, int lane)
        : problem(problem), work(work), shared(shared), ring(ring), thread(32 * warp + lane) {
        if constexpr (COPY_ASYNC && PRODUCERS == 0) {
#pragma unroll
            for (int tile = 0; tile < AHEAD; ++tile) copy_ahead(work.first_tile(problem) + tile);
        }
    }

    // Waits until a tile is there, in the form that the products want, and returns its stage.
    __device__ int acquire(int tile) {
        int stage = 0;
        if constexpr (!COPY_ASYNC) {
            sync_compute_warps();  // everyone is done with the tile before
            copy_tile(problem, work, tile, shared, thread);
            sync_compute_warps();
            return stage;
        } else if constexpr (PRODUCERS > 0) {
            stage = ring.stage;
            wait_for_phase(filled_barrier(shared, stage), ring.parity);
            ring.advance();
            if constexpr (WIDEN_KEYS || WIDEN_VALUES)
                sync_compute_warps();  // everyone is done with the widened tile before
        } else {
            stage = tile % COPY_STAGES;
            wait_for_copies<AHEAD - 1>();
            sync_compute_warps();  // everyone's copies have landed, and everyone is done with the tile before
            copy_ahead(tile + AHEAD);
        }
        if constexpr (WIDEN_KEYS || WIDEN_VALUES) {
            widen_stage(shared, stage, thread);
            sync_compute_warps();
            if constexpr (ALL_WIDENED) hand_back(stage);
        }
        return stage;
    }

    // Tells that this thread is done with a stage.
    __device__ void release(int stage) {
        if constexpr (!ALL_WIDENED) hand_back(stage);
    }

   private:
    // A group is committed even when there is nothing left to copy, so that waiting for all but the last few groups
    // always means the same tile.
    __device__ void copy_ahead(int tile) {
        if (tile < work.last_tile) start_copy(problem, work, tile, shared, tile % COPY_STAGES, thread);
        commit_copies();
    }

    // Every lane for its own reads. One for its warp, after __syncwarp, would do and be a little cheaper, but race
    // checkers do not follow that.
    __device__ void hand_back(int stage) {
        if constexpr (PRODUCERS > 0) arrive(emptied_barrier(shared, stage));
    }
};

// Which units of work a block takes: its own, or, if blocks stay, also the next one from a counter that all share.
struct TileScheduler {
    unsigned* counters;  // [0] units taken beyond each block's first, [1] blocks that are done
    volatile int* next_work;

    __device__ TileScheduler(const Attention& problem, char* memory)
        : counters(problem.queue), next_work(reinterpret_cast<volatile int*>(memory + NEXT_WORK)) {}

    __device__ int first() const { return blockIdx.x; }

    __device__ int next() const {
        if constexpr (!PERSISTENT) return 0x7fffffff;
        __syncthreads();  // everyone has read the last answer, and is done with the tiles
        if (threadIdx.x == 0) *next_work = gridDim.x + atomicAdd(&counters[0], 1);
        __syncthreads();
        return *next_work;
    }

    // The last block leaves the counters as the next launch must find them.
    __device__ void finish() const {
        if constexpr (PERSISTENT) {
            if (threadIdx.x == 0 && atomicAdd(&counters[1], 1) == gridDim.x - 1) {
                counters[0] = 0;
                counters[1] = 0;
            }
        }
    }
};
