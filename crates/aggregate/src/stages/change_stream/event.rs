//! Events from operations of the oplog.

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Timestamp, Value};

use super::{BeforeChange, ChangeStream, Description, FullDocument, ResumeToken, Watched};

type Out<'w> = DocWriter<'w, Vec<u8>>;

/// What the operations of one oplog entry have in common.
#[derive(Clone, Copy)]
pub struct Origin<'o> {
    /// Cluster time.
    pub time: u64,
    /// `wall` of the entry.
    pub wall: Value<'o>,
    /// Of a transaction: the entry, which has `lsid` and `txnNumber`, and the operation's number in it.
    pub transaction: Option<(RawDoc<'o>, u64)>,
}

impl Origin<'_> {
    fn op_index(&self) -> u64 {
        self.transaction.map_or(0, |(_, index)| index)
    }
}

/// An operation in MongoDB's form: an entry of the oplog, or of a transaction's `applyOps`.
#[derive(Clone, Copy)]
pub struct Operation<'o> {
    op: &'o str,
    namespace: &'o str,
    uuid: Option<[u8; 16]>,
    o: RawDoc<'o>,
    o2: Option<RawDoc<'o>>,
    before: Option<RawDoc<'o>>,
    from_migrate: bool,
}

/// One event.
pub struct Event {
    /// Its position.
    pub token: ResumeToken,
    /// The event, without what has to be looked up.
    pub document: DocBuf,
    /// The document as it was, if the log has it.
    pub before: Option<DocBuf>,
    /// What of the document has to be added: see [`Wanted`].
    pub wanted: Wanted,
    /// Whether the stream ends with it.
    pub invalidates: bool,
}

/// What an event still lacks.
#[derive(Default)]
pub struct Wanted {
    /// `fullDocumentBeforeChange`.
    pub before: bool,
    /// `fullDocument`, of an update.
    pub after: bool,
    /// The update's delta, from which the document after it follows, if that before it is known.
    pub delta: Option<DocBuf>,
    /// The document's key, to look it up.
    pub key: DocBuf,
}

/// The sides of an event that differ between kinds of operations.
#[derive(Default)]
struct Parts<'o> {
    operation_type: &'static str,
    namespace: String,
    /// Only for renames.
    to: Option<&'o str>,
    full_document: Option<RawDoc<'o>>,
    document_key: Option<DocBuf>,
    operation_description: Option<DocBuf>,
    update_description: Option<DocBuf>,
    state_before: Option<DocBuf>,
    namespace_type: Option<&'static str>,
    invalidates: bool,
}

/// What is done to a collection over several shards, as its event is called.
const SHARDING_EVENTS: [&str; 3] = ["shardCollection", "refineCollectionShardKey", "reshardCollection"];

impl<'o> Operation<'o> {
    /// Reads the fields; `None` for what is no operation.
    pub fn read(doc: RawDoc<'o>) -> Option<Self> {
        let mut operation = Operation {
            op: "",
            namespace: "",
            uuid: None,
            o: RawDoc::EMPTY,
            o2: None,
            before: None,
            from_migrate: false,
        };
        for field in doc.iter() {
            match (field.key(), field.value()) {
                ("op", Value::String(op)) => operation.op = op,
                ("ns", Value::String(namespace)) => operation.namespace = namespace,
                ("ui", Value::Binary(uuid)) => operation.uuid = uuid.bytes.try_into().ok(),
                ("o", Value::Document(o)) => operation.o = o,
                ("o2", Value::Document(o2)) => operation.o2 = Some(o2),
                ("fromMigrate", Value::Bool(is_copy)) => operation.from_migrate = is_copy,
                ("preImage", Value::Document(before)) => operation.before = Some(before),
                _ => {}
            }
        }
        (!operation.op.is_empty()).then_some(operation)
    }

    /// Whether it is a command.
    pub fn is_command(&self) -> bool {
        self.op == "c"
    }

