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
        self.take_all(statements.iter().map(|one| statement_document(one, None)).collect())
    }

    /// The same of statements about several namespaces, each with its namespace's place.
    pub fn take_statements_about(&mut self, statements: &[(usize, Statement)]) -> bool {
        self.take_all(statements.iter().map(|(place, one)| statement_document(one, Some(*place))).collect())
    }

    fn take_all(&mut self, all: Vec<DocBuf>) -> bool {
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

/// Where a statement of several namespaces has the place of its own.
const PLACE: &str = "place";

fn statement_document(statement: &Statement, place: Option<usize>) -> DocBuf {
    DocBuf::build(|out| {
        out.append("lsid", &statement.lsid);
        out.append("txnNumber", statement.txn_number).append("stmtId", statement.stmt_id);
        if let Some(result) = &statement.result {
            out.append("result", result);
        }
        if let Some(place) = place {
            out.append(PLACE, place as i64);
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
    list(reply, "statements").map(|value| statement(value.as_doc()?)).collect()
}

/// The statements about each of so many namespaces; `None` stands for what is none.
pub(in crate::sharding) fn statements_about(reply: RawDoc<'_>, count: usize) -> Option<Vec<Vec<Statement>>> {
    let mut about = vec![Vec::new(); count];
    for value in list(reply, "statements") {
        let document = value.as_doc()?;
        let place = usize::try_from(document.get(PLACE)?.as_exact_i64()?).ok()?;
        about.get_mut(place)?.push(statement(document)?);
    }
    Some(about)
}

fn statement(document: RawDoc<'_>) -> Option<Statement> {
    Some(Statement {
        lsid: document.get("lsid")?.as_doc()?.into(),
        txn_number: document.get("txnNumber")?.as_exact_i64()?,
        stmt_id: document.get("stmtId")?.as_exact_i64()? as i32,
        result: document.get("result").and_then(|result| result.as_doc()).map(DocBuf::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_about_several_namespaces_come_to_each_of_them() {
        let statement = |stmt_id: i32| Statement {
            lsid: sheaf_bson::doc! { "id": 1 },
            txn_number: 7,
            stmt_id,
            result: None,
        };
        let mut batch = Batch::default();
        assert!(batch.take_statements_about(&[(1, statement(0)), (0, statement(1)), (1, statement(2))]));
        let told = batch.fields();
        let about = statements_about(told.as_raw(), 2).unwrap();
        let ids: Vec<Vec<i32>> =
            about.iter().map(|all| all.iter().map(|one| one.stmt_id).collect()).collect();
        assert_eq!(ids, [vec![1], vec![0, 2]]);
        assert!(statements_about(told.as_raw(), 1).is_none(), "there is no second one");
    }
}
