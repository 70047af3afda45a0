/* Attention as a plain loop in double, and what the examples need beside it. */

#include <eightfold.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The value of an E4M3 code. */
static double e4m3(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 128 ? -value : value;
}

/* Values near a normal distribution: sums of uniform ones. */
static float *random_values(size_t count, uint64_t seed) {
    float *values = malloc(count * sizeof *values);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int j = 0; j < 12; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 33) / 2147483648.0;
        }
        values[i] = (float)(sum - 6);
    }
    return values;
}

static uint16_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double of_bf16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static uint16_t *to_bf16(const float *values, size_t count) {
    uint16_t *narrow = malloc(count * sizeof *narrow);
    for (size_t i = 0; i < count; i++) narrow[i] = bf16_of(values[i]);
    return narrow;
}

/* bf16 in [batch, row, head, channel] order to doubles in [batch, head, row, channel] order. */
static void bshd_to_bhsd(const uint16_t *from, double *to, size_t batch, size_t heads, size_t len, size_t head_dim) {
    for (size_t b = 0; b < batch; b++)
        for (size_t h = 0; h < heads; h++)
            for (size_t s = 0; s < len; s++)
                for (size_t d = 0; d < head_dim; d++)
                    to[((b * heads + h) * len + s) * head_dim + d] =
                        of_bf16(from[((b * len + s) * heads + h) * head_dim + d]);
}

/* All in [batch, head, row, channel] order; `lse` may be null. */
static void naive_attention(const ef_problem_args *p, const double *q, const double *k, const double *v, double *out,
                            double *lse) {
    size_t dim = p->head_dim, group = p->query_heads / p->kv_heads;
    double scale = p->softmax_scale ? p->softmax_scale : 1 / sqrt((double)dim);
    double *weights = malloc(p->key_len * sizeof *weights);
    for (size_t row = 0; row < p->batch * p->query_heads * p->query_len; row++) {
        size_t i = row % p->query_len, head = row / p->query_len;
        size_t kv_head = head / p->query_heads * p->kv_heads + head % p->query_heads / group;
        const double *keys = k + kv_head * p->key_len * dim, *values = v + kv_head * p->key_len * dim;
        size_t visible = p->key_len;
        if (p->mask == EF_MASK_CAUSAL) {
            visible = i + 1 + p->key_len < p->query_len ? 0 : i + 1 + p->key_len - p->query_len;
        }
        double largest = -INFINITY, sum = 0;
        for (size_t j = 0; j < visible; j++) {
            weights[j] = 0;
            for (size_t d = 0; d < dim; d++) weights[j] += q[row * dim + d] * keys[j * dim + d];
            weights[j] *= scale;
            largest = fmax(largest, weights[j]);
        }
        for (size_t j = 0; j < visible; j++) sum += weights[j] = exp(weights[j] - largest);
        for (size_t d = 0; d < dim; d++) {
            double total = 0;
            for (size_t j = 0; j < visible; j++) total += weights[j] * values[j * dim + d];
            out[row * dim + d] = visible ? total / sum : 0;
        }
        if (lse) lse[row] = largest + log(sum);
    }
    free(weights);
}

/* The relative L2 norm of the difference. */
static double relative_error(const float *got, const double *expected, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (got[i] - expected[i]) * (got[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(difference / norm);
}
