//! Which config this machine runs best, and why not the others.

use super::attend;
use super::config::{Config, Exp, Numbers, Schedule, Simd};
use super::isa;
use super::schedule::Cut;
use crate::problem::Problem;

/// The config that is chosen unless one is named.
pub(super) fn best() -> Config {
    let simd = isa::best();
    Config {
        numbers: best_numbers(simd),
        simd,
        exp: Exp::Polynomial,
        schedule: Schedule::Queue,
        tile_queries: 64,
        tile_keys: 256,
    }
}

/// The integer path lives from an instruction that multiplies pairs of i16 and adds them; lanes that are left to
/// the compiler do not reliably become it, and are then slower than f32.
fn best_numbers(simd: Simd) -> Numbers {
    match simd {
        Simd::Scalar | Simd::Portable => Numbers::F32,
        Simd::Avx2 | Simd::Avx512 => Numbers::Int16,
    }
}

/// Every combination of SIMD level and numbers, whether it is chosen, and why or why not.
pub(crate) fn candidates() -> Vec<(Config, bool, String)> {
    let best = best();
    let mut candidates = Vec::new();
    for &simd in Simd::ALL.iter().rev() {
        for &numbers in Numbers::ALL.iter().rev() {
            let exp = if simd == Simd::Scalar { Exp::Exact } else { best.exp };
            let config = Config { numbers, simd, exp, ..best };
            if config.check().is_ok() {
                let reason = match config.check_machine() {
                    Err(error) => error.to_string(),
                    Ok(()) => reason(&config, &best),
                };
                candidates.push((config, config == best, reason));
            }
        }
    }
    candidates
}

fn reason(config: &Config, best: &Config) -> String {
    if config == best {
        let numbers = match config.numbers {
            Numbers::F32 => "f32, since 16-bit products need an instruction of their own",
            Numbers::Int16 => {
                "16-bit products, two per lane and instruction, with f32 for tiles where rounding would show"
            }
        };
        return format!("the widest SIMD level of this CPU; {numbers}");
    }
    if config.simd != best.simd {
        return format!("narrower than {}", best.simd);
    }
    match config.numbers {
        Numbers::F32 => "exact to f32, with half the products per instruction".into(),
        Numbers::Int16 => "the compiler finds no instruction for pairs of 16-bit products here".into(),
    }
}

/// How the problem will be cut and what memory each thread keeps.
pub(crate) fn describe(config: &Config, problem: &Problem) -> String {
    let cut = Cut::choose(problem, config.schedule, rayon::current_num_threads());
    let shape = problem.shape();
    let count = |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
    format!(
        "{}; {}, each cut into {} by {}; at most {} KiB of working memory per thread",
        count(cut.threads, "thread", "threads"),
        count(shape.batch * shape.kv_heads, "head of K and V", "heads of K and V"),
        count(cut.query_blocks, "block of queries", "blocks of queries"),
        count(cut.key_splits, "range of keys", "ranges of keys"),
        attend::working_bytes(config, problem).div_ceil(1024),
    )
}
