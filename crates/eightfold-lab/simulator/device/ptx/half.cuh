#pragma once
#include "ptx/convert.cuh"
// Each half of the words by a function of floats; the result is rounded to f16 once.
template <typename Function, typename... Words>
inline unsigned of_halves(Function function, Words... words) {
    auto half = [&](int at) { return sim::to_f16(function(sim::f16_to_float(static_cast<uint16_t>(words >> at))...)); };
    return half(0) | static_cast<unsigned>(half(16)) << 16;
}
// The number where one of the two is not one; of two zeros the one below or above.
inline float larger(float x, float y) {
    if (x == y) return sim::from_bits(sim::bits(x) & sim::bits(y));
    return __builtin_fmaxf(x, y);
}
inline float smaller(float x, float y) {
    if (x == y) return sim::from_bits(sim::bits(x) | sim::bits(y));
    return __builtin_fminf(x, y);
}
inline unsigned max_halves(unsigned a, unsigned b) { return of_halves(larger, a, b); }
inline void lower_halves(unsigned& pair, unsigned bound) { pair = of_halves(smaller, pair, bound); }
// Products of f16 have 22 bits, so that with a third f16 added a double rounds at most once before the last rounding,
// far below half a unit of it.
inline unsigned multiply_add_halves(unsigned a, unsigned b, unsigned c) {
    return of_halves([](double x, double y, double z) { return x * y + z; }, a, b, c);
}
inline unsigned multiply_add_halves_clamped(unsigned a, unsigned b, unsigned c) {
    auto clamped = [](double x, double y, double z) {
        double sum = x * y + z;
        return !(sum > 0.0) ? 0.0 : sum < 1.0 ? sum : 1.0;
    };
    return of_halves(clamped, a, b, c);
}
inline unsigned subtract_halves(unsigned a, unsigned b) {
    return of_halves([](double x, double y) { return x - y; }, a, b);
}
inline unsigned exp2_halves(unsigned x) {
    const uint16_t* powers = sim::exp2_of_halves();
    return powers[x & 0xffff] | static_cast<unsigned>(powers[x >> 16]) << 16;
}
inline unsigned tanh_halves(unsigned x) {
    return of_halves([](double y) { return __builtin_tanh(y); }, x);
}
inline unsigned both_halves(float x) { return sim::to_f16(x) * 0x10001u; }
inline unsigned both_halves_down(float x) { return sim::to_f16_down(x) * 0x10001u; }
inline unsigned pack_e4m3_halves(unsigned a, unsigned b) {
    Floats2 low = to_floats(a), high = to_floats(b);
    return pack_e4m3(low.low, low.high, high.low, high.high);
}
inline unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }
