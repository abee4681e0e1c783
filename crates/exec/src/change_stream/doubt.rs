//! Transactions over shards that are prepared, as a reader of the log meets them.
//!
//! They take effect at a time that is not below their prepare and not above their commit's entry, so what happened meanwhile is told only
//! when they are decided: then all shards' events of a transaction stand at its one time. Those that change nothing of what is watched
//! hold nothing back, and are passed over.

use std::collections::{BTreeMap, BTreeSet};

use sheaf_aggregate::stages::change_stream::{Operation, Watched};
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_meter::Held;
use sheaf_storage::{InDoubt, Uuid, View};

/// Bytes of a prepare's entries that are kept until it is decided, and of all that are kept; others are read from the log again.
const KEPT_BYTES: usize = 64 << 10;
const ALL_KEPT_BYTES: usize = 256 << 10;

/// Session and number.
type Key = (DocBuf, i64);

/// What a prepared transaction is to a stream.
#[derive(Debug, PartialEq)]
pub enum Meaning {
    /// It changes nothing of what is watched.
    None,
    /// Its entries, oldest first.
    Entries(Vec<DocBuf>),
    /// Its entries are in the log.
    InLog,
}

struct Doubt {
    key: Option<Key>,
    /// If they are kept, with the memory that they take.
    entries: Option<(Vec<DocBuf>, Held)>,
    /// Whether it has events; else that is only supposed.
    is_read: bool,
}

/// The transactions in doubt where a reader stands, by the time of the prepare.
#[derive(Default)]
pub struct Doubts {
    /// Those that may have events.
    here: BTreeMap<u64, Doubt>,
    /// Those that have none.
    elsewhere: BTreeMap<u64, Option<Key>>,
    /// Of entries that are kept.
    bytes: usize,
}

impl Doubts {
    /// When the oldest was prepared that may have events: what is told has to be before.
    pub fn oldest(&self) -> Option<u64> {
        self.here.keys().next().copied()
    }

    /// One was prepared.
    pub fn begun(&mut self, time: u64, key: Option<Key>, meaning: Meaning) {
        let (entries, is_read) = match meaning {
            Meaning::None => {
                self.elsewhere.insert(time, key);
                return;
            }
            Meaning::Entries(entries) => {
                let bytes = bytes_of(&entries);
                let fits = bytes <= KEPT_BYTES && self.bytes + bytes <= ALL_KEPT_BYTES;
                // Where memory is short they are read again, too.
                let held = fits.then(|| sheaf_meter::reserve(bytes as u64).ok()).flatten();
                self.bytes += if held.is_some() { bytes } else { 0 };
                (held.map(|held| (entries, held)), true)
            }
            Meaning::InLog => (None, false),
        };
        self.here.insert(time, Doubt { key, entries, is_read });
    }

    /// A commit of what was prepared then. `None`: it was not met.
    pub fn committed(&mut self, prepared: u64) -> Option<Meaning> {
        if self.elsewhere.remove(&prepared).is_some() {
            return Some(Meaning::None);
        }
        let doubt = self.here.remove(&prepared)?;
        self.bytes -= doubt.bytes();
        Some(doubt.entries.map_or(Meaning::InLog, |(entries, _)| Meaning::Entries(entries)))
    }

    /// An abort.
    pub fn aborted(&mut self, entry: RawDoc<'_>) {
        let Some((lsid, number)) = key_of(entry) else { return };
        let is_other =
            |key: &Option<Key>| !key.as_ref().is_some_and(|(one, n)| *n == number && one.as_raw() == lsid);
        self.retain(|_, key| is_other(key));
    }

    /// These are in doubt and no others: of what has been aborted since nobody may have told. `may_see` says what is known of those
    /// that were not read.
    pub fn are(&mut self, in_doubt: &[InDoubt], may_see: impl Fn(&[Uuid]) -> bool) {
        let times: BTreeSet<u64> = in_doubt.iter().map(|one| one.prepared.0).collect();
        self.retain(|time, _| times.contains(&time));
        for InDoubt { prepared: Timestamp(time), collections } in in_doubt {
            let is_read = self.here.get(time).is_some_and(|doubt| doubt.is_read);
            if is_read || self.elsewhere.contains_key(time) {
                continue;
            }
            let key = self.here.remove(time).and_then(|doubt| doubt.key);
            match may_see(collections) {
                true => _ = self.here.insert(*time, Doubt { key, entries: None, is_read: false }),
                false => _ = self.elsewhere.insert(*time, key),
            }
        }
    }

    fn retain(&mut self, stays: impl Fn(u64, &Option<Key>) -> bool) {
        self.elsewhere.retain(|time, key| stays(*time, key));
        let bytes = &mut self.bytes;
        self.here.retain(|time, doubt| {
            let stays = stays(*time, &doubt.key);
            *bytes -= if stays { 0 } else { doubt.bytes() };
            stays
        });
    }
}

impl Doubt {
    fn bytes(&self) -> usize {
        self.entries.as_ref().map_or(0, |(entries, _)| bytes_of(entries))
    }
}

fn bytes_of(entries: &[DocBuf]) -> usize {
    entries.iter().map(|entry| entry.as_bytes().len()).sum()
}

/// Whether changes of one of these collections may be seen, as far as a state knows them.
pub fn may_see(watched: &Watched, view: &View, collections: &[Uuid]) -> bool {
    let seen = |uuid| view.catalog().by_uuid(uuid).is_none_or(|found| watched.sees(&found.namespace));
    collections.iter().any(seen)
}

