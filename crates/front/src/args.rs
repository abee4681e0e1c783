//! A command's arguments, read from the bytes that came.
//!
//! MongoDB generates its command parsers; this module gives handlers the same behaviour without
//! generated code: each field is asked for by name and type, a wrong type, a missing field, a
//! repeated field and (at [`Args::finish`]) an unknown field give MongoDB's errors.

mod convert;
mod shared;

pub(crate) use convert::wrong_type;
pub use convert::{
    Array, Flag, FromValue, Loose, NonNegative, Object, exact_i64, in_range, safe_i64, subtype_name,
};
pub use shared::is_generic;

use std::collections::HashSet;

use sheaf_bson::{Element, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_wire::Sequence;
use smallvec::SmallVec;

/// Elements of a command's body, and whether a handler has asked for them. They change hands a few times on the way to the handler, so what is
/// handed on is small.
pub type Fields<'a> = Vec<(Element<'a>, bool)>;

/// Most commands have fewer fields than that.
pub const FEW_FIELDS: usize = 8;

/// More than any command knows.
const MANY_FIELDS: usize = 64;

/// The fields of one command, except those that every command shares (dispatch has taken those).
pub struct Args<'a> {
    command: &'static str,
    /// The whole body as it came, for logs and for commands that wrap other commands.
    body: RawDoc<'a>,
    /// The first is the command's own field.
    fields: Fields<'a>,
    /// Of which lengths there are names: most of what a parser asks for is not there.
    lengths: Lengths,
    sequences: &'a [Sequence<'a>],
    sequences_seen: u32,
    /// Fields at the beginning that need not be asked for: a command's name.
    known: usize,
}

