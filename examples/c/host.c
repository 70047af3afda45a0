/* Attention in host memory: FP8 tensors, and bf16 values that the library quantises, checked against a plain loop in double.
 *
 *   cc host.c -I../../crates/eightfold-c/include -leightfold -lm && ./a.out */

#include <eightfold.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "naive.h"

static void must(ef_status status, const char *what) {
    if (status != EF_OK) {
        fprintf(stderr, "FAIL %s: status %d: %s\n", what, status, ef_last_error());
        exit(1);
    }
}

static int failures = 0;

static void check(const char *what, double error, double limit) {
    int ok = error <= limit; /* false for NaN */
    printf("%s %s: relative error %.2e, limit %.2e\n", ok ? "PASS" : "FAIL", what, error, limit);
    failures += !ok;
}

/* What stands in an FP8 tensor, as doubles in [batch, head, row, channel] order. */
static double *decode(const ef_fp8_tensor *t) {
    uint64_t blocks = t->granularity == EF_PER_BLOCK ? (t->len + t->block_rows - 1) / t->block_rows : 1;
    double *values = malloc(t->code_count * sizeof *values);
    for (uint64_t b = 0; b < t->batch; b++)
        for (uint64_t h = 0; h < t->heads; h++)
            for (uint64_t s = 0; s < t->len; s++)
                for (uint64_t d = 0; d < t->head_dim; d++) {
                    uint64_t head = b * t->heads + h, block = t->granularity == EF_PER_BLOCK ? s / t->block_rows : 0;
                    uint64_t scale = t->granularity == EF_PER_TENSOR ? 0 : head * blocks + block, at;
                    switch (t->layout) {
                    case EF_BHSD: at = (head * t->len + s) * t->head_dim + d; break;
                    case EF_BSHD: at = ((b * t->len + s) * t->heads + h) * t->head_dim + d; break;
                    default: at = (head * t->head_dim + d) * t->len + s;
                    }
                    double mean = t->means ? t->means[head * t->head_dim + d] : 0;
                    values[(head * t->len + s) * t->head_dim + d] = e4m3(t->codes[at]) * t->scales[scale] + mean;
                }
    return values;
}

static ef_quantized *quantize(const float *data, const ef_problem_args *p, int is_query, const ef_quantize_args *how) {
    ef_values values = {.struct_size = sizeof values, .format = EF_F32, .batch = p->batch, .head_dim = p->head_dim};
    values.heads = is_query ? p->query_heads : p->kv_heads;
    values.len = is_query ? p->query_len : p->key_len;
    values.count = values.batch * values.heads * values.len * values.head_dim;
    values.data = data;
    ef_quantized *quantized;
    must(ef_quantize(&values, how, &quantized), "ef_quantize");
    return quantized;
}

