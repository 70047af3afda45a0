// Copies by TMA, barriers that count bytes, and what else a pipeline of warpgroups needs (sm_90a).
#pragma once
#include "ptx/barrier.cuh"

// fence.mbarrier_init: barriers that this thread made are seen by TMA.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// fence.proxy.async: what this thread stored in shared memory is seen by products and copies.
__device__ inline void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// mbarrier.arrive.expect_tx: arrives, and the phase is complete only when as many bytes have landed.
__device__ inline void arrive_expecting(unsigned barrier, unsigned bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// mbarrier.try_wait (acquire) until the phase of this parity is complete; the hardware lets the thread sleep meanwhile.
// With BOUNDED_WAITS a wait that never ends becomes an error instead of a hang.
__device__ inline void sleep_until_phase(unsigned barrier, unsigned parity) {
    unsigned done;
#if BOUNDED_WAITS
    unsigned tries = 0;
#endif
    do {
        asm volatile(
            "{ .reg .pred complete; mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2; selp.u32 %0, 1, 0, "
            "complete; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
#if BOUNDED_WAITS
        if (!done && ++tries > 4000000) asm volatile("trap;");
#endif
    } while (!done);
}

// cp.async.bulk.tensor: one box of a tensor of four dimensions, innermost first, to shared memory; one thread. What
// lies outside the tensor arrives as zeros and counts as bytes all the same.
__device__ inline void copy_box(unsigned shared_address, const void* map, unsigned barrier, int x, int y, int z,
                                int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
        "[%2];" ::"r"(shared_address),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// The same to this place of every block of the cluster whose bit is set, and to its barrier.
__device__ inline void copy_box_to_blocks(unsigned short blocks, unsigned shared_address, const void* map,
                                          unsigned barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
        "{%3, "
        "%4, %5, %6}], [%2], %7;" ::"r"(shared_address),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
        : "memory");
}

// prefetch.tensormap: the map will be needed soon.
__device__ inline void prefetch_map(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// setmaxnreg: this warpgroup gives registers back, or waits until it can have more. Every thread of the warpgroup.
template <int REGISTERS>
__device__ inline void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// griddepcontrol: the next launch in the stream may start its preparations; and nothing of the launch before is
// running any more. Both do nothing unless the launch was made dependent.
__device__ inline void let_next_launch_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_last_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// bar.arrive on a numbered barrier, at which as many threads of the block meet.
__device__ inline void arrive_numbered(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
