//! DDL as MongoDB's oplog has it. Storage keeps numbers, and how things were before, in a field `sheaf`.

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};

type Out<'w> = DocWriter<'w, Vec<u8>>;

/// Writes `o` and `o2` of a command; `doc` is the whole operation.
pub fn write(doc: RawDoc<'_>, o: RawDoc<'_>, out: &mut Out<'_>) {
    let own = o.get("sheaf").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    let indexes = own.get("indexes").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
    match o.iter().next().map_or("", |first| first.key()) {
        "create" => create(o, indexes, &mut out.document("o")),
        "createIndexes" if are_ready(indexes) => create_index(o, indexes, &mut out.document("o")),
        "createIndexes" | "startIndexBuild" => {
            build(doc, "startIndexBuild", o, indexes, &mut out.document("o"))
        }
        "commitIndexBuild" => build(doc, "commitIndexBuild", o, indexes, &mut out.document("o")),
        "abortIndexBuild" => abort(doc, o, indexes, &mut out.document("o")),
        "dropIndexes" if !are_ready(indexes) => abort(doc, o, indexes, &mut out.document("o")),
        "dropIndexes" => drop_index(o, indexes, out),
        "collMod" => coll_mod(doc, o, own, out),
        _ => {
            plain(o, &mut out.document("o"));
            if let Some(count) = own.get("numRecords") {
                out.document("o2").append("numRecords", count);
            }
        }
    }
}

/// Whether a command is about a view, which in MongoDB is a document of `system.views`.
pub fn is_of_view(o: RawDoc<'_>) -> bool {
    let own = o.get("sheaf").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    let before = own.get("options").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    match o.iter().next().map_or("", |first| first.key()) {
        "create" => o.element("viewOn").is_some(),
        "collMod" => before.element("viewOn").is_some(),
        "drop" => own.element("view").is_some(),
        _ => false,
    }
}

/// Whether a command builds an index that takes another one's place: MongoDB changes such an index where it is, and tells only of that.
pub fn builds_anew(o: RawDoc<'_>) -> bool {
    let indexes = o.get("sheaf").and_then(|own| own.as_doc()?.get("indexes")?.as_array());
    let mut entries = indexes.into_iter().flat_map(|list| list.values()).filter_map(|entry| entry.as_doc());
    entries.any(|entry| entry.get("replaces").is_some_and(|v| v.truthy()))
}

fn plain(o: RawDoc<'_>, out: &mut Out<'_>) {
    for field in o.iter().filter(|field| field.key() != "sheaf") {
        out.append_element(field);
    }
}

/// Whether these are indexes that need no more building.
fn are_ready(indexes: RawDoc<'_>) -> bool {
    indexes.values().filter_map(|v| v.as_doc()).all(|entry| entry.get("ready").is_some_and(|v| v.truthy()))
}

