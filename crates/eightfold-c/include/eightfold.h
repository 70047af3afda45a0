/* Eightfold: FP8 attention on CPUs and NVIDIA GPUs. Made by cbindgen; do not edit.
 *
 * Every call returns EF_OK, or what went wrong; ef_last_error() then says which argument, which rule, and what to do.
 * Structs begin with struct_size: set it to sizeof, and all that you do not need to zero, which is the default.
 * Host pointers are not kept after a call. Handles are freed by the function of their name, once, in any order.
 * Addresses and counts must be true: what can be checked is, but a count that is too large is read beyond its array.
 * The conventions in full are in the README of crate eightfold-c. */

#ifndef EIGHTFOLD_H
#define EIGHTFOLD_H

#include <stdint.h>

// FP8 with 4 exponent bits and 3 mantissa bits; its largest value is 448.
#define EF_E4M3 0

// FP8 with 5 exponent bits and 2 mantissa bits; its largest value is 57344.
#define EF_E5M2 1

// Integers from -127 to 127, for Q and K.
#define EF_INT8 2

// 32-bit float.
#define EF_F32 0

// IEEE half precision.
#define EF_F16 1

// bfloat16.
#define EF_BF16 2

// FP8 codes, in the problem's input format. For queries of calls on pages only.
#define EF_FP8 3

// [batch, head, row, channel].
#define EF_BHSD 0

// [batch, row, head, channel].
#define EF_BSHD 1

// [batch, head, channel, row]: V transposed. For FP8 tensors only.
#define EF_BHDS 2

// One scale per (batch, head).
#define EF_PER_HEAD 0

// One scale for the whole tensor.
#define EF_PER_TENSOR 1

// One scale per `block_rows` consecutive rows of a head.
#define EF_PER_BLOCK 2

// One scale for the whole cache.
#define EF_SCALE_TENSOR 0

// One scale for each head of K and V.
#define EF_SCALE_HEAD 1

// One scale for each sequence of the batch and head, [sequence, head].
#define EF_SCALE_SEQUENCE 2

// One scale for each token and head of the cache.
#define EF_SCALE_TOKEN 3

// Every query sees every key.
#define EF_MASK_NONE 0

// Bottom-right aligned, as in FlashAttention: the last query sees every key.
#define EF_MASK_CAUSAL 1

// Kernel error within 31e-3 of float64 attention on the same FP8 tensors, in the mean over inputs of N(0, 1).
#define EF_FAST 0

// Kernel error within 28.5e-3.
#define EF_BALANCED 1

// Kernel error within 26e-3.
#define EF_EXACT_EXP 2

// Kernel error within 3e-3.
#define EF_PRECISE 3

// The device of a context that stands for this machine's CPU.
#define EF_CPU -1

// The number that changes when a function or a struct of this header changes in a way that older programs would notice.
#define EF_ABI_VERSION 1

// New tokens into a cache in pages on a device, checked and compiled; shared as `ef_paged_call` is.
typedef struct ef_append_call ef_append_call;

// Keys and values of growing sequences in host memory, in E4M3 with a scale for each token and head. Threads may share it: an
// append waits for attention that runs, and attention for an append.
typedef struct ef_cache ef_cache;

// Attention of one problem on a device, checked and compiled. It never changes and may be shared by threads and streams.
typedef struct ef_call ef_call;

// A device, opened; or this machine's CPU. It may be shared by threads.
typedef struct ef_context ef_context;

// Outputs of parts of the keys merged on a device, compiled; shared as `ef_paged_call` is.
typedef struct ef_merge_call ef_merge_call;

// Attention to a cache in pages on a device, checked and compiled. It never changes and may be shared by threads and streams.
typedef struct ef_paged_call ef_paged_call;

// One attention problem, every rule checked. It never changes and may be shared by threads.
typedef struct ef_problem ef_problem;

// An FP8 tensor that this library quantised, in host memory.
typedef struct ef_quantized ef_quantized;

// How a call ended: one of the `EF_OK`, `EF_INVALID`, … numbers.
typedef int32_t ef_status;

