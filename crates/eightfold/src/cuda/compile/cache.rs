//! Compiled kernels on disk, one file each, shared by every process of the user.
//!
//! A file is written under another name and renamed, so that nobody sees half of one; it ends in a checksum, so that a
//! damaged one is found out and built anew. The time of its last change is the time of its last use.

use super::fingerprint;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// Changes with the layout of a file or with what its contents mean.
const MAGIC: &[u8; 8] = b"8fcubin1";
const EXTENSION: &str = "8fcubin";
const TEMPORARY_EXTENSION: &str = "tmp";
/// A temporary file of this age was left by a process that died.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// What a compiler made of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Compiler, architecture and program in words, for a person who looks into the folder.
    pub(super) description: String,
    pub(super) log: String,
    pub(super) image: Vec<u8>,
}

/// A folder of entries, held below a size.
#[derive(Debug)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
    max_bytes: u64,
    trouble: OnceLock<String>,
}

impl Cache {
    pub(super) const DEFAULT_MAX_BYTES: u64 = 256 << 20;

    /// A cache in this folder, or none.
    pub(super) fn new(folder: Option<PathBuf>, max_bytes: u64) -> Self {
        Cache { folder, max_bytes, trouble: OnceLock::new() }
    }

    /// Why kernels are compiled without being kept, if so.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.get().map(String::as_str)
    }

    /// The entry of this key, if there is a sound one.
    pub(super) fn get(&self, key: u128) -> Option<Entry> {
        let path = path(self.folder.as_deref()?, key);
        let bytes = fs::read(&path).ok()?;
        let Some(entry) = decode(&bytes, key) else {
            // Another process may put a sound one here in the meantime; then that one is lost, and built again.
            let _ = fs::remove_file(&path);
            return None;
        };
        // Not being able to mark the use costs at most an early eviction.
        let _ = File::options().append(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(entry)
    }

    /// Keeps an entry. Failing to is no error, since the caller has what it wanted; see [`Cache::trouble`].
    pub(super) fn put(&self, key: u128, entry: &Entry) {
        let Some(folder) = &self.folder else { return };
        let bytes = encode(key, entry);
        if bytes.len() as u64 > self.max_bytes {
            return;
        }
        if let Err(error) = write(folder, key, &bytes).and_then(|()| evict(folder, self.max_bytes)) {
            self.note(format!("compiled kernels are not kept in {}: {error}", folder.display()));
        }
    }

    fn note(&self, trouble: String) {
        self.trouble.get_or_init(|| trouble);
    }
}

fn path(folder: &Path, key: u128) -> PathBuf {
    folder.join(format!("{key:032x}.{EXTENSION}"))
}

fn write(folder: &Path, key: u128, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let suffix = format!(".{TEMPORARY_EXTENSION}");
    let mut file = tempfile::Builder::new().suffix(&suffix).tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path(folder, key))?;
    Ok(())
}

/// Removes what was not used for longest until the rest fits, and what dead processes left.
fn evict(folder: &Path, max_bytes: u64) -> io::Result<()> {
    let mut entries = Vec::new();
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        // Another process may have removed it just now.
        let Ok(metadata) = path.metadata() else { continue };
        let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some(EXTENSION) => entries.push((changed, metadata.len(), path)),
            Some(TEMPORARY_EXTENSION) if changed.elapsed().is_ok_and(|age| age > ABANDONED_AFTER) => {
                let _ = fs::remove_file(path);
            }
            _ => {}
        }
    }
    let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
    entries.sort();
    for (_, bytes, path) in entries {
        if total <= max_bytes {
            break;
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => total -= bytes,
        }
    }
    Ok(())
}

/// Magic, key, then each part after its length, then the checksum of all that.
fn encode(key: u128, entry: &Entry) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(key.to_le_bytes());
    for part in [entry.description.as_bytes(), entry.log.as_bytes(), &entry.image] {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part);
    }
    bytes.extend(fingerprint::of_bytes(&bytes).to_le_bytes());
    bytes
}

