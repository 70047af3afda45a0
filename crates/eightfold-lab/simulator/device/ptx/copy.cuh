#pragma once
inline void copy_async_16(unsigned to, const void* from, int valid_bytes) { sim::copy_async_16(to, from, valid_bytes); }
inline void commit_copies() { sim::commit_copies(); }
template <int PENDING>
inline void wait_for_copies() {
    sim::wait_for_copies(PENDING);
}
inline void arrive_when_copied(unsigned barrier) { sim::arrive_when_copied(barrier); }