// What to compute: sizes, mask, scale, formats. Required up to `head_dim`; what follows is optional, and zero is its default.
typedef struct ef_problem_args {
  // `sizeof(ef_problem_args)`.
  uint32_t struct_size;
  // The format of Q, K and V: `EF_E4M3`, `EF_E5M2`, or `EF_INT8`, beside which V is in E4M3.
  int32_t input_format;
  // Independent sequences.
  uint64_t batch;
  // Heads of Q and of the output; a multiple of `kv_heads`.
  uint64_t query_heads;
  // Heads of K and V.
  uint64_t kv_heads;
  // Rows of Q per head.
  uint64_t query_len;
  // Rows of K and V per head.
  uint64_t key_len;
  // Channels per head: a multiple of 8 up to 256; on devices 64 or 128.
  uint64_t head_dim;
  // What scores are multiplied by before the softmax; 0 stands for 1/sqrt(head_dim).
  float softmax_scale;
  // `EF_MASK_NONE` or `EF_MASK_CAUSAL`.
  int32_t mask;
  // The format of the output: `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t output_format;
  // The layout of a host's output: `EF_BHSD` or `EF_BSHD`. On a device strides say it.
  int32_t output_layout;
  // How exact: `EF_FAST`, `EF_BALANCED`, `EF_EXACT_EXP` or `EF_PRECISE`. The CPU's kernel is always precise.
  int32_t accuracy;
  // 1 where the log-sum-exp of every row is wanted, too.
  int32_t lse;
  // 1 where every sequence's result must be the same, bit for bit, in every batch.
  int32_t batch_invariant;
  // Zero.
  int32_t reserved;
} ef_problem_args;

// Values in host memory, without gaps.
typedef struct ef_values {
  // `sizeof(ef_values)`.
  uint32_t struct_size;
  // `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t format;
  // Independent sequences.
  uint64_t batch;
  // Heads per sequence.
  uint64_t heads;
  // Rows (tokens) per head.
  uint64_t len;
  // Channels per row.
  uint64_t head_dim;
  // The values; aligned as their format needs.
  const void *data;
  // How many values there are.
  uint64_t count;
  // `EF_BHSD` or `EF_BSHD`.
  int32_t layout;
  // Zero.
  int32_t reserved;
} ef_values;

// How to quantise. All is optional, and zero is the default.
typedef struct ef_quantize_args {
  // `sizeof(ef_quantize_args)`.
  uint32_t struct_size;
  // `EF_E4M3`, `EF_E5M2` or, for Q and K, `EF_INT8`.
  int32_t format;
  // The layout of the codes: `EF_BHSD`, `EF_BSHD`, or for V also `EF_BHDS`.
  int32_t layout;
  // `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
  int32_t granularity;
  // Rows of a block, for `EF_PER_BLOCK`.
  uint64_t block_rows;
  // The largest code in magnitude: a value of the format, or 0 for its largest.
  float largest_code;
  // 1 to subtract each channel's mean before, for K and V.
  int32_t centred;
} ef_quantize_args;

// An FP8 tensor in host memory, without gaps: value = code x scale (+ the channel's mean, where there are means).
typedef struct ef_fp8_tensor {
  // `sizeof(ef_fp8_tensor)`.
  uint32_t struct_size;
  // `EF_E4M3`, `EF_E5M2` or, for Q and K, `EF_INT8`.
  int32_t format;
  // Independent sequences.
  uint64_t batch;
  // Heads per sequence.
  uint64_t heads;
  // Rows (tokens) per head.
  uint64_t len;
  // Channels per row.
  uint64_t head_dim;
  // The codes, all finite.
  const uint8_t *codes;
  // How many codes there are.
  uint64_t code_count;
  // The scales in [batch, head, block] order, each finite and positive.
  const float *scales;
  // How many scales there are.
  uint64_t scale_count;
  // `EF_BHSD`, `EF_BSHD`, or for V also `EF_BHDS`.
  int32_t layout;
  // `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
  int32_t granularity;
  // Rows of a block, for `EF_PER_BLOCK`.
  uint64_t block_rows;
  // The means of the channels in [batch, head, channel] order, for K and V; null where nothing was centred.
  const float *means;
  // How many means there are.
  uint64_t mean_count;
} ef_fp8_tensor;

