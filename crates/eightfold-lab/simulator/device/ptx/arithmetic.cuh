#pragma once
inline float with_one_nan(float x) { return __builtin_isnan(x) ? sim::no_number() : x; }
inline float divide(float a, float b) { return with_one_nan(a / b); }
inline float multiply(float a, float b) { return with_one_nan(a * b); }
inline float multiply_add(float a, float b, float c) { return with_one_nan(__builtin_fmaf(a, b, c)); }
