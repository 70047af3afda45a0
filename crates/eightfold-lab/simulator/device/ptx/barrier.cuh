#pragma once
template <int BARRIER, int THREADS>
inline void sync_threads_of_role() {
    sim::sync_numbered(BARRIER, THREADS);
}
template <int BARRIER, int THREADS>
inline bool is_true_for_any_of_role(int condition) {
    return sim::any_numbered(BARRIER, THREADS, condition != 0);
}
inline void init_barrier(unsigned address, unsigned arrivals) { sim::init_barrier(address, arrivals); }
inline void arrive(unsigned address) { sim::arrive(address, 0); }
inline void wait_for_phase(unsigned address, unsigned parity) { sim::wait_for_phase(address, parity); }