// Room for an output in host memory, without gaps.
typedef struct ef_output {
  // `sizeof(ef_output)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // Room for the values, in the problem's output format and layout; aligned as the format needs.
  void *values;
  // For how many values there is room.
  uint64_t value_count;
  // Room for the log-sum-exp in [batch, head, row] order; null where the problem does not ask for it.
  float *lse;
  // For how many there is room.
  uint64_t lse_count;
} ef_output;

// K, or V, of a cache in pages, in host memory: FP8 codes with scales. The channels of a row follow each other.
//
// Strides are elements from one page, one token of a page and one head to the next. All zero: [page, token, head, channel]
// without gaps.
typedef struct ef_paged_tensor {
  // `sizeof(ef_paged_tensor)`.
  uint32_t struct_size;
  // `EF_E4M3` or `EF_E5M2`.
  int32_t format;
  // Pages of the cache.
  uint64_t pages;
  // Tokens of a page.
  uint64_t page_size;
  // Heads of K and V.
  uint64_t heads;
  // Channels of a head.
  uint64_t head_dim;
  // The first code of the first page. Codes of tokens that a sequence has must be finite.
  uint8_t *codes;
  // How many codes there are from there on.
  uint64_t code_count;
  // The scales, each finite and positive; an append writes those of tokens.
  float *scales;
  // How many scales there are.
  uint64_t scale_count;
  // What shares a scale: `EF_SCALE_TENSOR`, `EF_SCALE_HEAD`, `EF_SCALE_SEQUENCE` or `EF_SCALE_TOKEN`.
  int32_t scales_of;
  // Zero.
  int32_t reserved;
  // From one page to the next, in elements.
  uint64_t page_stride;
  // From one token of a page to the next.
  uint64_t token_stride;
  // From one head of a token to the next.
  uint64_t head_stride;
  // The same of scales of tokens, in scales; all zero: [page, token, head] without gaps.
  uint64_t scale_page_stride;
  // From one token of a page to the next.
  uint64_t scale_token_stride;
  // From one head of a token to the next.
  uint64_t scale_head_stride;
} ef_paged_tensor;

// Whose rows and whose pages are which, in host memory.
typedef struct ef_tables {
  // `sizeof(ef_tables)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // Where each sequence's rows of Q begin, and behind the last where they end (cu_seqlens).
  const int32_t *starts;
  // One more than sequences.
  uint64_t start_count;
  // The pages of each sequence, [sequence, page]; behind a sequence's last token nothing is read.
  const int32_t *block_table;
  // How many entries there are.
  uint64_t block_table_count;
  // Entries of a sequence.
  uint64_t max_pages;
  // The keys of each sequence.
  const int32_t *lengths;
  // How many sequences there are.
  uint64_t length_count;
} ef_tables;

// New tokens for K, or for V, of a cache.
typedef struct ef_new_tokens {
  // `sizeof(ef_new_tokens)`.
  uint32_t struct_size;
  // `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t format;
  // The values, [token, head, channel].
  const void *values;
  // How many values there are.
  uint64_t value_count;
  // Where each token goes: page x page_size + token of the page; -1 leaves it out.
  const int64_t *slots;
  // How many tokens there are.
  uint64_t slot_count;
} ef_new_tokens;

// Outputs of attention to parts of the keys.
typedef struct ef_parts {
  // `sizeof(ef_parts)`.
  uint32_t struct_size;
  // The format of all outputs: `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t format;
  // Independent sequences.
  uint64_t batch;
  // Query heads.
  uint64_t heads;
  // Rows of Q per head.
  uint64_t len;
  // Channels per head.
  uint64_t head_dim;
  // Each with its log-sum-exp; only read.
  const struct ef_output *const *parts;
  // How many there are.
  uint64_t part_count;
  // The layout of all outputs: `EF_BHSD` or `EF_BSHD`.
  int32_t layout;
  // Zero.
  int32_t reserved;
} ef_parts;

