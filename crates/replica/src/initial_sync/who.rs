//! Who asks for a copy.

use sheaf_bson::{Binary, DocWriter, RawDoc, Value};

use crate::protocol::Nonce;

/// Who asks for a copy.
pub struct Who {
    pub set: String,
    /// The asking member's `_id` in the configuration.
    pub id: u64,
    /// The number of the asking member's link to the source.
    pub nonce: Nonce,
}

impl Who {
    /// Adds what a request says.
    pub fn append_to(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let nonce = Value::Binary(Binary { subtype: 0, bytes: &self.nonce });
        doc.append("set", self.set.as_str()).append("from", self.id as i64).append("nonce", nonce);
    }

    /// What a request says.
    pub fn read(doc: RawDoc<'_>) -> Option<Who> {
        let Some(Value::Binary(nonce)) = doc.get("nonce") else { return None };
        Some(Who {
            set: doc.get("set")?.as_str()?.to_owned(),
            id: u64::try_from(doc.get("from")?.as_exact_i64()?).ok()?,
            nonce: nonce.bytes.try_into().ok()?,
        })
    }
}
