#pragma once
inline unsigned pack_f16(float first, float second) {
    return sim::to_f16(first) | static_cast<unsigned>(sim::to_f16(second)) << 16;
}
template <bool E5M2>
inline unsigned widen_low(unsigned word) {
    const float* values = sim::tables.of(E5M2);
    return pack_f16(values[word & 255], values[word >> 8 & 255]);
}
template <bool E5M2>
inline unsigned widen_high(unsigned word) {
    return widen_low<E5M2>(word >> 16);
}
inline unsigned pack_bf16(float first, float second) {
    return sim::to_bf16(first) | static_cast<unsigned>(sim::to_bf16(second)) << 16;
}
inline unsigned pack_e4m3(float a, float b, float c, float d) {
    return sim::to_e4m3(a) | sim::to_e4m3(b) << 8 | sim::to_e4m3(c) << 16 |
           static_cast<unsigned>(sim::to_e4m3(d)) << 24;
}
template <bool E5M2>
inline unsigned pack_fp8(float first, float second) {
    return E5M2 ? sim::to_e5m2(first) | sim::to_e5m2(second) << 8 : sim::to_e4m3(first) | sim::to_e4m3(second) << 8;
}
struct Floats2 {
    float low, high;
};
inline Floats2 to_floats(unsigned pair) {
    return {sim::f16_to_float(static_cast<uint16_t>(pair)), sim::f16_to_float(static_cast<uint16_t>(pair >> 16))};
}
inline float to_float(unsigned short half) { return sim::f16_to_float(half); }
