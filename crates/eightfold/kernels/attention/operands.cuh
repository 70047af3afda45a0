// What every attention kernel is passed: tensors, sizes, and which keys a query sees. The twins of these structs are in
// `src/cuda/argument.rs`, field by field.
#pragma once
#include "attention/settings.cuh"

// Where the lines of an FP8 tensor are, and how many bytes apart. A line is a row of channels or, of V transposed, a
// row of keys of one channel.
struct Lines {
    const unsigned char* codes;
    long long batch_stride, head_stride, line_stride;

    __device__ const unsigned char* head(int batch, int head) const {
        return codes + batch * batch_stride + head * head_stride;
    }
};

// Scales of a tensor: that of a row is at head_index · head_stride + row / rows.
struct Scales {
    const float* values;
    int head_stride, rows;

    __device__ const float* at(int head_index, int row) const {
        return values + static_cast<long long>(head_index) * head_stride + row / rows;
    }
};

// Where the output is, its strides in values; and the log-sum-exp, null if nobody asked for it.
struct Output {
    void* values;
    long long batch_stride, head_stride, row_stride;
    float* lse;

    __device__ long long place(int batch, int head, int query) const {
        return batch * batch_stride + head * head_stride + query * row_stride;
    }
};

// What a problem with a window, a bound of its scores or sinks is passed beside what every problem is: what of it is
// not compiled in is not read. A kernel's argument ends with it.
struct SomeExtras {
    const float* sinks;             // the logit of every query head
    int window_left, window_right;  // keys before and after its own that a query sees
    float softcap;                  // the bound, in powers of two
    float softcap_steepness;        // from scores in powers of two to the power of two that is e^(2 · score / bound)
};

// What a problem without any of them is passed: nothing.
struct NoExtras {
    static constexpr const float* sinks = nullptr;
    static constexpr int window_left = 0, window_right = 0;
    static constexpr float softcap = 0.0f, softcap_steepness = 0.0f;
};

using Extras = Either<WINDOW || SOFTCAP || SINKS, SomeExtras, NoExtras>::Type;

// Keys from the first to before the last.
struct KeyRange {
    int first, end;

    __device__ bool is_empty() const { return first >= end; }
};

// The keys that a query sees, which may be none; a later query sees neither an earlier first key nor an earlier last
// one. Beyond the last query the range may begin behind the last key.
template <typename Attention>
__device__ inline KeyRange visible_keys(const Attention& problem, int query) {
    if constexpr (WINDOW) {
        int own = query + problem.key_len - problem.query_len;
        int right = CAUSAL ? 0 : problem.window_right;
        return {max(own - problem.window_left, 0), min(max(own + right + 1, 0), problem.key_len)};
    }
    if (!CAUSAL) return {0, problem.key_len};
    return {0, min(max(query + 1 + problem.key_len - problem.query_len, 0), problem.key_len)};
}

static_assert(sizeof(Lines) == 32 && sizeof(Scales) == 16 && sizeof(Output) == 40 && sizeof(SomeExtras) == 24,
              "the host lays these out field by field");
