// What the host compiles into every attention kernel, and the constants of its softmax.
#pragma once

// All that is compiled in: the kind of problem (`src/cuda/specialisation.rs`) and the knobs (the family's
// `program.rs`).
struct Settings {
    SETTINGS
};

// The kind of problem.
enum Format { FORMAT_F32, FORMAT_F16, FORMAT_BF16 };
constexpr int HEAD_DIM = Settings::HEAD_DIM;    // channels of a row of Q and K
constexpr int VALUE_DIM = Settings::VALUE_DIM;  // of a row of V and of the output
constexpr bool CAUSAL = Settings::CAUSAL;
constexpr bool WINDOW = Settings::WINDOW;    // whether a query sees only keys near its own
constexpr bool SOFTCAP = Settings::SOFTCAP;  // whether scores stay below a bound
constexpr bool SINKS = Settings::SINKS;      // whether every head has a logit in its rows' sums that stands for no key
constexpr bool E5M2 = Settings::INPUT_E5M2;
constexpr bool INT8 = Settings::INPUT_INT8;  // Q and K; V is in E4M3
constexpr Format OUTPUT_FORMAT = static_cast<Format>(Settings::OUTPUT_FORMAT);
constexpr bool QUERY_BLOCK_SCALES = Settings::QUERY_BLOCK_SCALES;
constexpr bool KEY_BLOCK_SCALES = Settings::KEY_BLOCK_SCALES;
constexpr bool VALUE_BLOCK_SCALES = Settings::VALUE_BLOCK_SCALES;

// Weights are 2^(score - maximum + 8): E4M3 and f16 both keep more of the small ones up there.
constexpr float WEIGHT_EXPONENT = 8.0f;

// Below every score, yet finite: a row that has seen no key stays free of NaN.
constexpr float LOWEST = -1e30f;

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// The one of two types that a condition picks.
template <bool CONDITION, typename First, typename Second>
struct Either {
    using Type = First;
};
template <typename First, typename Second>
struct Either<false, First, Second> {
    using Type = Second;
};
