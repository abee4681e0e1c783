//! Records that can be checked: each field begins with its version, and the rest follows from record, field and version.

use std::io::Write;

use sheaf_bson::{DocWriter, RawDoc};

use crate::generate::{body, mix};

/// Hexadecimal digits of the version, and something behind them.
pub(super) const LEAST_BYTES: usize = VERSION_BYTES + 4;
const VERSION_BYTES: usize = 8;

/// Makes and checks records of one shape.
#[derive(Clone, Debug)]
pub(super) struct Maker {
    /// "field0", ...
    names: Vec<String>,
    field_bytes: usize,
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
        Maker { names: (0..fields).map(|field| format!("field{field}")).collect(), field_bytes }
    }

    /// The name of a field.
    pub fn name(&self, field: u32) -> &str {
        &self.names[field as usize]
    }

    /// A field of this version.
    pub fn text(&self, key: u64, field: u32, version: i64) -> String {
        let mut text = Vec::new();
        self.put_text(&mut text, key, field, version);
        String::from_utf8(text).unwrap_or_default()
    }

    fn put_text(&self, out: &mut Vec<u8>, key: u64, field: u32, version: i64) {
        out.clear();
        // Writing into a vector does not fail.
        let _ = write!(out, "{version:0VERSION_BYTES$x}");
        let head = out.len();
        out.resize(self.field_bytes.max(head), 0);
        body::fill_text(
            mix(key) ^ mix(u64::from(field) << 32 | version as u64 & 0xffff_ffff),
            &mut out[head..],
        );
    }

    /// Appends the record as it is inserted: every field of version 0. The number is kept too, because the hash in the
    /// key cannot be turned back.
    pub fn append(&self, out: &mut Vec<u8>, key: u64) {
        let mut record = DocWriter::new(out);
        record.append("_id", id(key).as_str()).append("number", key as i64);
        let mut text = Vec::new();
        for (field, name) in (0..).zip(&self.names) {
            self.put_text(&mut text, key, field, 0);
            record.append(name, std::str::from_utf8(&text).unwrap_or_default());
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
        let (mut newest, mut expected) = (0, Vec::new());
        for (field, name) in (0..).zip(&self.names) {
            let wrong = |what: &str| format!("record {key}: {name} {what}");
            let text = record.get(name).and_then(|text| text.as_str()).ok_or_else(|| wrong("is missing"))?;
            let version = text.get(..VERSION_BYTES).and_then(|head| i64::from_str_radix(head, 16).ok());
            let version = version.ok_or_else(|| wrong("has no version"))?;
            self.put_text(&mut expected, key, field, version);
            if text.as_bytes() != expected {
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
