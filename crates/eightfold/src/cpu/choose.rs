//! Which config this machine runs best, and why not the others.

use super::config::{Config, Exp, Numbers, Schedule, Simd};
use super::isa::{self, Features};
use super::path::tiles::Missing;
use super::schedule::Partition;
use super::scratch;
use super::stages::AMX;
use crate::problem::{Accuracy, Problem};
use crate::select::Considered;
use crate::variant::Variant;

/// Query rows per head of K and V from which fixed point pays: packing K and V costs more for it than for f32, and
/// fewer rows do not earn that back. Measured: at 8 rows (1,32,4,1,8192,128) f32 is ahead, at 32 (1,8,32,64) they tie.
const MIN_INT_ROWS: usize = 32;

/// Query rows per head of K and V from which tiles pay: as many as they take together. Not measured.
const MIN_TILE_ROWS: usize = 32;

/// Keys of a tile in fixed point, and where they do not leave the second-level cache room. Measured on a CPU with 1 MiB of it:
/// 512 are ahead of 256 by 1 to 7 % at head dims 64, 128 and 256; more than 512 are not precise enough.
const INT_TILE_KEYS: [usize; 2] = [512, 256];

/// Keys of a tile in f32. With few query rows, as f32 is chosen for, nothing is packed, and tiles matter little.
const FLOAT_TILE_KEYS: usize = 256;

const TILE_QUERIES: usize = 64;

/// Query rows per head of K and V.
fn rows_per_head(problem: &Problem) -> usize {
    problem.shape().query_len * problem.shape().group()
}

/// The config for a problem on this machine.
pub fn best(problem: &Problem) -> Config {
    best_with(problem, Features::detect().amx.is_ok())
}

/// The config for a problem on this machine, were it with or without AMX.
fn best_with(problem: &Problem, amx: bool) -> Config {
    let rows = rows_per_head(problem);
    let tiles = amx && rows >= MIN_TILE_ROWS;
    if tiles { in_tiles(problem) } else { best_without_tiles(rows, channels(problem)) }
}

/// The config for a problem in tiles: as exact as it asks for.
fn in_tiles(problem: &Problem) -> Config {
    let numbers = if problem.accuracy() == Accuracy::Precise { Numbers::Bf16x2 } else { Numbers::Bf16 };
    Config { numbers, ..AMX }
}

/// Channels of a row of K and one of V.
fn channels(problem: &Problem) -> usize {
    problem.shape().head_dim + problem.value_dims().head_dim
}

/// The config for this many query rows per head of K and V and this many channels of both, on a machine without AMX.
pub(super) fn best_without_tiles(rows_per_head: usize, channels: usize) -> Config {
    let simd = isa::best();
    let in_pairs = pairs_pay(simd) && rows_per_head >= MIN_INT_ROWS;
    Config {
        numbers: if in_pairs { Numbers::Int16 } else { Numbers::F32 },
        simd,
        exp: Exp::Polynomial,
        schedule: Schedule::Queue,
        tile_queries: TILE_QUERIES,
        tile_keys: if in_pairs { int_tile_keys(channels, isa::second_cache()) } else { FLOAT_TILE_KEYS },
    }
}

/// The keys of a tile of so many channels: what every tile of queries reads and writes again, packed K and V, scores and weights,
/// may take three quarters of the second-level cache.
fn int_tile_keys(channels: usize, second_cache: Option<usize>) -> usize {
    let [large, small] = INT_TILE_KEYS;
    let bytes = large * (channels * size_of::<i16>() + TILE_QUERIES * (size_of::<i32>() + size_of::<i16>()));
    if second_cache.is_some_and(|cache| bytes <= cache / 4 * 3) { large } else { small }
}

/// The integer path lives from an instruction that multiplies pairs of i16 and adds them; lanes that are left to
/// the compiler do not reliably become it, and are then slower than f32.
fn pairs_pay(simd: Simd) -> bool {
    matches!(simd, Simd::Avx2 | Simd::Avx512)
}

/// Every combination of SIMD level and numbers, whether it is chosen for the problem, and why or why not.
pub(crate) fn consider(problem: &Problem) -> Vec<Considered> {
    consider_with(problem, Features::detect().amx)
}

