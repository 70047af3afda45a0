//! Bulk FP8 conversion against the `float8` crate's, which converts one value at a time.

use criterion::{Criterion, Throughput};
use eightfold::{Fp8Format, fp8};
use half::f16;
use std::hint::black_box;

/// A head of 512 rows of 64 channels: it fits the second-level cache, so that the conversion is timed and not the memory.
const COUNT: usize = 512 * 64;

/// Values over the whole range of the format, subnormals and both signs among them.
fn values() -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..COUNT).map(|_| next() * (16.0 * next()).exp2()).collect()
}

fn encode(criterion: &mut Criterion) {
    let values = values();
    let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
    let mut codes = vec![0; COUNT];
    let mut group = criterion.benchmark_group("encode e4m3");
    group.throughput(Throughput::Elements(COUNT as u64));
    group.bench_function("eightfold f32", |b| {
        b.iter(|| fp8::encode_slice(Fp8Format::E4m3, black_box(&values), black_box(&mut codes)));
    });
    group.bench_function("eightfold f16", |b| {
        b.iter(|| fp8::encode_slice(Fp8Format::E4m3, black_box(&halves), black_box(&mut codes)));
    });
    group.bench_function("float8 f32", |b| {
        b.iter(|| {
            for (code, value) in black_box(&mut codes).iter_mut().zip(black_box(&values)) {
                *code = float8::F8E4M3::from_f32(*value).to_bits();
            }
        });
    });
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    let codes: Vec<u8> = (0..COUNT).map(|index| (index * 37 % 256) as u8).collect();
    let mut values = vec![0.0; COUNT];
    let mut group = criterion.benchmark_group("decode e4m3");
    group.throughput(Throughput::Elements(COUNT as u64));
    group.bench_function("eightfold f32", |b| {
        b.iter(|| fp8::decode_slice(Fp8Format::E4m3, black_box(&codes), black_box(&mut values)));
    });
    group.bench_function("float8 f32", |b| {
        b.iter(|| {
            for (value, code) in black_box(&mut values).iter_mut().zip(black_box(&codes)) {
                *value = float8::F8E4M3::from_bits(*code).to_f32();
            }
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    encode(&mut criterion);
    decode(&mut criterion);
    criterion.final_summary();
}