// The sizes of a cache.
typedef struct ef_cache_args {
  // `sizeof(ef_cache_args)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // Pages of the cache.
  uint64_t pages;
  // Tokens of a page; multiples of 16 are read fastest.
  uint64_t page_size;
  // Heads of K and V.
  uint64_t kv_heads;
  // Channels of a head.
  uint64_t head_dim;
} ef_cache_args;

// Which device to open, and with what.
typedef struct ef_context_args {
  // `sizeof(ef_context_args)`.
  uint32_t struct_size;
  // A CUDA device's ordinal, or `EF_CPU`.
  int32_t device;
  // An NVRTC library, or a folder that holds one, for the whole process; null to look in the usual places. It must be named
  // before the first kernel is compiled.
  const char *nvrtc;
  // The folder in which compiled kernels are kept for later processes; null to keep them in memory alone. It must be named
  // before the first kernel is compiled.
  const char *cache;
} ef_context_args;

// How Q, K, V and the output lie on a device, where Q, K and V are values that are quantised on the way.
//
// Strides are elements from one batch, head, row and channel to the next. Channels are contiguous, the others are multiples
// of 16 bytes, and 0 repeats a batch or a head of Q, K or V. All zero: without gaps, in `layout`.
typedef struct ef_value_call_args {
  // `sizeof(ef_value_call_args)`.
  uint32_t struct_size;
  // The format of Q, K and V: `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t format;
  // Of everything whose strides are all zero: `EF_BHSD` or `EF_BSHD`.
  int32_t layout;
  // 1 to quantise K with its channels' means in it, which is less exact where channels are far from zero.
  int32_t uncentred_keys;
  // Strides of Q.
  uint64_t q_strides[4];
  // Strides of K.
  uint64_t k_strides[4];
  // Strides of V.
  uint64_t v_strides[4];
  // Strides of the output.
  uint64_t output_strides[4];
} ef_value_call_args;

// How Q, K, V and the output lie on a device, where Q, K and V are FP8 in the problem's input format.
//
// Strides are as in `ef_value_call_args`. No code may be NaN or infinite.
typedef struct ef_fp8_call_args {
  // `sizeof(ef_fp8_call_args)`.
  uint32_t struct_size;
  // Of everything whose strides are all zero: `EF_BHSD` or `EF_BSHD`.
  int32_t layout;
  // How much of Q shares a scale: `EF_PER_HEAD`, `EF_PER_TENSOR` or `EF_PER_BLOCK`.
  int32_t q_granularity;
  // The same of K.
  int32_t k_granularity;
  // The same of V.
  int32_t v_granularity;
  // Zero.
  int32_t reserved;
  // Rows of a block of Q, for `EF_PER_BLOCK`.
  uint64_t q_block_rows;
  // The same of K.
  uint64_t k_block_rows;
  // The same of V.
  uint64_t v_block_rows;
  // Strides of Q.
  uint64_t q_strides[4];
  // Strides of K.
  uint64_t k_strides[4];
  // Strides of V.
  uint64_t v_strides[4];
  // Strides of the output.
  uint64_t output_strides[4];
} ef_fp8_call_args;

// Where everything of a launch lies in device memory. Kernels believe it: only null and alignment are checked.
typedef struct ef_addresses {
  // `sizeof(ef_addresses)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // The address of Q, a multiple of 16.
  uint64_t q;
  // The address of K, a multiple of 16.
  uint64_t k;
  // The address of V, a multiple of 16.
  uint64_t v;
  // The address of the output, a multiple of 16.
  uint64_t output;
  // The address of the log-sum-exp, f32 in [batch, head, row] order; 0 where the problem does not ask for it.
  uint64_t lse;
  // The address of Q's scales, f32 in [batch, head, block] order, finite and positive; 0 for values.
  uint64_t q_scales;
  // The address of K's scales.
  uint64_t k_scales;
  // The address of V's scales.
  uint64_t v_scales;
} ef_addresses;

