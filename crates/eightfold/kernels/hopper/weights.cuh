// P = 2^(S·scale - maximum + 8) as E4M3, in the registers and the order in which the value product reads it.
#pragma once
#include "hopper/scores.cuh"
#include "ptx/exponential.cuh"

// The state of a lane's two rows, in powers of two.
struct RowState {
    float scale[2];                       // from products of codes to powers of two
    float row_max[2] = {LOWEST, LOWEST};  // what the weights are relative to; at most RESCALE_THRESHOLD behind
    float row_sum[2] = {0.0f, 0.0f};      // of all weights so far
};

// Weights of a lane's two rows as the value product's first operand: of a step of 32 keys, word w holds four weights of
// row w % 2, at the keys that this lane's scores are of. (V's keys are permuted within every 16 to match.) Products
// read a step's registers while the next are made; FLIGHT says for how many steps.
struct Weights {
    unsigned words[VALUE_STEPS][4];
    unsigned rest[SPLIT_EIGHTHS > 0 ? VALUE_STEPS : 1][4];  // of weights in two parts, the second
};

// The linear exponential: the code of 2^x, seen as a number, is 8·(x + 7) where x is whole and close to it between; so
// the code is made by multiply-adds in f16, without the exponential unit and without a conversion. A first one clamps
// to [0, 1], which keeps codes between 0 and LARGEST; a second brings the code to the low byte of the half.
constexpr float LARGEST = 126.0f;               // one below NaN
constexpr float LINEAR_SCALE = 8.0f / LARGEST;  // from a power of two to a clamped fraction
constexpr float LINEAR_BIAS = -0.451f;          // evens out what the straight lines overshoot between powers of two
constexpr float LINEAR_OFFSET = (8.0f * (7.0f + WEIGHT_EXPONENT) + LINEAR_BIAS) / LARGEST;
constexpr unsigned HALVES_LARGEST = 0x57e057e0;  // 126
constexpr unsigned HALVES_1024 = 0x64006400;     // whose last place is 1

constexpr bool ALL_LINEAR = LINEAR_EIGHTHS == 8;
// Whether a row's weights of these 16 keys are made by the linear exponential.
constexpr bool is_linear(int sixteenth) { return sixteenth * LINEAR_EIGHTHS % 8 < LINEAR_EIGHTHS; }

// Whether the weights of a step of the value product have two parts.
constexpr bool is_split(int step) { return step % 8 < SPLIT_EIGHTHS; }

// Four weights as E4M3 and, in `rest`, what rounding left over, rounded in turn: both together are good to 8 bits.
__device__ inline void split_weights(unsigned a, unsigned b, unsigned& word, unsigned& rest) {
    word = pack_e4m3_halves(a, b);
    rest = pack_e4m3_halves(subtract_halves(a, widen_low<false>(word)), subtract_halves(b, widen_high<false>(word)));
}

struct HalfExponential {
    unsigned scale[2], offset[2];                // of the exponential unit
    unsigned linear_scale[2], linear_offset[2];  // of the linear exponential

    // The scale as f16 can say it: maxima are in its powers of two, so that the largest weight is 2^8 to the last bit.
    __device__ static float rounded(float scale) {
        if constexpr (ALL_LINEAR) return to_floats(linear_halves(scale)).low * (1.0f / LINEAR_SCALE);
        return to_floats(halves(scale)).low;
    }

    // Sets what scales and maxima decide, and rounds maxima to what f16 offsets can say.
    __device__ void set(RowState& rows) {
        bool far = fmaxf(size(rows.row_max[0]), size(rows.row_max[1])) > 512.0f;
        if (__any_sync(0xffffffff, far)) {
            set_far(rows);
            return;
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            bool seen = has_seen(rows.row_max[row]);
            float maximum = seen ? rows.row_max[row] : 0.0f;
            scale[row] = halves(rows.scale[row]);
            linear_scale[row] = linear_halves(rows.scale[row]);
            if constexpr (ALL_LINEAR) {
                linear_offset[row] = both_halves(LINEAR_OFFSET - maximum * LINEAR_SCALE);
                maximum = (LINEAR_OFFSET - to_floats(linear_offset[row]).low) * (1.0f / LINEAR_SCALE);
            } else {
                offset[row] = both_halves(WEIGHT_EXPONENT - maximum);
                maximum = WEIGHT_EXPONENT - to_floats(offset[row]).low;
                linear_offset[row] = both_halves(LINEAR_OFFSET - maximum * LINEAR_SCALE);
            }
            if (seen) rows.row_max[row] = maximum;
        }
    }

