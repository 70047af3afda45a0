// Blocks of a cluster: they meet, and reach each other's shared memory (sm_90 and later).
#pragma once

// %clusterid, %cluster_ctarank, %cluster_nctarank: which cluster of the launch, which block of it, and of how many.
__device__ inline unsigned cluster_index() {
    unsigned index;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
    return index;
}
__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline int cluster_blocks() {
    int blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// barrier.cluster.arrive: every thread of every block of the cluster, all threads of a warp together. With release,
// what the warp did before is seen by those who wait; relaxed, it says no more than that the warp has come so far.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void arrive_at_cluster_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// barrier.cluster.wait (acquire): until every thread of the cluster has arrived. The hardware lets the warp sleep.
__device__ inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// mapa: where this place of shared memory lies in another block of the cluster.
__device__ inline unsigned in_block_of_cluster(unsigned shared_address, int rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(rank));
    return address;
}

// st.shared::cluster: a word of any block of the cluster, which must have started and not ended.
__device__ inline void store_in_cluster(unsigned cluster_address, unsigned value) {
    asm volatile("st.relaxed.cluster.shared::cluster.u32 [%0], %1;" ::"r"(cluster_address), "r"(value) : "memory");
}