// How queries, output and a cache in pages lie on a device. Heads and channels are the problem's.
//
// Strides of Q and the output are elements from one sequence, head, row and channel to the next; all zero: [sequence, row,
// head, channel] without gaps. Those of the cache are as in `ef_paged_tensor`, multiples of 16.
typedef struct ef_paged_call_args {
  // `sizeof(ef_paged_call_args)`.
  uint32_t struct_size;
  // The format of Q: `EF_F32`, `EF_F16`, `EF_BF16`, or `EF_FP8` with scales in [sequence, head] order.
  int32_t query_format;
  // 1 where sequences differ in their number of queries, whose rows then lie behind each other.
  int32_t packed;
  // What of K and of V shares a scale: `EF_SCALE_TENSOR`, `EF_SCALE_HEAD`, `EF_SCALE_SEQUENCE` or `EF_SCALE_TOKEN`.
  int32_t scales_of;
  // Pages of the cache.
  uint64_t pages;
  // Tokens of a page.
  uint64_t page_size;
  // Strides of Q.
  uint64_t q_strides[4];
  // Strides of the output.
  uint64_t output_strides[4];
  // Strides of a page, a token and a head of K.
  uint64_t k_strides[3];
  // The same of V.
  uint64_t v_strides[3];
  // The same of the scales of tokens, of K as of V.
  uint64_t scale_strides[3];
} ef_paged_call_args;

// Where everything of a launch on pages lies in device memory. Kernels believe it: only null and alignment are checked.
typedef struct ef_paged_addresses {
  // `sizeof(ef_paged_addresses)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // The address of Q, a multiple of 16, as are those of K, V and the output.
  uint64_t q;
  // Of Q's scales, f32; 0 for values.
  uint64_t q_scales;
  // Of the first code of K.
  uint64_t k;
  // Of K's scales, f32.
  uint64_t k_scales;
  // Of the first code of V.
  uint64_t v;
  // Of V's scales, f32.
  uint64_t v_scales;
  // Of the pages of every sequence, int32, [sequence, page].
  uint64_t block_table;
  // Entries from one sequence of the block table to the next.
  uint64_t max_pages;
  // Of the keys of every sequence, int32; those of the queries of this launch included.
  uint64_t lengths;
  // Of where each sequence's queries begin, and the last end, int32; 0 unless they are packed.
  uint64_t starts;
  // Of the output.
  uint64_t output;
  // Of the log-sum-exp, f32, [sequence, head, query], or [query, head] where queries are packed; 0 unless it is asked for.
  uint64_t lse;
} ef_paged_addresses;

// How new tokens and a cache in pages lie on a device. Strides of new rows are elements from one token and one head to the next.
typedef struct ef_append_call_args {
  // `sizeof(ef_append_call_args)`.
  uint32_t struct_size;
  // The format of the cache: `EF_E4M3` or `EF_E5M2`.
  int32_t cache_format;
  // The format of new keys and values: `EF_F32`, `EF_F16` or `EF_BF16`.
  int32_t value_format;
  // `EF_SCALE_TENSOR` and `EF_SCALE_HEAD` are read; those of `EF_SCALE_TOKEN` are computed and written.
  int32_t scales_of;
  // Pages of the cache.
  uint64_t pages;
  // Tokens of a page.
  uint64_t page_size;
  // Heads of K and V.
  uint64_t kv_heads;
  // Channels of a head.
  uint64_t head_dim;
  // Strides of a token and a head of new keys; both zero: [token, head, channel] without gaps.
  uint64_t new_k_strides[2];
  // The same of new values.
  uint64_t new_v_strides[2];
  // Strides of a page, a token and a head of K.
  uint64_t k_strides[3];
  // The same of V.
  uint64_t v_strides[3];
  // The same of the scales of tokens, of K as of V.
  uint64_t scale_strides[3];
} ef_append_call_args;

