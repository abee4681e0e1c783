//! Documents and statements on their way from the donor to the recipient: fields of the donor's replies.

use sheaf_bson::{ArrayBuf, ArrayWriter, Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_storage::Statement;

/// What one answer has at most, unless a single document is larger. The recipient makes a commit of it, for which its other writers wait; and
/// larger buffers are new memory each time.
const BATCH_BYTES: usize = 1 << 20;

/// What an answer has besides, roughly: names and lengths.
const ROOM: usize = BATCH_BYTES / 8;

/// What one answer of the donor brings of what has changed.
#[derive(Default)]
pub(in crate::sharding) struct Batch {
    documents: Vec<DocBuf>,
    gone: Vec<Vec<u8>>,
    statements: Vec<DocBuf>,
    bytes: usize,
}

/// The fields of an answer with the documents that `fill` finds, and what it gives. It is to stop where [`take`] says so.
///
/// Errors: those of `fill`.
pub(in crate::sharding) fn copied<T>(
    fill: impl FnOnce(&mut ArrayWriter<'_, Vec<u8>>) -> Result<T>,
) -> Result<(T, DocBuf)> {
    let mut bytes = Vec::with_capacity(BATCH_BYTES + ROOM);
    let filled = fill(&mut DocWriter::new(&mut bytes).array("documents"))?;
    Ok((filled, DocBuf::from_bytes(bytes)))
}

/// Takes a document as it is now; false: it is for the next batch.
pub(in crate::sharding) fn take(list: &mut ArrayWriter<'_, Vec<u8>>, document: RawDoc<'_>) -> bool {
    let fits = list.count() == 0 || list.size() + document.len() <= BATCH_BYTES;
    if fits {
        list.push_raw_document(document.as_bytes());
    }
    fits
}

impl Batch {
    fn fits(&mut self, bytes: usize) -> bool {
        if self.bytes > 0 && self.bytes + bytes > BATCH_BYTES {
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Takes a document as it is now; false: it is for the next batch.
    pub fn take(&mut self, document: RawDoc<'_>) -> bool {
        let fits = self.fits(document.len());
        if fits {
            self.documents.push(DocBuf::from(document));
        }
        fits
    }

    /// Takes the key of a record that is not in the range any more.
    pub fn take_gone(&mut self, key: &[u8]) -> bool {
        let fits = self.fits(key.len());
        if fits {
            self.gone.push(key.to_vec());
        }
        fits
    }

    /// Takes a session's statements, all or none.
    pub fn take_statements(&mut self, statements: &[Statement]) -> bool {
        let all: Vec<DocBuf> = statements.iter().map(statement_document).collect();
        let fits = self.fits(all.iter().map(|one| one.as_bytes().len()).sum());
        if fits {
            self.statements.extend(all);
        }
        fits
    }

    /// The reply's fields.
    pub fn fields(&self) -> DocBuf {
        let list =
            |all: &[DocBuf]| ArrayBuf::build(|list| all.iter().for_each(|one| _ = list.push(one.as_raw())));
        let binary = |bytes| Value::Binary(Binary { subtype: 0, bytes });
        let gone = ArrayBuf::of(self.gone.iter().map(|key| binary(key)));
        DocBuf::build(|out| {
            out.append("documents", Value::Array(list(&self.documents).as_raw()));
            out.append("gone", Value::Array(gone.as_raw()));
            out.append("statements", Value::Array(list(&self.statements).as_raw()));
        })
    }
}

fn statement_document(statement: &Statement) -> DocBuf {
    DocBuf::build(|out| {
        out.append("lsid", &statement.lsid);
        out.append("txnNumber", statement.txn_number).append("stmtId", statement.stmt_id);
        if let Some(result) = &statement.result {
            out.append("result", result);
        }
    })
}

fn list<'d>(reply: RawDoc<'d>, name: &str) -> impl Iterator<Item = Value<'d>> {
    reply.get(name).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY).values()
}

/// The documents of a reply.
pub(in crate::sharding) fn documents(reply: RawDoc<'_>) -> Vec<RawDoc<'_>> {
    list(reply, "documents").filter_map(|document| document.as_doc()).collect()
}

/// The keys of records that are gone.
pub(in crate::sharding) fn gone(reply: RawDoc<'_>) -> Vec<&[u8]> {
    let keys = list(reply, "gone").map(|key| match key {
        Value::Binary(Binary { bytes, .. }) => Some(bytes),
        _ => None,
    });
    keys.flatten().collect()
}

/// The statements; `None` stands for what is none.
pub(in crate::sharding) fn statements(reply: RawDoc<'_>) -> Option<Vec<Statement>> {
    let statement = |value: Value<'_>| {
        let document = value.as_doc()?;
        Some(Statement {
            lsid: document.get("lsid")?.as_doc()?.into(),
            txn_number: document.get("txnNumber")?.as_exact_i64()?,
            stmt_id: document.get("stmtId")?.as_exact_i64()? as i32,
            result: document.get("result").and_then(|result| result.as_doc()).map(DocBuf::from),
        })
    };
    list(reply, "statements").map(statement).collect()
}