/// What a prepare, all of whose entries are here, is to a stream.
pub fn meaning_of(watched: &Watched, entries: Vec<DocBuf>) -> Meaning {
    let is_seen = |entry: &DocBuf| {
        let operations = Operation::read(entry.as_raw()).and_then(|entry| entry.applied());
        operations.unwrap_or(RawDoc::EMPTY).values().filter_map(|value| value.as_doc()).any(|doc| {
            let text = |name: &str| doc.get(name).and_then(|value| value.as_str()).unwrap_or_default();
            !matches!(text("op"), "i" | "u" | "d") || watched.sees(text("ns"))
        })
    };
    if entries.iter().any(is_seen) { Meaning::Entries(entries) } else { Meaning::None }
}

/// Whose transaction an entry is about.
pub fn key_of(entry: RawDoc<'_>) -> Option<(RawDoc<'_>, i64)> {
    Some((entry.get("lsid")?.as_doc()?, entry.get("txnNumber")?.as_exact_i64()?))
}

/// A commit's own time, and that of its prepare.
pub fn commit_times(entry: RawDoc<'_>) -> Option<(u64, u64)> {
    let o = entry.get("o")?.as_doc()?;
    o.element("commitTransaction")?;
    match (o.get("commitTimestamp")?, o.get("prepared")?) {
        (Value::Timestamp(at), Value::Timestamp(prepared)) => Some((at.0, prepared.0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{ArrayBuf, doc};

    use super::*;

    fn in_doubt(times: &[u64]) -> Vec<InDoubt> {
        times.iter().map(|time| InDoubt { prepared: Timestamp(*time), collections: [].into() }).collect()
    }

    #[test]
    fn what_is_told_waits_for_the_oldest_doubt() {
        let mut doubts = Doubts::default();
        doubts.are(&in_doubt(&[5]), |_| true);
        let lsid = doc! { "id": 1 };
        doubts.begun(3, Some((lsid.clone(), 7)), Meaning::InLog);
        doubts.begun(4, None, Meaning::InLog);
        assert_eq!(doubts.oldest(), Some(3));
        doubts.aborted(doc! { "lsid": lsid.as_raw(), "txnNumber": 8i64 }.as_raw());
        assert_eq!(doubts.oldest(), Some(3));
        doubts.aborted(doc! { "lsid": lsid.as_raw(), "txnNumber": 7i64 }.as_raw());
        assert_eq!(doubts.oldest(), Some(4));
        assert_eq!(doubts.committed(4), Some(Meaning::InLog));
        assert_eq!(doubts.committed(4), None);
        doubts.are(&in_doubt(&[]), |_| true);
        assert_eq!(doubts.oldest(), None);
    }

    #[test]
    fn what_changes_nothing_that_is_watched_holds_nothing_back() {
        let mut doubts = Doubts::default();
        doubts.begun(3, None, Meaning::None);
        doubts.are(&in_doubt(&[3, 4]), |_| false);
        assert_eq!(doubts.oldest(), None);
        assert_eq!((doubts.committed(3), doubts.committed(4)), (Some(Meaning::None), Some(Meaning::None)));
    }

    #[test]
    fn small_prepares_are_kept_and_large_ones_read_again() {
        let small = || vec![doc! { "a": &*"x".repeat(1000) }];
        let large = vec![doc! { "a": &*"x".repeat(KEPT_BYTES) }];
        let mut doubts = Doubts::default();
        doubts.begun(1, None, Meaning::Entries(large));
        assert_eq!(doubts.committed(1), Some(Meaning::InLog));
        for _ in 0..2 {
            for at in 0..1000 {
                doubts.begun(at, None, Meaning::Entries(small()));
            }
            assert_eq!(doubts.committed(0), Some(Meaning::Entries(small())));
            assert_eq!(doubts.committed(999), Some(Meaning::InLog));
            doubts.are(&[], |_| true);
            assert_eq!(doubts.bytes, 0);
        }
    }

    #[test]
    fn what_is_kept_is_counted_with_the_memory() {
        let process = sheaf_meter::Process::new(4096, 4096);
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
        let entries = || vec![doc! { "a": &*"x".repeat(1000) }];
        let mut doubts = Doubts::default();
        (0..10).for_each(|at| doubts.begun(at, None, Meaning::Entries(entries())));
        assert!((3000..=4096).contains(&process.used()), "{}", process.used());
        assert_eq!(doubts.committed(0), Some(Meaning::Entries(entries())));
        assert_eq!(doubts.committed(9), Some(Meaning::InLog));
        doubts.are(&[], |_| true);
        assert_eq!((process.used(), doubts.bytes), (0, 0));
    }

    #[test]
    fn a_prepare_is_looked_at_by_its_names() {
        let watched = Watched::Collection("db.a".to_owned());
        let prepare = |names: &[(&str, &str)]| {
            let operations = names.iter().map(|(op, ns)| doc! { "op": *op, "ns": *ns, "o": {} });
            let operations = ArrayBuf::of(&operations.collect::<Vec<_>>());
            vec![
                doc! { "op": "c", "ns": "admin.$cmd", "o": { "applyOps": Value::Array(operations.as_raw()), "prepare": true } },
            ]
        };
        let foreign = prepare(&[("i", "db.b"), ("u", "db.aa")]);
        assert_eq!(meaning_of(&watched, foreign), Meaning::None);
        for seen in [prepare(&[("i", "db.b"), ("d", "db.a")]), prepare(&[("c", "db.$cmd")])] {
            assert_eq!(meaning_of(&watched, seen.clone()), Meaning::Entries(seen));
        }
    }
}
