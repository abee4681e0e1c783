//! Entries of `applyOps`: what they must be, and the commands that do the same.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::redact;
use sheaf_storage::{Catalog, Uuid};

use crate::commands::ddl::names;

/// So deep `applyOps` may stand in each other.
const MAX_NESTED: usize = 10;

/// One entry.
pub struct Entry<'a> {
    /// All of it.
    pub whole: RawDoc<'a>,
    /// `op`.
    pub kind: &'a str,
    /// `ns`.
    pub namespace: &'a str,
}

/// A command that does the same as an entry: its database, the command, and errors that say that it was done before.
pub type Same<'a> = (&'a str, DocBuf, &'static [Code]);

/// Checks the shape of an `applyOps` and of those within it.
///
/// Errors: `TypeMismatch`, `FailedToParse`, 9585500.
pub fn check_batch(body: RawDoc<'_>, depth: usize) -> Result<()> {
    let first = body.iter().next();
    let Some(Value::Array(list)) = first.map(|first| first.value()) else {
        let found = first.map_or(Value::Missing, |first| first.value());
        return Err(wrong_type("applyOps", "array", found));
    };
    for element in list.iter() {
        let Value::Document(entry) = element.value() else {
            return Err(wrong_type(element.key(), "object", element.value()));
        };
        let kind = entry.get_or_missing("op");
        let Value::String(kind) = kind else {
            return Err(wrong_type(if kind.is_missing() { "" } else { "op" }, "string", kind));
        };
        if kind != "c" {
            continue;
        }
        let Some(Value::Document(command)) = entry.get("o") else {
            return Err(wrong_type("o", "object", entry.get_or_missing("o")));
        };
        match command.iter().next().map_or("", |first| first.key()) {
            "dropDatabase" if depth > 0 => {
                bail!(9585500, "dropDatabase is not allowed inside nested applyOps")
            }
            "dropDatabase" if list.count() > 1 => {
                bail!(6275900, "dropDatabase in an applyOps must be the only entry")
            }
            "applyOps" if depth >= MAX_NESTED => bail!(Code::FAILED_TO_PARSE, "Too many nested applyOps"),
            "applyOps" => check_batch(command, depth + 1)?,
            _ => {}
        }
    }
    Ok(())
}

impl<'a> Entry<'a> {
    /// The entries of an `applyOps` whose shape was checked.
    ///
    /// Errors: `IllegalOperation`.
    pub fn all(body: RawDoc<'a>) -> Result<Vec<Self>> {
        let list = body.iter().next().and_then(|first| first.value().as_array()).unwrap_or(RawDoc::EMPTY);
        list.iter()
            .filter_map(|element| Some((element.key(), element.value().as_doc()?)))
            .map(Self::read)
            .collect()
    }