// Where everything of an append lies in device memory.
typedef struct ef_append_addresses {
  // `sizeof(ef_append_addresses)`.
  uint32_t struct_size;
  // Zero.
  int32_t reserved;
  // The new keys, a multiple of 16, as are the addresses of values and of the cache.
  uint64_t new_k;
  // The new values.
  uint64_t new_v;
  // The slot of every token, int64: page x page_size + token of the page; a negative one leaves the token out.
  uint64_t slots;
  // The first code of K.
  uint64_t k;
  // The first code of V.
  uint64_t v;
  // The scales of K, f32.
  uint64_t k_scales;
  // The scales of V, f32.
  uint64_t v_scales;
} ef_append_addresses;

// All went well.
#define EF_OK 0

// An argument breaks a rule.
#define EF_INVALID 1

// The request is sound, but this machine cannot serve it.
#define EF_UNAVAILABLE 2

// A call of the device's driver failed.
#define EF_DEVICE 3

// A fault of this library. Nothing was lost but the call.
#define EF_INTERNAL 4

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of this thread's last failure: which argument, which rule, what to do. Empty if nothing failed.
//
// It is valid until the next call that fails in this thread.
const char *ef_last_error(void);

// Makes a problem.
ef_status ef_problem_new(const struct ef_problem_args *args, struct ef_problem **out);

// Frees a problem; null is allowed.
void ef_problem_free(struct ef_problem *problem);

// Quantises values in host memory. Each scale is the largest magnitude of what shares it divided by the largest code.
//
// `args` may be null for the defaults: E4M3, one scale per (batch, head), codes in `EF_BHSD`, not centred.
ef_status ef_quantize(const struct ef_values *values,
                      const struct ef_quantize_args *args,
                      struct ef_quantized **out);

// Says where a quantised tensor lies: `out`, whose struct_size must be set, is filled with addresses that are valid until the
// tensor is freed.
ef_status ef_quantized_tensor(const struct ef_quantized *quantized,
                              struct ef_fp8_tensor *out);

// Frees a quantised tensor; null is allowed.
void ef_quantized_free(struct ef_quantized *quantized);

// Attention on FP8 tensors in host memory. The output may lie where an input does.
ef_status ef_attention(const struct ef_problem *problem,
                       const struct ef_fp8_tensor *q,
                       const struct ef_fp8_tensor *k,
                       const struct ef_fp8_tensor *v,
                       const struct ef_output *output);

// Attention on values in host memory, quantised to the problem's input format with one scale per (batch, head), K centred.
ef_status ef_attention_values(const struct ef_problem *problem,
                              const struct ef_values *q,
                              const struct ef_values *k,
                              const struct ef_values *v,
                              const struct ef_output *output);

// Attention of packed queries to a cache in pages, both in host memory.
//
// `q` has batch 1, and the rows of all sequences behind each other; each is quantised with a scale for each head. The problem
// says how many sequences there are (its batch), and the most queries and keys that one has. The output is packed as Q is; its
// log-sum-exp is [head, row]. Rows of no sequence, and of one without keys, are zero, with a log-sum-exp of -infinity. Every
// entry of the block table that a length reaches is checked.
ef_status ef_paged_attention(const struct ef_problem *problem,
                             const struct ef_values *q,
                             const struct ef_paged_tensor *k,
                             const struct ef_paged_tensor *v,
                             const struct ef_tables *tables,
                             const struct ef_output *output);

// Quantises new keys, or new values, into the pages of a cache. Scales of tokens are computed and written; with others, what is
// too large saturates. Where anything is wrong nothing is written.
ef_status ef_paged_append(const struct ef_paged_tensor *cache,
                          const struct ef_new_tokens *tokens);

// Merges attention to parts of the keys, such as a shared prefix and what follows it, or keys of several machines. `output` has
// room for the log-sum-exp, too, and may be one of the parts. A row that sees no key in any part is zero.
ef_status ef_merge(const struct ef_parts *parts,
                   const struct ef_output *output);

// Makes an empty cache.
ef_status ef_cache_new(const struct ef_cache_args *args, struct ef_cache **out);

