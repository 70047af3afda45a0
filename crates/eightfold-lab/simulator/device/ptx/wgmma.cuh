#pragma once
inline void fence_products() { sim::fence_products(); }
inline void commit_products() { sim::commit_products(); }
template <int PENDING>
inline void wait_for_products() {
    sim::wait_for_products(PENDING);
}
inline void settle(float&) {}
inline void settle(unsigned&) {}
inline void settle(int&) {}
inline void clear(float& accumulator) { accumulator = 0.0f; }
template <bool E5M2, int COUNT>
inline void multiply_shared(unsigned (&d)[COUNT], unsigned long long a, unsigned long long b, bool accumulate) {
    sim::multiply({4 * COUNT, true, E5M2, E5M2, accumulate, a, b}, d, nullptr);
}
template <bool E5M2, int COUNT>
inline void multiply_shared(float (&d)[COUNT], unsigned long long a, unsigned long long b, bool accumulate) {
    sim::multiply({2 * COUNT, false, E5M2, E5M2, accumulate, a, b}, reinterpret_cast<uint32_t*>(d), nullptr);
}
template <bool, int COUNT>
inline void multiply_shared(int (&d)[COUNT], unsigned long long a, unsigned long long b, bool accumulate) {
    sim::multiply({2 * COUNT, false, false, false, accumulate, a, b, true}, reinterpret_cast<uint32_t*>(d), nullptr);
}
template <bool B_E5M2, int COUNT>
inline void multiply_registers(float (&d)[COUNT], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
    sim::multiply({2 * COUNT, false, false, B_E5M2, accumulate, 0, b}, reinterpret_cast<uint32_t*>(d), a);
}