    fn read((at, whole): (&str, RawDoc<'a>)) -> Result<Self> {
        let refuse = |text: String| Err(Error::new(Code::ILLEGAL_OPERATION, text));
        let kind: &'a str = match whole.get("op") {
            Some(Value::String("")) => return refuse(format!("\"op\" field value cannot be empty: {at}")),
            Some(Value::String(kind)) => kind,
            Some(_) => return refuse(format!("\"op\" field is not a string: {at}")),
            None => return refuse(format!("op does not contain required \"op\" field: {at}")),
        };
        let namespace: &'a str = match whole.get("ns") {
            Some(Value::String(namespace)) => namespace,
            Some(_) => return refuse(format!("\"ns\" field is not a string: {at}")),
            None => return refuse(format!("op does not contain required \"ns\" field: {at}")),
        };
        if namespace.contains('\0') {
            return refuse("namespaces cannot have embedded null characters".to_owned());
        }
        if namespace.is_empty() && kind != "n" {
            return refuse(format!("\"ns\" field value cannot be empty when op type is not 'n': {at}"));
        }
        Ok(Entry { whole, kind, namespace })
    }

    /// An entry of a document as errors show it: without credentials.
    pub fn shown(&self) -> String {
        sheaf_bson::document_text(RawDoc::new(&redact::shown("insert", self.whole)))
    }

    /// `o`.
    ///
    /// Errors: 40414, `TypeMismatch`.
    pub fn object(&self) -> Result<RawDoc<'a>> {
        match self.whole.get("o") {
            Some(Value::Document(object)) => Ok(object),
            None => bail!(40414, "BSON field 'OplogEntryBase.o' is missing but a required field"),
            Some(other) => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'OplogEntryBase.o' is the wrong type '{}', expected type 'object'",
                other.type_name()
            ),
        }
    }

    /// The `_id` in this document of it.
    ///
    /// Errors: `NoSuchKey`.
    pub fn id_of(&self, doc: RawDoc<'a>, what: &str) -> Result<Value<'a>> {
        match doc.get("_id") {
            Some(id) => Ok(id),
            None => {
                let shown = self.shown();
                bail!(Code::NO_SUCH_KEY, "Failed to apply {what} due to missing _id: {shown}")
            }
        }
    }

    /// The insert that does the same.
    ///
    /// Errors: those of [`Entry::object`] and [`Entry::id_of`].
    pub fn insert(&self, bypass: bool) -> Result<(&'a str, DocBuf)> {
        let (db, name) = names::split(self.namespace);
        let document = self.object()?;
        self.id_of(document, "insert")?;
        let body = DocBuf::build(|out| {
            out.append("insert", name);
            out.array("documents").push(document);
            out.append("bypassDocumentValidation", bypass).append("bypassEmptyTsReplacement", true);
        });
        Ok((db, body))
    }

    /// The delete that does the same.
    ///
    /// Errors: those of [`Entry::object`] and [`Entry::id_of`].
    pub fn delete(&self) -> Result<(&'a str, DocBuf)> {
        let (db, name) = names::split(self.namespace);
        let id = self.id_of(self.object()?, "delete")?;
        let body = DocBuf::build(|out| {
            out.append("delete", name);
            let mut list = out.array("deletes");
            let mut statement = list.document();
            statement.document("q").document("_id").append("$eq", id);
            statement.append("limit", 1);
        });
        Ok((db, body))
    }

    /// The entries of the `applyOps` that it is.
    ///
    /// Errors: those of [`Entry::all`].
    pub fn nested(&self) -> Result<Option<Vec<Entry<'a>>>> {
        let object = self.object()?;
        let nests = object.iter().next().is_some_and(|first| first.key() == "applyOps");
        nests.then(|| Entry::all(object)).transpose()
    }

    /// Whether it is this command.
    pub fn is_command(&self, names: &[&str]) -> bool {
        let name = || self.whole.get("o")?.as_doc()?.iter().next().map(|first| first.key());
        self.kind == "c" && name().is_some_and(|name| names.contains(&name))
    }

    /// The command that does the same as this one, which a log may tell in another form.
    ///
    /// Errors: `BadValue`, `CommandNotSupported`.
    pub fn command(&self) -> Result<Same<'a>> {
        let object = self.object()?;
        let (db, _) = names::split(self.namespace);
        let Some(first) = object.iter().next() else {
            bail!(Code::BAD_VALUE, "Unknown oplog entry command type:  Object field: {{}}");
        };
        let as_it_is = || DocBuf::from(object);
        let gone: &[Code] = &[Code::NAMESPACE_NOT_FOUND];
        let no_index: &[Code] = &[Code::NAMESPACE_NOT_FOUND, Code::INDEX_NOT_FOUND];
        Ok(match first.key() {
            "create" if self.has_uuid() => bail!(
                Code::COMMAND_NOT_SUPPORTED,
                "applyOps makes collections with UUIDs of their own: leave out 'ui'"
            ),
            "create" => (db, as_it_is(), &[Code::NAMESPACE_EXISTS]),
            "drop" | "dropDatabase" | "convertToCapped" => (db, as_it_is(), gone),
            "collMod" => (db, as_it_is(), no_index),
            "createIndexes" if object.element("indexes").is_none() => {
                let body = DocBuf::build(|out| {
                    out.append_element(first);
                    let mut list = out.array("indexes");
                    let mut spec = list.document();
                    object.iter().skip(1).for_each(|field| _ = spec.append_element(field));
                });
                (db, body, gone)
            }
            "createIndexes" => (db, as_it_is(), gone),
            "dropIndexes" | "dropIndex" | "deleteIndexes" | "deleteIndex" => {
                let body = DocBuf::build(|out| {
                    out.append("dropIndexes", first.value());
                    out.append("index", object.get_or_missing("index"));
                });
                (db, body, no_index)
            }
            "renameCollection" => ("admin", as_it_is(), &[Code::NAMESPACE_NOT_FOUND, Code::NAMESPACE_EXISTS]),
            name @ ("startIndexBuild" | "commitIndexBuild" | "abortIndexBuild" | "commitTransaction"
            | "abortTransaction" | "importCollection" | "dbCheck" | "emptycapped") => {
                bail!(Code::COMMAND_NOT_SUPPORTED, "applyOps does not apply {name}")
            }
            name => {
                let shown = sheaf_bson::document_text(RawDoc::new(&redact::shown(name, object)));
                bail!(Code::BAD_VALUE, "Unknown oplog entry command type: {name} Object field: {shown}")
            }
        })
    }

    /// Whether it names a UUID.
    pub fn has_uuid(&self) -> bool {
        let is_uuid = |value: Value<'_>| matches!(value, Value::Binary(binary) if binary.subtype == 4);
        let object = self.whole.get("o").and_then(|object| object.as_doc()).unwrap_or(RawDoc::EMPTY);
        self.whole.values().any(is_uuid) || (self.kind == "c" && object.values().any(is_uuid))
    }

    /// The collection that `ui` names must be that of `ns`.
    ///
    /// Errors: 3318200.
    pub fn check_uuid(&self, catalog: &Catalog) -> Result<()> {
        let Some(given) = self.whole.get("ui") else { return Ok(()) };
        let bytes = match given {
            Value::Binary(binary) if binary.subtype == 4 => <[u8; 16]>::try_from(binary.bytes).ok(),
            _ => None,
        };
        let Some(bytes) = bytes else {
            bail!(Code::INVALID_UUID, "UUID must be a BinData with subtype 4 and 16 bytes");
        };
        let uuid = Uuid::from_bytes(bytes);
        if catalog.by_uuid(&uuid).is_some_and(|found| found.namespace == self.namespace) {
            return Ok(());
        }
        bail!(3318200, "Namespace '{}' and UUID '{uuid}' point to different collections", self.namespace)
    }
}

/// The error of a field of another type.
pub fn wrong_type(name: &str, expected: &str, found: Value<'_>) -> Error {
    let found = found.type_name();
    Error::new(
        Code::TYPE_MISMATCH,
        format!("\"{name}\" had the wrong type. Expected {expected}, found {found}"),
    )
}
