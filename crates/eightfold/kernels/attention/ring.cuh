// Whose turn it is in a ring of buffers, and how often it went around: the parity that its barriers are waited on.
#pragma once

template <int BUFFERS>
struct RingOf {
    int stage = 0;
    unsigned parity = 0;

    __device__ void advance() {
        if (++stage == BUFFERS) {
            stage = 0;
            parity ^= 1;
        }
    }
};
