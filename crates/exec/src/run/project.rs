//! Shaping documents.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, DocWriter, OwnedValue, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::check_nesting;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::Projection;

use super::metadata::{Metadata, index_key, record_id};
use super::scan::key_document;
use super::{Cx, Row, Stage, Step, count};

/// Builds a document of dotted paths and values, nesting paths that share a beginning.
pub fn nest(values: &[(&str, OwnedValue)]) -> DocBuf {
    DocBuf::build(|out| nest_into(out, values, 0))
}

fn nest_into(out: &mut DocWriter<'_, Vec<u8>>, values: &[(&str, OwnedValue)], skip: usize) {
    let mut at = 0;
    while at < values.len() {
        let (path, value) = &values[at];
        let rest = &path[skip..];
        match rest.split_once('.') {
            None => {
                out.append(rest, value.as_value());
                at += 1;
            }
            Some((head, _)) => {
                let prefix = &path[..skip + head.len() + 1];
                let end = values[at..]
                    .iter()
                    .position(|(p, _)| !p.starts_with(prefix))
                    .map_or(values.len(), |n| at + n);
                nest_into(&mut out.document(head), &values[at..end], prefix.len());
                at = end;
            }
        }
    }
}

/// Applies a projection to documents.
pub struct Project {
    id: usize,
    input: Box<dyn Stage>,
    projection: Arc<Projection>,
    /// For `a.$`, which needs to know where the filter matched.
    matcher: Arc<Matcher>,
    /// What `$meta` needs.
    metadata: Option<Metadata>,
    doc: Vec<u8>,
}

impl Project {
    pub fn new(
        id: usize,
        input: Box<dyn Stage>,
        projection: Arc<Projection>,
        matcher: Arc<Matcher>,
        metadata: Option<Metadata>,
    ) -> Self {
        Project { id, input, projection, matcher, metadata, doc: Vec::new() }
    }
}

impl Stage for Project {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let row = self.input.row();
            let doc = row.doc.unwrap_or(RawDoc::EMPTY);
            let metadata = self.metadata.as_ref().map(|wanted| wanted.of_row(row)).transpose()?;
            let metadata = metadata.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw);
            apply(&self.projection, Some(&self.matcher), doc, metadata, cx, &mut self.doc)?;
        }
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(RawDoc::new(&self.doc)), ..self.input.row() }
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// Applies a projection to the documents that keys say.
pub struct Covered {
    id: usize,
    input: Box<dyn Stage>,
    projection: Arc<Projection>,
    fields: Vec<(String, bool)>,
    doc: Vec<u8>,
}

impl Covered {
    pub fn new(
        id: usize,
        input: Box<dyn Stage>,
        projection: Arc<Projection>,
        fields: Vec<(String, bool)>,
    ) -> Self {
        Covered { id, input, projection, fields, doc: Vec::new() }
    }
}

impl Stage for Covered {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let row = self.input.row();
            let doc = match (row.key, row.doc) {
                (Some((key, bits)), _) => key_document(&self.fields, key, bits),
                (None, Some(doc)) => DocBuf::from(doc),
                (None, None) => DocBuf::new(),
            };
            apply(&self.projection, None, doc.as_raw(), RawDoc::EMPTY, cx, &mut self.doc)?;
        }
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(RawDoc::new(&self.doc)), ..self.input.row() }
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// Adds `$recordId`: the number of a capped collection's record, and otherwise the record's key, which is the
/// comparable form of `_id`.
pub struct RecordId {
    id: usize,
    input: Box<dyn Stage>,
    capped: bool,
    doc: DocBuf,
}

impl RecordId {
    pub fn new(id: usize, input: Box<dyn Stage>, capped: bool) -> Self {
        RecordId { id, input, capped, doc: DocBuf::new() }
    }
}

impl Stage for RecordId {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let row = self.input.row();
            self.doc = DocBuf::from(row.doc.unwrap_or(RawDoc::EMPTY));
            self.doc.append("$recordId", record_id(row.record, self.capped));
        }
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(self.doc.as_raw()), ..self.input.row() }
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}

/// Gives index keys as documents with the key pattern's field names.
pub struct ReturnKey {
    id: usize,
    input: Box<dyn Stage>,
    fields: Vec<(String, bool)>,
    doc: DocBuf,
}

impl ReturnKey {
    pub fn new(id: usize, input: Box<dyn Stage>, fields: Vec<(String, bool)>) -> Self {
        ReturnKey { id, input, fields, doc: DocBuf::new() }
    }
}

impl Stage for ReturnKey {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.doc = index_key(self.input.row(), &self.fields).unwrap_or_default();
        }
        Ok(count(&mut cx.stats[self.id], step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(self.doc.as_raw()), ..self.input.row() }
    }
    fn suspend(&mut self) {
        self.input.suspend();
    }
}

fn apply(
    projection: &Projection,
    matcher: Option<&Matcher>,
    doc: RawDoc<'_>,
    metadata: RawDoc<'_>,
    cx: &Cx<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    let arena = Bump::new();
    let env = cx.env(&arena);
    env.set_metadata(metadata);
    let details = match matcher {
        Some(matcher) if projection.needs_match_details() => matcher.matches_with_details(doc, &env)?,
        _ => None,
    };
    out.clear();
    projection.apply(doc, &env, details, &mut DocWriter::new(out))?;
    // Only what is computed can be deeper than what is stored.
    if projection.is_computed() { check_nesting(Value::Document(RawDoc::new(out))) } else { Ok(()) }
}
