//! Whether writes are where their acknowledgements say.
//!
//! What a majority acknowledged is there at the end, whatever happened, and so is what was once read with readConcern
//! majority. What only the primary acknowledged may be gone
//! after a failover, but then it lies in a file under `rollback/` of the member that took it back. And what is there was
//! once written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sheaf_bson::RawDoc;

use super::Anomaly;
use crate::error::{Error, Result};

/// How a write of one document was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By a majority.
    Majority,
    /// By the primary alone (`w:1`).
    Primary,
    /// By nobody: an error, or no answer. It may be there or not.
    None,
}

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What must not be.
    pub anomalies: Vec<Anomaly>,
    /// Writes that a majority had acknowledged.
    pub majority: usize,
    /// Writes that the primary alone had acknowledged.
    pub primary: usize,
    /// Of these: gone from the set, and in a file.
    pub rolled_back: usize,
}

/// Judges inserts by `_id`: how each was answered, what was seen by majority reads meanwhile, what is there at the end, and
/// what was rolled back.
pub fn judge(
    answers: &BTreeMap<i64, Answer>,
    seen: &BTreeSet<i64>,
    there: &BTreeSet<i64>,
    rolled_back: &BTreeSet<i64>,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut found = |kind, text| verdict.anomalies.push(Anomaly { kind, text });
    for (id, answer) in answers {
        let (present, saved) = (there.contains(id), rolled_back.contains(id));
        match answer {
            Answer::Majority => {
                verdict.majority += 1;
                if !present {
                    let place = if saved { "in a rollback file" } else { "nowhere" };
                    let text = format!("document {id} was acknowledged by a majority and is {place}");
                    found("lost majority write", text);
                }
            }
            Answer::Primary => {
                verdict.primary += 1;
                match (present, saved) {
                    (false, true) => verdict.rolled_back += 1,
                    (false, false) => {
                        let text =
                            format!("document {id}, acknowledged with w:1, is gone and in no rollback file");
                        found("lost write without a trace", text);
                    }
                    (true, _) => {}
                }
            }
            Answer::None => {}
        }
    }
    for id in seen.difference(there) {
        found("majority read of a lost write", format!("document {id} was read and is gone"));
    }
    for id in there.difference(&answers.keys().copied().collect()) {
        found("document of nobody", format!("document {id} was never written"));
    }
    verdict
}

/// Reads all documents of the BSON files below a member's `rollback/` folder; how many there were.
pub fn read_rollback_files(data: &Path, each: &mut dyn FnMut(RawDoc<'_>)) -> Result<u64> {
    let mut count = 0;
    for file in files_below(&data.join("rollback"))? {
        let bytes = std::fs::read(&file).map_err(|error| Error::from(error).context(file.display()))?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let bad = || {
                Error::failed(format!("{}: no document at byte {}", file.display(), bytes.len() - rest.len()))
            };
            let length = rest.first_chunk().map(|head| i32::from_le_bytes(*head)).ok_or_else(bad)?;
            let length = usize::try_from(length).ok().filter(|length| *length >= 5).ok_or_else(bad)?;
            let document = rest.get(..length).ok_or_else(bad)?;
            sheaf_bson::validate(document, sheaf_bson::MAX_DEPTH).map_err(|_| bad())?;
            each(RawDoc::new(document));
            count += 1;
            rest = &rest[length..];
        }
    }
    Ok(count)
}

/// All `.bson` files below a folder, which need not exist.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| Error::from(error).context(folder.display()))?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "bson") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    fn kinds(there: &[i64], rolled_back: &[i64]) -> Vec<&'static str> {
        kinds_after(&[], there, rolled_back)
    }

    fn kinds_after(seen: &[i64], there: &[i64], rolled_back: &[i64]) -> Vec<&'static str> {
        let answers = BTreeMap::from([(1, Answer::Majority), (2, Answer::Primary), (3, Answer::None)]);
        let set = |ids: &[i64]| ids.iter().copied().collect::<BTreeSet<i64>>();
        let verdict = judge(&answers, &set(seen), &set(there), &set(rolled_back));
        assert_eq!((verdict.majority, verdict.primary), (1, 1));
        verdict.anomalies.into_iter().map(|anomaly| anomaly.kind).collect()
    }

    #[test]
    fn writes_are_where_they_belong() {
        assert!(kinds(&[1, 2, 3], &[]).is_empty());
        assert!(kinds(&[1, 2], &[]).is_empty());
        assert!(kinds(&[1], &[2, 3]).is_empty());
        assert_eq!(kinds(&[1], &[]), ["lost write without a trace"]);
        assert_eq!(kinds(&[2], &[1]), ["lost majority write"]);
        assert_eq!(kinds(&[2], &[]), ["lost majority write"]);
        assert_eq!(kinds(&[1, 2, 4], &[]), ["document of nobody"]);
        assert!(kinds_after(&[1, 3], &[1, 2, 3], &[]).is_empty());
        assert_eq!(kinds_after(&[2], &[1], &[2]), ["majority read of a lost write"]);
    }

    #[test]
    fn rollback_files_are_read_and_torn_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut ids = Vec::new();
        let mut read = |path: &Path| {
            ids.clear();
            read_rollback_files(path, &mut |document| {
                ids.extend(document.get("_id").and_then(|id| id.as_exact_i64()));
            })
            .map(|count| (count, ids.clone()))
        };
        assert_eq!(read(folder.path()).unwrap(), (0, vec![]));
        let below = folder.path().join("rollback/lab.ladder");
        std::fs::create_dir_all(&below).unwrap();
        let both = [doc! { "_id": 1 }.as_bytes(), doc! { "_id": 2, "x": "y" }.as_bytes()].concat();
        std::fs::write(below.join("removed.1.bson"), &both).unwrap();
        std::fs::write(below.join("removed.2.bson"), doc! { "_id": 3 }.as_bytes()).unwrap();
        std::fs::write(below.join("other.txt"), "no").unwrap();
        assert_eq!(read(folder.path()).unwrap(), (3, vec![1, 2, 3]));
        std::fs::write(below.join("removed.2.bson"), &both[..both.len() - 3]).unwrap();
        assert!(
            read(folder.path()).unwrap_err().to_string().contains("removed.2.bson: no document at byte 14")
        );
    }
}
