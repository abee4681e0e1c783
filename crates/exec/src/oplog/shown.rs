//! Operations as MongoDB's oplog has them.
//!
//! Storage writes almost that. What differs: fields that only storage needs, commands whose arguments it
//! keeps in its own way (see [`super::command`]), `o2` of inserts, and `prevOpTime`, which is there only in the entries
//! of a large transaction but is looked for elsewhere, too.

use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Timestamp};

use super::command;

/// Fields of an operation that only this server has.
const OWN_FIELDS: [&str; 3] = ["rid", "preImage", "retryResult"];

/// The operation in MongoDB's form; `None` if it has that form already.
pub fn shown(doc: RawDoc<'_>) -> Option<DocBuf> {
    let differs = doc.iter().any(|field| match field.key() {
        "lsid" => true,
        "op" => matches!(field.value().as_str(), Some("c" | "i")),
        name => OWN_FIELDS.contains(&name),
    });
    differs.then(|| {
        DocBuf::build(|out| {
            write_fields(doc, out);
            if doc.element("lsid").is_some() && doc.element("prevOpTime").is_none() {
                // The chain of a session's earlier operations, which nothing here follows.
                out.document("prevOpTime").append("ts", Timestamp(0)).append("t", -1i64);
            }
        })
    })
}

/// An operation inside `applyOps`.
fn write_fields(doc: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    if doc.get("op").and_then(|op| op.as_str()) == Some("c") {
        write_command(doc, out);
        return;
    }
    let inserts = doc.get("op").and_then(|op| op.as_str()) == Some("i");
    for field in doc.iter().filter(|field| !OWN_FIELDS.contains(&field.key())) {
        out.append_element(field);
        // An insert's key, which storage does not need twice.
        let inserted = field.value().as_doc().filter(|_| inserts && field.key() == "o");
        if let Some(id) = inserted.and_then(|inserted| inserted.element("_id")) {
            out.document("o2").append_element(id);
        }
    }
}

fn write_command(doc: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    let of_view = doc.get("o").and_then(|o| o.as_doc()).is_some_and(command::is_of_view);
    for field in doc.iter() {
        let o = field.value().as_doc().filter(|_| field.key() == "o");
        match o {
            // Nobody else knows a view by a number.
            None if of_view && field.key() == "ui" => {}
            None => write_statement(doc, field, out),
            Some(o) if o.element("applyOps").is_some() => write_apply_ops(o, &mut out.document("o")),
            Some(o) => command::write(doc, o, out),
        }
    }
}

/// Of a transaction's entry, only retryable writes' have a statement number.
fn write_statement(doc: RawDoc<'_>, field: Element<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    let own = OWN_FIELDS.contains(&field.key());
    let no_statement = field.key() == "stmtId" && doc.element("lsid").is_some();
    if !own && !no_statement {
        out.append_element(field);
    }
}

fn write_apply_ops(o: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in o.iter() {
        let Some(operations) = field.value().as_array() else {
            out.append_element(field);
            continue;
        };
        let mut list = out.array(field.key());
        for operation in operations.values().filter_map(|v| v.as_doc()) {
            write_fields(operation, &mut list.document());
        }
    }
}