impl<'a> Args<'a> {
    /// Arguments of the command `command` (its canonical name). `fields` are the body's elements
    /// without the generic ones; the first names the command.
    pub fn new(
        command: &'static str,
        body: RawDoc<'a>,
        fields: Fields<'a>,
        sequences: &'a [Sequence<'a>],
    ) -> Result<Self> {
        let mut lengths = Lengths::default();
        // Where there are many, each is not compared with each.
        let mut names = (fields.len() > MANY_FIELDS).then(|| HashSet::with_capacity(fields.len()));
        for (at, (field, _)) in fields.iter().enumerate() {
            let key = field.key_bytes();
            let before = match &mut names {
                Some(names) => !names.insert(key),
                None => {
                    lengths.has(key.len()) && fields[..at].iter().any(|(other, _)| other.key_bytes() == key)
                }
            };
            let twice = before || sequences.iter().any(|sequence| sequence.name.as_bytes() == key);
            if twice {
                bail!(40413, "BSON field '{command}.{}' is a duplicate field", field.key());
            }
            lengths.add(key.len());
        }
        Ok(Args { command, body, fields, lengths, sequences, sequences_seen: 0, known: 1 })
    }

    /// Arguments taken from a document that stands inside another command, such as the command
    /// that `explain` wraps.
    pub fn of_document(command: &'static str, body: RawDoc<'a>) -> Result<Self> {
        Args::of_message(command, body, &[])
    }

    /// Arguments of a message whose fields nobody has sorted yet.
    pub fn of_message(
        command: &'static str,
        body: RawDoc<'a>,
        sequences: &'a [Sequence<'a>],
    ) -> Result<Self> {
        let own = body.iter().filter(|field| !is_generic(field.key_bytes()));
        Args::new(command, body, own.map(|field| (field, false)).collect(), sequences)
    }

    /// Arguments of a part of a command, such as one entry of `updates`; `place` is its path. Unlike a command,
    /// it has no name of its own as its first field.
    pub fn of_part(place: &'static str, body: RawDoc<'a>) -> Result<Self> {
        let fields = body.iter().map(|field| (field, false)).collect();
        Ok(Args { known: 0, ..Args::new(place, body, fields, &[])? })
    }

    /// The canonical name of the command.
    pub fn command(&self) -> &'static str {
        self.command
    }

    /// The whole body as it came (without kind-1 document sequences).
    pub fn body(&self) -> RawDoc<'a> {
        self.body
    }

    /// The value of the command's own field: `"users"` in `{find: "users"}`.
    pub fn own_value(&mut self) -> Value<'a> {
        match self.fields.first_mut() {
            Some((field, seen)) => {
                *seen = true;
                field.value()
            }
            None => Value::Missing,
        }
    }

    /// The collection that the command's own field names.
    ///
    /// Errors: `InvalidNamespace` for an empty or forbidden name, or a value that is no string.
    pub fn collection(&mut self) -> Result<&'a str> {
        match self.own_value() {
            Value::String("") => Err(self.empty_name()),
            Value::String(name) => {
                check_collection_name(name)?;
                Ok(name)
            }
            other => bail!(Code::INVALID_NAMESPACE, "collection name has invalid type {}", other.type_name()),
        }
    }

    /// The error for an empty name of a collection.
    pub fn empty_name(&self) -> Error {
        let db = self.body.get("$db").and_then(|db| db.as_str()).unwrap_or_default();
        Error::new(Code::INVALID_NAMESPACE, format!("Invalid namespace specified '{db}.'"))
    }

    /// The raw value of a field, marked as known; [`Value::Missing`] if absent.
    pub fn value(&mut self, name: &str) -> Value<'a> {
        self.take(name).map_or(Value::Missing, |field| field.value())
    }

    /// Whether the field stands in the command, without marking it as known.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field.key_bytes() == name.as_bytes())
            || self.sequences.iter().any(|sequence| sequence.name == name)
    }

    /// An optional field. Null and undefined count as absent, as in MongoDB's generated parsers
    /// (unless `T` accepts any value).
    pub fn optional<T: FromValue<'a>>(&mut self, name: &str) -> Result<Option<T>> {
        match self.take(name) {
            None => Ok(None),
            Some(field) => T::from_value(field.value(), &At { command: self.command, field: name }),
        }
    }

    /// A field that must be there.
    ///
    /// Errors: 40414 if it is absent (or null, and `T` does not take null).
    pub fn required<T: FromValue<'a>>(&mut self, name: &str) -> Result<T> {
        match self.optional(name)? {
            Some(value) => Ok(value),
            None => bail!(40414, "BSON field '{}.{name}' is missing but a required field", self.command),
        }
    }

    /// The value of the command's own field where its type is one of MongoDB's generated parsers'.
    ///
    /// Errors: 40414 where it is null, `TypeMismatch`.
    pub fn own<T: FromValue<'a>>(&mut self) -> Result<T> {
        let (value, command) = (self.own_value(), self.command);
        match T::from_value(value, &At { command, field: command })? {
            Some(value) => Ok(value),
            None => Err(self.missing(command)),
        }
    }

    /// 40414: the field is missing.
    pub fn missing(&self, name: &str) -> Error {
        Error::new(
            Code(40414),
            format!("BSON field '{}.{name}' is missing but a required field", self.command),
        )
    }

    /// An optional boolean of whose generated parser null is no absence.
    ///
    /// Errors: `TypeMismatch`, for null too.
    pub fn strict_bool(&mut self, name: &str) -> Result<Option<bool>> {
        match self.value(name) {
            Value::Missing => Ok(None),
            Value::Bool(flag) => Ok(Some(flag)),
            other => Err(wrong_type(&other, &At { command: self.command, field: name }, "bool")),
        }
    }

    /// A list of documents that may come as an array in the body or as a kind-1 sequence, such as
    /// `documents` of `insert`.
    pub fn documents(&mut self, name: &str) -> Result<Option<Documents<'a>>> {
        if let Some(at) = self.sequences.iter().position(|sequence| sequence.name == name) {
            self.sequences_seen |= 1 << at.min(31);
            return Ok(Some(Documents::Sequence(self.sequences[at])));
        }
        let command = self.command;
        let Some(Array(array)) = self.optional::<Array>(name)? else { return Ok(None) };
        for element in array.iter() {
            if element.value().as_doc().is_none() {
                bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '{command}.{name}.{}' is the wrong type '{}', expected type 'object'",
                    element.key(),
                    element.kind().name()
                );
            }
        }
        Ok(Some(Documents::Array(array)))
    }

    /// Like [`Args::documents`], for a list that must be there.
    pub fn required_documents(&mut self, name: &str) -> Result<Documents<'a>> {
        match self.documents(name)? {
            Some(documents) => Ok(documents),
            None => bail!(40414, "BSON field '{}.{name}' is missing but a required field", self.command),
        }
    }

    /// Accepts fields without reading them; for arguments that have no effect on this server.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            let _ = self.take(name);
        }
    }

    /// Accepts whatever fields are left: for the few commands whose parsers MongoDB keeps lax.
    pub fn ignore_rest(&mut self) {
        self.fields.iter_mut().for_each(|(_, seen)| *seen = true);
        self.sequences_seen = u32::MAX;
    }

    /// Refuses what no handler has asked for. Dispatch calls it after `Command::parse`.
    ///
    /// Errors: 40415 for an unknown field.
    pub fn finish(&self) -> Result<()> {
        let unknown =
            self.fields.iter().skip(self.known).find(|(_, seen)| !seen).map(|(field, _)| field.key());
        let unknown = unknown.or_else(|| {
            let unseen = |(at, _): &(usize, &Sequence<'a>)| self.sequences_seen & (1 << (*at).min(31)) == 0;
            self.sequences.iter().enumerate().find(unseen).map(|(_, sequence)| sequence.name)
        });
        match unknown {
            Some(name) => bail!(40415, "BSON field '{}.{name}' is an unknown field.", self.command),
            None => Ok(()),
        }
    }

    #[inline]
    fn take(&mut self, name: &str) -> Option<Element<'a>> {
        if !self.lengths.has(name.len()) {
            return None;
        }
        let found = self.fields.iter_mut().find(|(field, _)| field.key_bytes() == name.as_bytes())?;
        found.1 = true;
        Some(found.0)
    }
}

