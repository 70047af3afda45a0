// Whether what a launch reads from device memory is sound: lengths, block table, starts of queries, scales; or slots
// and the scales that new tokens are given. What is not is reported by where it is; the first of each kind.
#include "paged/pages.cuh"

// The struct of `src/cuda/paged/validate.rs`, field by field.
struct Sound {
    const int* block_table;
    const int* lengths;
    const int* query_starts;
    unsigned* report;  // of each kind 0, or the largest number less where the first is; and how many keys and queries
    long long table_stride;
    int sequences, pages, page_tokens, most_keys, most_queries;
    int query_heads;        // 0 unless queries are codes
    const int* key_starts;  // null unless keys are packed: then there is no block table, and there may be no lengths
    CacheScales k_scales, v_scales, q_scales;
    int heads, token_scales;
};
static_assert(sizeof(Sound) == 176, "the host lays it out field by field");

constexpr int THREADS = 256;
enum Kind { LENGTH, PAGE, START, SCALE, KEYS, QUERIES };

__device__ inline void report(const Sound& problem, Kind kind, unsigned place) {
    atomicMax(problem.report + kind, 0xffffffffu - place);
}

__device__ inline bool is_scale(float scale) { return scale > 0.0f && scale <= 3.4028235e38f; }

// The scales of a sequence's queries and keys.
__device__ inline void validate_scales(const Sound& problem, int sequence, int length) {
    for (int head = threadIdx.x; head < problem.query_heads; head += THREADS) {
        if (!is_scale(problem.q_scales.of_sequence(sequence, head))) report(problem, SCALE, sequence);
    }
    if (!problem.token_scales) {
        for (int head = threadIdx.x; head < problem.heads; head += THREADS) {
            if (!is_scale(problem.k_scales.of_sequence(sequence, head)) ||
                !is_scale(problem.v_scales.of_sequence(sequence, head))) {
                report(problem, SCALE, sequence);
            }
        }
        return;
    }
    for (int token = threadIdx.x; token < length; token += THREADS) {
        int page = problem.block_table[sequence * problem.table_stride + token / problem.page_tokens];
        if (page < 0 || page >= problem.pages) continue;  // told already
        for (int head = 0; head < problem.heads; ++head) {
            int place = token % problem.page_tokens;
            if (!is_scale(problem.k_scales.of_token(page, place, head)) ||
                !is_scale(problem.v_scales.of_token(page, place, head))) {
                report(problem, SCALE, sequence);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) paged_validate(const __grid_constant__ Sound problem) {
    for (int sequence = blockIdx.x; sequence < problem.sequences; sequence += gridDim.x) {
        int room = problem.most_keys, first_key = 0;
        if (problem.key_starts) {
            first_key = problem.key_starts[sequence];
            room = min(room, problem.key_starts[sequence + 1] - first_key);
        }
        int length = problem.lengths ? problem.lengths[sequence] : problem.key_starts[sequence + 1] - first_key;
        bool fits = first_key >= 0 && length >= 0 && length <= room;
        if (!fits) report(problem, LENGTH, sequence);
        if (fits && threadIdx.x == 0) atomicAdd(problem.report + KEYS, static_cast<unsigned>(length));
        int used = fits && problem.block_table ? (length + problem.page_tokens - 1) / problem.page_tokens : 0;
        for (int entry = threadIdx.x; entry < used; entry += THREADS) {
            int page = problem.block_table[sequence * problem.table_stride + entry];
            if (page < 0 || page >= problem.pages) report(problem, PAGE, sequence * problem.table_stride + entry);
        }
        if (fits && length > 0) validate_scales(problem, sequence, length);
        if (problem.query_starts) {
            int first = problem.query_starts[sequence], queries = problem.query_starts[sequence + 1] - first;
            bool sound = first >= 0 && queries >= 0 && queries <= problem.most_queries;
            if (!sound) report(problem, START, sequence);
            if (sound && threadIdx.x == 0) atomicAdd(problem.report + QUERIES, static_cast<unsigned>(queries));
        }
    }
}

// The struct of `src/cuda/paged/validate.rs`, field by field.
struct Given {
    const long long* slots;
    unsigned* report;  // of slots, then of scales: 0, or the largest number less the token or the head of the first
    long long capacity;
    int tokens;
    int heads;  // 0 where scales are computed
    CacheScales k_scales, v_scales;
};
static_assert(sizeof(Given) == 96, "the host lays it out field by field");

extern "C" __global__ void __launch_bounds__(THREADS) paged_validate_append(const __grid_constant__ Given problem) {
    int first = blockIdx.x * THREADS + threadIdx.x;
    for (int token = first; token < problem.tokens; token += gridDim.x * THREADS) {
        long long slot = problem.slots[token];
        if (slot < -1 || slot >= problem.capacity) atomicMax(problem.report, 0xffffffffu - token);
    }
    for (int head = first; head < problem.heads; head += gridDim.x * THREADS) {
        if (!is_scale(problem.k_scales.of_sequence(0, head)) || !is_scale(problem.v_scales.of_sequence(0, head))) {
            atomicMax(problem.report + 1, 0xffffffffu - head);
        }
    }
}
