//! Which config this machine runs best, and why not the others.

use super::attend;
use super::config::{Config, Exp, Numbers, Schedule, Simd};
use super::isa;
use super::schedule::Cut;
use crate::problem::Problem;
use crate::select::Considered;
use crate::variant::Variant;

/// Query rows per head of K and V from which fixed point pays: packing K and V costs more for it than for f32, and
/// fewer rows do not earn that back. Measured: at 8 rows (1,32,4,1,8192,128) f32 is ahead, at 32 (1,8,32,64) they tie.
const MIN_INT_ROWS: usize = 32;

/// The config for a problem on this machine.
pub fn best(problem: &Problem) -> Config {
    best_for(problem.shape().query_len * problem.shape().group())
}

/// The config for this many query rows per head of K and V.
pub(super) fn best_for(rows_per_head: usize) -> Config {
    let simd = isa::best();
    Config {
        numbers: if pairs_pay(simd) && rows_per_head >= MIN_INT_ROWS { Numbers::Int16 } else { Numbers::F32 },
        simd,
        exp: Exp::Polynomial,
        schedule: Schedule::Queue,
        tile_queries: 64,
        tile_keys: 256,
    }
}

/// The integer path lives from an instruction that multiplies pairs of i16 and adds them; lanes that are left to
/// the compiler do not reliably become it, and are then slower than f32.
fn pairs_pay(simd: Simd) -> bool {
    matches!(simd, Simd::Avx2 | Simd::Avx512)
}

/// Every combination of SIMD level and numbers, whether it is chosen for the problem, and why or why not.
pub(crate) fn consider(problem: &Problem) -> Vec<Considered> {
    let rows = problem.shape().query_len * problem.shape().group();
    let best = best_for(rows);
    let mut considered = Vec::new();
    for &simd in Simd::ALL.iter().rev() {
        for &numbers in Numbers::ALL.iter().rev() {
            let exp = if simd == Simd::Scalar { Exp::Exact } else { best.exp };
            let config = Config { numbers, simd, exp, ..best };
            if config.check().is_ok() {
                let reason = match config.check_machine() {
                    Err(error) => error.to_string(),
                    Ok(()) => reason(&config, &best, rows),
                };
                considered.push(Considered { variant: Variant::Cpu(config), chosen: config == best, reason });
            }
        }
    }
    considered
}

fn reason(config: &Config, best: &Config, rows: usize) -> String {
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
        (Numbers::F32, true) => "f32, since 16-bit products do not pay here".into(),
        (Numbers::F32, false) => "exact to f32, with half the products per instruction".into(),
    };
    if config == best { format!("the widest SIMD level of this CPU; {why}") } else { why }
}

/// How the problem will be cut and what memory each thread keeps.
pub fn describe(config: &Config, problem: &Problem) -> String {
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
        assert_eq!(best_for(8).numbers, Numbers::F32);
        if pairs_pay(isa::best()) {
            assert_eq!(best_for(512).numbers, Numbers::Int16);
        }
    }
}
