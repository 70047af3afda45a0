/* Attention in device memory: FP8 tensors and bf16 values, checked against a plain loop in double. Says SKIP where there is no
 * GPU. The driver is loaded at run time, so that this builds and starts anywhere; a program of yours may as well link it.
 *
 *   cc device.c -I../../crates/eightfold-c/include -leightfold -lm -ldl && ./a.out [NVRTC] */

#include <dlfcn.h>
#include <eightfold.h>
#include <stdio.h>

#include "naive.h"

typedef uint64_t CUdeviceptr;
typedef void *CUstream;

static int (*cuMemAlloc)(CUdeviceptr *, size_t);
static int (*cuMemFree)(CUdeviceptr);
static int (*cuMemcpyHtoD)(CUdeviceptr, const void *, size_t);
static int (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
static int (*cuMemsetD8)(CUdeviceptr, unsigned char, size_t);
static int (*cuStreamCreate)(CUstream *, unsigned);
static int (*cuStreamSynchronize)(CUstream);
static int (*cuStreamDestroy)(CUstream);

static void must(ef_status status, const char *what) {
    if (status != EF_OK) {
        printf("FAIL %s: status %d: %s\n", what, status, ef_last_error());
        exit(1);
    }
}

static void driver(int result, const char *what) {
    if (result != 0) {
        printf("FAIL %s: driver error %d\n", what, result);
        exit(1);
    }
}

/* A symbol of the driver; ISO C has no conversion from an object's pointer to a function's, so bytes are copied. */
static void symbol(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    if (!address) {
        printf("FAIL the driver has no %s\n", name);
        exit(1);
    }
    memcpy(function, &address, sizeof address);
}

/* Loads the driver and makes the primary context of device 0 current. */
static void start_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *), device;
    void *context;
    if (!library) {
        printf("FAIL %s\n", dlerror());
        exit(1);
    }
    symbol(library, "cuInit", &cuInit), symbol(library, "cuDeviceGet", &cuDeviceGet);
    symbol(library, "cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain);
    symbol(library, "cuCtxSetCurrent", &cuCtxSetCurrent), symbol(library, "cuMemAlloc_v2", &cuMemAlloc);
    symbol(library, "cuMemFree_v2", &cuMemFree), symbol(library, "cuMemcpyHtoD_v2", &cuMemcpyHtoD);
    symbol(library, "cuMemcpyDtoH_v2", &cuMemcpyDtoH), symbol(library, "cuMemsetD8_v2", &cuMemsetD8);
    symbol(library, "cuStreamCreate", &cuStreamCreate), symbol(library, "cuStreamSynchronize", &cuStreamSynchronize);
    symbol(library, "cuStreamDestroy_v2", &cuStreamDestroy);
    driver(cuInit(0), "cuInit"), driver(cuDeviceGet(&device, 0), "cuDeviceGet");
    driver(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    driver(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr pointer;
    driver(cuMemAlloc(&pointer, bytes), "cuMemAlloc");
    return pointer;
}

static CUdeviceptr upload(const void *data, size_t bytes) {
    CUdeviceptr pointer = allocate(bytes);
    driver(cuMemcpyHtoD(pointer, data, bytes), "cuMemcpyHtoD");
    return pointer;
}

static int failures = 0;

static void check(const char *what, const ef_problem_args *p, double error, double limit) {
    int ok = error <= limit; /* false for NaN */
    printf("%s %s (heads %d/%d, %d x %d x %d, %s): relative error %.2e, limit %.2e\n", ok ? "PASS" : "FAIL", what,
           (int)p->query_heads, (int)p->kv_heads, (int)p->query_len, (int)p->key_len, (int)p->head_dim,
           p->mask == EF_MASK_CAUSAL ? "causal" : "no mask", error, limit);
    failures += !ok;
}

/* Launches twice: once is not enough to see a workspace left unclean. */
static void run(const ef_call *call, const ef_addresses *addresses, CUstream stream) {
    uint64_t bytes, zeroed;
    char name[256];
    must(ef_call_kernel(call, name, sizeof name, NULL), "ef_call_kernel");
    must(ef_call_workspace(call, &bytes, &zeroed), "ef_call_workspace");
    CUdeviceptr workspace = bytes ? allocate(bytes) : 0;
    if (zeroed) driver(cuMemsetD8(workspace, 0, zeroed), "cuMemsetD8");
    for (int i = 0; i < 2; i++) must(ef_call_launch(call, addresses, workspace, bytes, stream), "ef_call_launch");
    driver(cuStreamSynchronize(stream), "cuStreamSynchronize");
    printf("     kernel %.*s, %d bytes of workspace\n", (int)strcspn(name, ":"), name, (int)bytes);
    if (bytes) driver(cuMemFree(workspace), "cuMemFree");
}

/* FP8 tensors in the device's memory, and bf16 values that are quantised there. */
static void compare(const ef_context *context, ef_problem_args args, CUstream stream) {
    size_t q_count = args.batch * args.query_heads * args.query_len * args.head_dim, rows = q_count / args.head_dim;
    size_t k_count = args.batch * args.kv_heads * args.key_len * args.head_dim;
    size_t counts[3] = {q_count, k_count, k_count};
    double *expected = malloc(q_count * sizeof *expected), *expected_lse = malloc(rows * sizeof *expected_lse), *wide[3];
    float *got = malloc(q_count * sizeof *got), *got_lse = malloc(rows * sizeof *got_lse);
    uint16_t *narrow = malloc(q_count * sizeof *narrow);
    CUdeviceptr output = allocate(q_count * 2), lse = allocate(rows * 4), memory[3], scales[3];
    ef_problem *problem;
    ef_call *call;

    for (int i = 0; i < 3; i++) {
        uint64_t heads = i ? args.kv_heads : args.query_heads, len = i ? args.key_len : args.query_len;
        float *data = random_values(counts[i], 10 + i);
        ef_values given = {.struct_size = sizeof given, .format = EF_F32, .batch = args.batch, .heads = heads, .len = len};
        given.head_dim = args.head_dim, given.data = data, given.count = counts[i];
        ef_quantized *quantized;
        ef_fp8_tensor host = {.struct_size = sizeof host};
        must(ef_quantize(&given, NULL, &quantized), "ef_quantize");
        must(ef_quantized_tensor(quantized, &host), "ef_quantized_tensor");
        wide[i] = malloc(counts[i] * sizeof(double));
        for (size_t j = 0; j < counts[i]; j++)
            wide[i][j] = e4m3(host.codes[j]) * host.scales[j / (len * args.head_dim)];
        memory[i] = upload(host.codes, host.code_count), scales[i] = upload(host.scales, host.scale_count * 4);
        ef_quantized_free(quantized);
        free(data);
    }
    args.accuracy = EF_PRECISE, args.lse = 1, args.output_format = EF_BF16;
    ef_fp8_call_args fp8 = {.struct_size = sizeof fp8, .layout = EF_BHSD};
    ef_addresses addresses = {.struct_size = sizeof addresses, .q = memory[0], .k = memory[1], .v = memory[2]};
    addresses.output = output, addresses.lse = lse;
    addresses.q_scales = scales[0], addresses.k_scales = scales[1], addresses.v_scales = scales[2];
    must(ef_problem_new(&args, &problem), "ef_problem_new");
    must(ef_call_fp8_new(context, problem, &fp8, &call), "ef_call_fp8_new");
    run(call, &addresses, stream);
    driver(cuMemcpyDtoH(narrow, output, q_count * 2), "cuMemcpyDtoH");
    driver(cuMemcpyDtoH(got_lse, lse, rows * 4), "cuMemcpyDtoH");
    naive_attention(&args, wide[0], wide[1], wide[2], expected, expected_lse);
    for (size_t i = 0; i < q_count; i++) got[i] = (float)of_bf16(narrow[i]);
    check("fp8 tensors, precise", &args, relative_error(got, expected, q_count), 1e-2);
    check("log-sum-exp", &args, relative_error(got_lse, expected_lse, rows), 1e-3);
    ef_call_free(call), ef_problem_free(problem);
    for (int i = 0; i < 3; i++) driver(cuMemFree(memory[i]), "cuMemFree"), driver(cuMemFree(scales[i]), "cuMemFree");

    for (int i = 0; i < 3; i++) {
        uint64_t heads = i ? args.kv_heads : args.query_heads, len = i ? args.key_len : args.query_len;
        float *data = random_values(counts[i], 20 + i);
        uint16_t *bf16 = to_bf16(data, counts[i]);
        bshd_to_bhsd(bf16, wide[i], args.batch, heads, len, args.head_dim);
        memory[i] = upload(bf16, counts[i] * 2);
        free(data), free(bf16);
    }
    args.accuracy = EF_FAST, args.lse = 0;
    ef_value_call_args values = {.struct_size = sizeof values, .format = EF_BF16, .layout = EF_BSHD};
    addresses = (ef_addresses){.struct_size = sizeof addresses, .q = memory[0], .k = memory[1], .v = memory[2]};
    addresses.output = output;
    must(ef_problem_new(&args, &problem), "ef_problem_new");
    must(ef_call_values_new(context, problem, &values, &call), "ef_call_values_new");
    run(call, &addresses, stream);
    driver(cuMemcpyDtoH(narrow, output, q_count * 2), "cuMemcpyDtoH");
    naive_attention(&args, wide[0], wide[1], wide[2], expected, NULL);
    bshd_to_bhsd(narrow, wide[0], args.batch, args.query_heads, args.query_len, args.head_dim);
    for (size_t i = 0; i < q_count; i++) got[i] = (float)wide[0][i];
    check("bf16 values, fast", &args, relative_error(got, expected, q_count), 8e-2);

    /* Mistakes are refused before anything is launched. */
    addresses.k += 8;
    ef_status misaligned = ef_call_launch(call, &addresses, 0, 0, stream);
    addresses.k -= 8;
    ef_status small = ef_call_launch(call, &addresses, 0, 0, stream);
    int refused = misaligned == EF_INVALID && small == EF_INVALID;
    printf("%s mistakes are refused: %s\n", refused ? "PASS" : "FAIL", ef_last_error());
    failures += !refused;
    ef_call_free(call), ef_problem_free(problem);

    for (int i = 0; i < 3; i++) driver(cuMemFree(memory[i]), "cuMemFree"), free(wide[i]);
    driver(cuMemFree(output), "cuMemFree"), driver(cuMemFree(lse), "cuMemFree");
    free(expected), free(expected_lse), free(got), free(got_lse), free(narrow);
}

enum { PAGES = 40, PAGE = 16, HEADS = 8, KV_HEADS = 2, DIM = 128, ROW = KV_HEADS * DIM, SEQUENCES = 3, WIDTH = 16 };

/* A cache in pages: new tokens into it, attention, and two halves merged, beside the host's results on the same values. */
static void pages(const ef_context *context, CUstream stream) {
    const int32_t lengths[SEQUENCES] = {250, 0, 33}, starts[SEQUENCES + 1] = {0, 1, 2, 3};
    int32_t table[SEQUENCES * WIDTH] = {0};
    int64_t slots[SEQUENCES * WIDTH * PAGE];
    size_t tokens = 0, count = SEQUENCES * HEADS * DIM, codes = PAGES * PAGE * ROW, scales = PAGES * PAGE * KV_HEADS;
    for (int i = 0; i < SEQUENCES * WIDTH; i++) table[i] = i * 7 % PAGES;
    for (int s = 0; s < SEQUENCES; s++)
        for (int t = 0; t < lengths[s]; t++) slots[tokens++] = (int64_t)table[s * WIDTH + t / PAGE] * PAGE + t % PAGE;
    float *values[3] = {random_values(count, 1), random_values(tokens * ROW, 2), random_values(tokens * ROW, 3)};
    uint16_t *bf16[3] = {to_bf16(values[0], count), to_bf16(values[1], tokens * ROW), to_bf16(values[2], tokens * ROW)};

    /* On the host. */
    ef_paged_tensor cache[2];
    float *expected = malloc(count * sizeof *expected), *got = malloc(count * sizeof *got);
    uint16_t *narrow = malloc(count * sizeof *narrow);
    for (int i = 0; i < 2; i++) {
        cache[i] = (ef_paged_tensor){.struct_size = sizeof cache[i], .pages = PAGES, .page_size = PAGE, .heads = KV_HEADS};
        cache[i].head_dim = DIM, cache[i].codes = calloc(codes, 1), cache[i].code_count = codes;
        cache[i].scales = calloc(scales, sizeof(float)), cache[i].scale_count = scales, cache[i].scales_of = EF_SCALE_TOKEN;
        ef_new_tokens new = {.struct_size = sizeof new, .format = EF_BF16, .values = bf16[i + 1], .slots = slots};
        new.value_count = tokens * ROW, new.slot_count = tokens;
        must(ef_paged_append(&cache[i], &new), "ef_paged_append");
    }
    ef_problem_args args = {.struct_size = sizeof args, .batch = SEQUENCES, .query_heads = HEADS, .kv_heads = KV_HEADS};
    args.query_len = 1, args.key_len = WIDTH * PAGE, args.head_dim = DIM, args.output_layout = EF_BSHD;
    ef_problem *problem;
    must(ef_problem_new(&args, &problem), "ef_problem_new");
    ef_values q = {.struct_size = sizeof q, .format = EF_BF16, .batch = 1, .heads = HEADS, .len = SEQUENCES, .head_dim = DIM};
    q.data = bf16[0], q.count = count, q.layout = EF_BSHD;
    ef_tables tables = {.struct_size = sizeof tables, .starts = starts, .start_count = SEQUENCES + 1, .block_table = table};
    tables.block_table_count = SEQUENCES * WIDTH, tables.max_pages = WIDTH, tables.lengths = lengths;
    tables.length_count = SEQUENCES;
    ef_output output = {.struct_size = sizeof output, .values = expected, .value_count = count};
    must(ef_paged_attention(problem, &q, &cache[0], &cache[1], &tables, &output), "ef_paged_attention");
    ef_problem_free(problem);

    /* On the device. */
    args.output_format = EF_BF16, args.lse = 1;
    ef_paged_call_args how = {.struct_size = sizeof how, .query_format = EF_BF16, .scales_of = EF_SCALE_TOKEN, .pages = PAGES};
    how.page_size = PAGE;
    ef_append_call_args write = {.struct_size = sizeof write, .value_format = EF_BF16, .scales_of = EF_SCALE_TOKEN};
    write.pages = PAGES, write.page_size = PAGE, write.kv_heads = KV_HEADS, write.head_dim = DIM;
    ef_paged_call *attend;
    ef_append_call *append;
    ef_merge_call *merge;
    must(ef_problem_new(&args, &problem), "ef_problem_new");
    must(ef_paged_call_new(context, problem, &how, &attend), "ef_paged_call_new");
    must(ef_append_call_new(context, &write, &append), "ef_append_call_new");
    must(ef_merge_call_new(context, DIM, EF_BF16, &merge), "ef_merge_call_new");
    CUdeviceptr memory[3], k = allocate(codes), v = allocate(codes), k_scales = allocate(scales * 4);
    CUdeviceptr v_scales = allocate(scales * 4), out = allocate(count * 2), lse = allocate(SEQUENCES * HEADS * 4);
    CUdeviceptr device_slots = upload(slots, tokens * 8), device_table = upload(table, sizeof table);
    CUdeviceptr device_lengths = upload(lengths, sizeof lengths), merged = allocate(count * 2);
    for (int i = 0; i < 3; i++) memory[i] = upload(bf16[i], (i ? tokens * ROW : count) * 2);
    ef_append_addresses into = {.struct_size = sizeof into, .new_k = memory[1], .new_v = memory[2], .slots = device_slots};
    into.k = k, into.v = v, into.k_scales = k_scales, into.v_scales = v_scales;
    ef_paged_addresses at = {.struct_size = sizeof at, .q = memory[0], .k = k, .k_scales = k_scales, .v = v};
    at.v_scales = v_scales, at.block_table = device_table, at.max_pages = WIDTH, at.lengths = device_lengths;
    at.output = out, at.lse = lse;
    uint64_t bytes, zeroed;
    must(ef_paged_call_workspace(attend, &bytes, &zeroed), "ef_paged_call_workspace");
    CUdeviceptr workspace = bytes ? allocate(bytes) : 0;
    if (zeroed) driver(cuMemsetD8(workspace, 0, zeroed), "cuMemsetD8");
    must(ef_append_call_validate(append, tokens, &into, stream), "ef_append_call_validate");
    must(ef_append_call_launch(append, tokens, &into, stream), "ef_append_call_launch");
    must(ef_paged_call_validate(attend, SEQUENCES, &at, workspace, bytes, stream), "ef_paged_call_validate");
    for (int i = 0; i < 2; i++)
        must(ef_paged_call_launch(attend, SEQUENCES, &at, workspace, bytes, stream), "ef_paged_call_launch");
    uint64_t outputs[2] = {out, out}, lses[2] = {lse, lse};
    must(ef_merge_call_launch(merge, SEQUENCES * HEADS, outputs, lses, 2, merged, 0, stream), "ef_merge_call_launch");
    driver(cuStreamSynchronize(stream), "cuStreamSynchronize");
    for (int i = 0; i < 2; i++) {
        driver(cuMemcpyDtoH(narrow, i ? merged : out, count * 2), "cuMemcpyDtoH");
        for (size_t j = 0; j < count; j++) got[j] = (float)of_bf16(narrow[j]);
        double *wide = malloc(count * sizeof *wide);
        for (size_t j = 0; j < count; j++) wide[j] = expected[j];
        check(i ? "the same part twice, merged" : "attention to pages", &args, relative_error(got, wide, count), 6e-2);
        free(wide);
    }
    uint8_t *written = malloc(codes);
    driver(cuMemcpyDtoH(written, k, codes), "cuMemcpyDtoH");
    size_t differing = 0;
    for (size_t i = 0; i < tokens * ROW; i++) {
        size_t place = (size_t)slots[i / ROW] * ROW + i % ROW;
        differing += written[place] != cache[0].codes[place];
    }
    printf("%s codes of new tokens: %d differ from the host's\n", differing ? "FAIL" : "PASS", (int)differing);
    failures += differing != 0;

    ef_paged_call_free(attend), ef_append_call_free(append), ef_merge_call_free(merge), ef_problem_free(problem);
    CUdeviceptr all[] = {memory[0], memory[1], memory[2], k, v, k_scales, v_scales, out, lse, merged, device_slots, device_table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) driver(cuMemFree(all[i]), "cuMemFree");
    driver(cuMemFree(device_lengths), "cuMemFree");
    if (bytes) driver(cuMemFree(workspace), "cuMemFree");
    for (int i = 0; i < 2; i++) free(cache[i].codes), free(cache[i].scales);
    for (int i = 0; i < 3; i++) free(values[i]), free(bf16[i]);
    free(expected), free(got), free(narrow), free(written);
}

int main(int count, char **words) {
    ef_context_args args = {.struct_size = sizeof args, .device = 0, .nvrtc = count > 1 ? words[1] : NULL};
    ef_context *context;
    ef_status status = ef_context_open(&args, &context);
    if (status == EF_UNAVAILABLE) {
        printf("SKIP no device: %s\n", ef_last_error());
        return 0;
    }
    must(status, "ef_context_open");
    start_driver();
    CUstream stream;
    driver(cuStreamCreate(&stream, 1), "cuStreamCreate");
    ef_problem_args square = {.batch = 2, .query_heads = 4, .kv_heads = 4, .query_len = 256, .key_len = 256, .head_dim = 128};
    ef_problem_args causal = {.batch = 1, .query_heads = 8, .kv_heads = 2, .query_len = 300, .key_len = 300, .head_dim = 64};
    ef_problem_args decode = {.batch = 1, .query_heads = 8, .kv_heads = 2, .query_len = 4, .key_len = 4000, .head_dim = 128};
    causal.mask = decode.mask = EF_MASK_CAUSAL;
    square.struct_size = causal.struct_size = decode.struct_size = sizeof square;
    compare(context, square, stream), compare(context, causal, stream), compare(context, decode, stream);
    pages(context, stream);

    ef_context_close(context);
    driver(cuStreamDestroy(stream), "cuStreamDestroy");
    printf("%s\n", failures ? "FAIL" : "PASS");
    return failures != 0;
}
