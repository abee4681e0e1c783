//! One operation of the log, read.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::Result;

use super::Statement;
use crate::keys::{capped_key, put_id_key};

/// An oplog document, or an element of `applyOps`, read once.
pub(crate) struct Operation<'d> {
    pub op: Option<&'d str>,
    pub namespace: &'d str,
    pub uuid: Option<Value<'d>>,
    pub o: RawDoc<'d>,
    pub o2: RawDoc<'d>,
    pub rid: Option<u64>,
    pub lsid: Option<RawDoc<'d>>,
    pub txn_number: Option<i64>,
    stmt_id: Option<i64>,
    result: Option<RawDoc<'d>>,
    /// `t`, as far as it is there.
    pub term: Option<i64>,
    /// `ts`; of elements of `applyOps`, which have none, 0.
    pub time: u64,
    pub doc: RawDoc<'d>,
}

impl<'d> Operation<'d> {
    pub fn read(doc: RawDoc<'d>) -> Operation<'d> {
        let mut fields = Operation {
            op: None,
            namespace: "",
            uuid: None,
            o: RawDoc::EMPTY,
            o2: RawDoc::EMPTY,
            rid: None,
            lsid: None,
            txn_number: None,
            stmt_id: None,
            result: None,
            term: None,
            time: 0,
            doc,
        };
        for element in doc.iter() {
            let value = element.value();
            match element.key() {
                "op" => fields.op = value.as_str(),
                "ns" => fields.namespace = value.as_str().unwrap_or_default(),
                "ui" => fields.uuid = Some(value),
                "o" => fields.o = value.as_doc().unwrap_or(RawDoc::EMPTY),
                "o2" => fields.o2 = value.as_doc().unwrap_or(RawDoc::EMPTY),
                "rid" => fields.rid = value.as_exact_i64().map(|rid| rid as u64),
                "lsid" => fields.lsid = value.as_doc(),
                "txnNumber" => fields.txn_number = value.as_exact_i64(),
                "stmtId" => fields.stmt_id = value.as_exact_i64(),
                "ts" => {
                    if let Value::Timestamp(time) = value {
                        fields.time = time.0;
                    }
                }
                "t" => {
                    if let Value::Int64(term) = value {
                        fields.term = Some(term);
                    }
                }
                "retryResult" => fields.result = value.as_doc(),
                _ => {}
            }
        }
        fields
    }

    /// The elements of `applyOps`; `None` of any other operation.
    pub fn operations(&self) -> Option<impl Iterator<Item = Operation<'d>> + use<'d>> {
        let first = self.o.iter().next().filter(|first| self.op == Some("c") && first.key() == "applyOps")?;
        let array = first.value().as_array().unwrap_or(RawDoc::EMPTY);
        Some(array.values().filter_map(|v| v.as_doc()).map(Operation::read))
    }

    /// Appends the key of the record that an operation on a document is about.
    pub fn put_record_key(&self, key: &mut Vec<u8>) -> Result<()> {
        match self.rid {
            Some(rid) => key.extend_from_slice(&capped_key(rid)),
            None => {
                let of = if self.op == Some("u") { self.o2 } else { self.o };
                put_id_key(of.get_or_missing("_id"), key)?;
            }
        }
        Ok(())
    }

    /// The statement of a retryable write that it belongs to.
    pub fn statement(&self) -> Option<Statement> {
        Some(Statement {
            lsid: self.lsid?.into(),
            txn_number: self.txn_number?,
            stmt_id: self.stmt_id.unwrap_or(-1) as i32,
            result: self.result.map(DocBuf::from),
        })
    }
}
