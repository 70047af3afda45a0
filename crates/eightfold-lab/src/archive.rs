//! A folder of kept records, by topic: what is there, what is stale, what a newer record replaces.

use crate::record::{Kind, Record};
use crate::store::{PACKED_FILE, RECORD_FILE};
use eightfold::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A record that is kept.
#[derive(Debug, Clone)]
pub struct Filed {
    /// The folder that it is in, below the archive's own.
    pub topic: String,
    /// What tells it from others of its topic: the run's folder, or the file's name.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What it holds.
    pub record: Record,
}

/// Whether what a record measured has changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// No commit since has changed the sources of the kernels that ran.
    Current,
    /// So many commits have.
    Stale(usize),
    /// The commit is not in this checkout, or there is no git.
    Unknown,
}

impl Filed {
    /// The commit that was measured, as far as people write it.
    pub fn short_commit(&self) -> String {
        self.commit().map_or("unknown".into(), |commit| commit.chars().take(7).collect())
    }

    /// The day of the run.
    pub fn date(&self) -> String {
        let time = self.record.provenance.time_utc.compact();
        match (time.get(..4), time.get(4..6), time.get(6..8)) {
            (Some(year), Some(month), Some(day)) => format!("{year}-{month}-{day}"),
            _ => time,
        }
    }

    /// What it ran on; of kernels that were only compiled, the compiler.
    pub fn device(&self) -> String {
        let provenance = &self.record.provenance;
        match (&provenance.gpu, &provenance.nvrtc) {
            (Some(gpu), _) => gpu.name.clone(),
            (None, Some(nvrtc)) if self.record.kind == Kind::Build => format!("no device: compiled by {nvrtc}"),
            _ => format!("{}, {} threads", provenance.machine.cpu, provenance.threads),
        }
    }

    /// A hash of what ran: of a search the sources', of GPU kernels their machine codes' together; `–` if unknown.
    pub fn ran(&self) -> String {
        if let Some(search) = &self.record.evolution {
            return search.source_hash.clone();
        }
        let entries =
            self.record.groups.iter().flat_map(|group| &group.entries).filter_map(|entry| entry.build.as_ref());
        let compiled =
            self.record.builds.iter().flat_map(|group| &group.entries).filter_map(|entry| entry.build.as_ref());
        let mut codes: Vec<&str> = entries.chain(compiled).map(|build| build.code_hash.as_str()).collect();
        codes.sort_unstable();
        codes.dedup();
        match codes.as_slice() {
            [] => "–".into(),
            [one] => (*one).into(),
            several => {
                // FNV-1a, which is the same everywhere and always.
                let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                format!("{:016x}", several.concat().bytes().fold(0xcbf2_9ce4_8422_2325, step))
            }
        }
    }

    fn commit(&self) -> Option<&str> {
        let provenance = &self.record.provenance;
        provenance.checkout.as_ref().map(|checkout| &*checkout.commit).or(provenance.built_from.as_deref())
    }

    /// The names of the kernels that it is about.
    fn kernels(&self) -> Vec<&str> {
        let record = &self.record;
        let entries = record.groups.iter().flat_map(|group| &group.entries).filter(|entry| !entry.peer);
        let built = record.builds.iter().flat_map(|group| &group.entries).map(|entry| &entry.implementation);
        let compared = record.comparisons.iter().map(|comparison| &comparison.candidate.implementation);
        let variants = entries.map(|entry| &entry.implementation).chain(built).chain(compared);
        let mut kernels: Vec<&str> = variants.filter_map(|variant| variant.split(':').next()).collect();
        kernels.extend(record.evolution.as_ref().map(|search| &*search.kernel));
        kernels.extend((!record.quantizers.is_empty()).then_some("quantize"));
        kernels.sort_unstable();
        kernels.dedup();
        kernels
    }

    /// What a newer record must be about to replace this one; tries of a comparison are never replaced.
    fn subject(&self) -> Option<String> {
        let record = &self.record;
        if record.comparisons.len() > 1 || record.kind == Kind::Evolve {
            return None;
        }
        let groups = record.groups.iter().map(|group| {
            let names: Vec<_> = group.entries.iter().map(|entry| &*entry.name).collect();
            format!("{} {} {}: {}", group.shape, group.problem.causal, group.problem.output_format, names.join(" "))
        });
        let built = record.builds.iter().map(|group| {
            let names: Vec<_> = group.entries.iter().map(|entry| &*entry.name).collect();
            format!("{}: {}", group.kind(), names.join(" "))
        });
        let compared = record.comparisons.iter().map(|one| {
            let sides = [&one.baseline, &one.candidate].map(|side| format!("{} {}", side.name, side.implementation));
            format!("{} {}: {}", one.shape, one.problem.causal, sides.join(" against "))
        });
        let quantized = record.quantizers.iter().map(|group| format!("{group:?}").chars().take(80).collect());
        let all: Vec<String> = groups.chain(built).chain(compared).chain(quantized).collect();
        Some(format!("{} {} {} {}", self.topic, record.kind, self.device(), all.join("; ")))
    }
}

