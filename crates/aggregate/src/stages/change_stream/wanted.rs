//! What a change stream wants: the argument of `$changeStream`.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::token::ResumeToken;
use crate::namespace::Namespace;

/// What `fullDocument` asks for with updates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FullDocument {
    /// Nothing.
    #[default]
    Default,
    /// The document as it is when the event is read.
    UpdateLookup,
    /// The document as the update left it, if that is still known.
    WhenAvailable,
    /// The same, or an error.
    Required,
}

/// What `fullDocumentBeforeChange` asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BeforeChange {
    /// Nothing.
    #[default]
    Off,
    /// The document before the change, if it is known.
    WhenAvailable,
    /// The same, or an error.
    Required,
}

/// Where a stream begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the next operation.
    Now,
    /// With the first operation at or after this time.
    At(u64),
    /// Behind this position (`resumeAfter`, `startAfter`).
    After(ResumeToken),
}

/// What a stream watches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Watched {
    /// One collection: `db.name`.
    Collection(String),
    /// One database.
    Database(String),
    /// Everything but internal databases.
    Cluster,
}

impl Watched {
    /// Whether operations on this collection are to be seen.
    pub fn sees(&self, namespace: &str) -> bool {
        let in_database = |name: &str| !name.starts_with('$') && !name.starts_with("system.");
        match self {
            Watched::Collection(watched) => watched == namespace,
            Watched::Database(db) => {
                let name = namespace.strip_prefix(db.as_str()).and_then(|rest| rest.strip_prefix('.'));
                name.is_some_and(in_database)
            }
            Watched::Cluster => namespace
                .split_once('.')
                .is_some_and(|(db, name)| !matches!(db, "admin" | "config" | "local") && in_database(name)),
        }
    }

    /// Whether commands of this database are to be seen that concern no single collection.
    pub fn sees_database(&self, db: &str) -> bool {
        match self {
            Watched::Collection(_) => false,
            Watched::Database(watched) => watched == db,
            Watched::Cluster => !matches!(db, "admin" | "config" | "local"),
        }
    }
}

/// A parsed `$changeStream`.
#[derive(Clone, Debug)]
pub struct ChangeStream {
    /// What it watches.
    pub watched: Watched,
    /// Where it begins.
    pub start: Start,
    /// `fullDocument`.
    pub full_document: FullDocument,
    /// `fullDocumentBeforeChange`.
    pub before_change: BeforeChange,
    /// `showExpandedEvents`.
    pub expanded: bool,
    /// `showRawUpdateDescription`.
    pub raw_description: bool,
    /// `showMigrationEvents`: what a shard takes in from others, and removes because others have it.
    pub migrations: bool,
    /// `$_merged`: a router merges it with those of other shards, so that the event to resume behind may be another's.
    pub merged: bool,
}

/// Fields of the argument as they came.
#[derive(Default)]
struct Fields {
    resume_after: Option<ResumeToken>,
    start_after: Option<ResumeToken>,
    start_at: Option<u64>,
    full_document: FullDocument,
    before_change: BeforeChange,
    all_changes: bool,
    expanded: bool,
    raw_description: bool,
    migrations: bool,
    merged: bool,
}

impl ChangeStream {
    /// Reads the argument of a `$changeStream` over this namespace.
    pub(super) fn parse(spec: RawDoc<'_>, namespace: &Namespace) -> Result<ChangeStream> {
        let mut fields = Fields::parse(spec)?;
        let watched = match (&*namespace.database, &*namespace.collection) {
            // A router follows which shards there are.
            ("config", "shards") if fields.merged => Watched::Collection(namespace.to_string()),
            _ => watched(namespace, fields.all_changes)?,
        };
        let start = fields.start(&watched)?;
        Ok(ChangeStream {
            watched,
            start,
            full_document: fields.full_document,
            before_change: fields.before_change,
            expanded: fields.expanded,
            raw_description: fields.raw_description,
            migrations: fields.migrations,
            merged: fields.merged,
        })
    }
}

