/* A server's cache in pages, in host memory: new tokens into it, attention of sequences of different lengths, parts of the keys
 * merged, and a cache of the library's own; checked against a plain loop in double.
 *
 *   cc paged.c -I../../crates/eightfold-c/include -leightfold -lm && ./a.out */

#include <eightfold.h>
#include <stdio.h>

#include "naive.h"

enum { PAGES = 9, PAGE = 16, HEADS = 6, KV_HEADS = 2, DIM = 64, SEQUENCES = 3, WIDTH = 4, ROW = KV_HEADS * DIM };

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

/* One, three and five queries of sequences of 40, 0 and 17 keys, whose pages are not in order. */
static const int32_t starts[SEQUENCES + 1] = {0, 1, 4, 9}, lengths[SEQUENCES] = {40, 0, 17};
static const int32_t table[SEQUENCES * WIDTH] = {7, 2, 5, -1, -1, -1, -1, -1, 0, 8, -1, -1};

/* The same in double, sequence by sequence: the output is [row, head, channel]. */
static double *expected(const float *q, const float *const k[SEQUENCES], const float *const v[SEQUENCES]) {
    double *out = calloc(9 * HEADS * DIM, sizeof *out);
    for (int s = 0; s < SEQUENCES; s++) {
        int queries = starts[s + 1] - starts[s], keys = lengths[s];
        ef_problem_args p = {.batch = 1, .query_heads = HEADS, .kv_heads = KV_HEADS, .query_len = (uint64_t)queries};
        p.key_len = (uint64_t)keys, p.head_dim = DIM, p.mask = EF_MASK_CAUSAL;
        if (!keys) continue;
        double *wide[3], *result = malloc((size_t)queries * HEADS * DIM * sizeof *result);
        const float *from[3] = {q + starts[s] * HEADS * DIM, k[s], v[s]};
        for (int i = 0; i < 3; i++) {
            int rows = i ? keys : queries, heads = i ? KV_HEADS : HEADS;
            wide[i] = malloc((size_t)(rows * heads * DIM) * sizeof(double));
            for (int r = 0; r < rows; r++)
                for (int h = 0; h < heads; h++)
                    for (int d = 0; d < DIM; d++)
                        wide[i][(h * rows + r) * DIM + d] = from[i][(r * heads + h) * DIM + d];
        }
        naive_attention(&p, wide[0], wide[1], wide[2], result, NULL);
        for (int r = 0; r < queries; r++)
            for (int h = 0; h < HEADS; h++)
                memcpy(out + ((starts[s] + r) * HEADS + h) * DIM, result + (h * queries + r) * DIM, DIM * sizeof *out);
        for (int i = 0; i < 3; i++) free(wide[i]);
        free(result);
    }
    return out;
}

