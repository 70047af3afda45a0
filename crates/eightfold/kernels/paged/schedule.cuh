// Who computes what. The keys of every tile of rows are cut into units; the units of all sequences, one after the
// other, are dealt out to the blocks in equal runs. So lengths may change from launch to launch, and the launch does
// not.
#pragma once
#include "paged/problem.cuh"

// Sequences whose units a block can add up.
constexpr int MOST_SEQUENCES = 2048;

// Of how many units there are before each sequence, and in all: shared by the block.
struct Schedule {
    int before[MOST_SEQUENCES + 1];
    int of_warp[WARPS];
};

// One run of units of one tile of rows: what the block is at, in shared memory.
struct Run {
    Sequence sequence;
    int kv_head, row_tile;
    int first_unit, units;
    int first_owner;  // the block that has the tile's first unit; with fixed cuts, that unit's number
    int part, parts;  // this run among those of the tile
    int next;         // the unit behind it

    __device__ bool is_whole() const { return parts == 1; }

    // Of the run's keys those that some row of the tile sees, in whole steps at the front; and those that every row
    // sees.
    KeyRange keys, uncut;

    // What follows from the rest.
    __device__ void find_keys(const Paged& problem) {
        int group = problem.group, first_row = row_tile * TILE_ROWS;
        KeyRange first = sequence.visible(problem, first_row / group);
        KeyRange last = sequence.visible(problem, min((first_row + TILE_ROWS - 1) / group, sequence.queries - 1));
        int unit = sequence.first_unit(problem) + first_unit;
        keys = {unit * UNIT_KEYS, min((unit + units) * UNIT_KEYS, last.end)};
        if constexpr (WINDOW) keys.first = max(keys.first, first.first / STEP_KEYS * STEP_KEYS);
        uncut = {last.first, first.end};
    }
};

// Which run of units a block has: all have as many, and the first `longer` one more.
struct Share {
    int each, longer, begin, end;

    __device__ Share(int total) : each(total / gridDim.x), longer(total - each * gridDim.x) {
        begin = first_of(blockIdx.x);
        end = first_of(blockIdx.x + 1);
    }

    __device__ int first_of(int block) const { return block * each + min(block, longer); }

    // The block that has a unit.
    __device__ int owner(int unit) const {
        int of_longer = longer * (each + 1);
        return unit < of_longer ? unit / (each + 1) : longer + (unit - of_longer) / each;
    }
};

// Adds up the units of all sequences. Every thread of the block; all see the sums afterwards.
__device__ inline void add_up_units(const Paged& problem, Schedule& schedule) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = 0;
    for (int first = 0; first < problem.sequences; first += THREADS) {
        int index = first + threadIdx.x;
        int own = 0;
        if (index < problem.sequences) {
            Sequence sequence;
            sequence.look_up(problem, index);
            own = sequence.units(problem);
        }
        int sum = own;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            int other = __shfl_sync(0xffffffff, sum, lane - distance & 31);
            if (lane >= distance) sum += other;
        }
        if (lane == 31) schedule.of_warp[warp] = sum;
        __syncthreads();
        int all = 0, earlier = 0;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            earlier += other < warp ? schedule.of_warp[other] : 0;
            all += schedule.of_warp[other];
        }
        if (index < problem.sequences) schedule.before[index] = before + earlier + sum - own;
        before += all;
        __syncthreads();  // everyone has read the warps' sums
    }
    if (threadIdx.x == 0) schedule.before[problem.sequences] = before;
    __syncthreads();
}

// The run that begins at a unit and ends with the block's share, or with its tile.
__device__ inline void look_up_run(Run& run, const Paged& problem, const Schedule& schedule, const Share& share,
                                   int unit) {
    int low = 0, high = problem.sequences;  // the last sequence with no more units before it
    while (high - low > 1) {
        int middle = (low + high) / 2;
        (schedule.before[middle] <= unit ? low : high) = middle;
    }
    run.sequence.look_up(problem, low);
    int tile_units = run.sequence.key_units(problem), row_tiles = run.sequence.row_tiles(problem);
    int within = unit - schedule.before[low], tile = within / tile_units;
    run.row_tile = tile % row_tiles;
    run.kv_head = tile / row_tiles;
    run.first_unit = within % tile_units;
    int first = unit - run.first_unit;
    if constexpr (FIXED_CUTS) {
        run.units = 1;
        run.first_owner = first;
        run.part = run.first_unit;
        run.parts = tile_units;
    } else {
        run.units = min(share.end - unit, tile_units - run.first_unit);
        run.first_owner = share.owner(first);
        run.part = blockIdx.x - run.first_owner;
        run.parts = share.owner(first + tile_units - 1) - run.first_owner + 1;
    }
    run.next = unit + run.units;
    run.find_keys(problem);
}