fn specs(indexes: RawDoc<'_>) -> impl Iterator<Item = RawDoc<'_>> {
    indexes.values().filter_map(|entry| entry.as_doc()?.get("spec")?.as_doc())
}

fn create(o: RawDoc<'_>, indexes: RawDoc<'_>, out: &mut Out<'_>) {
    plain(o, out);
    if let Some(id) = specs(indexes).next().filter(|spec| spec.element("clustered").is_none()) {
        out.append("idIndex", id);
    }
}

fn create_index(o: RawDoc<'_>, indexes: RawDoc<'_>, out: &mut Out<'_>) {
    out.append("createIndexes", o.get_or_missing("createIndexes"));
    if let Some(spec) = specs(indexes).next() {
        out.append_all(spec);
    }
}

fn build(doc: RawDoc<'_>, kind: &str, o: RawDoc<'_>, indexes: RawDoc<'_>, out: &mut Out<'_>) {
    let name = o.iter().next().map_or(Value::Missing, |first| first.value());
    out.append(kind, name);
    out.append("indexBuildUUID", Value::Binary(Binary { subtype: 4, bytes: &build_uuid(doc, indexes) }));
    let mut list = out.array("indexes");
    for spec in specs(indexes) {
        list.push(spec);
    }
}

/// A build has no UUID of its own: the collection's and the first index's number make one.
fn build_uuid(doc: RawDoc<'_>, indexes: RawDoc<'_>) -> [u8; 16] {
    let mut uuid = match doc.get("ui") {
        Some(Value::Binary(binary)) => binary.bytes.try_into().unwrap_or([0; 16]),
        _ => [0; 16],
    };
    let first = indexes.values().next().and_then(|entry| entry.as_doc()?.get("ident")?.as_exact_i64());
    for (byte, part) in uuid[10..].iter_mut().zip(first.unwrap_or(0).to_le_bytes()) {
        *byte ^= part;
    }
    uuid
}

fn abort(doc: RawDoc<'_>, o: RawDoc<'_>, indexes: RawDoc<'_>, out: &mut Out<'_>) {
    build(doc, "abortIndexBuild", o, indexes, out);
    out.document("cause")
        .append("ok", false)
        .append("code", 276)
        .append("codeName", "IndexBuildAborted")
        .append("errmsg", "");
}

fn drop_index(o: RawDoc<'_>, indexes: RawDoc<'_>, out: &mut Out<'_>) {
    let names = o.get("indexes").and_then(|v| v.as_array()).unwrap_or(RawDoc::EMPTY);
    {
        let mut o_out = out.document("o");
        o_out.append("dropIndexes", o.get_or_missing("dropIndexes"));
        o_out.append("index", names.values().next().unwrap_or(Value::Missing));
    }
    if let Some(spec) = specs(indexes).next() {
        out.append("o2", spec);
    }
}

/// Storage keeps the options and specifications as they are afterwards; MongoDB shows what was asked for, which stands beside them where
/// somebody has asked.
fn coll_mod(doc: RawDoc<'_>, o: RawDoc<'_>, own: RawDoc<'_>, out: &mut Out<'_>) {
    let before = own.get("options").and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
    if before.element("viewOn").is_some() {
        return view_mod(o, before, &mut out.document("o"));
    }
    let asked = own.get("asked").and_then(|v| v.as_doc());
    let changed = if asked.is_none() { changed_index(o, own) } else { None };
    {
        let mut o_out = out.document("o");
        o_out.append("collMod", o.get_or_missing("collMod"));
        match asked {
            Some(asked) => _ = o_out.append_all(asked),
            None => differences(o, before, changed.as_ref(), &mut o_out),
        }
    }
    let mut o2 = out.document("o2");
    {
        let mut old = o2.document("collectionOptions_old");
        old.append("uuid", doc.get_or_missing("ui")).append_all(before);
    }
    let index_before = match changed {
        Some((_, _, old)) => Some(old).filter(|old| !old.as_raw().is_empty()),
        None => own.get("indexBefore").and_then(|v| v.as_doc()).map(DocBuf::from),
    };
    if let Some(old) = index_before {
        o2.append("indexOptions_old", &old);
    }
}

fn differences(
    o: RawDoc<'_>,
    before: RawDoc<'_>,
    index: Option<&(String, DocBuf, DocBuf)>,
    out: &mut Out<'_>,
) {
    if let Some((name, changed, _)) = index {
        out.document("index").append("name", name).append_all(changed.as_raw());
    }
    let after = o.get("options").and_then(|v| v.as_doc()).unwrap_or(before);
    for field in after.iter() {
        if before.element(field.key()).is_none_or(|old| old.as_bytes() != field.as_bytes()) {
            out.append_element(field);
        }
    }
}

/// A view's definition is replaced as a whole.
fn view_mod(o: RawDoc<'_>, before: RawDoc<'_>, out: &mut Out<'_>) {
    out.append("collMod", o.get_or_missing("collMod"));
    let after = o.get("options").and_then(|v| v.as_doc()).unwrap_or(before);
    for name in ["viewOn", "pipeline", "collation"] {
        out.append(name, after.get_or_missing(name));
    }
}

/// Name of the index that a `collMod` changes, its new options, and what those were.
fn changed_index(o: RawDoc<'_>, own: RawDoc<'_>) -> Option<(String, DocBuf, DocBuf)> {
    let first = o.get("indexes")?.as_doc()?.iter().next()?;
    let after = first.value().as_doc()?;
    let before = own.get("indexes")?.as_doc()?.get(first.key())?.as_doc()?;
    let changed = |from: RawDoc<'_>, to: RawDoc<'_>| {
        DocBuf::build(|out| {
            for field in to.iter() {
                if from.element(field.key()).is_none_or(|old| old.as_bytes() != field.as_bytes()) {
                    out.append_element(field);
                }
            }
        })
    };
    Some((first.key().to_owned(), changed(before, after), changed(after, before)))
}