// Opens a sequence without tokens, and says its number.
ef_status ef_cache_open(const struct ef_cache *cache, uint64_t *sequence);

// Forgets a sequence and frees its pages. Its number may be given to a later one.
ef_status ef_cache_close(const struct ef_cache *cache, uint64_t sequence);

// Says how many tokens a sequence has, and how many pages of the cache no sequence has; either may be null.
ef_status ef_cache_len(const struct ef_cache *cache,
                       uint64_t sequence,
                       uint64_t *tokens,
                       uint64_t *free_pages);

// Quantises the keys and values of a sequence's next tokens, `count` values each, [token, head, channel] in `EF_F32`, `EF_F16` or
// `EF_BF16`. `EF_UNAVAILABLE` where there are no pages for them; then, as where anything is wrong, nothing is appended.
ef_status ef_cache_append(const struct ef_cache *cache,
                          uint64_t sequence,
                          int32_t format,
                          const void *k,
                          const void *v,
                          uint64_t count);

// Attention of packed queries to sequences of the cache; as `ef_paged_attention`, with the numbers of the sequences in place of a
// block table. `starts` has one entry more than `sequences`.
ef_status ef_cache_attention(const struct ef_cache *cache,
                             const struct ef_problem *problem,
                             const struct ef_values *q,
                             const uint64_t *sequences,
                             uint64_t sequence_count,
                             const int32_t *starts,
                             const struct ef_output *output);

// Frees a cache; null is allowed.
void ef_cache_free(struct ef_cache *cache);

// Opens a device. It uses the device's primary context, as the CUDA runtime and PyTorch do.
ef_status ef_context_open(const struct ef_context_args *args, struct ef_context **out);

// Closes a context; null is allowed. What was made with it stays usable.
void ef_context_close(struct ef_context *context);

// Writes which kernels were considered for a problem there, the chosen one first, and why: a line each.
//
// The text is cut to `capacity` bytes, a zero at its end included; `needed`, if not null, is told the bytes of all of it.
// Tensors are taken to be as this library quantises them.
ef_status ef_explain(const struct ef_context *context,
                     const struct ef_problem *problem,
                     char *text,
                     uint64_t capacity,
                     uint64_t *needed);

// The `EF_ABI_VERSION` of the library.
uint32_t ef_abi_version(void);

// The version of the library, such as "0.1.0".
const char *ef_version(void);

// Makes a call that takes values, quantises them into the workspace with one scale per (batch, head), and attends.
//
// Its kernels are compiled unless that was done before in this process, or is in the cache. That may take a second.
ef_status ef_call_values_new(const struct ef_context *context,
                             const struct ef_problem *problem,
                             const struct ef_value_call_args *args,
                             struct ef_call **out);

// Makes a call that takes FP8 codes with scales, and attends. As for `ef_call_values_new` kernels may be compiled.
ef_status ef_call_fp8_new(const struct ef_context *context,
                          const struct ef_problem *problem,
                          const struct ef_fp8_call_args *args,
                          struct ef_call **out);

// Says how large a workspace a launch needs, and how much at its front must be zero before the first launch with it; every
// launch leaves it so. `zeroed` may be null.
ef_status ef_call_workspace(const struct ef_call *call,
                            uint64_t *bytes,
                            uint64_t *zeroed);

// Writes the name and the knobs of the kernel that attends; cut and measured as by `ef_explain`.
ef_status ef_call_kernel(const struct ef_call *call,
                         char *text,
                         uint64_t capacity,
                         uint64_t *needed);

// Puts the work into the stream and returns. Nothing is allocated, and nothing waits, so it may be captured into a graph.
//
// `stream` is a CUstream (or cudaStream_t) of the device's primary context; null is the default stream. `workspace` is a
// device address, a multiple of 256, and may be 0 where none is needed. Launches that share a workspace must follow each other.
// Tensors, output, workspace and call must live until the work is done.
ef_status ef_call_launch(const struct ef_call *call,
                         const struct ef_addresses *addresses,
                         uint64_t workspace,
                         uint64_t workspace_bytes,
                         void *stream);

