//! The least time that any kernel could take on a device. A time below it is impossible; a time is so much percent of it.

use crate::measure::Cache;
use crate::numbers;
use crate::provenance::Gpu;
use crate::record::ProblemRecord;
use eightfold::cuda::driver::Device;
use eightfold::lab::cpu::Features;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// What a device does in a second, at most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Peaks {
    /// Additions and multiplications, in the narrowest numbers that attention is computed in here.
    pub flop_per_second: f64,
    /// Bytes to and from its memory; none where that is not known.
    pub bytes_per_second: Option<f64>,
    /// Bytes that may never go to memory because a cache holds them; none where that is not known.
    pub cache_bytes: Option<usize>,
    /// Where the rates come from.
    pub from: String,
}

/// The least time for a problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// The time.
    pub floor_us: f64,
    /// What takes it, and at which rate.
    pub by: String,
}

impl Peaks {
    /// Those of this machine's default GPU, or of its CPU on this pool's threads.
    pub fn here(on_gpu: bool) -> Option<Peaks> {
        if on_gpu {
            Peaks::of_gpu(&Gpu::from(&Device::default().ok()?))
        } else {
            Peaks::of_cpu(rayon::current_num_threads())
        }
    }

    /// A GPU's, at its highest clock.
    pub fn of_gpu(gpu: &Gpu) -> Option<Peaks> {
        // Dense FP8 rate of the tensor cores, of f16 where they have no FP8: from the data sheets of H200, L4 and A100.
        let (per_clock, format) = match gpu.arch.as_str() {
            "sm_90" => (8192.0, "FP8"),
            "sm_89" => (2048.0, "FP8"),
            "sm_80" => (2048.0, "f16"),
            _ => return None,
        };
        let hertz = gpu.clock_khz as f64 * 1e3;
        // Two transfers in a clock, on every line of the bus.
        let memory = gpu.memory_clock_khz as f64 * 1e3 * 2.0 * gpu.memory_bus_bits as f64 / 8.0;
        Some(Peaks {
            flop_per_second: gpu.multiprocessors as f64 * per_clock * hertz,
            bytes_per_second: (memory > 0.0).then_some(memory),
            cache_bytes: Some(gpu.l2_bytes),
            from: format!(
                "{} multiprocessors × {per_clock} {format} FLOP × {:.2} GHz",
                gpu.multiprocessors,
                hertz / 1e9
            ),
        })
    }

    /// The CPU's, on so many threads, at the clock that it runs at now.
    fn of_cpu(threads: usize) -> Option<Peaks> {
        let features = Features::detect();
        let per_clock = match features {
            // One product of tiles, 16 × 16 sums over 32 bf16, in 16 clocks.
            Features { amx: Ok(()), .. } => 1024.0,
            // Two units that each multiply and add 16-bit numbers, in pairs, over a whole register.
            Features { avx512: true, .. } => 128.0,
            _ => 64.0,
        };
        let hertz = clock_hertz()?;
        Some(Peaks {
            flop_per_second: threads as f64 * per_clock * hertz,
            bytes_per_second: None,
            cache_bytes: None,
            from: format!("{threads} threads × {per_clock} 16-bit operations × {:.2} GHz", hertz / 1e9),
        })
    }
}

/// The clock of the core that this runs on, measured by instructions that each wait for the one before; none where their
/// latency is not known.
fn clock_hertz() -> Option<f64> {
    /// Cycles of a multiplication and of an exclusive or after it.
    const CYCLES: f64 = 4.0;
    const STEPS: u32 = 200_000;
    const TRIES: usize = 20;
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return None;
    }
    let run = || {
        let (factor, mask) = (black_box(0x9e37_79b9_7f4a_7c15_u64), black_box(0x5555_u64));
        let start = Instant::now();
        let mut value = black_box(1_u64);
        for _ in 0..STEPS {
            value = value.wrapping_mul(factor) ^ mask;
        }
        black_box(value);
        f64::from(STEPS) * CYCLES / start.elapsed().as_secs_f64()
    };
    // Whatever else runs on the core makes it look slower, and nothing makes it look faster.
    (0..TRIES).map(|_| run()).reduce(f64::max)
}

impl Bound {
    /// The least time for a problem whose inputs are in the caches, or are not; none for an output format that is not
    /// known here.
    pub fn of(problem: &ProblemRecord, peaks: &Peaks, cache: Cache) -> Option<Bound> {
        let computing_us = problem.gflop * 1e9 / peaks.flop_per_second * 1e6;
        let computing = Bound {
            floor_us: computing_us,
            by: format!(
                "{:.3} GFLOP at {} ({})",
                problem.gflop,
                numbers::rate(peaks.flop_per_second / 1e9),
                peaks.from
            ),
        };
        let Bytes { inputs, outputs } = problem.least_bytes()?;
        let moved = match cache {
            Cache::Hot => (inputs + outputs).saturating_sub(peaks.cache_bytes.unwrap_or(usize::MAX)),
            // What is written may stay in a cache.
            Cache::Cold => inputs,
        };
        let Some(rate) = peaks.bytes_per_second else { return Some(computing) };
        let memory_us = moved as f64 / rate * 1e6;
        if memory_us <= computing_us {
            return Some(computing);
        }
        let by = format!("{} of memory at {:.2} TB/s", numbers::memory(moved), rate / 1e12);
        Some(Bound { floor_us: memory_us, by })
    }

