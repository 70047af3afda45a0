// What the twins of `kernels/ptx/` call: the simulated device, seen from a thread of a kernel. The runtime defines it
// all.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SIMULATED __attribute__((visibility("default")))

namespace sim {
struct Index {
    unsigned x, y, z;
};

// Where the thread that runs is. Written by the scheduler before it lets a thread run.
struct Position {
    Index thread, block, grid;
};
SIMULATED Position& position();

// Shared memory by 32-bit address, and how a pointer becomes one.
SIMULATED unsigned address_of(const void* pointer);
SIMULATED void load_shared(unsigned address, void* to, unsigned bytes);
SIMULATED void store_shared(unsigned address, const void* from, unsigned bytes);

// Global memory, for accesses that the compiler does not show.
SIMULATED void load_global(const void* from, void* to, unsigned bytes);
SIMULATED void store_global(void* to, const void* from, unsigned bytes);

// What lanes show each other when all of a warp have come to the same instruction.
struct Shown {
    uint64_t words[4];
};
enum class Meeting { SHUFFLE, ANY, REDUCE, LOAD_MATRIX, MULTIPLY };
SIMULATED const Shown* meet_in_warp(Meeting meeting, const Shown& shown);
SIMULATED void sync_warp();
SIMULATED void sync_block();
SIMULATED void sync_numbered(int barrier, int threads);
SIMULATED void arrive_numbered(int barrier, int threads);
SIMULATED bool any_numbered(int barrier, int threads, bool condition);

SIMULATED void give_up_registers(int registers);
SIMULATED void take_registers(int registers);

SIMULATED void init_barrier(unsigned address, unsigned arrivals);
SIMULATED void arrive(unsigned address, unsigned expected_bytes);
SIMULATED void wait_for_phase(unsigned address, unsigned parity);
SIMULATED void publish_barriers();
SIMULATED void publish_stores();

SIMULATED void copy_async_16(unsigned to, const void* from, int valid_bytes);
SIMULATED void commit_copies();
SIMULATED void wait_for_copies(int pending);
SIMULATED void arrive_when_copied(unsigned barrier);
SIMULATED void copy_box(unsigned blocks, unsigned to, const void* map, unsigned barrier, int x, int y, int z, int w);

// wgmma: sums in f32, pairs of f16 or, of INT8, s32; A from a descriptor, or, where `a_registers` is given, from four
// registers.
struct Product {
    int columns;
    bool half_sums, a_e5m2, b_e5m2, accumulate;
    unsigned long long a, b;
    bool integers = false;
};
SIMULATED void multiply(const Product& product, uint32_t* sums, const uint32_t* a_registers);
SIMULATED void fence_products();
SIMULATED void commit_products();
SIMULATED void wait_for_products(int pending);

SIMULATED unsigned cluster_rank();
SIMULATED unsigned cluster_blocks();
SIMULATED void arrive_at_cluster(bool release);
SIMULATED void wait_for_cluster();
SIMULATED unsigned in_block_of_cluster(unsigned address, int rank);
SIMULATED void store_in_cluster(unsigned address, unsigned value);

SIMULATED void let_next_launch_start();
SIMULATED void wait_for_last_launch();

SIMULATED void fence_memory();  // __threadfence
enum class Atomic { ADD, MAX };
SIMULATED unsigned update(unsigned* place, Atomic how, unsigned value);

// ex2.approx.f16 of all 65536 values.
SIMULATED const uint16_t* exp2_of_halves();

// mma.sync of the thread that runs, when all lanes have shown {A's words 0 and 1, 2 and 3, B's}.
SIMULATED void multiply_f16(float* sum, const Shown* lanes);
SIMULATED void multiply_fp8(float* sum, const Shown* lanes, bool a_e5m2, bool b_e5m2);
}  // namespace sim