/// The same, were tiles there or missing.
fn consider_with(problem: &Problem, amx: std::result::Result<(), Missing>) -> Vec<Considered> {
    let best = best_with(problem, amx.is_ok());
    let without_tiles = best_without_tiles(rows_per_head(problem), channels(problem));
    let mut considered = Vec::new();
    for &simd in Simd::ALL.iter().rev().filter(|simd| **simd != Simd::AmxTwin) {
        for &numbers in Numbers::ALL.iter().rev() {
            let exp = if simd == Simd::Scalar { Exp::Exact } else { Exp::Polynomial };
            let like = if simd == Simd::Amx { AMX } else { without_tiles };
            let config = Config { numbers, simd, exp, ..like };
            if config.check().is_ok() {
                let missing = match simd {
                    Simd::Amx => amx.err().map(|missing| missing.to_string()),
                    _ => config.check_machine().err().map(|error| error.to_string()),
                };
                let reason = missing.unwrap_or_else(|| reason(&config, &best, problem));
                considered.push(Considered { variant: Variant::Cpu(config), chosen: config == best, reason });
            }
        }
    }
    considered
}

fn reason(config: &Config, best: &Config, problem: &Problem) -> String {
    let rows = rows_per_head(problem);
    if config.simd == Simd::Amx {
        return match (config.numbers, config == best) {
            (_, false) if rows < MIN_TILE_ROWS => {
                format!("tiles take {MIN_TILE_ROWS} query rows together, and a head has {rows}")
            }
            (Numbers::Bf16x2, true) => {
                "AMX tiles; FP8 codes are exact in bf16, and each weight is the sum of two".into()
            }
            (_, true) => "AMX tiles; FP8 codes are exact in bf16, and weights are rounded to it".into(),
            (Numbers::Bf16x2, false) => format!("more exact than accuracy={} asks for", problem.accuracy()),
            (_, false) => format!("less exact than accuracy={} asks for", problem.accuracy()),
        };
    }
    if best.simd == Simd::Amx && config.simd == isa::best() {
        return "fewer products per instruction than tiles of bf16".into();
    }
    if config.simd != best.simd {
        return format!("narrower than {}", best.simd);
    }
    let why = match (config.numbers, config == best) {
        (Numbers::Int16, true) => {
            "16-bit products, two per lane and instruction, with f32 for tiles where rounding would show".into()
        }
        (Numbers::Int16, false) if pairs_pay(config.simd) => {
            format!("packing K and V for it does not pay for {rows} query rows a head (from {MIN_INT_ROWS} on it does)")
        }
        (Numbers::Int16, false) => "the compiler finds no instruction for pairs of 16-bit products here".into(),
        (_, true) => "f32, since 16-bit products do not pay here".into(),
        (_, false) => "exact to f32, with half the products per instruction".into(),
    };
    if config == best { format!("the widest SIMD level of this CPU; {why}") } else { why }
}