/// Every record below a folder, by topic and name.
pub fn read(folder: &Path) -> Result<Vec<Filed>> {
    let mut filed = Vec::new();
    for path in files(folder) {
        let is_record = path.file_name().is_some_and(|name| name == RECORD_FILE);
        if !is_record && path.extension().is_none_or(|extension| extension != "gz") {
            continue;
        }
        let inside = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let inside = [PACKED_FILE, RECORD_FILE].iter().find_map(|file| inside.strip_suffix(file)).unwrap_or(&inside);
        let inside = inside.trim_end_matches('/').trim_end_matches(".json.gz");
        let (topic, name) = inside.split_once('/').unwrap_or(("", inside));
        filed.push(Filed { topic: topic.into(), name: name.into(), record: Record::read(&path)?, path });
    }
    filed.sort_by(|a, b| (&a.topic, &a.name).cmp(&(&b.topic, &b.name)));
    Ok(filed)
}

/// The records below a folder that are not compressed.
pub fn unpacked(folder: &Path) -> Vec<PathBuf> {
    let is_json = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    files(folder).into_iter().filter(is_json).filter(|path| Record::read(path).is_ok()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// Which of these a newer one replaces.
pub fn superseded(filed: &[Filed]) -> Vec<usize> {
    let time = |filed: &Filed| filed.record.provenance.time_utc.compact();
    let subjects: Vec<_> = filed.iter().map(Filed::subject).collect();
    let is_old = |index: &usize| {
        let newer = |other: usize| subjects[other] == subjects[*index] && time(&filed[other]) > time(&filed[*index]);
        // What lies in a run's folder of its own may go; files that were given names belong together.
        let own_folder = filed[*index].path.file_name().is_some_and(|name| name == PACKED_FILE || name == RECORD_FILE);
        own_folder && subjects[*index].is_some() && (0..filed.len()).any(newer)
    };
    (0..filed.len()).filter(is_old).collect()
}

/// Removes a record and its run's folder.
pub fn remove(filed: &Filed) -> Result<()> {
    let folder = filed.path.parent().unwrap_or(&filed.path);
    fs::remove_dir_all(folder).map_err(|error| {
        let rule = format!("`{}` cannot be removed: {error}", folder.display());
        Error::invalid("prune", rule, "remove it by hand, or leave --prune out")
    })
}

/// Whether the sources of the kernels that ran have changed since the record's commit, as git says.
pub fn age(filed: &Filed) -> Age {
    let sources = filed.kernels().into_iter().flat_map(|kernel| {
        let own = match kernel {
            "cpu" => "crates/eightfold/src/cpu".to_string(),
            other => format!("crates/eightfold/kernels/{other}"),
        };
        let shared = ["crates/eightfold/kernels/ptx", "crates/eightfold/kernels/attention"].map(String::from);
        std::iter::once(own).chain(shared.into_iter().filter(move |_| kernel != "cpu"))
    });
    let Some(commit) = filed.commit() else { return Age::Unknown };
    let mut git = Command::new("git");
    git.args(["rev-list", "--count", &format!("{commit}..HEAD"), "--"]);
    // Paths in a command's arguments are relative to where it runs; these are relative to the root.
    git.args(sources.map(|path| format!(":(top){path}")));
    let counted = git.output().ok().filter(|output| output.status.success());
    let counted = counted.and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse().ok());
    match counted {
        None => Age::Unknown,
        Some(0) => Age::Current,
        Some(commits) => Age::Stale(commits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::Provenance;
    use crate::record::{Entry, Group};
    use crate::store::{Store, pack};
    use eightfold::{Problem, Shape};

    fn record(names: &[&str]) -> Record {
        let problem = Problem::new(Shape::new(1, 1, 8, 8)).unwrap();
        let mut record = Record::new(Kind::Run, Provenance::capture(1));
        let entries = names.iter().map(|name| Entry::new(*name, format!("cpu:{name}"))).collect();
        record.groups.push(Group { entries, ..Group::new("x", &problem) });
        record
    }

    #[test]
    fn a_newer_record_of_the_same_replaces_an_older_one() {
        let place = tempfile::tempdir().unwrap();
        for (names, time) in
            [(["a"], "2026-01-01T00:00:00Z"), (["a"], "2026-01-02T00:00:00Z"), (["b"], "2026-01-01T00:00:00Z")]
        {
            let mut record = record(&names);
            record.provenance.time_utc = time.to_string().try_into().unwrap();
            let path = Store::open(place.path().join("topic")).unwrap().write(&record).unwrap();
            pack(&path).unwrap();
        }
        let filed = read(place.path()).unwrap();
        assert_eq!(filed.len(), 3);
        assert!(filed.iter().all(|filed| filed.topic == "topic" && filed.ran() == "–"));
        let old = superseded(&filed);
        assert_eq!(old.len(), 1);
        assert_eq!((filed[old[0]].date().as_str(), filed[old[0]].kernels()), ("2026-01-01", vec!["cpu"]));
        remove(&filed[old[0]]).unwrap();
        assert_eq!(superseded(&read(place.path()).unwrap()), Vec::<usize>::new());
        assert!(unpacked(place.path()).is_empty());
    }
}
