//! Documents that tell by themselves whether they are whole: `{_id, v, ..., sum, body}`, where `sum` is the checksum of
//! `body`, of the key and of the version. Whoever reads one needs no memory of what was written.

use std::fmt;

use sheaf_bson::{Binary, DocWriter, RawDoc, Value};

use super::body;

/// Makes documents for one client; the buffer of the body is used again and again.
#[derive(Clone, Debug)]
pub struct DocumentMaker {
    seed: u64,
    compressible: f64,
    body: Vec<u8>,
}

impl DocumentMaker {
    /// For contents of this seed; `compressible` is the part of the body that a compressor can remove, 0 to 1.
    pub fn new(seed: u64, compressible: f64) -> Self {
        DocumentMaker { seed, compressible, body: Vec::new() }
    }

    /// Appends the document of this key and version to `out`. It is `size` bytes long as BSON, or as little more as its
    /// other fields need. `fields` adds those that the workload has besides.
    pub fn append(
        &mut self,
        out: &mut Vec<u8>,
        key: i64,
        version: i64,
        size: usize,
        fields: impl FnOnce(&mut DocWriter<'_, Vec<u8>>),
    ) {
        let mut writer = DocWriter::new(out);
        writer.append("_id", key).append("v", version);
        fields(&mut writer);
        // What follows: sum (type, name, 8 bytes), body (type, name, length, subtype), the end of the document.
        let around = writer.size() + 13 + 11 + 1;
        self.body.resize(size.saturating_sub(around), 0);
        body::fill(self.seed ^ identity(key, version), self.compressible, &mut self.body);
        let sum = body::checksum(identity(key, version), &self.body);
        writer.append("sum", sum as i64);
        writer.append("body", Value::Binary(Binary { subtype: 0, bytes: &self.body }));
    }
}

/// What the checksum knows besides the body.
fn identity(key: i64, version: i64) -> u64 {
    super::mix(key as u64).wrapping_add(super::mix((version as u64).rotate_left(32) | 1))
}

/// How a document is not what was written under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It has another `_id` than was asked for.
    Key,
    /// A field is not there or of another type.
    Field(&'static str),
    /// The checksum does not fit the contents.
    Checksum,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Key => write!(f, "another _id than was asked for"),
            Wrong::Field(name) => write!(f, "the field {name} is missing or of another type"),
            Wrong::Checksum => write!(f, "the checksum does not fit the contents"),
        }
    }
}

/// Checks a document that was asked for by this key; its version when it is whole.
pub fn verify(document: RawDoc<'_>, key: i64) -> Result<i64, Wrong> {
    match verify_any(document)? {
        (found, version) if found == key => Ok(version),
        _ => Err(Wrong::Key),
    }
}

/// Checks a document of whatever key; key and version when it is whole.
pub fn verify_any(document: RawDoc<'_>) -> Result<(i64, i64), Wrong> {
    let number = |name: &'static str| match document.get(name) {
        Some(Value::Int64(n)) => Ok(n),
        _ => Err(Wrong::Field(name)),
    };
    let (key, version, sum) = (number("_id")?, number("v")?, number("sum")?);
    let Some(Value::Binary(found)) = document.get("body") else { return Err(Wrong::Field("body")) };
    if body::checksum(identity(key, version), found.bytes) as i64 != sum {
        return Err(Wrong::Checksum);
    }
    Ok((key, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(key: i64, version: i64, size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        DocumentMaker::new(1, 0.0).append(&mut out, key, version, size, |w| {
            w.append("count", key).append("group", (key & 63) as i32);
        });
        out
    }

    #[test]
    fn documents_have_their_size_and_verify() {
        for size in [100, 1024, 16_384, 512 * 1024] {
            let bytes = made(77, 3, size);
            assert_eq!(bytes.len(), size);
            assert_eq!(sheaf_bson::validate(&bytes, 10).unwrap(), size);
            assert_eq!(verify(RawDoc::new(&bytes), 77), Ok(3));
            assert!(matches!(RawDoc::new(&bytes).get("group"), Some(Value::Int32(13))));
        }
        let tiny = made(1, 0, 0);
        assert_eq!(verify(RawDoc::new(&tiny), 1), Ok(0));
    }

    #[test]
    fn several_documents_follow_each_other_in_one_buffer() {
        let mut maker = DocumentMaker::new(1, 0.5);
        let mut out = vec![9; 21];
        for key in 0..3 {
            maker.append(&mut out, key, 0, 500, |_| {});
        }
        assert_eq!(out.len(), 21 + 3 * 500);
        for key in 0..3usize {
            assert_eq!(verify(RawDoc::new(&out[21 + key * 500..][..500]), key as i64), Ok(0));
        }
    }

    #[test]
    fn what_is_not_whole_is_found() {
        let bytes = made(5, 1, 1000);
        assert_eq!(verify(RawDoc::new(&bytes), 6), Err(Wrong::Key));
        for at in [bytes.len() - 2, bytes.len() - 900] {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(verify(RawDoc::new(&torn), 5), Err(Wrong::Checksum), "{at}");
        }
        // The body of another key, or of an older version, under this one.
        let other = made(6, 1, 1000);
        let body_at = bytes.len() - 800;
        let mut swapped = bytes.clone();
        swapped[body_at..].copy_from_slice(&other[body_at..]);
        assert_eq!(verify(RawDoc::new(&swapped), 5), Err(Wrong::Checksum));
        let mut version = bytes.clone();
        let at = bytes.windows(3).position(|w| w == b"\x12v\0").unwrap() + 3;
        version[at] = 2;
        assert_eq!(verify(RawDoc::new(&version), 5), Err(Wrong::Checksum));
        assert_eq!(verify(sheaf_bson::doc! { "_id": 5i64 }.as_raw(), 5), Err(Wrong::Field("v")));
    }
}
