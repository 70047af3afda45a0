//! Claims of correctness that are not made today: `results/withdrawn.toml`.
//!
//! A kernel changes in more places than a device is at hand. Until its gates have run on the device again, the claim is withdrawn
//! by name, with the reason, and the book says so where it shows the record. A stale claim that nobody withdrew is a failure,
//! and so is a withdrawal that nothing needs any more.

use crate::archive::{self, Age, Filed};
use crate::{sources, store};
use eightfold::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The file, in the folder of the records.
pub const FILE: &str = "withdrawn.toml";

/// What the file begins with.
const HEAD: &str = "# Claims of correctness that are not made until the gates have run on a device again: `eightfold records --check`.\n";

/// The topic that claims of correctness rest on.
pub const CLAIMS: &str = "correctness";

/// Why no claim is made about a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withdrawal {
    /// The day from which on the claim is not made.
    pub since: String,
    /// What changed, what was checked without the device, and what is still to be run on it.
    pub reason: String,
}

/// The kernels about which no claim is made, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Withdrawn(BTreeMap<String, Withdrawal>);

impl Withdrawn {
    /// What the folder of the records says; nothing where it has no such file.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => {
                let rule = format!("`{}` cannot be read: {error}", path.display());
                Err(Error::invalid("withdrawn", rule, "make it readable, or remove it"))
            }
        }
    }

    fn parse(text: &str, path: &Path) -> Result<Self> {
        let refuse = |rule: String, fix: &str| Err(Error::invalid("withdrawn", rule, fix));
        let fix = "write a table for each kernel, with `since` and `reason`";
        let withdrawn: Self = match toml::from_str(text) {
            Ok(withdrawn) => withdrawn,
            Err(error) => return refuse(format!("{}: {}", path.display(), error.message()), fix),
        };
        for (kernel, withdrawal) in &withdrawn.0 {
            if !sources::all().is_empty() && sources::of(kernel).is_none() {
                return refuse(format!("{} names `{kernel}`, which is no kernel", path.display()), fix);
            }
            if withdrawal.reason.trim().is_empty() || withdrawal.since.trim().is_empty() {
                return refuse(format!("{} says of `{kernel}` not when or why", path.display()), fix);
            }
        }
        Ok(withdrawn)
    }

    /// Each kernel with its withdrawal, by name.
    pub fn each(&self) -> impl Iterator<Item = (&str, &Withdrawal)> {
        self.0.iter().map(|(kernel, withdrawal)| (kernel.as_str(), withdrawal))
    }

    /// What is wrong with the claims, a line each: those that are stale and still made, and withdrawals without a cause.
    pub fn problems(&self, filed: &[Filed]) -> Vec<String> {
        let claims: Vec<(&Filed, Age)> =
            filed.iter().filter(|filed| filed.topic == CLAIMS).map(|filed| (filed, archive::age(filed))).collect();
        let is_withdrawn = |age: &Age| match age {
            Age::Changed(kernels) => kernels.iter().all(|kernel| self.0.contains_key(kernel)),
            _ => false,
        };
        let still_made = claims.iter().filter(|(_, age)| age.is_stale() && !is_withdrawn(age));
        let still_made = still_made.map(|(filed, age)| {
            format!(
                "{}/{} (commit {}): {age}; run it again, or withdraw it in {FILE}",
                filed.topic,
                filed.name,
                filed.short_commit()
            )
        });
        let needless = self.needless(filed).into_iter();
        let needless = needless.map(|kernel| format!("{FILE}: no record of `{kernel}` is stale; remove its table"));
        still_made.chain(needless).collect()
    }

    /// The kernels whose withdrawal nothing needs: no record of correctness is stale because of them.
    fn needless(&self, filed: &[Filed]) -> Vec<&str> {
        if sources::all().is_empty() {
            return Vec::new();
        }
        let claims = filed.iter().filter(|filed| filed.topic == CLAIMS);
        let changed = claims.filter_map(|claim| match archive::age(claim) {
            Age::Changed(kernels) => Some(kernels),
            _ => None,
        });
        let stale: BTreeSet<String> = changed.flatten().collect();
        self.0.keys().map(String::as_str).filter(|kernel| !stale.contains(*kernel)).collect()
    }

    /// Takes back, in the folder of the records, the withdrawals that nothing needs any more, and names their kernels.
    pub fn take_back(folder: &Path, filed: &[Filed]) -> Result<Vec<String>> {
        let mut withdrawn = Self::read(folder)?;
        let needless: Vec<String> = withdrawn.needless(filed).into_iter().map(String::from).collect();
        if needless.is_empty() {
            return Ok(needless);
        }
        withdrawn.0.retain(|kernel, _| !needless.contains(kernel));
        let path = folder.join(FILE);
        if withdrawn.0.is_empty() {
            let refused = |error: std::io::Error| {
                let rule = format!("`{}` cannot be removed: {error}", path.display());
                Error::invalid("withdrawn", rule, "remove it by hand")
            };
            std::fs::remove_file(&path).map_err(refused)?;
        } else {
            let tables = toml::to_string(&withdrawn).expect("tables of text");
            store::write_file(&path, format!("{HEAD}\n{tables}").as_bytes())?;
        }
        Ok(needless)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::Provenance;
    use crate::record::{Kind, Record};
    use crate::verification::{Check, Verification};

    fn parse(text: &str) -> Result<Withdrawn> {
        Withdrawn::parse(text, Path::new(FILE))
    }

    #[test]
    fn a_withdrawal_names_a_kernel_a_day_and_a_reason() {
        let good = "[hopper]\nsince = \"2026-11-19\"\nreason = \"windows\"\n";
        assert_eq!(parse(good).unwrap().each().map(|(kernel, _)| kernel).collect::<Vec<_>>(), ["hopper"]);
        for (bad, said) in [
            (good.replace("hopper", "hoper"), "names `hoper`, which is no kernel"),
            (good.replace("windows", " "), "says of `hopper` not when or why"),
            (good.replace("since", "from"), "unknown field `from`"),
            (good.replace('[', ""), "withdrawn.toml: "),
        ] {
            let error = parse(&bad).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(Withdrawn::read(Path::new("no-such-folder")).unwrap(), Withdrawn::default());
    }

    #[test]
    fn a_withdrawal_ends_when_no_claim_is_stale_by_it() {
        let place = tempfile::tempdir().unwrap();
        let table = |kernel: &str| format!("[{kernel}]\nsince = \"2026-11-19\"\nreason = \"New masks.\"\n");
        let path = place.path().join(FILE);
        std::fs::write(&path, table("hopper") + &table("ladder")).unwrap();
        let check = Check { subject: "hopper:fast, f32".into(), tool: "memcheck".into(), findings: 0 };
        let verification = Verification { by: String::new(), on: String::new(), checks: vec![check] };
        let mut record = Record::new(Kind::Sanitizer, Provenance::capture(1));
        record.verification = Some(verification);
        let filed = |hash: &str| {
            let mut record = record.clone();
            record.sources.insert("hopper".into(), hash.into());
            vec![Filed { topic: CLAIMS.into(), name: "one".into(), path: "one".into(), record }]
        };
        let (old, now) = (filed("0"), filed(&sources::of("hopper").unwrap()));
        assert_eq!(Withdrawn::take_back(place.path(), &old).unwrap(), ["ladder"]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{HEAD}\n{}", table("hopper")));
        assert_eq!(Withdrawn::read(place.path()).unwrap().problems(&old), Vec::<String>::new());
        assert_eq!(Withdrawn::take_back(place.path(), &now).unwrap(), ["hopper"]);
        assert!(!path.exists() && Withdrawn::take_back(place.path(), &now).unwrap().is_empty());
    }
}
