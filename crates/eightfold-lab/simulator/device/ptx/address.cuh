#pragma once
inline unsigned shared_address(const void* pointer) { return sim::address_of(pointer); }
template <typename T>
inline T loaded(const void* address) {
    T value;
    sim::load_global(address, &value, sizeof value);
    return value;
}
inline float2 load_fresh_8(const float* address) { return loaded<float2>(address); }
inline float4 load_fresh_16(const float* address) { return loaded<float4>(address); }
template <class Byte>
inline Byte* strides_on(Byte* first, int count, int stride_bytes) {
    return first + static_cast<long long>(count) * stride_bytes;
}
inline void store_global_16(void* address, uint4 words, bool exists) {
    if (exists) sim::store_global(address, &words, 16);
}
inline uint4 load_shared_16(unsigned address) {
    uint4 words;
    sim::load_shared(address, &words, 16);
    return words;
}
inline void store_shared_16(unsigned address, uint4 words) { sim::store_shared(address, &words, 16); }