int main(void) {
    printf("eightfold %s, interface %u\n", ef_version(), ef_abi_version());
    if (ef_abi_version() != EF_ABI_VERSION) return printf("FAIL: header and library differ\n"), 1;

    /* Two sequences; four query heads share two key heads; fewer queries than keys, under a causal mask. */
    ef_problem_args args = {.struct_size = sizeof args, .batch = 2, .query_heads = 4, .kv_heads = 2};
    args.query_len = 37, args.key_len = 61, args.head_dim = 64;
    args.mask = EF_MASK_CAUSAL, args.lse = 1;
    ef_problem *problem;
    must(ef_problem_new(&args, &problem), "ef_problem_new");

    size_t q_count = args.batch * args.query_heads * args.query_len * args.head_dim;
    size_t k_count = args.batch * args.kv_heads * args.key_len * args.head_dim;
    size_t rows = q_count / args.head_dim;
    float *q_values = random_values(q_count, 1), *k_values = random_values(k_count, 2), *v_values = random_values(k_count, 3);

    /* FP8 in: a scale per head, K centred, V transposed with a scale for every 16 rows. */
    ef_quantize_args centred = {.struct_size = sizeof centred, .centred = 1};
    ef_quantize_args blocks = {.struct_size = sizeof blocks, .layout = EF_BHDS, .granularity = EF_PER_BLOCK, .block_rows = 16};
    ef_quantized *quantized[3] = {quantize(q_values, &args, 1, NULL), quantize(k_values, &args, 0, &centred),
                                  quantize(v_values, &args, 0, &blocks)};
    ef_fp8_tensor q = {.struct_size = sizeof q}, k = q, v = q;
    must(ef_quantized_tensor(quantized[0], &q), "ef_quantized_tensor");
    must(ef_quantized_tensor(quantized[1], &k), "ef_quantized_tensor");
    must(ef_quantized_tensor(quantized[2], &v), "ef_quantized_tensor");
    float *out = malloc(q_count * sizeof *out), *lse = malloc(rows * sizeof *lse);
    ef_output output = {.struct_size = sizeof output, .values = out, .value_count = q_count, .lse = lse, .lse_count = rows};
    must(ef_attention(problem, &q, &k, &v, &output), "ef_attention");

    double *decoded[3] = {decode(&q), decode(&k), decode(&v)};
    double *expected = malloc(q_count * sizeof *expected), *expected_lse = malloc(rows * sizeof *expected_lse);
    naive_attention(&args, decoded[0], decoded[1], decoded[2], expected, expected_lse);
    check("fp8 tensors", relative_error(out, expected, q_count), 3e-3);
    check("log-sum-exp", relative_error(lse, expected_lse, rows), 1e-3);

    /* bf16 in and bf16 out, [batch, row, head, channel]: the error is that of the quantiser. */
    args.output_format = EF_BF16, args.output_layout = EF_BSHD, args.lse = 0;
    ef_problem *bf16_problem;
    must(ef_problem_new(&args, &bf16_problem), "ef_problem_new");
    uint16_t *bf16[4] = {to_bf16(q_values, q_count), to_bf16(k_values, k_count), to_bf16(v_values, k_count),
                         malloc(q_count * sizeof(uint16_t))};
    ef_values given[3];
    double *wide[3];
    for (int i = 0; i < 3; i++) {
        size_t count = i ? k_count : q_count, heads = i ? args.kv_heads : args.query_heads;
        given[i] = (ef_values){.struct_size = sizeof given[i], .format = EF_BF16, .batch = args.batch, .heads = heads};
        given[i].len = i ? args.key_len : args.query_len, given[i].head_dim = args.head_dim;
        given[i].data = bf16[i], given[i].count = count, given[i].layout = EF_BSHD;
        wide[i] = malloc(count * sizeof(double));
        bshd_to_bhsd(bf16[i], wide[i], args.batch, heads, given[i].len, args.head_dim);
    }
    ef_output bf16_output = {.struct_size = sizeof bf16_output, .values = bf16[3], .value_count = q_count};
    must(ef_attention_values(bf16_problem, &given[0], &given[1], &given[2], &bf16_output), "ef_attention_values");
    naive_attention(&args, wide[0], wide[1], wide[2], expected, NULL);
    double *got = malloc(q_count * sizeof *got);
    bshd_to_bhsd(bf16[3], got, args.batch, args.query_heads, args.query_len, args.head_dim);
    for (size_t i = 0; i < q_count; i++) out[i] = (float)got[i];
    check("bf16 values", relative_error(out, expected, q_count), 6e-2);

    /* A mistake is a status and a sentence. */
    v.scale_count -= 1;
    ef_status status = ef_attention(problem, &q, &k, &v, &output);
    int refused = status == EF_INVALID && strncmp(ef_last_error(), "v.scales:", 9) == 0;
    printf("%s a missing scale is refused: %s\n", refused ? "PASS" : "FAIL", ef_last_error());
    failures += !refused;

    ef_context_args cpu = {.struct_size = sizeof cpu, .device = EF_CPU};
    ef_context *context;
    char text[256];
    must(ef_context_open(&cpu, &context), "ef_context_open");
    must(ef_explain(context, problem, text, sizeof text, NULL), "ef_explain");
    printf("%.*s\n", (int)strcspn(text, "\n"), text);

    ef_context_close(context);
    for (int i = 0; i < 3; i++) ef_quantized_free(quantized[i]), free(decoded[i]), free(wide[i]);
    for (int i = 0; i < 4; i++) free(bf16[i]);
    ef_problem_free(problem), ef_problem_free(bf16_problem);
    free(q_values), free(k_values), free(v_values), free(out), free(lse), free(expected), free(expected_lse), free(got);
    printf("%s\n", failures ? "FAIL" : "PASS");
    return failures != 0;
}