int main(void) {
    const size_t rows = 9, count = rows * HEADS * DIM;
    float *q = random_values(count, 1), *out = malloc(count * sizeof *out), *lse = malloc(rows * HEADS * sizeof *lse);
    float *k[SEQUENCES], *v[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) {
        k[s] = random_values((size_t)(lengths[s] ? lengths[s] : 1) * ROW, 2 + s);
        v[s] = random_values((size_t)(lengths[s] ? lengths[s] : 1) * ROW, 9 + s);
    }
    double *exact = expected(q, (const float *const *)k, (const float *const *)v);

    /* A cache that holds K and V of a page side by side, [page, K or V, token, head, channel], with scales for each token. */
    uint8_t *codes = calloc(2 * PAGES * PAGE * ROW, 1);
    float *scales = malloc(2 * PAGES * PAGE * KV_HEADS * sizeof *scales);
    for (int i = 0; i < 2 * PAGES * PAGE * KV_HEADS; i++) scales[i] = 1;
    ef_paged_tensor cache[2];
    for (int i = 0; i < 2; i++) {
        ef_paged_tensor *one = &cache[i];
        memset(one, 0, sizeof *one);
        one->struct_size = sizeof *one, one->pages = PAGES, one->page_size = PAGE, one->heads = KV_HEADS, one->head_dim = DIM;
        one->codes = codes + i * PAGE * ROW, one->code_count = (2 * PAGES - (uint64_t)i) * PAGE * ROW;
        one->page_stride = 2 * PAGE * ROW, one->token_stride = ROW, one->head_stride = DIM;
        one->scales = scales + i * PAGES * PAGE * KV_HEADS, one->scale_count = PAGES * PAGE * KV_HEADS;
        one->scales_of = EF_SCALE_TOKEN;
    }
    for (int s = 0; s < SEQUENCES; s++) {
        int64_t slots[64];
        for (int t = 0; t < lengths[s]; t++) slots[t] = (int64_t)table[s * WIDTH + t / PAGE] * PAGE + t % PAGE;
        ef_new_tokens new = {.struct_size = sizeof new, .format = EF_F32, .slots = slots, .slot_count = (uint64_t)lengths[s]};
        new.value_count = (uint64_t)lengths[s] * ROW;
        new.values = k[s], must(ef_paged_append(&cache[0], &new), "ef_paged_append");
        new.values = v[s], must(ef_paged_append(&cache[1], &new), "ef_paged_append");
    }

    ef_problem_args args = {.struct_size = sizeof args, .batch = SEQUENCES, .query_heads = HEADS, .kv_heads = KV_HEADS};
    args.query_len = 5, args.key_len = 40, args.head_dim = DIM, args.mask = EF_MASK_CAUSAL, args.lse = 1;
    args.output_layout = EF_BSHD;
    ef_problem *problem;
    must(ef_problem_new(&args, &problem), "ef_problem_new");
    ef_values queries = {.struct_size = sizeof queries, .format = EF_F32, .batch = 1, .heads = HEADS, .len = rows};
    queries.head_dim = DIM, queries.data = q, queries.count = count, queries.layout = EF_BSHD;
    ef_output output = {.struct_size = sizeof output, .values = out, .value_count = count, .lse = lse};
    output.lse_count = rows * HEADS;
    ef_tables tables = {.struct_size = sizeof tables, .starts = starts, .start_count = SEQUENCES + 1, .block_table = table};
    tables.block_table_count = SEQUENCES * WIDTH, tables.max_pages = WIDTH, tables.lengths = lengths;
    tables.length_count = SEQUENCES;
    must(ef_paged_attention(problem, &queries, &cache[0], &cache[1], &tables, &output), "ef_paged_attention");
    check("attention to pages", relative_error(out, exact, count), 5e-2);
    check("rows without keys", fabs(out[HEADS * DIM]) + !isinf(lse[1]), 0);

    /* The same from two parts of the keys: the first page of each sequence, and the others without the causal mask's last. */
    int32_t first[SEQUENCES] = {16, 0, 16}, rest[SEQUENCES] = {24, 0, 1}, one_each[SEQUENCES + 1] = {0, 1, 2, 3};
    int32_t later[SEQUENCES * WIDTH] = {2, 5, -1, -1, -1, -1, -1, -1, 8, -1, -1, -1};
    float *whole = malloc(3 * HEADS * DIM * sizeof *whole), *parts[2], *part_lse[2], whole_lse[3 * HEADS];
    queries.len = 3, queries.count = 3 * HEADS * DIM, tables.starts = one_each;
    ef_output outputs[3];
    for (int i = 0; i < 3; i++) {
        float *into = i < 2 ? (parts[i] = malloc(3 * HEADS * DIM * sizeof *whole)) : whole;
        float *into_lse = i < 2 ? (part_lse[i] = malloc(3 * HEADS * sizeof *lse)) : whole_lse;
        outputs[i] = (ef_output){.struct_size = sizeof output, .values = into, .value_count = 3 * HEADS * DIM};
        outputs[i].lse = into_lse, outputs[i].lse_count = 3 * HEADS;
        tables.lengths = i == 0 ? first : i == 1 ? rest : lengths, tables.block_table = i == 1 ? later : table;
        must(ef_paged_attention(problem, &queries, &cache[0], &cache[1], &tables, &outputs[i]), "ef_paged_attention");
    }
    const ef_output *both[2] = {&outputs[0], &outputs[1]};
    ef_parts merged = {.struct_size = sizeof merged, .format = EF_F32, .batch = 1, .heads = HEADS, .len = 3};
    merged.head_dim = DIM, merged.parts = both, merged.part_count = 2, merged.layout = EF_BSHD;
    double *wide = malloc(3 * HEADS * DIM * sizeof *wide);
    for (int i = 0; i < 3 * HEADS * DIM; i++) wide[i] = whole[i];
    /* The result may lie where a part does. */
    must(ef_merge(&merged, &outputs[0]), "ef_merge");
    check("merged parts", relative_error(parts[0], wide, 3 * HEADS * DIM), 1e-2);
    check("their log-sum-exp", fabs(part_lse[0][0] - whole_lse[0]), 1e-3);

    /* A cache of the library's own. */
    ef_cache_args sizes = {.struct_size = sizeof sizes, .pages = PAGES, .page_size = PAGE, .kv_heads = KV_HEADS};
    sizes.head_dim = DIM;
    ef_cache *own;
    uint64_t sequences[SEQUENCES], tokens, free_pages;
    must(ef_cache_new(&sizes, &own), "ef_cache_new");
    for (int s = 0; s < SEQUENCES; s++) {
        must(ef_cache_open(own, &sequences[s]), "ef_cache_open");
        if (!lengths[s]) continue;
        must(ef_cache_append(own, sequences[s], EF_F32, k[s], v[s], (uint64_t)lengths[s] * ROW), "ef_cache_append");
    }
    queries.len = rows, queries.count = count;
    must(ef_cache_attention(own, problem, &queries, sequences, SEQUENCES, starts, &output), "ef_cache_attention");
    check("attention to the library's cache", relative_error(out, exact, count), 5e-2);
    must(ef_cache_close(own, sequences[0]), "ef_cache_close");
    must(ef_cache_len(own, sequences[2], &tokens, &free_pages), "ef_cache_len");
    check("tokens and free pages", tokens != 17 || free_pages != PAGES - 2, 0);
    check("a closed sequence", ef_cache_len(own, sequences[0], &tokens, NULL) != EF_INVALID, 0);

    ef_cache_free(own), ef_problem_free(problem);
    for (int s = 0; s < SEQUENCES; s++) free(k[s]), free(v[s]);
    for (int i = 0; i < 2; i++) free(parts[i]), free(part_lse[i]);
    free(q), free(out), free(lse), free(exact), free(codes), free(scales), free(whole), free(wide);
    printf(failures ? "FAIL\n" : "PASS\n");
    return failures != 0;
}
