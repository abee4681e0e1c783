//! A write command's statements as they came, and the messages that some of them become.

use sheaf_bson::{Bump, DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_client::Message;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::{Args, check_collection_name, check_db_name};
use sheaf_front::front::new_object_id;
use sheaf_front::generic::Attempt;
use sheaf_front::session::statements::StatementIds;
use sheaf_timeseries::{BUCKETS_PREFIX, buckets_namespace};

use crate::addressed::Addressed;
use crate::forward::{self, Body};
use crate::op::Operation;
use crate::sampling::with_sample;
use crate::write::said;
use crate::write::twice::may_be_done_twice;

/// Which command a batch is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `insert`.
    Inserts,
    /// `update`.
    Updates,
    /// `delete`.
    Deletes,
    /// `bulkWrite`.
    Bulk,
}

impl Kind {
    /// The command's field with its statements.
    fn field(self) -> &'static str {
        match self {
            Kind::Inserts => "documents",
            Kind::Updates => "updates",
            Kind::Deletes => "deletes",
            Kind::Bulk => "ops",
        }
    }

    /// The field of a statement with its filter.
    pub fn filter(self) -> &'static str {
        if self == Kind::Bulk { "filter" } else { "q" }
    }
}

/// A namespace that statements write to.
pub struct Namespace<'b> {
    /// The database.
    pub db: &'b str,
    /// The collection.
    pub collection: &'b str,
    /// Whether what is written are measurements, and the collection has their buckets.
    pub measured: bool,
    /// Its entry in `nsInfo`.
    info: RawDoc<'b>,
}

impl<'b> Namespace<'b> {
    /// What an entry of `nsInfo` names, or the buckets of that where these are sharded.
    fn of_info(op: &Operation<'b>, info: RawDoc<'b>) -> Result<Self> {
        let ns = info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        let Some((db, collection)) = ns.split_once('.') else {
            bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified for bulkWrite: '{ns}'");
        };
        check_db_name(db)?;
        check_collection_name(collection)?;
        if !op.buckets_are_sharded(db, collection)? {
            let measured = is_measured(info, collection);
            return Ok(Namespace { db, collection, measured, info });
        }
        let about = DocBuf::build(|out| {
            out.append("ns", buckets_namespace(db, collection).as_str());
            for field in info.iter().filter(|field| !matches!(field.key(), "ns" | "isTimeseriesNamespace")) {
                out.append_element(field);
            }
            out.append("isTimeseriesNamespace", true);
        });
        let info = RawDoc::new(op.request.arena.alloc_slice_copy(about.as_bytes()));
        let ns = info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default();
        let (_, collection) = ns.split_once('.').unwrap_or_default();
        Ok(Namespace { db, collection, measured: true, info })
    }
}

/// Whether a command or an entry of `nsInfo` that names this collection is about measurements whose buckets it has.
fn is_measured(said: RawDoc<'_>, collection: &str) -> bool {
    collection.starts_with(BUCKETS_PREFIX)
        && said.get("isTimeseriesNamespace").is_some_and(|flag| flag.truthy())
}

/// A write command's statements as they came: documents, updates, deletes, or all kinds of them.
pub struct Batch<'b> {
    /// Of which command.
    pub kind: Kind,
    /// What they write to.
    pub namespaces: Vec<Namespace<'b>>,
    /// The statements, where they came in.
    pub statements: Vec<RawDoc<'b>>,
    /// Whether the first error ends the batch.
    pub ordered: bool,
    stmt_ids: StatementIds,
    /// Whether the statements are not all as they came.
    changed: bool,
}

impl<'b> Batch<'b> {
    /// Reads what the router has to know of an insert, update or delete; the shards read the rest.
    ///
    /// Errors: those of what is read; `InvalidLength`.
    pub fn parse(args: &mut Args<'b>, op: &Operation<'b>, kind: Kind) -> Result<Self> {
        let collection = args.collection()?;
        let measured = is_measured(op.body(), collection);
        let namespace = Namespace { db: op.db(), collection, measured, info: RawDoc::EMPTY };
        Batch::of(args, kind, vec![namespace])
    }

    /// Reads what the router has to know of a `bulkWrite`.
    ///
    /// Errors: those of what is read; `InvalidLength`; `InvalidNamespace`; `BadValue`, where a statement names no namespace.
    pub fn parse_bulk(args: &mut Args<'b>, op: &Operation<'b>) -> Result<Self> {
        let mut namespaces = Vec::new();
        for info in args.required_documents("nsInfo")? {
            namespaces.push(Namespace::of_info(op, info)?);
        }
        let batch = Batch::of(args, Kind::Bulk, namespaces)?;
        for statement in &batch.statements {
            let first = statement.iter().next();
            let name = first.map_or("", |first| first.key());
            if !matches!(name, "insert" | "update" | "delete") {
                bail!(
                    Code::FAILED_TO_PARSE,
                    "Unrecognized bulkWrite operation '{name}', expected 'insert', 'update' or 'delete'"
                );
            }
            let index = first.map_or(Value::Missing, |first| first.value());
            let known = index.as_exact_i64().and_then(|index| usize::try_from(index).ok());
            if known.is_none_or(|index| index >= batch.namespaces.len()) {
                let shown = sheaf_bson::value_text(index);
                bail!(Code::BAD_VALUE, "BulkWrite ops entry {shown} has an invalid nsInfo index.");
            }
        }
        Ok(batch)
    }

