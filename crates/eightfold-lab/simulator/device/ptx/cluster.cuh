#pragma once
inline unsigned cluster_index() { return blockIdx.x / sim::cluster_blocks(); }
inline int cluster_rank() { return static_cast<int>(sim::cluster_rank()); }
inline int cluster_blocks() { return static_cast<int>(sim::cluster_blocks()); }
inline void arrive_at_cluster() { sim::arrive_at_cluster(true); }
inline void arrive_at_cluster_relaxed() { sim::arrive_at_cluster(false); }
inline void wait_for_cluster() { sim::wait_for_cluster(); }
inline unsigned in_block_of_cluster(unsigned address, int rank) { return sim::in_block_of_cluster(address, rank); }
inline void store_in_cluster(unsigned address, unsigned value) { sim::store_in_cluster(address, value); }