/// The entry, unless anything about the bytes is not as [`encode`] writes it.
fn decode(bytes: &[u8], key: u128) -> Option<Entry> {
    let (body, checksum) = bytes.split_last_chunk::<8>()?;
    if u64::from_le_bytes(*checksum) != fingerprint::of_bytes(body) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?.strip_prefix(&key.to_le_bytes())?;
    let mut part = || {
        let (length, tail) = rest.split_first_chunk::<8>()?;
        let (part, tail) = tail.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
        rest = tail;
        Some(part)
    };
    let (description, log, image) = (part()?, part()?, part()?);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let entry = Entry { description: text(description)?, log: text(log)?, image: image.to_vec() };
    rest.is_empty().then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(image_bytes: usize) -> Entry {
        Entry { description: "NVRTC 13.0".into(), log: "ptxas info".into(), image: vec![42; image_bytes] }
    }

    fn cache(folder: &Path, max_bytes: u64) -> Cache {
        Cache::new(Some(folder.to_owned()), max_bytes)
    }

    #[test]
    fn what_is_put_in_comes_out() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder.path().join("not/there/yet"), Cache::DEFAULT_MAX_BYTES);
        assert_eq!(cache.get(1), None);
        cache.put(1, &entry(1000));
        assert_eq!(cache.get(1), Some(entry(1000)));
        assert_eq!(cache.get(2), None);
        assert_eq!(cache.trouble(), None);
    }

    #[test]
    fn a_damaged_file_is_found_out_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), Cache::DEFAULT_MAX_BYTES);
        let sound = encode(1, &entry(40));
        let file = path(folder.path(), 1);
        let truncated = (0..sound.len()).map(|length| sound[..length].to_vec());
        let flipped = (0..sound.len()).map(|at| {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            bytes
        });
        let longer = [sound.as_slice(), &[0]].concat();
        let of_another_key = encode(2, &entry(40));
        for bytes in truncated.chain(flipped).chain([longer, of_another_key]) {
            fs::write(&file, &bytes).unwrap();
            assert_eq!(cache.get(1), None);
            assert!(!file.exists());
        }
        fs::write(&file, &sound).unwrap();
        assert_eq!(cache.get(1), Some(entry(40)));
    }

    #[test]
    fn lengths_beyond_the_file_are_refused() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(1_u128.to_le_bytes());
        bytes.extend(u64::MAX.to_le_bytes());
        bytes.extend(fingerprint::of_bytes(&bytes).to_le_bytes());
        assert_eq!(decode(&bytes, 1), None);
    }

    #[test]
    fn the_one_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let size = encode(0, &entry(1000)).len() as u64;
        let cache = cache(folder.path(), 3 * size);
        let long_ago = |key: u128, seconds: u64| {
            let time = SystemTime::now() - Duration::from_secs(seconds);
            File::options().append(true).open(path(folder.path(), key)).unwrap().set_modified(time).unwrap();
        };
        for key in 0..3 {
            cache.put(key, &entry(1000));
            long_ago(key, 100 - key as u64);
        }
        // Being read makes the oldest the newest.
        assert!(cache.get(0).is_some());
        cache.put(3, &entry(1000));
        let left: Vec<_> = (0..4).filter(|key| path(folder.path(), *key).exists()).collect();
        assert_eq!(left, [0, 2, 3]);
        cache.put(4, &entry(4000));
        assert!(!path(folder.path(), 4).exists(), "what does not fit at all must not empty the cache");
        assert!(cache.get(3).is_some());
    }

    #[test]
    fn foreign_files_stay_and_abandoned_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let (abandoned, fresh, foreign) =
            (folder.path().join("a.tmp"), folder.path().join("b.tmp"), folder.path().join("notes.txt"));
        for file in [&abandoned, &fresh, &foreign] {
            fs::write(file, vec![0; 5000]).unwrap();
        }
        for file in [&abandoned, &foreign] {
            let time = SystemTime::now() - 2 * ABANDONED_AFTER;
            File::options().append(true).open(file).unwrap().set_modified(time).unwrap();
        }
        cache(folder.path(), 2000).put(1, &entry(1000));
        assert!(!abandoned.exists() && fresh.exists() && foreign.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_noted_once() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        fs::write(&blocked, "").unwrap();
        let cache = cache(&blocked.join("cache"), Cache::DEFAULT_MAX_BYTES);
        cache.put(1, &entry(10));
        assert_eq!(cache.get(1), None);
        let trouble = cache.trouble().unwrap().to_owned();
        assert!(trouble.starts_with("compiled kernels are not kept in"), "{trouble}");
        cache.put(2, &entry(10));
        assert_eq!(cache.trouble(), Some(trouble.as_str()));
    }

    #[test]
    fn many_writers_and_readers_never_see_half_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let size = encode(0, &entry(20_000)).len() as u64;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // As separate processes would: each with a cache of its own, too small for all.
                    let cache = cache(folder.path(), 3 * size);
                    for round in 0..60_u128 {
                        cache.put(round % 5, &entry(20_000));
                        if let Some(found) = cache.get((round + 2) % 5) {
                            assert_eq!(found, entry(20_000));
                        }
                    }
                    assert_eq!(cache.trouble(), None);
                });
            }
        });
    }
}