    fn of(args: &mut Args<'b>, kind: Kind, namespaces: Vec<Namespace<'b>>) -> Result<Self> {
        let statements: Vec<RawDoc<'b>> = args.required_documents(kind.field())?.iter().collect();
        let ordered = args.optional::<bool>("ordered")?.unwrap_or(true);
        let stmt_ids = StatementIds::parse(args)?;
        args.ignore_rest();
        match kind {
            Kind::Bulk => stmt_ids.check_bulk(statements.len())?,
            Kind::Inserts | Kind::Updates | Kind::Deletes => stmt_ids.check(statements.len())?,
        }
        Ok(Batch { kind, namespaces, statements, ordered, stmt_ids, changed: false })
    }

    /// Gives each document an `_id` that has none: it may be what decides where the document goes, and is to be the same when it is sent
    /// again.
    pub fn add_ids(&mut self, arena: &'b Bump) {
        for statement in &mut self.statements {
            let is_document = self.kind == Kind::Inserts;
            let inserted = if is_document { Some(*statement) } else { document_of(*statement) };
            let Some(document) = inserted.filter(|document| document.element("_id").is_none()) else {
                continue;
            };
            let mut with_id = doc! { "_id": Value::ObjectId(new_object_id()) };
            with_id.edit(|out| _ = out.append_all(document));
            if !is_document {
                with_id = DocBuf::build(|out| {
                    for field in statement.iter() {
                        match field.key() {
                            "document" => _ = out.append("document", with_id.as_raw()),
                            _ => _ = out.append_element(field),
                        }
                    }
                });
            }
            *statement = RawDoc::new(arena.alloc_slice_copy(with_id.as_bytes()));
            self.changed = true;
        }
    }

    /// Has the shards tell what sampled updates change.
    pub fn add_sample_ids(&mut self, op: &Operation<'b>) {
        let arena = &op.request.arena;
        for sample in &*op.request.sampled.borrow() {
            let Some(statement) = self.statements.get_mut(sample.at) else { continue };
            let told = with_sample(*statement, &sample.id);
            *statement = RawDoc::new(arena.alloc_slice_copy(told.as_bytes()));
            self.changed = true;
        }
    }

    /// Whether the command can go as it came.
    pub fn is_as_it_came(&self) -> bool {
        !self.changed
    }

    /// Which of the namespaces the statement at this place writes to.
    pub fn namespace_of(&self, at: u32) -> usize {
        match self.kind {
            Kind::Bulk => {
                let index =
                    self.statements[at as usize].values().next().and_then(|index| index.as_exact_i64());
                index.unwrap_or(0) as usize
            }
            _ => 0,
        }
    }

    /// Whether the statement at this place is about measurements, and names their buckets.
    pub fn is_measured(&self, at: u32) -> bool {
        self.namespaces[self.namespace_of(at)].measured
    }

    /// Whether the statement at this place is about one document.
    pub fn is_single(&self, at: u32) -> bool {
        let statement = self.statements[at as usize];
        match self.deletes(at) && self.kind != Kind::Bulk {
            true => statement.get("limit").and_then(|limit| limit.as_f64()) == Some(1.0),
            false => !statement.get("multi").is_some_and(|multi| multi.truthy()),
        }
    }

    /// Whether the statement at this place inserts.
    pub fn inserts(&self, at: u32) -> bool {
        match self.kind {
            Kind::Inserts => true,
            Kind::Bulk => {
                self.statements[at as usize].iter().next().is_some_and(|first| first.key() == "insert")
            }
            Kind::Updates | Kind::Deletes => false,
        }
    }

    /// Whether the statement at this place deletes.
    pub fn deletes(&self, at: u32) -> bool {
        let first = || self.statements[at as usize].iter().next();
        match self.kind {
            Kind::Deletes => true,
            Kind::Bulk => first().is_some_and(|first| first.key() == "delete"),
            Kind::Inserts | Kind::Updates => false,
        }
    }

    /// Whether the statement at this place does nothing to documents to which it was done before.
    pub fn may_be_done_twice(&self, at: u32) -> bool {
        let statement = self.statements[at as usize];
        match self.kind {
            Kind::Updates => may_be_done_twice(statement, "u"),
            Kind::Bulk => may_be_done_twice(statement, "updateMods"),
            Kind::Inserts | Kind::Deletes => false,
        }
    }

