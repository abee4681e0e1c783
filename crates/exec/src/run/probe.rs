//! Questions for documents by one field's value, planned once.

use std::collections::HashSet;
use std::sync::Arc;

use sheaf_aggregate::{CollectionSize, Probe};
use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Figures, Operator, Row, Step, tally};
use sheaf_storage::{Collection, Cut, Direction, Index, IndexCursor, IndexKind, Position};

use super::reads::Reader;
use super::{Executor, Reads};
use crate::find;
use crate::plan::Query;

/// Finds the documents of a collection whose field equals a value, through an index that begins with the field.
///
/// Where the value's place in the index holds exactly the documents that match, the cursor of one question serves the next:
/// a question is a seek and a read for each document. Other values (null, arrays, regular expressions) are queries of
/// their own.
pub(crate) struct EqualProbe {
    collection: Arc<Collection>,
    index: Arc<Index>,
    field: String,
    collator: Option<SharedCollator>,
    reads: Reads,
    reader: Reader,
    state: State,
    /// A batch has ended: before the next one it is looked whether everything is still there.
    suspended: bool,
    /// The cursor on the index, kept from question to question of one batch.
    cursor: Option<IndexCursor>,
    /// What the keys begin with that are looked for; of records, their key.
    key: Vec<u8>,
    /// The records that were given, where one may have several keys with the value: there is an array on a later field of the index.
    given: Option<Given>,
    doc: Vec<u8>,
    figures: Figures,
    shown: Figures,
}

#[derive(Default)]
struct Given {
    records: HashSet<Box<[u8]>, ahash::RandomState>,
    held: Held,
}

/// What a record takes among those that were given, besides its key.
const GIVEN_BYTES: u64 = 64;

enum State {
    /// One record by its key.
    Record,
    /// Keys of the index, from the first.
    Seek,
    /// Keys of the index, behind the last one.
    Next,
    /// Keys of the index, on a new view behind this position.
    Restore(Position),
    /// A query.
    Query(Box<Executor>),
    Done,
}

impl EqualProbe {
    /// Plans it; `None` if no index helps.
    pub fn plan(
        collection: &Arc<Collection>,
        field: &str,
        collator: Option<&SharedCollator>,
        reads: &Reads,
    ) -> Option<EqualProbe> {
        let helps = |index: &&Arc<Index>| {
            index.ready
                && !index.hidden
                && index.partial.is_none()
                && !index.sparse
                && matches!(index.kind, IndexKind::Id | IndexKind::Btree | IndexKind::Hashed)
                && index.fields.first().is_some_and(|(path, _)| path == field)
                && crate::index::compares_strings_alike(index, collator)
        };
        // Hashes answer every question by a query.
        let plain = |index: &&Arc<Index>| helps(index) && index.kind != IndexKind::Hashed;
        let index =
            collection.indexes.iter().find(plain).or_else(|| collection.indexes.iter().find(helps))?;
        Some(EqualProbe {
            collection: collection.clone(),
            index: index.clone(),
            field: field.to_owned(),
            collator: collator.cloned(),
            reads: reads.clone(),
            reader: Reader::new(reads),
            state: State::Done,
            suspended: false,
            cursor: None,
            key: Vec::new(),
            given: None,
            doc: Vec::new(),
            figures: Figures::default(),
            shown: Figures::default(),
        })
    }

    fn query(&self, value: Value<'_>, cx: &mut Cx<'_>) -> Result<State> {
        let value = if value.is_nullish() { Value::Null } else { value };
        let filter = DocBuf::build(|out| {
            out.document(&self.field).append("$eq", value);
        });
        let mut parse = ParseCx::new().with_collator(self.collator.clone());
        let matcher = Matcher::parse(filter.as_raw(), &mut parse)?;
        let query = Query { collator: self.collator.clone(), ..Query::filtered(matcher) };
        Ok(State::Query(Box::new(find::open(&query, &self.collection, &self.reads, cx)?)))
    }

    /// Checks before another batch that collection and index are still there.
    ///
    /// Errors: `QueryPlanKilled`.
    fn resume(&mut self) -> Result<()> {
        self.suspended = false;
        let Collection { uuid, ident, namespace, .. } = &*self.collection;
        let now = self.reader.view().catalog().by_uuid(uuid);
        let Some(now) = now.filter(|now| now.ident == *ident && now.namespace == *namespace) else {
            bail!(Code::QUERY_PLAN_KILLED, "collection dropped. UUID {uuid}");
        };
        if !now.indexes.iter().any(|index| index.ident == self.index.ident && index.name == self.index.name) {
            bail!(Code::QUERY_PLAN_KILLED, "index '{}' dropped", self.index.name);
        }
        Ok(())
    }