    // The weights of a step.
    __device__ void weigh(const HalfScores& scores, int step, Weights& weights) const {
        unsigned(&words)[4] = weights.words[step], (&rest)[4] = weights.rest[SPLIT_EIGHTHS > 0 ? step : 0];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            int row = word % 2, first = 8 * step + 4 * (word / 2) + row;
            unsigned a = scores.at(first), b = scores.at(first + 2);
            if (is_linear(2 * step + word / 2)) {
                words[word] = permute_bytes(linear(a, row), linear(b, row), 0x6420);
                continue;
            }
            a = exp2_halves(multiply_add_halves(a, scale[row], offset[row]));
            b = exp2_halves(multiply_add_halves(b, scale[row], offset[row]));
            if (is_split(step)) {
                split_weights(a, b, words[word], rest[word]);
            } else {
                words[word] = pack_e4m3_halves(a, b);
            }
        }
    }

   private:
    __device__ static bool has_seen(float maximum) { return maximum > 0.5f * LOWEST; }
    __device__ static float size(float maximum) { return has_seen(maximum) ? fabsf(maximum) : 0.0f; }

    // Far from zero f16 is coarse. Offsets are rounded down, lest weights saturate; and beyond 16000 powers of two the
    // row's scale is made smaller: next to such a score another one in f16 is 8 away at least, and all but nothing
    // after the exponential.
    __device__ void set_far(RowState& rows) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            bool seen = has_seen(rows.row_max[row]);
            float maximum = seen ? rows.row_max[row] : 0.0f;
            float shrink = fminf(1.0f, 16000.0f * reciprocal(fabsf(maximum)));
            float scaled = rows.scale[row] * shrink;
            linear_scale[row] = linear_halves(scaled);
            float linear = to_floats(linear_scale[row]).low;
            if constexpr (ALL_LINEAR) {
                maximum *= linear * reciprocal(rows.scale[row]);
                linear_offset[row] = both_halves_down(LINEAR_OFFSET - maximum);
                maximum = (LINEAR_OFFSET - to_floats(linear_offset[row]).low) * rows.scale[row] * reciprocal(linear);
            } else {
                scale[row] = halves(scaled);
                float used = to_floats(scale[row]).low;
                maximum *= used * reciprocal(rows.scale[row]);
                linear_offset[row] = both_halves(LINEAR_OFFSET - maximum * linear * reciprocal(used));
                offset[row] = both_halves_down(WEIGHT_EXPONENT - maximum);
                maximum = WEIGHT_EXPONENT - to_floats(offset[row]).low;
            }
            if (seen && shrink == 1.0f) rows.row_max[row] = maximum;
        }
    }

    // Never zero and never infinite: both would make NaN of masked scores.
    __device__ static unsigned halves(float scale) { return both_halves(fminf(fmaxf(scale, 6e-8f), 6e4f)); }
    __device__ static unsigned linear_halves(float scale) { return halves(scale * LINEAR_SCALE); }

    __device__ unsigned linear(unsigned pair, int row) const {
        unsigned clamped = multiply_add_halves_clamped(pair, linear_scale[row], linear_offset[row]);
        return multiply_add_halves(clamped, HALVES_LARGEST, HALVES_1024);
    }
};

struct FloatExponential {
    float scale[2], offset[2];

    __device__ static float rounded(float scale) { return fmaxf(scale, 1e-37f); }

    __device__ void set(RowState& rows) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            scale[row] = rows.scale[row];
            offset[row] = WEIGHT_EXPONENT - (rows.row_max[row] > 0.5f * LOWEST ? rows.row_max[row] : 0.0f);
        }
    }

    // The weights of a step.
    __device__ void weigh(const FloatScores& scores, int step, Weights& weights) const {
        unsigned(&words)[4] = weights.words[step], (&rest)[4] = weights.rest[SPLIT_EIGHTHS > 0 ? step : 0];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            int row = word % 2, first = 16 * step + 8 * (word / 2) + 2 * row;
            float power[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                power[i] = fmaf(scores.at(first + i / 2 * 4 + i % 2), scale[row], offset[row]);
            }
            if (is_split(step)) {
                split_weights(exp2_halves(pack_f16(power[0], power[1])), exp2_halves(pack_f16(power[2], power[3])),
                              words[word], rest[word]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) power[i] = exp2_hardware(power[i]);
                words[word] = pack_e4m3(power[0], power[1], power[2], power[3]);
            }
        }
    }
};

// Of s32 scores. The float whose bits are score · multiplier + offset is close to 2^(score·scale - maximum + 8): the
// power goes into the exponent, and between powers of two it runs along a straight line. One multiply-add is scale,
// maximum and exponential. It wraps around, which does no harm as long as the result is a positive float: `clamp` sees
// to that.
//
// What is not linear is the sum of two such lines half an octave apart, each an octave lower: 2^x to 0.75 %, without
// the exponential unit, which weights in two parts need.
struct IntExponential {
    static constexpr float OCTAVE = 8388608.0f;                   // 2^23: what an exponent is in the bits
    static constexpr unsigned LINE = (135u << 23) - 480665;       // 2^8, less what a line overshoots in the mean
    static constexpr unsigned TWO_LINES = (134u << 23) - 451300;  // the same of two
    static constexpr float FEWEST = 0.5f / OCTAVE;  // a scale below has no multiplier: all scores count as one
    static constexpr float MOST = 32.0f;            // and one above counts as this: single codes are worlds apart
    static constexpr int COLLAPSED = -(1 << 22);    // that one score: half an octave by the least multiplier
    static constexpr float NOTHING =
        103.0f;  // powers of two below the maximum where weights are zero, with room for a code more
    static constexpr float FARTHEST = 130.0f;  // powers of two below the maximum that bits can say, with room

