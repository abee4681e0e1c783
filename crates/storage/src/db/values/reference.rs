//! What stands in the place of a large document that is somewhere else.

use sheaf_bson::RawDoc;

use crate::critical::must;

/// Where a document is: in a file of values, or as long as that is not known, in the payload of its commit.
///
/// ```text
/// reference = 0:u32 file:u32 offset:u32 length:u32 crc:u32        (little-endian)
/// ```
///
/// A document begins with its length, which is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Number of the file; 0: the payload.
    pub file: u32,
    /// Where in it.
    pub offset: u32,
    pub length: u32,
    /// CRC-32C of the document's bytes.
    pub crc: u32,
}

/// Bytes of a reference.
const LENGTH: usize = 20;

impl Reference {
    /// To a document in a payload to whose end, from `begin` on, its operation was appended.
    pub fn find(payload: &[u8], begin: usize, doc: RawDoc<'_>) -> Reference {
        let operation = RawDoc::new(&payload[begin..]);
        let o = operation.get("o").and_then(|o| o.as_doc()).unwrap_or(RawDoc::EMPTY);
        must!(o.len() == doc.len(), "an operation of {} bytes has {} of its document", doc.len(), o.len());
        Reference::to_payload(offset_in(payload, o) as u32, doc)
    }

    /// To a document in a payload.
    fn to_payload(offset: u32, doc: RawDoc<'_>) -> Reference {
        let bytes = doc.as_bytes();
        Reference { file: 0, offset, length: bytes.len() as u32, crc: crc32c::crc32c(bytes) }
    }

    /// What a record's value refers to; `None` if it is the document itself.
    pub fn read(value: &[u8]) -> Option<Reference> {
        let words = value.first_chunk::<LENGTH>().filter(|_| value.len() == LENGTH)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| words[4 * at + i]));
        (word(0) == 0).then(|| Reference { file: word(1), offset: word(2), length: word(3), crc: word(4) })
    }

    pub fn bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        for (at, word) in [self.file, self.offset, self.length, self.crc].into_iter().enumerate() {
            bytes[4 * at + 4..4 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Whether these are the bytes of the document.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.length as usize && crc32c::crc32c(bytes) == self.crc
    }
}

/// Where a document that is a part of a payload begins.
pub(crate) fn offset_in(payload: &[u8], doc: RawDoc<'_>) -> usize {
    doc.as_bytes().as_ptr() as usize - payload.as_ptr() as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_reference_reads_back(file: u32, offset: u32, length: u32, crc: u32) {
            let reference = Reference { file, offset, length, crc };
            prop_assert_eq!(Reference::read(&reference.bytes()), Some(reference));
        }
    }

    #[test]
    fn no_document_is_taken_for_one() {
        // Of the same length: `{a: <12 bytes>}` as a string.
        let doc = sheaf_bson::doc! { "a": "1234567" };
        assert_eq!(doc.as_bytes().len(), LENGTH);
        assert_eq!(Reference::read(doc.as_bytes()), None);
        assert_eq!(Reference::read(&[0; LENGTH - 1]), None);
        assert_eq!(Reference::read(&[0; LENGTH + 1]), None);
    }

    #[test]
    fn other_bytes_do_not_fit() {
        let doc = sheaf_bson::doc! { "a": 1 };
        let reference = Reference::to_payload(7, doc.as_raw());
        assert!(reference.fits(doc.as_bytes()));
        let mut other = doc.as_bytes().to_vec();
        other[9] ^= 1;
        assert!(!reference.fits(&other) && !reference.fits(&other[1..]));
    }
}