/// A set of lengths; those that differ by 64 count as one.
#[derive(Clone, Copy, Default)]
struct Lengths(u64);

impl Lengths {
    fn add(&mut self, length: usize) {
        self.0 |= 1 << (length % 64);
    }

    fn has(self, length: usize) -> bool {
        self.0 & (1 << (length % 64)) != 0
    }
}

/// Where a field stands, for error messages.
pub struct At<'s> {
    command: &'s str,
    field: &'s str,
}

impl<'s> At<'s> {
    /// The place of `command.field`.
    pub fn new(command: &'s str, field: &'s str) -> Self {
        At { command, field }
    }

    /// The field's own name.
    pub fn field(&self) -> &'s str {
        self.field
    }
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.command, self.field)
    }
}

/// Refuses a document in which a field stands twice, as MongoDB's generated parsers do; `place` is its path.
///
/// Errors: 40413.
pub fn refuse_twice(document: RawDoc<'_>, place: &str) -> Result<()> {
    let mut seen: SmallVec<[&[u8]; 8]> = SmallVec::new();
    // Where there are many, each is not compared with each.
    let mut many = HashSet::new();
    for field in document {
        let key = field.key_bytes();
        let before = if seen.len() < MANY_FIELDS {
            let before = seen.contains(&key);
            seen.push(key);
            before
        } else {
            if many.is_empty() {
                many.extend(seen.iter().copied());
            }
            !many.insert(key)
        };
        if before {
            bail!(40413, "BSON field '{place}.{}' is a duplicate field", field.key());
        }
    }
    Ok(())
}

/// Documents of a write command: an array of the body, or a kind-1 section of the message.
#[derive(Clone, Copy)]
pub enum Documents<'a> {
    /// From the body.
    Array(RawDoc<'a>),
    /// From the message.
    Sequence(Sequence<'a>),
}

impl<'a> Documents<'a> {
    /// The documents in order.
    pub fn iter(self) -> DocumentsIter<'a> {
        match self {
            Documents::Array(array) => DocumentsIter::Array(array.iter()),
            Documents::Sequence(sequence) => DocumentsIter::Sequence(sequence.iter()),
        }
    }

    /// How many there are; walks them.
    pub fn count(self) -> usize {
        self.iter().count()
    }
}

impl<'a> IntoIterator for Documents<'a> {
    type Item = RawDoc<'a>;
    type IntoIter = DocumentsIter<'a>;
    fn into_iter(self) -> DocumentsIter<'a> {
        self.iter()
    }
}

/// Iterator over [`Documents`].
#[derive(Clone)]
pub enum DocumentsIter<'a> {
    /// Over an array.
    Array(sheaf_bson::Iter<'a>),
    /// Over a sequence.
    Sequence(sheaf_wire::SequenceIter<'a>),
}

impl<'a> Iterator for DocumentsIter<'a> {
    type Item = RawDoc<'a>;
    fn next(&mut self) -> Option<RawDoc<'a>> {
        match self {
            // `Args::documents` has checked that every element is a document.
            DocumentsIter::Array(iter) => iter.next().map(|e| e.value().as_doc().unwrap_or(RawDoc::EMPTY)),
            DocumentsIter::Sequence(iter) => iter.next(),
        }
    }
}

/// Refuses collection names that can never exist.
///
/// Errors: `InvalidNamespace` (73).
pub fn check_collection_name(name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified: Collection names cannot be empty");
    }
    if name.contains('\0') {
        bail!(Code::INVALID_NAMESPACE, "namespaces cannot have embedded null characters");
    }
    if name.starts_with('.') {
        bail!(Code::INVALID_NAMESPACE, "Collection names cannot start with '.': {name}");
    }
    Ok(())
}

/// Refuses database names that can never exist.
///
/// Errors: `InvalidNamespace` (73).
pub fn check_db_name(name: &str) -> Result<()> {
    const FORBIDDEN: &[u8] = b"\0/\\. \"$";
    let ok = !name.is_empty()
        && name.len() < 64
        && (name == "$external" || !name.bytes().any(|b| FORBIDDEN.contains(&b)));
    if ok {
        return Ok(());
    }
    if name.len() >= 64 {
        bail!(Code::INVALID_NAMESPACE, "db name must be at most 63 characters, found: {}", name.len());
    }
    bail!(Code::INVALID_NAMESPACE, "Invalid database name: '{name}'")
}

#[cfg(test)]
mod tests;
