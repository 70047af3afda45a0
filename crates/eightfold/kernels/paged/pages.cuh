// Where the tokens of a cache lie, their scales, and queries.
#pragma once

// Keys or values in pages; all distances in bytes.
struct Pages {
    unsigned char* codes;
    long long page_stride, head_stride, token_stride;

    __device__ const unsigned char* token(const unsigned char* head, int page, int token) const {
        return head + page * page_stride + token * token_stride;
    }
};

// Scales by sequence and head, either of which may have a stride of 0; or, where every token has its own, by page,
// token and head.
struct CacheScales {
    float* values;
    long long page_stride;
    int sequence_stride, token_stride, head_stride, unused;

    __device__ float of_sequence(int sequence, int head) const {
        return values[static_cast<long long>(sequence) * sequence_stride + head * head_stride];
    }
    __device__ float& of_token(int page, int token, int head) const {
        return values[page * page_stride + static_cast<long long>(token) * token_stride + head * head_stride];
    }
};

// Queries, and their scales where they are codes; distances in elements.
struct Queries {
    const void* values;
    long long sequence_stride, token_stride, head_stride;
    const float* scales;
    int scale_sequence_stride, scale_head_stride;
};

static_assert(sizeof(Pages) == 32 && sizeof(CacheScales) == 32 && sizeof(Queries) == 48,
              "the host lays these out field by field");