    /// The operations that it applies, if it is a transaction's.
    pub fn applied(&self) -> Option<RawDoc<'o>> {
        self.o.get("applyOps").and_then(|list| list.as_array()).filter(|_| self.is_command())
    }

    /// Whether a stream can see anything of this operation: decided by names alone.
    pub fn concerns(&self, stream: &ChangeStream) -> bool {
        match self.op {
            "i" | "u" | "d" => stream.watched.sees(self.namespace),
            "c" => self.command(stream).is_some(),
            "n" => self.sharding_event(stream).is_some(),
            _ => false,
        }
    }

    fn database(&self) -> &'o str {
        self.namespace.split_once('.').map_or(self.namespace, |(db, _)| db)
    }

    /// The command's name and the full name of the collection that it is about, if the stream shows it.
    fn command(&self, stream: &ChangeStream) -> Option<(&'o str, String)> {
        let first = self.o.iter().next()?;
        let command = first.key();
        let target = || format!("{}.{}", self.database(), first.value().as_str().unwrap_or_default());
        match command {
            "drop" => Some(target()).filter(|name| stream.watched.sees(name)),
            "renameCollection" => {
                let from = first.value().as_str()?;
                let to = self.o.get("to").and_then(|to| to.as_str()).unwrap_or_default();
                // A collection that gets another shard key or place is the same to clients.
                if [from, to].into_iter().any(is_hidden) {
                    return None;
                }
                (stream.watched.sees(from) || stream.watched.sees(to)).then(|| from.to_owned())
            }
            "dropDatabase" => {
                stream.watched.sees_database(self.database()).then(|| self.database().to_owned())
            }
            "create" | "createIndexes" | "commitIndexBuild" | "dropIndexes" | "collMod"
                if stream.expanded =>
            {
                Some(target()).filter(|name| stream.watched.sees(name))
            }
            _ => None,
        }
        .map(|name| (command, name))
    }

    fn parts(&self, stream: &ChangeStream) -> Option<Parts<'o>> {
        if self.op != "c" && !stream.watched.sees(self.namespace) {
            return None;
        }
        if self.from_migrate && !stream.migrations {
            return None;
        }
        match self.op {
            "i" => Some(Parts {
                operation_type: "insert",
                namespace: self.namespace.to_owned(),
                full_document: Some(self.o),
                document_key: Some(self.o2.map_or_else(|| id_of(self.o), DocBuf::from)),
                ..Parts::default()
            }),
            "d" => Some(Parts {
                operation_type: "delete",
                namespace: self.namespace.to_owned(),
                document_key: Some(self.o.into()),
                ..Parts::default()
            }),
            "u" => Some(self.update_parts(stream)),
            "c" => self.command_parts(stream),
            "n" => self.sharding_parts(stream),
            _ => None,
        }
    }

    /// What an entry without effect here tells of a collection over several shards, if the stream shows it: the command's name.
    fn sharding_event(&self, stream: &ChangeStream) -> Option<&'static str> {
        let told = self.o2.filter(|_| stream.expanded && stream.watched.sees(self.namespace))?;
        let first = told.iter().next()?.key();
        SHARDING_EVENTS.into_iter().find(|name| *name == first)
    }

    fn sharding_parts(&self, stream: &ChangeStream) -> Option<Parts<'o>> {
        let name = self.sharding_event(stream)?;
        Some(Parts {
            operation_type: name,
            namespace: self.namespace.to_owned(),
            operation_description: self.o2.map(|told| without(told, &[name])),
            ..Parts::default()
        })
    }

    fn update_parts(&self, stream: &ChangeStream) -> Parts<'o> {
        let mut parts = Parts {
            namespace: self.namespace.to_owned(),
            document_key: self.o2.map(DocBuf::from),
            ..Parts::default()
        };
        // What has an `_id` replaces the document, even with a field `$v`.
        match self.delta() {
            None => {
                parts.operation_type = "replace";
                parts.full_document = Some(self.o);
            }
            Some(_) if stream.raw_description => {
                parts.operation_type = "update";
                parts.update_description = Some(self.o.into());
            }
            Some(delta) => {
                parts.operation_type = "update";
                let description = Description::of(delta);
                parts.update_description = Some(DocBuf::build(|out| description.write(out, stream.expanded)));
            }
        }
        parts
    }

    fn delta(&self) -> Option<RawDoc<'o>> {
        let diff = self.o.get("diff").and_then(|diff| diff.as_doc());
        diff.filter(|_| self.o.element("_id").is_none() && self.o.element("$v").is_some())
    }

    fn command_parts(&self, stream: &ChangeStream) -> Option<Parts<'o>> {
        let (command, namespace) = self.command(stream)?;
        let mut parts = Parts { namespace, ..Parts::default() };
        let single = matches!(stream.watched, Watched::Collection(_));
        match command {
            "drop" => {
                parts.operation_type = "drop";
                parts.invalidates = single;
            }
            "renameCollection" => {
                parts.operation_type = "rename";
                parts.invalidates = single;
                parts.to = self.o.get("to").and_then(|to| to.as_str());
                parts.operation_description = Some(rename_description(self.o));
            }
            "dropDatabase" => {
                parts.operation_type = "dropDatabase";
                parts.invalidates = !matches!(stream.watched, Watched::Cluster);
            }
            "create" => {
                parts.operation_type = "create";
                let source = self.o.get("viewOn").and_then(|source| source.as_str());
                (parts.namespace_type, parts.operation_description) = match source {
                    None => (Some("collection"), Some(without(self.o, &["create"]))),
                    Some(source) if source.starts_with("system.buckets.") => {
                        (Some("timeseries"), Some(definition(self.o)))
                    }
                    Some(_) => (Some("view"), Some(definition(self.o))),
                };
            }
            "createIndexes" => {
                parts.operation_type = "createIndexes";
                parts.operation_description = Some(indexes(without(self.o, &["createIndexes"]).as_raw()));
            }
            "commitIndexBuild" => {
                parts.operation_type = "createIndexes";
                parts.operation_description =
                    Some(DocBuf::new().with("indexes", self.o.get_or_missing("indexes")));
            }
            "dropIndexes" => {
                parts.operation_type = "dropIndexes";
                parts.operation_description = Some(indexes(self.o2.unwrap_or(RawDoc::EMPTY)));
            }
            _ => {
                parts.operation_type = "modify";
                parts.operation_description = Some(without(self.o, &["collMod"]));
                parts.state_before = self.o2.map(|o2| {
                    DocBuf::build(|out| {
                        for (name, field) in [
                            ("collectionOptions", "collectionOptions_old"),
                            ("indexOptions", "indexOptions_old"),
                        ] {
                            if let Some(value) = o2.get(field) {
                                out.append(name, value);
                            }
                        }
                    })
                });
            }
        }
        Some(parts)
    }
}