    unsigned multiplier[2], offset[2];
    float scale[2], power_offset[2];  // of the exponential unit

    __device__ static float rounded(float scale) {
        if (scale < FEWEST) return 0.0f;
        scale = fminf(scale, MOST);
        return SPLIT_EIGHTHS == 8 ? scale : rintf(scale * OCTAVE) * (1.0f / OCTAVE);
    }

    __device__ void set(const RowState& rows) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            bool alike = rows.scale[row] == 0.0f;
            float maximum = maximum_of(rows, row);
            scale[row] = alike ? 1.0f / OCTAVE : rows.scale[row];
            power_offset[row] = WEIGHT_EXPONENT - maximum + (alike ? 0.5f : 0.0f);
            multiplier[row] = static_cast<unsigned>(static_cast<int>(scale[row] * OCTAVE));
            // Bits are modulo 2^32: 512 powers of two.
            float wrapped = maximum - 512.0f * rintf(maximum * (1.0f / 512.0f));
            offset[row] = LINE - static_cast<unsigned>(static_cast<int>(wrapped * OCTAVE)) + (alike ? -COLLAPSED : 0);
        }
    }

    // `reach`: the largest that a score may be, in powers of two. Whether some key of the warp's rows may be farther
    // below its row's maximum than bits can say, or rows' scores are to be one. All lanes of the warp.
    __device__ bool must_clamp(const RowState& rows, float reach) const {
        bool any = false;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            any |= !(reach + maximum_of(rows, row) < FARTHEST) || rows.scale[row] == 0.0f;
        }
        return __any_sync(0xffffffff, any);
    }

    // Raises scores whose weights are zero, also those out of sight, to where bits can say so.
    __device__ void clamp(const RowState& rows, IntScores& scores) const {
        int lowest[2], highest[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float distance = maximum_of(rows, row) - NOTHING;
            lowest[row] = __float2int_rn(distance * reciprocal(scale[row]));
            highest[row] = rows.scale[row] == 0.0f ? COLLAPSED : -(HIDDEN + 1);
        }
        scores.clamp(lowest, highest);
    }

    // The weights of a step.
    __device__ void weigh(const IntScores& scores, int step, Weights& weights) const {
        unsigned(&words)[4] = weights.words[step], (&rest)[4] = weights.rest[SPLIT_EIGHTHS > 0 ? step : 0];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            int row = word % 2, first = 16 * step + 8 * (word / 2) + 2 * row;
            float weight[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int score = scores.at(first + i / 2 * 4 + i % 2);
                if (is_split(step)) {
                    weight[i] = fmaf(static_cast<float>(score), scale[row], power_offset[row]);
                    continue;
                }
                unsigned bits = static_cast<unsigned>(score) * multiplier[row] + offset[row];
                if (is_linear(2 * step + word / 2)) {
                    weight[i] = __uint_as_float(bits);
                } else {
                    bits = static_cast<unsigned>(score) * multiplier[row] + (offset[row] - (LINE - TWO_LINES));
                    const float SQRT_HALF = 0.70710678f;
                    weight[i] = fmaf(__uint_as_float(bits + (1u << 22)), SQRT_HALF, __uint_as_float(bits));
                }
            }
            if (is_split(step)) {
                split_weights(exp2_halves(pack_f16(weight[0], weight[1])), exp2_halves(pack_f16(weight[2], weight[3])),
                              words[word], rest[word]);
            } else {
                words[word] = pack_e4m3(weight[0], weight[1], weight[2], weight[3]);
            }
        }
    }

   private:
    __device__ static float maximum_of(const RowState& rows, int row) {
        return rows.row_max[row] > 0.5f * LOWEST ? rows.row_max[row] : 0.0f;
    }
};

// Of the exponential that needs it; masked scores do.
template <typename Any, typename Scores>
__device__ inline void keep_in_reach(const Any& exponential, const RowState& rows, Scores& scores, float reach,
                                     bool masked) {
    if (masked || exponential.must_clamp(rows, reach)) exponential.clamp(rows, scores);
}

using WideExponential = Either<SCORES_S32, IntExponential, FloatExponential>::Type;
using Exponential = Either<SCORES_F32 || SCORES_S32, WideExponential, HalfExponential>::Type;
