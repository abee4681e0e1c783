//! Shaping documents.

use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, DocWriter, OwnedValue, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::check_nesting;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::Projection;

use sheaf_rows::{BoxOperator, Cx, Figures, Operator, Row, Step};

use super::metadata::{Metadata, index_key};
use super::number::Numbers;
use super::scan::key_document;

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
    input: BoxOperator,
    projection: Arc<Projection>,
    /// For `a.$`, which needs to know where the filter matched.
    matcher: Arc<Matcher>,
    /// What `$meta` needs.
    metadata: Option<Metadata>,
    arena: Bump,
    doc: Vec<u8>,
    figures: Figures,
}

impl Project {
    pub fn new(
        input: BoxOperator,
        projection: Arc<Projection>,
        matcher: Arc<Matcher>,
        metadata: Option<Metadata>,
    ) -> Self {
        Project {
            input,
            projection,
            matcher,
            metadata,
            arena: Bump::new(),
            doc: Vec::new(),
            figures: Figures::default(),
        }
    }
}

impl Operator for Project {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let row = self.input.row();
            let doc = row.document();
            let metadata = match &mut self.metadata {
                Some(wanted) => Some(wanted.of_row(row, self.input.metadata(), cx)?),
                None => None,
            };
            let metadata = metadata.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw);
            apply(&self.projection, Some(&self.matcher), doc, metadata, cx, &mut self.arena, &mut self.doc)?;
        }
        Ok(self.figures.count(step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(RawDoc::new(&self.doc)), ..self.input.row() }
    }
    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn suspend(&mut self) {
        self.metadata.iter_mut().for_each(Metadata::suspend);
        self.input.suspend();
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// Applies a projection to the documents that keys say.
pub struct Covered {
    input: BoxOperator,
    projection: Arc<Projection>,
    fields: Vec<(String, bool)>,
    arena: Bump,
    doc: Vec<u8>,
    figures: Figures,
}

impl Covered {
    pub fn new(input: BoxOperator, projection: Arc<Projection>, fields: Vec<(String, bool)>) -> Self {
        Covered {
            input,
            projection,
            fields,
            arena: Bump::new(),
            doc: Vec::new(),
            figures: Figures::default(),
        }
    }
}

impl Operator for Covered {
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
            apply(&self.projection, None, doc.as_raw(), RawDoc::EMPTY, cx, &mut self.arena, &mut self.doc)?;
        }
        Ok(self.figures.count(step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(RawDoc::new(&self.doc)), ..self.input.row() }
    }
    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// Adds the [numbers](Numbers) of records: to the documents (`$recordId`), or beside them for a pipeline's `$meta`.
pub struct RecordId {
    input: BoxOperator,
    numbers: Numbers,
    shown: bool,
    /// The document with its number, or the metadata with it.
    doc: DocBuf,
    figures: Figures,
}

impl RecordId {
    pub fn new(input: BoxOperator, numbers: Numbers, shown: bool) -> Self {
        RecordId { input, numbers, shown, doc: DocBuf::new(), figures: Figures::default() }
    }
}

impl Operator for RecordId {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            let row = self.input.row();
            let (with, name) = match self.shown {
                true => (row.document(), "$recordId"),
                false => (self.input.metadata().unwrap_or(RawDoc::EMPTY), "recordId"),
            };
            self.doc = DocBuf::from(with);
            if let Some(number) = self.numbers.of(row.record, cx)? {
                self.doc.append(name, number);
            }
        }
        Ok(self.figures.count(step))
    }
    fn row(&self) -> Row<'_> {
        let row = self.input.row();
        if self.shown { Row { doc: Some(self.doc.as_raw()), ..row } } else { row }
    }
    fn metadata(&self) -> Option<RawDoc<'_>> {
        if self.shown { self.input.metadata() } else { Some(self.doc.as_raw()) }
    }
    fn suspend(&mut self) {
        self.numbers.suspend();
        self.input.suspend();
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

/// Gives index keys as documents with the key pattern's field names.
pub struct ReturnKey {
    input: BoxOperator,
    fields: Vec<(String, bool)>,
    doc: DocBuf,
    figures: Figures,
}

impl ReturnKey {
    pub fn new(input: BoxOperator, fields: Vec<(String, bool)>) -> Self {
        ReturnKey { input, fields, doc: DocBuf::new(), figures: Figures::default() }
    }
}

impl Operator for ReturnKey {
    fn is_eof(&self) -> bool {
        self.input.is_eof()
    }

    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = self.input.work(cx)?;
        if step == Step::Row {
            self.doc = index_key(self.input.row(), &self.fields).unwrap_or_default();
        }
        Ok(self.figures.count(step))
    }
    fn row(&self) -> Row<'_> {
        Row { doc: Some(self.doc.as_raw()), ..self.input.row() }
    }
    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.input.metadata()
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

fn apply(
    projection: &Projection,
    matcher: Option<&Matcher>,
    doc: RawDoc<'_>,
    metadata: RawDoc<'_>,
    cx: &Cx<'_>,
    arena: &mut Bump,
    out: &mut Vec<u8>,
) -> Result<()> {
    arena.reset();
    let env = cx.env(arena);
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