// Looks at the values of a call from `ef_call_values_new` on the device and waits: a NaN or an infinity is `EF_INVALID`, and
// `ef_last_error` names tensor, batch, head and row. A launch computes with them without a word. The first look of a kind compiles.
ef_status ef_call_validate(const struct ef_call *call,
                           const struct ef_addresses *addresses,
                           uint64_t workspace,
                           uint64_t workspace_bytes,
                           void *stream);

// Frees a call, whose launches must be done; null is allowed.
void ef_call_free(struct ef_call *call);

// Makes a call. The problem says the most sequences of a launch (its batch), and the most queries and keys that one has. As
// for `ef_call_values_new` kernels may be compiled.
ef_status ef_paged_call_new(const struct ef_context *context,
                            const struct ef_problem *problem,
                            const struct ef_paged_call_args *args,
                            struct ef_paged_call **out);

// Says how large a workspace a launch needs, as `ef_call_workspace` does.
ef_status ef_paged_call_workspace(const struct ef_paged_call *call,
                                  uint64_t *bytes,
                                  uint64_t *zeroed);

// Puts a launch for so many sequences into the stream and returns; as `ef_call_launch`. Block table, lengths and starts are read
// when it runs, so that a graph may be replayed after they changed.
ef_status ef_paged_call_launch(const struct ef_paged_call *call,
                               uint64_t sequences,
                               const struct ef_paged_addresses *addresses,
                               uint64_t workspace,
                               uint64_t workspace_bytes,
                               void *stream);

// Looks at block table, lengths, starts and scales on the device and waits: what a launch would read beyond the cache, and a
// scale that is not finite and positive, is `EF_INVALID`, and `ef_last_error` names the sequence.
ef_status ef_paged_call_validate(const struct ef_paged_call *call,
                                 uint64_t sequences,
                                 const struct ef_paged_addresses *addresses,
                                 uint64_t workspace,
                                 uint64_t workspace_bytes,
                                 void *stream);

// Frees a call, whose launches must be done; null is allowed.
void ef_paged_call_free(struct ef_paged_call *call);

// Makes an append. As for `ef_call_values_new` kernels may be compiled.
ef_status ef_append_call_new(const struct ef_context *context,
                             const struct ef_append_call_args *args,
                             struct ef_append_call **out);

// Puts an append of so many tokens into the stream and returns. Tokens whose slot is not in the cache are left out.
ef_status ef_append_call_launch(const struct ef_append_call *call,
                                uint64_t tokens,
                                const struct ef_append_addresses *addresses,
                                void *stream);

// Looks at slots, and at scales unless they are computed, on the device and waits: a slot that is neither -1 nor in the cache,
// and a scale that is not finite and positive, is `EF_INVALID`, and `ef_last_error` names the token or the head. It allocates a
// few bytes for the answer.
ef_status ef_append_call_validate(const struct ef_append_call *call,
                                  uint64_t tokens,
                                  const struct ef_append_addresses *addresses,
                                  void *stream);

// Frees an append, whose launches must be done; null is allowed.
void ef_append_call_free(struct ef_append_call *call);

// Makes a merge of rows of so many channels in `EF_F32`, `EF_F16` or `EF_BF16`.
ef_status ef_merge_call_new(const struct ef_context *context,
                            uint64_t head_dim,
                            int32_t format,
                            struct ef_merge_call **out);

// Puts the merging of so many rows into the stream and returns. `outputs` and `lses` are host arrays of `part_count` device
// addresses, up to 16, of `[row, channel]` and `[row]`; `lse` may be 0, and `output` one of the parts.
ef_status ef_merge_call_launch(const struct ef_merge_call *call,
                               uint64_t rows,
                               const uint64_t *outputs,
                               const uint64_t *lses,
                               uint64_t part_count,
                               uint64_t output,
                               uint64_t lse,
                               void *stream);

// Frees a merge, whose launches must be done; null is allowed.
void ef_merge_call_free(struct ef_merge_call *call);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EIGHTFOLD_H */
