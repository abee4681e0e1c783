//! Records that can be checked: each field begins with its version, and the rest follows from record, field and version.

use std::fmt::Write;

use sheaf_bson::{DocWriter, RawDoc};

use crate::generate::{body, mix};

/// Hexadecimal digits of the version, and something behind them.
pub(super) const LEAST_BYTES: usize = VERSION_BYTES + 4;
const VERSION_BYTES: usize = 8;

/// Makes and checks records of one shape.
#[derive(Clone, Debug)]
pub(super) struct Maker {
    fields: u32,
    field_bytes: usize,
}

/// "field0", ...
pub(super) fn field_name(field: u32) -> String {
    format!("field{field}")
}

/// YCSB's key of a record: "user" and the FNV-1 hash of its number, whose sign is dropped.
pub(super) fn id(key: u64) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for octet in key.to_le_bytes() {
        hash ^= u64::from(octet);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    format!("user{}", (hash as i64).unsigned_abs())
}

impl Maker {
    pub fn new(fields: u32, field_bytes: usize) -> Maker {
        Maker { fields, field_bytes }
    }

    /// A field of this version.
    pub fn text(&self, key: u64, field: u32, version: i64) -> String {
        let mut text = String::with_capacity(self.field_bytes);
        // Writing into a string does not fail.
        let _ = write!(text, "{version:0VERSION_BYTES$x}");
        let mut rest = vec![0; self.field_bytes.saturating_sub(text.len())];
        body::fill_text(mix(key) ^ mix(u64::from(field) << 32 | version as u64 & 0xffff_ffff), &mut rest);
        text.push_str(std::str::from_utf8(&rest).unwrap_or_default());
        text
    }

    /// Appends the record as it is inserted: every field of version 0. The number is kept too, because the hash in the
    /// key cannot be turned back.
    pub fn append(&self, out: &mut Vec<u8>, key: u64) {
        let mut record = DocWriter::new(out);
        record.append("_id", id(key).as_str()).append("number", key as i64);
        for field in 0..self.fields {
            record.append(&field_name(field), self.text(key, field, 0).as_str());
        }
    }

    /// Checks a record: its number and the newest version of its fields.
    pub fn verify(&self, record: RawDoc<'_>) -> Result<(u64, i64), String> {
        let found = record.get("_id").and_then(|id| id.as_str()).unwrap_or_default();
        let number = record.get("number").and_then(|n| n.as_exact_i64()).and_then(|n| u64::try_from(n).ok());
        let key = number.ok_or_else(|| format!("record {found} has no number"))?;
        if id(key) != found {
            return Err(format!("record {found} has the number {key} of another one"));
        }
        let mut newest = 0;
        for field in 0..self.fields {
            let name = field_name(field);
            let wrong = |what: &str| format!("record {key}: {name} {what}");
            let text = record.get(&name).and_then(|text| text.as_str()).ok_or_else(|| wrong("is missing"))?;
            let version = text.get(..VERSION_BYTES).and_then(|head| i64::from_str_radix(head, 16).ok());
            let version = version.ok_or_else(|| wrong("has no version"))?;
            if text != self.text(key, field, version) {
                return Err(wrong("is not what was written"));
            }
            newest = newest.max(version);
        }
        Ok((key, newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_original() {
        // From YCSB's own log of `insertorder=hashed`.
        assert_eq!(id(0), "user6284781860667377211");
        assert_eq!(id(1), "user8517097267634966620");
    }

    #[test]
    fn records_verify_and_broken_ones_do_not() {
        let maker = Maker::new(10, 100);
        let mut bytes = Vec::new();
        maker.append(&mut bytes, 7);
        assert_eq!(maker.verify(RawDoc::new(&bytes)), Ok((7, 0)));
        assert!((1000..1250).contains(&bytes.len()));
        let mut torn = bytes.clone();
        let at = torn.len() - 20;
        torn[at] ^= 1;
        assert!(maker.verify(RawDoc::new(&torn)).unwrap_err().contains("field9 is not what was written"));
        // A field that was updated.
        let newer = maker.text(7, 9, 0x1f);
        let mut updated = bytes.clone();
        let end = updated.len() - 2;
        updated[end - 100..end].copy_from_slice(newer.as_bytes());
        assert_eq!(maker.verify(RawDoc::new(&updated)), Ok((7, 0x1f)));
        // The right text of another field or record.
        for text in [maker.text(7, 8, 0x1f), maker.text(8, 9, 0x1f)] {
            updated[end - 100..end].copy_from_slice(text.as_bytes());
            assert!(maker.verify(RawDoc::new(&updated)).is_err());
        }
    }
}
