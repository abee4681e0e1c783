//! A command's answer, built once in the buffer that is sent.

use sheaf_bson::{ArrayWriter, DocWriter, Value};
use sheaf_errors::Error;

/// Bytes kept free in front of the body for the message header, flags and section kind, so that
/// the reply goes to the socket without being copied again.
pub const HEAD: usize = sheaf_wire::REPLY_HEAD;

/// A reply under construction: an OP_MSG with room for its header, then the body.
///
/// Handlers add their fields; dispatch closes it with `ok: 1.0` and what else every reply has.
pub struct Reply {
    bytes: Vec<u8>,
    /// Whether `ok` is an integer, as in the few replies that MongoDB makes of others by hand.
    int_ok: bool,
}

impl Reply {
    /// An empty reply, to be filled with [`Reply::with`] and kin. `ok: 1.0` is added by dispatch.
    pub fn ok() -> Self {
        Self::with_capacity(256)
    }

    /// An empty reply with room for `capacity` bytes of body.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEAD + capacity);
        // Header space, then the length of a document whose closing NUL comes at the end.
        bytes.resize(HEAD + 4, 0);
        Reply { bytes, int_ok: false }
    }

    /// The same reply, whose `ok` will be an integer.
    #[must_use]
    pub fn with_int_ok(self) -> Self {
        Reply { int_ok: true, ..self }
    }

    /// Adds `ok`: all went well.
    pub(crate) fn append_ok(&mut self) {
        if self.int_ok {
            self.append("ok", 1)
        } else {
            self.append("ok", 1.0)
        };
    }

    /// Adds a field.
    #[must_use]
    pub fn with<'v>(mut self, key: &str, value: impl Into<Value<'v>>) -> Self {
        self.append(key, value);
        self
    }

    /// Adds a field.
    pub fn append<'v>(&mut self, key: &str, value: impl Into<Value<'v>>) -> &mut Self {
        self.fill(|doc| {
            doc.append(key, value);
        })
    }

    /// Adds fields with a writer.
    #[must_use]
    pub fn with_fields(mut self, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> Self {
        self.fill(fill);
        self
    }

    /// Adds an array built in place.
    #[must_use]
    pub fn with_array(mut self, key: &str, fill: impl FnOnce(&mut ArrayWriter<'_, Vec<u8>>)) -> Self {
        self.fill(|doc| fill(&mut doc.array(key)));
        self
    }

    /// Adds an embedded document built in place.
    #[must_use]
    pub fn with_document(mut self, key: &str, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> Self {
        self.fill(|doc| fill(&mut doc.document(key)));
        self
    }

    /// Adds fields with a writer of the reply's own document.
    pub fn fill(&mut self, fill: impl FnOnce(&mut DocWriter<'_, Vec<u8>>)) -> &mut Self {
        fill(&mut DocWriter::resume(&mut self.bytes, HEAD));
        // The writer has closed the document; more fields may follow.
        self.bytes.pop();
        self
    }

    /// The buffer, positioned after the last field: for code that writes BSON elements itself (a
    /// cursor's batch of megabytes). What is written must be whole elements.
    pub fn raw(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Size of the body so far.
    pub fn body_len(&self) -> usize {
        self.bytes.len() - HEAD
    }

    /// The fields written so far, as bytes of BSON elements.
    pub fn elements(&self) -> &[u8] {
        &self.bytes[HEAD + 4..]
    }

    /// `{ok: 0, errmsg, code, codeName, ...}` as MongoDB orders it.
    pub fn error(error: &Error) -> Self {
        let mut reply = Reply::ok();
        reply.fill(|doc| write_error(doc, error));
        reply
    }

    /// Closes the body and gives the message's bytes, whose first [`HEAD`] bytes are still blank.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.push(0);
        let len = (self.bytes.len() - HEAD) as i32;
        self.bytes[HEAD..HEAD + 4].copy_from_slice(&len.to_le_bytes());
        self.bytes
    }
}

/// The fields of an error, at top level of a reply.
pub fn write_error(doc: &mut DocWriter<'_, Vec<u8>>, error: &Error) {
    if !error.labels().is_empty() {
        let mut labels = doc.array("errorLabels");
        for label in error.labels() {
            labels.push(*label);
        }
    }
    doc.append("ok", 0.0);
    doc.append("errmsg", error.message());
    doc.append("code", error.code().0);
    doc.append("codeName", &*error.code().name());
    if let Some(extra) = error.extra() {
        doc.append_all(sheaf_bson::RawDoc::new(extra));
    }
    if let Some(info) = error.err_info() {
        doc.append("errInfo", sheaf_bson::RawDoc::new(info));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::{RawDoc, doc};

    #[test]
    fn fields_in_order() {
        let mut reply = Reply::ok().with("n", 1).with_array("values", |a| {
            a.push("x").push(2.5);
        });
        reply.append("ok", 1.0);
        let bytes = reply.into_bytes();
        assert_eq!(RawDoc::new(&bytes[HEAD..]), doc! { "n": 1, "values": ["x", 2.5], "ok": 1.0 }.as_raw());
    }
}
