// Barriers: among the warps of a role, and between those who fill a buffer and those who use it.
#pragma once

// bar.sync on a numbered barrier, for `THREADS` threads of the block; every thread of the taking part warps.
template <int BARRIER, int THREADS>
__device__ inline void sync_threads_of_role() {
    asm volatile("bar.sync %0, %1;" ::"n"(BARRIER), "n"(THREADS) : "memory");
}

// barrier.red.or: the same, and whether the condition holds for any of the threads.
template <int BARRIER, int THREADS>
__device__ inline bool is_true_for_any_of_role(int condition) {
    int any;
    asm volatile("{ .reg .pred p, q; setp.ne.s32 p, %1, 0; barrier.red.or.pred q, %2, %3, p; selp.s32 %0, 1, 0, q; }"
                 : "=r"(any)
                 : "r"(condition), "n"(BARRIER), "n"(THREADS)
                 : "memory");
    return any;
}

// mbarrier.init: one thread, before anyone uses the barrier.
__device__ inline void init_barrier(unsigned address, unsigned arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}

// mbarrier.arrive (release): everything this thread did before is seen by those who wait for the phase.
__device__ inline void arrive(unsigned address) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address) : "memory");
}

// mbarrier.test_wait (acquire) until the phase of this parity is complete. Each thread for itself.
__device__ inline void wait_for_phase(unsigned address, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{ .reg .pred complete; mbarrier.test_wait.parity.shared.b64 complete, [%1], %2; selp.u32 %0, 1, 0, "
            "complete; }"
            : "=r"(done)
            : "r"(address), "r"(parity)
            : "memory");
    } while (!done);
}
