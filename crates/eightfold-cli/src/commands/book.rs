//! `eightfold book`: the pages that are made from records, the command line and the ledger, in the repository it runs in.

use crate::Verdict;
use crate::output::{self, book};
use eightfold::{Error, Result};
use eightfold_lab::store;
use std::path::Path;

/// Writes every generated page and says which changed.
pub fn execute() -> Result<Verdict> {
    for page in book::pages(Path::new("."))? {
        let path = Path::new(page.path);
        if std::fs::read_to_string(path).is_ok_and(|old| old == page.text) {
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| {
            let rule = format!("`{}` cannot be made: {error}", folder.display());
            Error::invalid("book", rule, "run it in the root of the repository")
        })?;
        store::write_file(path, page.text.as_bytes())?;
        output::note(&format!("written: {}", page.path));
    }
    Ok(Verdict::Passed)
}
