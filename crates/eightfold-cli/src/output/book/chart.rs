//! The chart of the README: TFLOP/s of ours and of the best peers.

use super::{NONE, error, of, p50, peers_of, separate_us, shape, time};
use eightfold_lab::archive::Filed;
use eightfold_lab::record::{Group, Kind};
use std::fmt::Write;

/// The shapes of the chart, as records call them.
pub(super) const CHARTED: [&str; 6] =
    ["mission", "long", "4,16,4096,64", "2,16,2048,128", "4,16,4096,128", "2,16,16384,128"];

/// The groups of the chart and their record.
pub(super) fn flagship(filed: &[Filed]) -> Option<(&Filed, Vec<&Group>)> {
    let plain = |group: &&Group| peers_of(group) && !group.problem.causal;
    let one = of(filed, "hopper", Kind::Bench)
        .filter(|filed| filed.record.groups.iter().any(|group| plain(&group)))
        .last()?;
    let groups =
        CHARTED.iter().filter_map(|name| one.record.groups.iter().filter(plain).find(|group| group.shape == *name));
    Some((one, groups.collect()))
}

/// A contestant of the chart: its name in records (none for ours), its title, its colour.
type Contestant = (&'static str, &'static str, &'static str);

/// Ours, and peers in the order in which they are shown.
const CONTESTANTS: [Contestant; 5] = [
    ("", "Eightfold FP8, fast", "#1f6feb"),
    ("triton-fp8", "Triton FP8", "#8c959f"),
    ("cudnn-fp8", "cuDNN FP8", "#bf8700"),
    ("torch-cudnn", "cuDNN bf16", "#b6bec7"),
    ("torch-flash", "FlashAttention-2 bf16", "#d9dee3"),
];

/// As many as there is room for, of those that were measured.
fn shown(groups: &[&Group]) -> Vec<Contestant> {
    let ran = |name: &str| name.is_empty() || groups.iter().any(|group| p50(group, name).is_some());
    CONTESTANTS.into_iter().filter(|(name, ..)| ran(name)).take(4).collect()
}

const INK: &str = "#1f2328";
const QUIET: &str = "#57606a";
/// Pixels of the longest bar, and of one contestant and one shape from top to bottom.
const LONGEST: f64 = 540.0;
const ROW: usize = 19;
const SHAPE: usize = 92;

/// TFLOP/s of ours and of the three fastest peers, as bars, with the errors of each.
pub(super) fn draw(filed: &[Filed]) -> String {
    let Some((from, groups)) = flagship(filed) else { return String::new() };
    let contestants = shown(&groups);
    let entry = |group: &'_ Group, name: &str| {
        let name = if name.is_empty() { group.entries[0].name.clone() } else { name.into() };
        group.entries.iter().find(|entry| entry.name == name).cloned()
    };
    let rate = |group: &Group, us: f64| group.problem.gflop / us * 1e3;
    let rates = groups.iter().flat_map(|group| {
        let us = contestants.iter().filter_map(|(name, ..)| entry(group, name)?.p50_us());
        us.map(|us| rate(group, us)).collect::<Vec<_>>()
    });
    let most = rates.fold(1.0, f64::max);
    let height = 134 + groups.len() * SHAPE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 880 {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"880\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\" fill=\"{INK}\">Attention forward on {}: TFLOP/s, higher is better</text>\n",
        from.device()
    );
    for (index, (name, title, colour)) in contestants.iter().enumerate() {
        let x = 16 + index * 214;
        let of = |group: &&Group| entry(group, name)?.worst_relative_l2();
        let errors: Vec<f64> = groups.iter().filter_map(of).collect();
        let [least, most] =
            [errors.iter().copied().reduce(f64::min), errors.iter().copied().reduce(f64::max)].map(error);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"40\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{0}\" y=\"51\" fill=\"{INK}\">{title}</text>\n\
             <text x=\"{0}\" y=\"68\" font-size=\"11\" fill=\"{QUIET}\">relative L2 error {least} to {most}</text>",
            x + 18
        );
    }
    for (row, group) in groups.iter().enumerate() {
        let top = 86 + row * SHAPE;
        let _ = writeln!(
            svg,
            "<text x=\"190\" y=\"{}\" text-anchor=\"end\" fill=\"{INK}\">{}</text>",
            top + 42,
            shape(group)
        );
        for (index, (name, _, colour)) in contestants.iter().enumerate() {
            let y = top + index * ROW;
            let entry = entry(group, name);
            let (width, label) = match entry.as_ref().and_then(|entry| entry.p50_us()) {
                Some(us) => (LONGEST * rate(group, us) / most, format!("{:.0} ({})", rate(group, us), time(Some(us)))),
                None => (0.0, NONE.into()),
            };
            let _ = writeln!(
                svg,
                "<rect x=\"200\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\" fill=\"{INK}\">{label}</text>",
                206.0 + width,
                y + 13
            );
            // Where launches overlap, the bar without that ends at the mark.
            if let Some(us) = entry.filter(|entry| entry.separate_timing.is_some()).as_ref().and_then(separate_us) {
                let x = 200.0 + LONGEST * rate(group, us) / most;
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{}\" stroke=\"{INK}\" stroke-width=\"2\"/>",
                    y + 16
                );
            }
        }
    }
    let overlap = match groups.iter().any(|group| group.entries[0].separate_timing.is_some()) {
        true => "The black mark is ours without overlap of launches.",
        false => "Small launches of ours overlap; those of peers do not.",
    };
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{}\" font-size=\"11\" fill=\"{QUIET}\">Medians by graph replay, no mask. {overlap} Outputs: {}.</text>\n\
         <text x=\"16\" y=\"{}\" font-size=\"11\" fill=\"{QUIET}\">Record {}, commit {}, {}.</text>\n</svg>",
        height - 26,
        groups[0].outputs().trim_start_matches("outputs in "),
        height - 10,
        from.name,
        from.short_commit(),
        from.date()
    );
    svg
}