    /// The share of the bound that a time reaches.
    pub fn share(&self, time_us: f64) -> f64 {
        self.floor_us / time_us
    }

    /// Why a time cannot be; none where it can.
    pub fn impossible(&self, time_us: f64) -> Option<String> {
        (time_us < self.floor_us).then(|| {
            format!(
                "impossible: {} is less than the {} that {} take",
                numbers::time(time_us),
                numbers::time(self.floor_us),
                self.by
            )
        })
    }
}

/// What any implementation has to move at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// FP8 inputs, each read once.
    pub inputs: usize,
    /// The output, written once.
    pub outputs: usize,
}

impl ProblemRecord {
    /// What any implementation has to move at least; none for an output format that is not known here.
    pub fn least_bytes(&self) -> Option<Bytes> {
        let output_bytes = match self.output_format.as_str() {
            "f32" => 4,
            "f16" | "bf16" => 2,
            _ => return None,
        };
        let rows = self.batch.checked_mul(self.query_heads)?.checked_mul(self.query_len)?;
        let value_dim = self.value_dim.unwrap_or(self.head_dim);
        let queries = rows.checked_mul(self.head_dim)?;
        let key_rows = self.batch.checked_mul(self.kv_heads)?.checked_mul(self.keys_seen()?)?;
        let lse = if self.lse { rows.checked_mul(4)? } else { 0 };
        Some(Bytes {
            inputs: queries.checked_add(key_rows.checked_mul(self.head_dim.checked_add(value_dim)?)?)?,
            outputs: rows.checked_mul(value_dim)?.checked_mul(output_bytes)?.checked_add(lse)?,
        })
    }

    /// The keys of a head that some query sees.
    fn keys_seen(&self) -> Option<usize> {
        match self.window {
            None => Some(self.key_len),
            Some(_) => {
                let problem = self.to_problem().ok()?;
                Some(problem.visible(self.query_len - 1).end - problem.visible(0).start)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::{Problem, Shape};

    fn problem(shape: Shape) -> ProblemRecord {
        let mut record = ProblemRecord::from(&Problem::new(shape).unwrap());
        record.output_format = "f16".into();
        record.lse = false;
        record
    }

    fn h200() -> Gpu {
        Gpu {
            name: "NVIDIA H200".into(),
            arch: "sm_90".into(),
            multiprocessors: 132,
            l2_bytes: 62_914_560,
            clock_khz: 1_980_000,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6016,
            ..Gpu::default()
        }
    }

    #[test]
    fn the_least_bytes_of_a_small_problem_by_hand() {
        let mut record = problem(Shape::new(1, 8, 32, 64));
        let elements = 8 * 32 * 64;
        assert_eq!(record.least_bytes(), Some(Bytes { inputs: 3 * elements, outputs: 2 * elements }));
        record.lse = true;
        assert_eq!(record.least_bytes().unwrap().outputs, 2 * elements + 4 * 8 * 32);
        record.output_format = "unheard-of".into();
        assert_eq!(record.least_bytes(), None);
        record.output_format = "f32".into();
        record.query_len = usize::MAX;
        assert_eq!(record.least_bytes(), None);
    }

    #[test]
    fn an_h200_by_its_own_data_sheet() {
        let peaks = Peaks::of_gpu(&h200()).unwrap();
        assert!((peaks.flop_per_second / 2.14e15 - 1.0).abs() < 0.01, "{peaks:?}");
        assert!((peaks.bytes_per_second.unwrap() / 4.8e12 - 1.0).abs() < 0.01, "{peaks:?}");
        assert_eq!(Peaks::of_gpu(&Gpu { arch: "sm_999".into(), ..h200() }), None);
    }

    #[test]
    fn memory_counts_where_the_inputs_are_not_in_a_cache() {
        let peaks = Peaks::of_gpu(&h200()).unwrap();
        // Decoding: little arithmetic for many bytes.
        let decoding = problem("1,32,4,1,8192,128".parse().unwrap());
        let hot = Bound::of(&decoding, &peaks, Cache::Hot).unwrap();
        let cold = Bound::of(&decoding, &peaks, Cache::Cold).unwrap();
        assert!(hot.by.contains("GFLOP at") && cold.by.contains("of memory at 4.81 TB/s"), "{} {}", hot.by, cold.by);
        assert!((cold.floor_us - 2.0 * 4.0 * 8192.0 * 128.0 / 4.81e6).abs() < 0.01, "{cold:?}");
        assert!(cold.floor_us > hot.floor_us);
        let long = Bound::of(&problem(Shape::new(2, 8, 2048, 64)), &peaks, Cache::Hot).unwrap();
        assert!((long.floor_us - 8.02).abs() < 0.02 && (long.share(62.1) - 0.129).abs() < 0.001, "{long:?}");
    }

    #[test]
    fn a_time_below_the_floor_is_impossible() {
        let bound = Bound { floor_us: 8.0, by: "17.2 GFLOP at 2 PFLOP/s".into() };
        assert_eq!(bound.impossible(8.0), None);
        let words = bound.impossible(4.0).unwrap();
        assert_eq!(words, "impossible: 4.00 µs is less than the 8.00 µs that 17.2 GFLOP at 2 PFLOP/s take");
    }

    #[test]
    fn the_clock_of_this_machine_is_one_that_machines_have() {
        let hertz = clock_hertz().unwrap_or(1e9);
        assert!((0.3e9..8e9).contains(&hertz), "{hertz}");
    }
}
