//! What a collection of self-checking documents holds: read whole, each document against its checksum.

use std::ops::Range;

use sheaf_bson::{RawDoc, doc};

use crate::client::{Client, Collection};
use crate::error::Result;
use crate::generate::document;
use crate::results::Check;

/// The findings of one reading.
pub(super) struct Contents {
    /// The keys that may be there.
    keys: Range<i64>,
    /// One bit per key.
    seen: Vec<u64>,
    /// Documents that were whole.
    pub whole: u64,
    /// Bytes of all documents.
    pub bytes: u64,
    /// Documents that were not whole, there twice or not expected at all, and the first of them in words.
    pub wrong: u64,
    first: Option<String>,
}

impl Contents {
    /// Reads a collection whose keys lie in this range. `each` gets key, version and document of those that are whole,
    /// and may find something wrong with them.
    pub fn read(
        client: &mut Client,
        from: &Collection,
        keys: Range<i64>,
        mut each: impl FnMut(i64, i64, RawDoc<'_>) -> Option<String>,
    ) -> Result<Contents> {
        let words = (keys.end - keys.start).max(0) as usize / 64 + 1;
        let mut contents = Contents { keys, seen: vec![0; words], whole: 0, bytes: 0, wrong: 0, first: None };
        client.for_each(&from.db, &doc! { "find": from.name.as_str() }, |document| {
            contents.take(document, &mut each);
            Ok(())
        })?;
        Ok(contents)
    }

    fn take(&mut self, document: RawDoc<'_>, each: &mut impl FnMut(i64, i64, RawDoc<'_>) -> Option<String>) {
        self.bytes += document.len() as u64;
        let (key, version) = match document::verify_any(document) {
            Ok(found) => found,
            Err(wrong) => {
                let id = document.get("_id");
                return self.is_wrong(format!("document {id:?}: {wrong}"));
            }
        };
        if !self.keys.contains(&key) {
            return self.is_wrong(format!("document {key} was never written"));
        }
        let at = (key - self.keys.start) as usize;
        if self.seen[at / 64] >> (at % 64) & 1 == 1 {
            return self.is_wrong(format!("document {key} is there twice"));
        }
        self.seen[at / 64] |= 1 << (at % 64);
        match each(key, version, document) {
            Some(problem) => self.is_wrong(format!("document {key}: {problem}")),
            None => self.whole += 1,
        }
    }

    fn is_wrong(&mut self, what: String) {
        self.wrong += 1;
        self.first.get_or_insert(what);
    }

    /// Whether a document of this key was there.
    pub fn has(&self, key: i64) -> bool {
        let at = (key - self.keys.start) as usize;
        self.keys.contains(&key) && self.seen[at / 64] >> (at % 64) & 1 == 1
    }

    /// The keys that were not there, from the lowest.
    pub fn missing(&self) -> impl Iterator<Item = i64> + '_ {
        self.keys.clone().filter(|key| !self.has(*key))
    }

    /// "contents": every document that was there is whole.
    pub fn check_whole(&self) -> Check {
        Check {
            name: "contents".to_owned(),
            passed: self.wrong == 0,
            detail: match &self.first {
                None => format!("{} documents, {} bytes: all checksums fit", self.whole, self.bytes),
                Some(first) => format!("{} of {} are wrong: {first}", self.wrong, self.wrong + self.whole),
            },
        }
    }

    /// "count": every key of the range is there.
    pub fn check_complete(&self) -> Check {
        let mut missing = self.missing();
        let (first, expected) = (missing.next(), self.keys.end - self.keys.start);
        Check {
            name: "count".to_owned(),
            passed: first.is_none(),
            detail: match first {
                None => format!("all {expected} documents are there"),
                Some(key) => {
                    format!("{} of {expected} documents are missing, the first is {key}", 1 + missing.count())
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::document::DocumentMaker;

    fn reading(keys: &[i64], break_key: Option<i64>) -> Contents {
        let mut contents =
            Contents { keys: 1..101, seen: vec![0; 2], whole: 0, bytes: 0, wrong: 0, first: None };
        for &key in keys {
            let mut bytes = Vec::new();
            DocumentMaker::new(1, 0.0).append(&mut bytes, key, 0, 200, |_| {});
            if break_key == Some(key) {
                let at = bytes.len() - 5;
                bytes[at] ^= 4;
            }
            contents.take(RawDoc::new(&bytes), &mut |_, _, _| None);
        }
        contents
    }

    #[test]
    fn whole_and_complete() {
        let all: Vec<i64> = (1..101).rev().collect();
        let contents = reading(&all, None);
        assert!(contents.check_whole().passed && contents.check_complete().passed);
        assert_eq!((contents.whole, contents.bytes), (100, 20_000));
    }

    #[test]
    fn what_is_missing_torn_doubled_or_strange_is_named() {
        let some: Vec<i64> = (1..101).filter(|key| key % 50 != 7).collect();
        let check = reading(&some, None).check_complete();
        assert!(!check.passed);
        assert_eq!(check.detail, "2 of 100 documents are missing, the first is 7");
        let torn = reading(&[1, 2, 3], Some(2)).check_whole();
        assert!(!torn.passed && torn.detail.contains("1 of 3"), "{}", torn.detail);
        assert!(reading(&[5, 5], None).check_whole().detail.contains("document 5 is there twice"));
        assert!(reading(&[0], None).check_whole().detail.contains("never written"));
    }
}
