// FP8, f16 and bf16, bit by bit. Without the headers of the library, which take longer to read than most kernels.
#pragma once
#include <stdint.h>
#include <string.h>

namespace sim {
inline uint32_t bits(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    return word;
}
inline float from_bits(uint32_t word) {
    float x;
    memcpy(&x, &word, 4);
    return x;
}

// The one NaN that the hardware makes.
inline float no_number() { return from_bits(0x7fffffff); }

inline float f16_to_float(uint16_t half) {
    if ((half & 0x7fff) > 0x7c00) return no_number();
    _Float16 x;
    memcpy(&x, &half, 2);
    return static_cast<float>(x);
}
// Rounded once, to nearest even, also from more digits than a float has.
inline uint16_t to_f16(double x) {
    _Float16 half = static_cast<_Float16>(x);
    uint16_t word;
    memcpy(&word, &half, 2);
    return (word & 0x7fff) > 0x7c00 ? 0x7fff : word;
}
inline uint16_t to_f16_down(float x) {
    uint16_t half = to_f16(x);
    if (!(f16_to_float(half) > x)) return half;
    return half & 0x8000 ? half + 1 : half == 0 ? 0x8001 : half - 1;
}
inline uint16_t to_bf16(float x) {
    uint32_t word = bits(x);
    if ((word & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// The values of all codes.
struct Tables {
    float e4m3[256], e5m2[256];

    Tables() {
        for (int code = 0; code < 256; ++code) {
            int exponent = code >> 3 & 15, mantissa = code & 7;
            float value = exponent ? __builtin_ldexpf(8.0f + mantissa, exponent - 10) : __builtin_ldexpf(mantissa, -9);
            if ((code & 0x7f) == 0x7f) value = __builtin_nanf("");
            e4m3[code] = code & 128 ? -value : value;
            e5m2[code] = f16_to_float(static_cast<uint16_t>(code << 8));
        }
    }
    const float* of(bool is_e5m2) const { return is_e5m2 ? e5m2 : e4m3; }
};
inline const Tables tables;

// To nearest even, saturating (`largest` is the largest finite code); NaN keeps no sign.
inline uint8_t to_fp8(float x, int mantissa_bits, int bias, int largest) {
    if (__builtin_isnan(x)) return 0x7f;
    uint8_t sign = __builtin_signbit(x) ? 128 : 0;
    float magnitude = __builtin_fabsf(x);
    if (magnitude == 0) return sign;
    if (__builtin_isinf(magnitude)) return static_cast<uint8_t>(sign | largest);
    int exponent = __builtin_ilogbf(magnitude);
    if (exponent < 1 - bias) exponent = 1 - bias;
    double units = __builtin_nearbyint(__builtin_ldexp(static_cast<double>(magnitude), mantissa_bits - exponent));
    long code = (static_cast<long>(exponent + bias - 1) << mantissa_bits) + static_cast<long>(units);
    return static_cast<uint8_t>(sign | (code < largest ? code : largest));
}
inline uint8_t to_e4m3(float x) { return to_fp8(x, 3, 7, 0x7e); }
inline uint8_t to_e5m2(float x) { return to_fp8(x, 2, 15, 0x7b); }
}  // namespace sim