    /// The number by which the statement at this place is known when it is sent again.
    pub fn stmt_id(&self, at: u32) -> i32 {
        self.stmt_ids.at(at as usize)
    }

    /// The command with these of its statements, for one shard: of one namespace, or of such as lie on it as a whole.
    pub fn message(&self, op: &Operation<'_>, to: &Addressed, places: &[u32]) -> Message {
        self.message_of(op, to, places, places.iter().map(|at| self.statements[*at as usize]))
    }

    /// The command with this statement in the place of the one at `at`, by which the operation's attempt asks what was executed, or
    /// executes it.
    pub fn message_at(
        &self,
        op: &Operation<'_>,
        to: &Addressed,
        at: u32,
        statement: RawDoc<'_>,
        asks: bool,
    ) -> Message {
        self.build(op, to, &[at], std::iter::once(statement), said(op, asks))
    }

    /// The command with these statements in the place of those at `places`, by which the operation's attempt asks what was executed.
    pub fn questions<'s>(
        &self,
        op: &Operation<'_>,
        to: &Addressed,
        places: &[u32],
        statements: impl Iterator<Item = RawDoc<'s>> + Clone,
    ) -> Message {
        self.build(op, to, places, statements, said(op, true))
    }

    /// The command with these statements in the place of those that stand at `places`, as the operation's attempt executes them, if there is
    /// one.
    pub fn message_of<'s>(
        &self,
        op: &Operation<'_>,
        to: &Addressed,
        places: &[u32],
        statements: impl Iterator<Item = RawDoc<'s>> + Clone,
    ) -> Message {
        self.build(op, to, places, statements, said(op, false))
    }

    fn build<'s>(
        &self,
        op: &Operation<'_>,
        to: &Addressed,
        places: &[u32],
        statements: impl Iterator<Item = RawDoc<'s>> + Clone,
        attempt: Option<Attempt>,
    ) -> Message {
        let is_bulk = self.kind == Kind::Bulk;
        let stays = |name: &[u8]| {
            name == self.kind.field().as_bytes()
                || matches!(name, b"stmtIds" | b"stmtId")
                || (is_bulk && matches!(name, b"nsInfo" | b"cursor"))
        };
        // A bulkWrite names the versions of its namespaces beside these.
        let namespace = places.first().map_or(0, |at| self.namespace_of(*at));
        let is_one = places.iter().all(|at| self.namespace_of(*at) == namespace);
        let sent = Addressed { version: to.version.filter(|_| !is_bulk), target: to.target.clone() };
        let mut message = forward::command(op, &sent, &Body::of(op), stays, |out| {
            if is_bulk {
                let mut list = out.array("nsInfo");
                let meant =
                    if is_one { &self.namespaces[namespace..=namespace] } else { &self.namespaces[..] };
                for namespace in meant {
                    let mut entry = list.document();
                    entry.append_all(namespace.info);
                    to.append_versions(&mut entry);
                }
            }
            if op.records_statements() {
                let mut ids = out.array("stmtIds");
                for at in places {
                    ids.push(self.stmt_id(*at));
                }
                drop(ids);
                if let Some(attempt) = attempt {
                    attempt.append(out);
                }
            }
        });
        message.bytes().reserve(statements.clone().map(|statement| statement.len()).sum::<usize>() + 64);
        message.begin_sequence(self.kind.field());
        for statement in statements {
            match statement.iter().next() {
                Some(first) if is_bulk && is_one => {
                    let mut out = DocWriter::new(message.bytes());
                    out.append(first.key(), 0).append_raw_elements(after(statement, first.as_bytes()));
                }
                _ => message.bytes().extend_from_slice(statement.as_bytes()),
            }
        }
        message.end_sequence();
        message
    }
}

/// The elements of a document behind its first.
fn after<'d>(document: RawDoc<'d>, first: &[u8]) -> &'d [u8] {
    let bytes = document.as_bytes();
    &bytes[4 + first.len()..bytes.len() - 1]
}

/// The document that a statement of a `bulkWrite` inserts.
pub fn document_of(statement: RawDoc<'_>) -> Option<RawDoc<'_>> {
    let inserts = statement.iter().next().is_some_and(|first| first.key() == "insert");
    statement.get("document").filter(|_| inserts).and_then(|document| document.as_doc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_behind_the_first() {
        let statement = doc! { "insert": 3, "document": { "_id": 1 } };
        let first = statement.as_raw().iter().next().unwrap();
        let rest = after(statement.as_raw(), first.as_bytes());
        let mut bytes = Vec::new();
        DocWriter::new(&mut bytes).append("insert", 0).append_raw_elements(rest);
        assert_eq!(RawDoc::new(&bytes), doc! { "insert": 0, "document": { "_id": 1 } }.as_raw());
        assert_eq!(document_of(statement.as_raw()), Some(doc! { "_id": 1 }.as_raw()));
        assert_eq!(document_of(doc! { "delete": 0, "document": {} }.as_raw()), None);
    }
}
