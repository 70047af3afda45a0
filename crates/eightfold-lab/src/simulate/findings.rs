//! What the simulator found, with places in the kernels' source.

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// race, deadlock, rule, bounds, unwritten, crash or time limit.
    pub kind: String,
    /// What, with files and lines under `kernels/`.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kind, self.text)
    }
}

/// Findings as the C++ side writes them: a kind, a colon, a text in which `{library+0xoffset}` stands for a place.
pub(super) fn parse(text: &str) -> Vec<Finding> {
    let places = resolve(text);
    let mut found: Vec<Finding> = Vec::new();
    for line in text.split('\u{1e}').map(str::trim_end).filter(|line| !line.is_empty()) {
        let (kind, rest) = line.split_once(": ").unwrap_or(("rule", line));
        let finding = Finding { kind: kind.to_owned(), text: with_places(rest, &places) };
        // What differed in addresses alone may be the same line.
        if !found.contains(&finding) {
            found.push(finding);
        }
    }
    found
}

fn with_places(text: &str, places: &BTreeMap<String, String>) -> String {
    let mut told = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (place, behind) = after.split_once('}').unwrap_or((after, ""));
        told += before;
        told += places.get(place).map_or("at an unknown place", String::as_str);
        rest = behind;
    }
    told + rest
}

/// Every place that a text names, by `addr2line`.
fn resolve(text: &str) -> BTreeMap<String, String> {
    let mut by_library: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for place in text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(place, _)| place) {
        if let Some((library, offset)) = place.rsplit_once('+') {
            let offsets = by_library.entry(library).or_default();
            if !offsets.contains(&offset) {
                offsets.push(offset);
            }
        }
    }
    let mut places = BTreeMap::new();
    for (library, offsets) in by_library {
        for offset in offsets {
            let said = Command::new("addr2line").args(["-i", "-e", library, offset]).output();
            let frames = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
            places.insert(format!("{library}+{offset}"), lines_of(&frames).unwrap_or_else(|| format!("at {offset}")));
        }
    }
    places
}

/// The frames in the kernels' own files, innermost first; at most three.
fn lines_of(frames: &str) -> Option<String> {
    const SHOWN: usize = 3;
    let own = |line: &str| {
        let at = ["hopper/", "ladder/", "paged/", "quantize/"].iter().filter_map(|folder| line.rfind(folder)).max()?;
        let place = line[at..].split(" (").next()?;
        (!place.ends_with('?')).then(|| place.to_owned())
    };
    let mut lines: Vec<String> = frames.lines().filter_map(own).collect();
    lines.dedup();
    lines.truncate(SHOWN);
    (!lines.is_empty()).then(|| lines.join(" < "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_files_and_lines_of_kernels() {
        let frames =
            "./device/ptx/wgmma.cuh:19\n./hopper/scores.cuh:151 (discriminator 3)\n./hopper/attention.cu:142\n??:?\n";
        assert_eq!(lines_of(frames), Some("hopper/scores.cuh:151 < hopper/attention.cu:142".into()));
        assert_eq!(lines_of("??:0\n"), None);
    }

    #[test]
    fn findings_are_split_and_told_once() {
        let places = BTreeMap::from([("a.so+0x1".to_owned(), "hopper/a.cu:3".to_owned())]);
        assert_eq!(with_places("x {a.so+0x1} then {b.so+0x2}.", &places), "x hopper/a.cu:3 then at an unknown place.");
        let found = parse("race: one\n\u{1e}deadlock: nobody\n    3 threads\n\u{1e}race: one\n\u{1e}");
        assert_eq!(found.iter().map(|finding| finding.kind.as_str()).collect::<Vec<_>>(), ["race", "deadlock"]);
        assert_eq!(found[1].text, "nobody\n    3 threads");
    }
}