/// How the problem will be partitioned and what memory each thread keeps.
pub fn describe(config: &Config, problem: &Problem) -> String {
    let partition = Partition::choose(problem, config.schedule, rayon::current_num_threads());
    let shape = problem.shape();
    let count = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    format!(
        "{}; {}, each cut into {} by {}; at most {} KiB of working memory per thread",
        count(partition.threads, "thread", "threads"),
        count(shape.batch * shape.kv_heads, "head of K and V", "heads of K and V"),
        count(partition.query_blocks, "block of queries", "blocks of queries"),
        count(partition.key_splits, "range of keys", "ranges of keys"),
        scratch::working_bytes(config, problem).div_ceil(1024),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Shape;

    #[test]
    fn exactly_one_candidate_is_chosen_and_it_runs_here() {
        for shape in ["1,8,512,64", "1,32,4,1,8192,128", "1,1,1,8"] {
            let problem = Problem::new(shape.parse::<Shape>().unwrap()).unwrap();
            let chosen: Vec<_> = consider(&problem).into_iter().filter(|one| one.chosen).collect();
            assert_eq!(chosen.len(), 1, "{shape}");
            assert_eq!(chosen[0].variant, Variant::Cpu(best(&problem)), "{shape}");
            assert!(best(&problem).check_machine().is_ok(), "{shape}");
        }
    }

    #[test]
    fn few_rows_are_left_to_f32() {
        assert_eq!(best_without_tiles(8, 128).numbers, Numbers::F32);
        if pairs_pay(isa::best()) {
            assert_eq!(best_without_tiles(512, 128).numbers, Numbers::Int16);
        }
    }

    #[test]
    fn tiles_of_keys_are_as_large_as_the_second_cache_allows() {
        const KIB: usize = 1024;
        for (channels, cache, keys) in [
            (2 * 64, Some(512 * KIB), 512),
            (2 * 128, Some(512 * KIB), 256),
            (2 * 256, Some(1024 * KIB), 512),
            (2 * 256, Some(512 * KIB), 256),
            (2 * 64, Some(256 * KIB), 256),
            (2 * 8, None, 256),
        ] {
            assert_eq!(int_tile_keys(channels, cache), keys, "{channels} channels, {cache:?} bytes");
        }
        let here = isa::second_cache();
        assert!(here.is_none_or(|bytes| (64 * KIB..=1 << 28).contains(&bytes)), "{here:?}");
        assert!(here.is_some() || !cfg!(target_arch = "x86_64"), "every CPU with AVX2 tells");
    }

    #[test]
    fn with_amx_tiles_are_chosen_by_accuracy_and_few_rows_are_left_to_the_others() {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        for (accuracy, numbers) in [
            (Accuracy::Fast, Numbers::Bf16),
            (Accuracy::Balanced, Numbers::Bf16),
            (Accuracy::ExactExp, Numbers::Bf16),
            (Accuracy::Precise, Numbers::Bf16x2),
        ] {
            let problem = problem.with_accuracy(accuracy);
            let best = best_with(&problem, true);
            assert_eq!((best.simd, best.numbers, best.check()), (Simd::Amx, numbers, Ok(())), "{accuracy}");
            let considered = consider_with(&problem, Ok(()));
            let chosen: Vec<_> = considered.iter().filter(|one| one.chosen).collect();
            assert_eq!((chosen.len(), chosen[0].variant), (1, Variant::Cpu(best)), "{accuracy}");
            let of = |name: &str| {
                let of_name = |one: &&Considered| one.variant.to_string().contains(name);
                considered.iter().find(of_name).unwrap().reason.as_str()
            };
            assert!(chosen[0].reason.starts_with("AMX tiles; "), "{accuracy}");
            assert!(!considered.iter().any(|one| one.variant.to_string().contains("twin")));
            let other =
                if numbers == Numbers::Bf16 { ("bf16x2", "more exact than") } else { ("bf16,", "less exact than") };
            assert!(of(other.0).starts_with(other.1), "{accuracy}: {}", of(other.0));
            assert_eq!(of(&format!("simd={}", isa::best())), "fewer products per instruction than tiles of bf16");
        }
        let few = Problem::new("1,32,4,1,8192,128".parse().unwrap()).unwrap();
        assert_eq!(best_with(&few, true), best_without_tiles(8, 256));
        let considered = consider_with(&few, Ok(()));
        let tiles = considered.iter().find(|one| one.variant.to_string().contains("simd=amx")).unwrap();
        assert_eq!(tiles.reason, "tiles take 32 query rows together, and a head has 8");
    }

    #[test]
    fn where_tiles_are_refused_the_next_path_runs_and_the_reason_is_told() {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        for missing in [Missing::Instructions, Missing::Vectors, Missing::System, Missing::Refused(28)] {
            let considered = consider_with(&problem, Err(missing));
            let chosen: Vec<_> = considered.iter().filter(|one| one.chosen).map(|one| one.variant).collect();
            assert_eq!(chosen, [Variant::Cpu(best_without_tiles(512, 128))], "{missing}");
            let tiles = considered.iter().filter(|one| one.variant.to_string().contains("simd=amx"));
            assert!(tiles.clone().count() == 2 && tiles.into_iter().all(|one| one.reason == missing.to_string()));
        }
    }
}
