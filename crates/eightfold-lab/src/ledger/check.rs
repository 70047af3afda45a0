//! The rules of a ledger: every stage has its entry, ranges say something, claims have arithmetic, optimisations can be
//! measured.

use super::{Ledger, OptimisationEntry, Origin, Prediction, StageEntry, stages};
use crate::choice;
use crate::kernel::Kernel;
use crate::shapes;
use eightfold::cuda::{Arch, Operands};
use eightfold::{Error, Problem, Result, Variant};

/// A range whose ends are further apart predicts nothing.
const WIDEST_RANGE: f64 = 2.0;

/// An error that names the first rule that is broken.
pub(super) fn check(ledger: &Ledger, kernel: Kernel) -> Result<()> {
    let file = format!("{kernel}.toml");
    check_rates(ledger, &file)?;
    check_order(ledger, kernel, &file)?;
    for (index, entry) in ledger.stages.iter().enumerate() {
        let broken = |(rule, fix): Broken| Error::invalid("ledger", format!("{file}: {}: {rule}", entry.name), fix);
        check_words(entry).map_err(broken)?;
        check_shape(&entry.shape).map_err(broken)?;
        match &entry.prediction {
            None if index > 0 => return Err(broken(("has no prediction".into(), "say what it should gain, and why"))),
            Some(_) if index == 0 => {
                return Err(broken(("is first, so there is nothing to gain over".into(), "take its prediction out")));
            }
            Some(prediction) => check_prediction(prediction).map_err(broken)?,
            None => {}
        }
        check_arithmetic(ledger, entry).map_err(broken)?;
    }
    for (index, entry) in ledger.optimisations.iter().enumerate() {
        let twice = ledger.optimisations[..index].iter().any(|other| other.name == entry.name);
        check_optimisation(entry, kernel, twice)
            .map_err(|(rule, fix)| Error::invalid("ledger", format!("{file}: {}: {rule}", entry.name), fix))?;
    }
    Ok(())
}

