#pragma once
#include "ptx/barrier.cuh"
inline void publish_barriers() { sim::publish_barriers(); }
inline void publish_stores() { sim::publish_stores(); }
inline void arrive_expecting(unsigned barrier, unsigned bytes) { sim::arrive(barrier, bytes); }
inline void sleep_until_phase(unsigned barrier, unsigned parity) { sim::wait_for_phase(barrier, parity); }
inline void copy_box(unsigned to, const void* map, unsigned barrier, int x, int y, int z, int w) {
    sim::copy_box(1u << sim::cluster_rank(), to, map, barrier, x, y, z, w);
}
inline void copy_box_to_blocks(unsigned short blocks, unsigned to, const void* map, unsigned barrier, int x, int y,
                               int z, int w) {
    sim::copy_box(blocks, to, map, barrier, x, y, z, w);
}
inline void prefetch_map(const void*) {}
template <int REGISTERS>
inline void give_up_registers() {
    sim::give_up_registers(REGISTERS);
}
template <int REGISTERS>
inline void take_registers() {
    sim::take_registers(REGISTERS);
}
inline void let_next_launch_start() { sim::let_next_launch_start(); }
inline void wait_for_last_launch() { sim::wait_for_last_launch(); }
inline void arrive_numbered(int barrier, int threads) { sim::arrive_numbered(barrier, threads); }
