#pragma once
struct Words4 {
    unsigned word[4];
};

inline Words4 load_matrices_as(unsigned row_address, bool transposed) {
    const sim::Shown* lanes = sim::meet_in_warp(sim::Meeting::LOAD_MATRIX, {{row_address, transposed}});
    unsigned rows[32];
    for (int lane = 0; lane < 32; ++lane) rows[lane] = static_cast<unsigned>(lanes[lane].words[0]);
    unsigned group = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    Words4 words;
    for (int i = 0; i < 4; ++i) {
        if (!transposed) {
            sim::load_shared(rows[8 * i + group] + 4 * quad, &words.word[i], 4);
        } else {
            uint16_t halves[2];
            for (int e = 0; e < 2; ++e) sim::load_shared(rows[8 * i + 2 * quad + e] + 2 * group, &halves[e], 2);
            words.word[i] = halves[0] | static_cast<unsigned>(halves[1]) << 16;
        }
    }
    return words;
}
inline Words4 load_matrices(unsigned row_address) { return load_matrices_as(row_address, false); }
inline Words4 load_matrices_transposed(unsigned row_address) { return load_matrices_as(row_address, true); }

// mma.sync: every lane shows its words of A and B, and each sums up its own four elements.
inline const sim::Shown* show_words(const unsigned (&a)[4], unsigned b0, unsigned b1) {
    return sim::meet_in_warp(sim::Meeting::MULTIPLY,
                             {{a[0] | static_cast<uint64_t>(a[1]) << 32, a[2] | static_cast<uint64_t>(a[3]) << 32,
                               b0 | static_cast<uint64_t>(b1) << 32}});
}
inline void multiply_f16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    sim::multiply_f16(sum, show_words(a, b0, b1));
}
template <bool A_E5M2, bool B_E5M2>
inline void multiply_fp8(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    sim::multiply_fp8(sum, show_words(a, b0, b1), A_E5M2, B_E5M2);
}