/// The rule, and what to do about it.
type Broken = (String, &'static str);

fn check_rates(ledger: &Ledger, file: &str) -> Result<()> {
    for (index, rate) in ledger.rates.iter().enumerate() {
        let broken =
            |rule: &str, fix: &str| Err(Error::invalid("ledger", format!("{file}: rate `{}` {rule}", rate.name), fix));
        if ledger.rates[..index].iter().any(|other| other.name == rate.name) {
            return broken("is given twice", "keep one");
        }
        if !is_product(&rate.factors) {
            return broken("needs factors, finite and above 0", "give the numbers that multiply to it");
        }
        if rate.from.trim().is_empty() || rate.unit.trim().is_empty() {
            return broken("needs a unit and `from`", "say what is counted, and what the factors are");
        }
    }
    Ok(())
}

fn check_order(ledger: &Ledger, kernel: Kernel, file: &str) -> Result<()> {
    let expected: Vec<&str> = stages(kernel).into_iter().map(|(name, _)| name).collect();
    let found: Vec<&str> = ledger.stages.iter().map(|entry| entry.name.as_str()).collect();
    let place = (0..expected.len().max(found.len())).find(|&place| expected.get(place) != found.get(place));
    let Some(place) = place else { return Ok(()) };
    let name = |names: &[&str]| names.get(place).map_or("nothing".to_string(), |name| format!("`{name}`"));
    let rule = format!("{file}: entry {} is {}, where the ladder has {}", place + 1, name(&found), name(&expected));
    Err(Error::invalid("ledger", rule, "give every stage exactly one entry, in the ladder's order"))
}

fn check_words(entry: &StageEntry) -> std::result::Result<(), Broken> {
    if entry.risk.trim().is_empty() || entry.fallback.trim().is_empty() {
        return Err(("has no risk or no fallback".into(), "say what could go wrong, and what to do then"));
    }
    Ok(())
}

fn check_prediction(prediction: &Prediction) -> std::result::Result<(), Broken> {
    let Prediction { least, most, origin, moves, because } = prediction;
    if !(least.is_finite() && most.is_finite() && *least > 0.0 && least <= most) {
        return Err((
            format!("predicts {least} to {most}"),
            "give two speed-ups above 0, the smaller one first: 1.1 is a tenth faster",
        ));
    }
    if most / least > WIDEST_RANGE {
        return Err((format!("predicts {least} to {most}, which says nothing"), "narrow it to a factor of two"));
    }
    if moves.trim().is_empty() || because.trim().is_empty() {
        return Err(("has a prediction without a reason".into(), "say what moves, and quote the forecast or count"));
    }
    if *origin == Origin::Arithmetic && !because.contains(|letter: char| letter.is_ascii_digit()) {
        return Err(("is predicted by arithmetic without a number".into(), "count it out"));
    }
    Ok(())
}

fn check_shape(shape: &str) -> std::result::Result<(), Broken> {
    if shapes::registry().iter().any(|known| known.name == shape) {
        return Ok(());
    }
    Err((format!("names the shape `{shape}`, which is not registered"), "take small, mission, mission_b2 or long"))
}

fn check_arithmetic(ledger: &Ledger, entry: &StageEntry) -> std::result::Result<(), Broken> {
    let StageEntry { floor_shape, bound, arithmetic, .. } = entry;
    if let Some(bound) = bound.as_ref().filter(|_| arithmetic.is_empty()) {
        return Err((format!("claims to be bound by `{bound}` without arithmetic"), "count it out, or claim nothing"));
    }
    match floor_shape {
        Some(shape) if arithmetic.is_empty() => {
            return Err((format!("has a floor at `{shape}` without arithmetic"), "count it out, or leave it away"));
        }
        Some(shape) => check_shape(shape)?,
        None if arithmetic.is_empty() => return Ok(()),
        None => return Err(("has arithmetic without floor_shape".into(), "say which shape is counted")),
    }
    let mut times = Vec::new();
    for term in arithmetic {
        if !is_product(&term.factors) || term.what.trim().is_empty() {
            return Err((format!("does not count what `{}` has to do", term.uses), "give factors and what they are"));
        }
        let Some(time_us) = ledger.time_us(term) else {
            return Err((format!("uses `{}`, of which no rate is given", term.uses), "name one of the rates"));
        };
        times.push((term.uses.as_str(), time_us));
    }
    let Some(bound) = bound else { return Ok(()) };
    let longest = times.iter().map(|(_, time_us)| *time_us).fold(0.0, f64::max);
    match times.iter().find(|(uses, _)| uses == bound) {
        None => Err((format!("claims to be bound by `{bound}`, which its arithmetic leaves out"), "count it")),
        Some((_, time_us)) if *time_us < longest => Err((
            format!("claims to be bound by `{bound}`, but its arithmetic has something that takes longer"),
            "claim that one, or nothing",
        )),
        Some(_) => Ok(()),
    }
}

fn check_optimisation(entry: &OptimisationEntry, kernel: Kernel, twice: bool) -> std::result::Result<(), Broken> {
    if entry.name.trim().is_empty() || twice {
        return Err(("is no name, or that of another optimisation".into(), "give each a name of its own"));
    }
    let problem = entry.problem().map_err(|error| {
        (format!("has a shape that is none: {error}"), "take a named shape, B,H,S,D or B,Hq,Hkv,Sq,Skv,D")
    })?;
    if entry.retired {
        return check_prediction(&entry.prediction);
    }
    let [without, with] = [("without", &entry.without), ("with", &entry.with)].map(|(side, text)| {
        entry.variant(text).and_then(|variant| check_variant(&variant, &problem, kernel).map(|()| variant)).map_err(
            |error| (format!("`{side}` cannot run there: {error}"), "give a variant that this kernel and shape allow"),
        )
    });
    let (without, with) = (without?, with?);
    if without == with {
        return Err(("is the same without and with it".into(), "set a knob differently"));
    }
    if without.accuracy() != with.accuracy() {
        let modes = [without, with].map(|one| one.accuracy().map_or("none".into(), |accuracy| accuracy.to_string()));
        let rule = format!("changes the accuracy, from {} to {}", modes[0], modes[1]);
        return Err((rule, "compare what computes the same: stages show the rest"));
    }
    if entry.lesson.as_ref().is_some_and(|lesson| lesson.trim().is_empty()) {
        return Err(("has a lesson without words".into(), "say what was learned, or leave it out"));
    }
    check_prediction(&entry.prediction)
}

/// Whether a variant of this kernel may compute the problem, with tensors as it hopes for, on a device that has all it needs.
fn check_variant(variant: &Variant, problem: &Problem, kernel: Kernel) -> Result<()> {
    if variant.kernel() != kernel.to_string() {
        let rule = format!("`{variant}` is a variant of {}", variant.kernel());
        return Err(Error::invalid("kernel", rule, format!("take one of {kernel}")));
    }
    let problem = choice::in_format_of(problem, variant);
    let on_device =
        |config: eightfold::lab::Config| config.check_uploaded(&problem, &Operands::assumed(&problem), Arch::Sm90);
    variant.on_device().map_or(Ok(()), on_device)
}

fn is_product(factors: &[f64]) -> bool {
    !factors.is_empty() && factors.iter().all(|factor| factor.is_finite() && *factor > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPU: &str = include_str!("../../ledger/cpu.toml");

    #[test]
    fn the_ledgers_keep_the_rules() {
        for kernel in Kernel::all() {
            let ledger = Ledger::of(kernel);
            assert_eq!(ledger.stages.len(), stages(kernel).len());
        }
    }

    /// The error after one change to a sound file.
    fn broken(from: &str, to: &str) -> String {
        assert!(CPU.contains(from), "the file no longer holds `{from}`");
        Ledger::parse(Kernel::CPU, &CPU.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn every_broken_rule_is_named() {
        let cases = [
            ("name = \"lanes\"", "name = \"lane\"", "entry 2 is `lane`, where the ladder has `lanes`"),
            ("prediction.least = 6.5", "prediction.least = 12.0", "lanes: predicts 12 to 11"),
            ("prediction.least = 6.5", "prediction.least = -1.0", "lanes: predicts -1 to 11"),
            ("prediction.least = 6.5", "prediction.least = nan", "lanes: predicts NaN to 11"),
            ("prediction.least = 6.5", "prediction.least = 1.0", "which says nothing"),
            ("shape = \"mission\"", "shape = \"misson\"", "`misson`, which is not registered"),
            ("prediction.origin = \"arithmetic\"", "prediction.origin = \"hope\"", "unknown variant `hope`"),
            ("risk = \"The compiler may not see the lanes, or spill them.\"", "risk = \" \"", "has no risk"),
            ("bound = \"one sum\"", "bound = \"memory\"", "`memory`, which its arithmetic leaves out"),
            ("uses = \"one sum\"", "uses = \"one chain\"", "`one chain`, of which no rate is given"),
            ("factors = [1, 8, 5.0e9]", "factors = []", "rate `4 lanes, one core` needs factors"),
            ("name = \"4 lanes\"", "name = \"one sum\"", "rate `one sum` is given twice"),
            ("threads = 2", "thread = 2", "unknown field `thread`"),
        ];
        for (from, to, expected) in cases {
            let error = broken(from, to);
            assert!(error.starts_with("ledger: cpu.toml") && error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn every_broken_rule_of_an_optimisation_is_named_with_it() {
        const HOPPER: &str = include_str!("../../ledger/hopper.toml");
        let sound = r#"
[[optimisations]]
name = "a try"
shape = "16,16,512,128"
without = "hopper:fast"
with = "hopper:fast,warpgroups=2,stages=2,sums=registers,flight=1"
prediction.least = 1.0
prediction.most = 1.1
prediction.origin = "arithmetic"
prediction.moves = "What waits."
prediction.because = "Of 3 us 1 is waiting."
"#;
        let parse = |text: &str| Ledger::parse(Kernel::HOPPER, &format!("{HOPPER}{text}"));
        assert_eq!(parse(sound).unwrap().optimisations.last().unwrap().name, "a try");
        let cases = [
            ("\"a try\"", "\"lazy rescaling\"", "lazy rescaling: is no name, or that of another"),
            ("16,16,512,128", "16,16,512", "a try: has a shape that is none: "),
            ("16,16,512,128", "16,16,512,256", "a try: `with` cannot run there: tile_keys: "),
            ("\"hopper:fast\"", "\"hopper:faster\"", "a try: `without` cannot run there: stage: "),
            ("\"hopper:fast\"", "\"ladder:unpack\"", "is a variant of ladder"),
            ("flight=1", "flight=3", "a try: `with` cannot run there: flight: "),
            ("sums=registers,flight=1", "sums=registers,flight=4", "a try: is the same without and with it"),
            ("sums=registers,flight=1", "sums=registers,linear=3", "changes the accuracy, from fast to balanced"),
            ("stages=2,sums=registers", "stages=4,sums=shared", "a try: `with` cannot run there: tile_keys: "),
            ("least = 1.0", "least = 1.2", "a try: predicts 1.2 to 1.1"),
            ("least = 1.0", "least = 0.5", "which says nothing"),
            ("Of 3 us 1 is waiting.", "It waits.", "a try: is predicted by arithmetic without a number"),
            ("prediction.moves = \"What waits.\"", "", "missing field `moves`"),
            ("name =", "lesson = \" \"\nname =", "a try: has a lesson without words"),
            ("name =", "masked = true\nname =", "unknown field `masked`"),
        ];
        for (from, to, expected) in cases {
            assert!(sound.contains(from), "{from}");
            let error = parse(&sound.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with("ledger: hopper.toml") && error.contains(expected), "{to}: {error}");
        }
    }

    /// A stage's entry, text from `[[stages]]` on.
    fn entry(name: &str) -> &'static str {
        let start = CPU.find(&format!("[[stages]]\nname = \"{name}\"")).unwrap();
        let length = CPU[start + 1..].find("[[stages]]").map_or(CPU.len() - start, |length| length + 1);
        &CPU[start..start + length]
    }

    #[test]
    fn every_stage_has_exactly_one_entry_in_order() {
        let queue = entry("queue");
        assert!(broken(queue, "").contains("entry 5 is `avx2`, where the ladder has `queue`"));
        assert!(
            broken(queue, &format!("{queue}\n{queue}")).contains("entry 6 is `queue`, where the ladder has `avx2`")
        );
        let last = entry("amx");
        assert!(broken(last, "").contains("entry 10 is nothing, where the ladder has `amx`"));
    }

    #[test]
    fn a_claim_needs_arithmetic_that_bears_it_out() {
        let without = |name: &str| {
            let entry = entry(name);
            let start = entry.find("arithmetic = [").unwrap();
            let end = start + entry[start..].find("\n]").unwrap() + 2;
            broken(entry, &format!("{}{}", &entry[..start], &entry[end..]))
        };
        assert!(without("avx2").contains("avx2: claims to be bound by `f32 multiply-add units` without arithmetic"));
        assert!(without("queue").contains("queue: has a floor at `mission` without arithmetic"));
        let longer = "arithmetic = [\n    { uses = \"4 lanes\", factors = [1e12], what = \"more\" },";
        let slower = entry("avx2").replace("arithmetic = [", longer);
        assert!(broken(entry("avx2"), &slower).contains("has something that takes longer"));
    }

    #[test]
    fn only_the_first_stage_goes_without_a_prediction() {
        let lanes = entry("lanes");
        let bare: String =
            lanes.lines().filter(|line| !line.starts_with("prediction")).map(|line| format!("{line}\n")).collect();
        assert!(broken(lanes, &bare).contains("lanes: has no prediction"));
        let prediction: String =
            lanes.lines().filter(|line| line.starts_with("prediction")).map(|line| format!("{line}\n")).collect();
        let first = entry("baseline").replacen("risk", &format!("{prediction}risk"), 1);
        assert!(broken(entry("baseline"), &first).contains("baseline: is first"));
    }
}
