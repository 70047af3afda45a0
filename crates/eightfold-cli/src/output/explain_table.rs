//! What would run for a problem, and why not the others: one row for each.

use super::{table, text};
use eightfold::Considered;
use eightfold::lab::cpu;
use eightfold_lab::choice::Choice;
use eightfold_lab::gates::promise;
use eightfold_lab::kernel::short_name;

/// The stage that is nearest to each candidate and the knobs that differ; `verbose` shows every knob and every reason whole.
pub fn render(choice: &Choice, verbose: bool) -> String {
    let Choice { problem, variant, considered } = choice;
    let name = |considered: &Considered| match verbose {
        true => considered.variant.to_string(),
        false => short_name(&considered.variant, problem.shape().head_dim, problem.mask()),
    };
    let mut rows = table(&["", "variant", "why"], true).with_words(1);
    for one in considered {
        let verb = if one.chosen { "runs" } else { "not" };
        let reason = if verbose { &one.reason } else { first_clause(&one.reason) };
        rows.add_row([verb, &name(one), reason]);
    }
    let how = match (variant.on_device(), variant.on_cpu()) {
        (Some(config), _) => config.describe(problem),
        (None, Ok(config)) => cpu::describe(&config, problem),
        (None, Err(_)) => String::new(),
    };
    let promise = variant.accuracy().map(|accuracy| format!("accuracy: {}\n", promise(accuracy))).unwrap_or_default();
    format!("problem: {problem}\n{}how: {how}\n{promise}", text(&rows))
}

/// What comes before the fix, and before the details; an argument's name is none of either.
fn first_clause(reason: &str) -> &str {
    let name = reason.split_once(": ").map_or(0, |(name, _)| if name.contains(' ') { 0 } else { name.len() + 2 });
    let end = [";", ": "].iter().filter_map(|mark| reason[name..].find(mark)).min();
    &reason[..end.map_or(reason.len(), |end| name + end)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::Problem;

    fn choice() -> Choice {
        let problem = Problem::new("1,8,512,64".parse().unwrap()).unwrap();
        let considered = |variant: &str, chosen, reason: &str| Considered {
            variant: variant.parse().unwrap(),
            chosen,
            reason: reason.into(),
        };
        let all = vec![
            considered("cpu:avx512", true, "the widest SIMD level of this CPU; exact to f32"),
            considered("cpu:avx2,tile_keys=512", false, "narrower than avx512"),
            considered("hopper:fast", false, "CUDA is not available: there is no driver; install it"),
        ];
        Choice { problem, variant: all[0].variant, considered: all }
    }

    #[test]
    fn one_line_for_each_candidate() {
        let text = render(&choice(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[2], "  runs  cpu:avx512              the widest SIMD level of this CPU");
        assert_eq!(lines[3], "  not   cpu:avx2,tile_keys=512  narrower than avx512");
        assert_eq!(lines[4], "  not   hopper:fast,flight=2    CUDA is not available");
    }

    #[test]
    fn where_a_mode_is_not_as_exact_as_its_figure_is_said() {
        let Choice { problem, considered, .. } = choice();
        let precise = Choice { problem, variant: "hopper:precise".parse().unwrap(), considered };
        let text = render(&precise, false);
        let line = text.lines().find(|line| line.starts_with("accuracy: precise")).unwrap();
        assert!(line.contains("3.0e-3") && line.contains("biased-v") && line.contains("key-channels"), "{line}");
        // A kernel without modes has none.
        assert!(!render(&choice(), false).contains("accuracy:"));
    }

    #[test]
    fn a_refusal_is_told_with_its_rule() {
        assert_eq!(first_clause("window: hopper computes none; use the cpu"), "window: hopper computes none");
        assert_eq!(first_clause("CUDA is not available: no driver; install it"), "CUDA is not available");
        assert_eq!(first_clause("narrower than avx512"), "narrower than avx512");
    }

    #[test]
    fn verbose_shows_every_knob_and_every_reason() {
        let text = render(&choice(), true);
        for said in ["tile_queries=64", "tile_keys=512", "no driver", "install it"] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
