// What only some problems do with scores: a bound c, by c · tanh(score / c), and sinks.
#pragma once
#include "attention/operands.cuh"
#include "ptx/exponential.cuh"

// A score in powers of two, capped, with a relative error below 1e-6: one exponential and one reciprocal. Minus
// infinity becomes minus the bound, so scores are masked afterwards.
template <typename Attention>
__device__ inline float cap_score(const Attention& problem, float score) {
    float power = score * problem.softcap_steepness;  // e^(2 · score / c) is 2 to this power
    float far = fmaf(-2.0f * problem.softcap, reciprocal(exp2_hardware(power) + 1.0f), problem.softcap);
    // Where tanh(x) is near x the difference above cancels: there it is x times Taylor's polynomial of tanh(x) / x.
    const float HALF_LN_2 = 0.34657359f;
    float x = power * HALF_LN_2, square = x * x;
    float ratio = fmaf(fmaf(fmaf(-17.0f / 315.0f, square, 2.0f / 15.0f), square, -1.0f / 3.0f), square, 1.0f);
    return fabsf(x) < 0.25f ? score * ratio : far;
}

// The sink of a head, in powers of two: a score that no key has and that the sum of every row of the head begins with.
template <typename Attention>
__device__ inline float sink_score(const Attention& problem, int head) {
    const float LOG2_E = 1.442695041f;
    return fminf(problem.sinks[head] * LOG2_E, -LOWEST);
}

// Its weight where it is the largest score.
constexpr float SINK_WEIGHT = 256.0f;
static_assert(WEIGHT_EXPONENT == 8.0f, "the weight of the largest score follows from the exponent of the weights");