impl Fields {
    fn parse(spec: RawDoc<'_>) -> Result<Fields> {
        let mut fields = Fields::default();
        for field in spec.iter() {
            let (key, value) = (field.key(), field.value());
            match key {
                // Null is as good as absent, but for flags.
                "resumeAfter"
                | "startAfter"
                | "startAtOperationTime"
                | "fullDocument"
                | "fullDocumentBeforeChange"
                    if value.is_nullish() => {}
                "resumeAfter" => fields.resume_after = Some(token(key, value)?),
                "startAfter" => fields.start_after = Some(token(key, value)?),
                "startAtOperationTime" => match value {
                    Value::Timestamp(time) => fields.start_at = Some(time.0),
                    other => return wrong_type(key, other, "timestamp"),
                },
                "fullDocument" => {
                    fields.full_document = match text_of(key, value)? {
                        "default" => FullDocument::Default,
                        "updateLookup" => FullDocument::UpdateLookup,
                        "whenAvailable" => FullDocument::WhenAvailable,
                        "required" => FullDocument::Required,
                        other => return bad_choice(key, other),
                    }
                }
                "fullDocumentBeforeChange" => {
                    fields.before_change = match text_of(key, value)? {
                        "off" => BeforeChange::Off,
                        "whenAvailable" => BeforeChange::WhenAvailable,
                        "required" => BeforeChange::Required,
                        other => return bad_choice(key, other),
                    }
                }
                "allChangesForCluster" => fields.all_changes = flag(key, value)?,
                "showExpandedEvents" => fields.expanded = flag(key, value)?,
                "showRawUpdateDescription" => fields.raw_description = flag(key, value)?,
                "$_merged" => fields.merged = flag(key, value)?,
                "showMigrationEvents" => fields.migrations = flag(key, value)?,
                // It shows what is done to collections that are the system's.
                "showSystemEvents" => _ = flag(key, value)?,
                _ => bail!(40415, "BSON field '$changeStream.{key}' is an unknown field."),
            }
        }
        Ok(fields)
    }

    fn start(&mut self, watched: &Watched) -> Result<Start> {
        if self.resume_after.is_some() && self.start_after.is_some() {
            bail!(50865, "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage");
        }
        let resumes = self.resume_after.is_some();
        let Some(token) = self.resume_after.take().or(self.start_after.take()) else {
            return Ok(self.start_at.map_or(Start::Now, Start::At));
        };
        if self.start_at.is_some() {
            bail!(40674, "Only one type of resume option is allowed, but multiple were found");
        }
        if resumes && token.from_invalidate {
            bail!(
                Code::INVALID_RESUME_TOKEN,
                "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification"
            );
        }
        let single = matches!(watched, Watched::Collection(_));
        if single && token.uuid.is_none() && !token.is_high_water_mark() {
            bail!(
                Code::INVALID_RESUME_TOKEN,
                "Attempted to resume a single-collection stream, but the resume token does not include a UUID"
            );
        }
        Ok(Start::After(token))
    }
}

fn watched(namespace: &Namespace, all_changes: bool) -> Result<Watched> {
    let (db, collection) = (namespace.database.as_str(), namespace.collection.as_str());
    let shown = if collection.is_empty() { "$cmd.aggregate" } else { collection };
    let is_admin = db == "admin";
    if all_changes && !(is_admin && collection.is_empty()) {
        bail!(
            Code::INVALID_OPTIONS,
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name; found {db}.{shown}"
        );
    }
    if (is_admin && !all_changes) || matches!(db, "local" | "config") {
        bail!(Code::INVALID_NAMESPACE, "$changeStream may not be opened on the internal {db} database");
    }
    if collection.starts_with("system.") {
        bail!(
            Code::INVALID_NAMESPACE,
            "$changeStream may not be opened on the internal {db}.{collection} collection"
        );
    }
    Ok(match (all_changes, collection) {
        (true, _) => Watched::Cluster,
        (false, "") => Watched::Database(db.to_owned()),
        (false, name) => Watched::Collection(format!("{db}.{name}")),
    })
}

fn wrong_type<T>(key: &str, value: Value<'_>, wanted: &str) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field '$changeStream.{key}' is the wrong type '{}', expected type '{wanted}'",
        value.type_name()
    )
}

fn bad_choice<T>(key: &str, value: &str) -> Result<T> {
    bail!(
        Code::BAD_VALUE,
        "Enumeration value '{value}' for field '$changeStream.{key}' is not a valid value."
    )
}

fn text_of<'v>(key: &str, value: Value<'v>) -> Result<&'v str> {
    value.as_str().map_or_else(|| wrong_type(key, value, "string"), Ok)
}

fn flag(key: &str, value: Value<'_>) -> Result<bool> {
    value.as_bool().map_or_else(|| wrong_type(key, value, "bool"), Ok)
}

fn token(key: &str, value: Value<'_>) -> Result<ResumeToken> {
    match value {
        Value::Document(doc) => ResumeToken::parse(doc),
        other => wrong_type(key, other, "object"),
    }
}
