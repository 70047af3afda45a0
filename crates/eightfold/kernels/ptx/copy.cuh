// Asynchronous copies from global to shared memory (sm_80 and later).
#pragma once

// cp.async: 16 bytes, of which `valid_bytes` are read and the rest is zero. Each thread for itself.
__device__ inline void copy_async_16(unsigned shared_address, const void* global, int valid_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global), "r"(valid_bytes)
                 : "memory");
}

// cp.async.commit_group: closes the group of this thread's copies since the last one, even if there were none.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// cp.async.wait_group: until at most `PENDING` of this thread's groups are on their way. Other threads see the data
// only after a barrier.
template <int PENDING>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// cp.async.mbarrier.arrive.noinc: this thread arrives at the barrier when all its copies so far have landed.
__device__ inline void arrive_when_copied(unsigned barrier_address) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier_address) : "memory");
}