    /// Moves to the next key of the index; false if that is another value's.
    fn advance(&mut self) -> Result<bool> {
        let view = self.reader.view();
        let cursor = match &mut self.cursor {
            Some(cursor) => cursor,
            None => self.cursor.insert(match &self.state {
                State::Restore(position) => {
                    IndexCursor::restore(view, &self.index, Direction::Forward, position)?
                }
                _ => view.index(&self.index, Direction::Forward)?,
            }),
        };
        let found = match std::mem::replace(&mut self.state, State::Next) {
            State::Seek => cursor.seek(Cut::Before(&self.key))?,
            _ => cursor.next()?,
        };
        Ok(found && cursor.key().starts_with(&self.key))
    }

    /// Whether the cursor's record was given already.
    fn is_given(&mut self) -> Result<bool> {
        let (Some(given), Some(cursor)) = (&mut self.given, &self.cursor) else { return Ok(false) };
        let record = cursor.record_key();
        if given.records.contains(record) {
            return Ok(true);
        }
        given.held.grow(record.len() as u64 + GIVEN_BYTES)?;
        given.records.insert(record.into());
        Ok(false)
    }

    /// Reads the document of the record or of the cursor's key; false if it is not there (any more).
    fn fetch(&mut self) -> Result<bool> {
        let record = match &self.cursor {
            Some(cursor) if matches!(self.state, State::Next) => cursor.record_key(),
            _ => &self.key,
        };
        let Some(doc) = self.reader.view().get(&self.collection, record)? else { return Ok(false) };
        self.figures.docs_examined += 1;
        self.doc.clear();
        self.doc.extend_from_slice(&doc);
        Ok(true)
    }
}

impl Probe for EqualProbe {
    fn find(&mut self, value: Value<'_>, cx: &mut Cx<'_>) -> Result<()> {
        if let State::Query(query) = &mut self.state {
            self.figures.add_foreign(&tally(&mut **query));
        }
        if self.index.kind == IndexKind::Hashed || !equals_only_itself(value) {
            self.state = self.query(value, cx)?;
            return Ok(());
        }
        self.index.accesses.count();
        if crate::index::is_record_order(&self.collection, &self.index) {
            self.key = self.collection.record_key(value)?;
            self.state = State::Record;
            return Ok(());
        }
        self.key.clear();
        let descending = self.index.fields.first().is_some_and(|(_, descending)| *descending);
        let arena = Bump::new();
        let value = self.collator.as_ref().map_or(value, |collator| collator.key(value, &arena));
        sheaf_bson::key::encode_bound(value, descending, &mut self.key);
        self.state = State::Seek;
        self.given = match self.index.fields.len() > 1 && self.index.multikey() {
            true => Some(Given { held: sheaf_meter::reserve(0)?, ..Given::default() }),
            false => None,
        };
        Ok(())
    }

    fn size(&self) -> CollectionSize {
        CollectionSize { documents: self.collection.count(), bytes: self.collection.data_bytes() }
    }
}

impl Operator for EqualProbe {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        match &mut self.state {
            State::Done => return Ok(Step::Eof),
            State::Query(query) => return query.work(cx),
            _ if self.suspended => self.resume()?,
            _ => {}
        }
        match &mut self.state {
            State::Done | State::Query(_) => unreachable!("they have been answered"),
            State::Record => {
                let found = self.fetch()?;
                self.state = State::Done;
                self.figures.keys_examined += u64::from(found);
                return Ok(if found { Step::Row } else { Step::Eof });
            }
            State::Seek | State::Next | State::Restore(_) => {}
        }
        if !self.advance()? {
            self.state = State::Done;
            return Ok(Step::Eof);
        }
        self.figures.keys_examined += 1;
        if self.is_given()? {
            return Ok(Step::More);
        }
        // A record that vanished between two batches is skipped.
        Ok(if self.fetch()? { Step::Row } else { Step::More })
    }

    fn row(&self) -> Row<'_> {
        match &self.state {
            State::Query(query) => query.row(),
            _ => Row::of(RawDoc::new(&self.doc)),
        }
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn suspend(&mut self) {
        match &mut self.state {
            State::Query(query) => query.suspend(),
            State::Next => {
                let cursor = self.cursor.as_ref().expect("a key was given by a cursor");
                self.state = State::Restore(cursor.save());
            }
            _ => {}
        }
        self.suspended = true;
        self.cursor = None;
        self.reader.suspend();
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        self.shown = self.figures.clone();
        match &mut self.state {
            State::Query(query) => self.shown.add_foreign(&tally(&mut **query)),
            _ => _ = self.shown.indexes_used.insert(self.index.name.clone()),
        }
        Some(&mut self.shown)
    }
}

/// Whether exactly the documents with this value in an index match an equality with it.
pub(crate) fn equals_only_itself(value: Value<'_>) -> bool {
    !matches!(value, Value::Missing | Value::Null | Value::Undefined | Value::Array(_) | Value::Regex(_))
}