/// The events of one operation: none, one, or one and the end of the stream.
pub fn events(
    stream: &ChangeStream,
    origin: Origin<'_>,
    operation: Operation<'_>,
) -> Option<(Event, Option<Event>)> {
    let parts = operation.parts(stream)?;
    let detail = match (&parts.document_key, &parts.operation_description) {
        (Some(key), _) => Some(("documentKey", key.as_raw())),
        (None, Some(description)) => Some(("operationDescription", description.as_raw())),
        (None, None) => None,
    };
    let kind = parts.operation_type;
    let token = ResumeToken::of_event(origin.time, origin.op_index(), operation.uuid, kind, detail);
    let document = DocBuf::build(|out| write(out, stream, origin, &operation, &parts, &token));
    let changes = matches!(kind, "update" | "replace" | "delete");
    let wanted = Wanted {
        before: changes && stream.before_change != BeforeChange::Off,
        after: kind == "update" && stream.full_document != FullDocument::Default,
        delta: operation.delta().filter(|_| kind == "update").map(DocBuf::from),
        key: parts.document_key.clone().unwrap_or_default(),
    };
    let before = operation.before.filter(|_| wanted.before || wanted.after).map(DocBuf::from);
    let end = parts.invalidates.then(|| invalidate(origin, &token));
    Some((Event { token, document, before, wanted, invalidates: false }, end))
}

