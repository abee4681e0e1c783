//! The profiler's entries of a command's statements.

use std::collections::VecDeque;

use sheaf_bson::DocBuf;

/// What is kept of a command's entries until it has ended. An entry more than that is more than a `system.profile` of the usual size
/// holds, too.
const KEPT_BYTES: usize = 2 << 20;

/// The profiler's entries of a command's statements, oldest first. They are written when the command has ended: as long as it writes,
/// nothing else is written on its behalf.
#[derive(Default, Debug)]
pub struct Entries {
    list: VecDeque<(String, DocBuf)>,
    bytes: usize,
}

impl Entries {
    /// Adds the newest, which is of this database.
    pub fn add(&mut self, db: &str, entry: DocBuf) {
        self.bytes += entry.as_bytes().len();
        self.list.push_back((db.to_owned(), entry));
        // Of a capped collection the oldest ones would go, too.
        while self.bytes > KEPT_BYTES
            && let Some((_, gone)) = self.list.pop_front()
        {
            self.bytes -= gone.as_bytes().len();
        }
    }

    /// All that are left, by database.
    pub fn into_lists(self) -> Vec<(String, Vec<DocBuf>)> {
        let mut lists: Vec<(String, Vec<DocBuf>)> = Vec::new();
        for (db, entry) in self.list {
            match lists.iter_mut().find(|(known, _)| *known == db) {
                Some((_, list)) => list.push(entry),
                None => lists.push((db, vec![entry])),
            }
        }
        lists
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn the_newest_entries_are_kept() {
        let mut entries = Entries::default();
        let large = "x".repeat(KEPT_BYTES / 3);
        for at in 0..10 {
            entries.add(if at == 8 { "a" } else { "b" }, doc! { "at": at, "text": &*large });
        }
        let at = |entry: &DocBuf| entry.as_raw().get("at").and_then(|at| at.as_exact_i64());
        let lists = entries.into_lists();
        let kept: Vec<(&str, Vec<_>)> =
            lists.iter().map(|(db, list)| (&**db, list.iter().filter_map(at).collect())).collect();
        assert_eq!(kept, [("a", vec![8]), ("b", vec![9])]);
    }
}
