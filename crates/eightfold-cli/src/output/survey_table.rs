//! What a survey of the plan found.

use super::numbers::time;
use super::{table, text};
use eightfold::{Mask, Variant};
use eightfold_lab::kernel::{recorded, short_name};
use eightfold_lab::record::{Group, Record};
use eightfold_lab::survey;

/// A row for each problem, and what better picks would be worth.
pub fn render(record: &Record) -> String {
    let mut shown = table(&["problem", "plan", "p50", "better", "speed-up"], true).with_words(1);
    for group in &record.groups {
        shown.add_row(row(group));
    }
    let part =
        |aside: bool| record.groups.iter().filter(move |group| survey::is_aside(group).unwrap_or(false) == aside);
    let words = |title: &str, aside: bool| {
        let (mean, better, all) = survey::worth(part(aside));
        let better = format!("on {better} of {all} problems something was surely faster");
        if all > 0 { format!("  {title}: {better}; picking it would be worth {mean:.3}×\n") } else { String::new() }
    };
    format!("{}{}{}", text(&shown), words("searched", false), words("kept aside", true))
}

fn row(group: &Group) -> [String; 5] {
    let name = |text: &str| {
        let mask = Mask::causal_if(group.problem.causal);
        let variant: Option<Variant> = recorded(text).ok();
        variant.map_or_else(|| text.to_string(), |variant| short_name(&variant, group.problem.head_dim, mask))
    };
    let plan = group.entries.first();
    let gain = survey::gain(group);
    let better = group.entries.get(1).filter(|_| gain.is_some()).map(|entry| entry.name.clone());
    [
        group.problem.title(&group.shape),
        plan.map_or_else(String::new, |plan| name(&plan.implementation)),
        time(plan.and_then(|plan| plan.p50_us())),
        better.unwrap_or_else(|| "–".into()),
        gain.map_or("–".into(), |gain| format!("{:.3}× ({:.3} to {:.3})", gain.ratio, gain.lower, gain.upper)),
    ]
}