fn write(
    out: &mut Out<'_>,
    stream: &ChangeStream,
    origin: Origin<'_>,
    operation: &Operation<'_>,
    parts: &Parts<'_>,
    token: &ResumeToken,
) {
    if let Some(to) = parts.to {
        write_namespace(&mut out.document("to"), to);
    }
    if let Some((entry, _)) = origin.transaction {
        for name in ["txnNumber", "lsid"] {
            if let Some(value) = entry.get(name) {
                out.append(name, value);
            }
        }
    }
    out.append("_id", &token.to_doc());
    out.append("operationType", parts.operation_type);
    out.append("clusterTime", Timestamp(origin.time));
    if let Some(uuid) = operation.uuid.as_ref().filter(|_| stream.expanded) {
        out.append("collectionUUID", Value::Binary(Binary { subtype: 4, bytes: uuid }));
    }
    out.append("wallTime", origin.wall);
    if let Some(document) = parts.full_document {
        out.append("fullDocument", document);
    }
    write_namespace(&mut out.document("ns"), &parts.namespace);
    if let Some(key) = &parts.document_key {
        out.append("documentKey", key);
    }
    if let Some(description) = parts.operation_description.as_ref().filter(|_| stream.expanded) {
        out.append("operationDescription", description);
    }
    if let Some(description) = &parts.update_description {
        let name = if stream.raw_description { "rawUpdateDescription" } else { "updateDescription" };
        out.append(name, description);
    }
    if let Some(state) = &parts.state_before {
        out.append("stateBeforeChange", state);
    }
    if let Some(kind) = parts.namespace_type {
        out.append("nsType", kind);
    }
}

fn invalidate(origin: Origin<'_>, event: &ResumeToken) -> Event {
    let token = event.invalidated();
    let document = DocBuf::build(|out| {
        out.append("_id", &token.to_doc())
            .append("operationType", "invalidate")
            .append("clusterTime", Timestamp(origin.time))
            .append("wallTime", origin.wall);
    });
    Event { token, document, before: None, wanted: Wanted::default(), invalidates: true }
}

/// `{db, coll}`; of a database alone `{db}`.
fn write_namespace(out: &mut Out<'_>, namespace: &str) {
    match namespace.split_once('.') {
        Some((db, coll)) => out.append("db", db).append("coll", coll),
        None => out.append("db", namespace),
    };
}

fn id_of(doc: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        if let Some(id) = doc.element("_id") {
            out.append_element(id);
        }
    })
}

fn without(doc: RawDoc<'_>, names: &[&str]) -> DocBuf {
    DocBuf::build(|out| {
        for field in doc.iter().filter(|field| !names.contains(&field.key())) {
            out.append_element(field);
        }
    })
}

/// What a view is, as `system.views` has it.
fn definition(o: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for name in ["viewOn", "pipeline", "collation"] {
            out.append(name, o.get_or_missing(name));
        }
    })
}

fn indexes(spec: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| _ = out.array("indexes").push(spec))
}

/// Whether a collection takes the documents of another one in, or was one whose place was taken.
fn is_hidden(namespace: &str) -> bool {
    namespace.split_once('.').is_some_and(|(_, name)| name.starts_with("system.resharding."))
}

/// All of the command but the names that the event has elsewhere, the target as `{db, coll}`.
fn rename_description(o: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in o.iter().filter(|field| !matches!(field.key(), "renameCollection" | "stayTemp")) {
            match (field.key(), field.value()) {
                ("to", Value::String(to)) => write_namespace(&mut out.document("to"), to),
                _ => _ = out.append_element(field),
            }
        }
    })
}
