//! f32, f16 or bf16 in device memory → FP8 codes and scales there.
