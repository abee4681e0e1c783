//! `lsid`.

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Sink, Value};
use sheaf_errors::{Code, Result, bail};
use uuid::Uuid;

use crate::args::{At, FromValue, subtype_name};

/// `lsid`: a UUID made by the driver and, with authentication, the digest of a user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct LogicalSessionId {
    /// The session's UUID.
    pub id: [u8; 16],
    /// By what its user is named, where users have to say who they are: two users' sessions of one UUID are two.
    pub uid: Option<[u8; 32]>,
}

impl LogicalSessionId {
    /// Nobody's session of this UUID.
    pub const fn new(id: [u8; 16]) -> Self {
        LogicalSessionId { id, uid: None }
    }

    /// The same of this user, if it says nobody's.
    #[must_use]
    pub fn or_of(self, uid: [u8; 32]) -> Self {
        LogicalSessionId { uid: self.uid.or(Some(uid)), ..self }
    }

    /// Parses `{id: UUID}` or `{id: UUID, uid: digest}`, an operation's `lsid`.
    ///
    /// Errors: 40414 without `id`, 40413 with one field twice, `TypeMismatch`, `InvalidUUID`, 40415, `InvalidOptions`.
    pub fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let id = Self::parse_at(doc, "OperationSessionInfo.lsid")?;
        // Sessions within sessions are what servers have among themselves, and here they have none.
        if doc.get("txnUUID").is_some_and(|uuid| !uuid.is_nullish()) {
            bail!(Code::INVALID_OPTIONS, "Internal sessions are only allowed for internal clients");
        }
        Ok(id)
    }

    /// Parses the same; `place` is the path that errors name.
    pub fn parse_at(doc: RawDoc<'_>, place: &str) -> Result<Self> {
        let (mut id, mut uid) = (None, None);
        let mut internal = [false; 2];
        let mut named = [false; 2];
        for field in doc {
            if let Some(at) = ["id", "uid"].iter().position(|name| *name == field.key())
                && std::mem::replace(&mut named[at], true)
            {
                bail!(40413, "BSON field '{place}.{}' is a duplicate field", field.key());
            }
            match (field.key(), field.value()) {
                ("id", Value::Binary(Binary { subtype: 4, bytes })) => match <[u8; 16]>::try_from(bytes) {
                    Ok(bytes) => id = Some(bytes),
                    Err(_) => bail!(Code::INVALID_UUID, "uuid must be 16 bytes long, got {}", bytes.len()),
                },
                ("id", Value::Null | Value::Undefined) => {}
                ("id", Value::Binary(Binary { subtype, .. })) => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '{place}.id' is the wrong binData type '{}', expected type 'UUID'",
                    subtype_name(subtype)
                ),
                ("id", other) => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '{place}.id' is the wrong type '{}', expected type 'binData'",
                    other.type_name()
                ),
                ("uid", value) => uid = digest(value, place)?.filter(|uid| *uid != NOBODY),
                ("txnNumber" | "txnUUID", Value::Null | Value::Undefined) => {}
                ("txnNumber", Value::Int64(_)) => internal[0] = true,
                ("txnUUID", value @ Value::Binary(_)) => {
                    Uuid::from_value(value, &At::new(place, "txnUUID"))?;
                    internal[1] = true;
                }
                (name @ ("txnNumber" | "txnUUID"), other) => {
                    let (found, wanted) =
                        (other.type_name(), if name == "txnUUID" { "binData" } else { "long" });
                    bail!(
                        Code::TYPE_MISMATCH,
                        "BSON field '{place}.{name}' is the wrong type '{found}', expected type '{wanted}'"
                    )
                }
                ("stmtId", _) => {}
                (name, _) => {
                    bail!(40415, "BSON field '{place}.{name}' is an unknown field.")
                }
            }
        }
        if id.is_some() && internal == [true, false] {
            bail!(Code::INVALID_OPTIONS, "Cannot specify txnNumber in lsid without specifying txnUUID");
        }
        match id {
            Some(id) => Ok(LogicalSessionId { id, uid }),
            None => bail!(40414, "BSON field '{place}.id' is missing but a required field"),
        }
    }

    /// `{id: UUID}`, with `uid` if it is somebody's: how storage and other servers name the session.
    pub fn document(&self) -> DocBuf {
        DocBuf::build(|doc| self.fill(doc))
    }

    fn fill<S: Sink>(&self, doc: &mut DocWriter<'_, S>) {
        doc.append("id", Value::Binary(Binary { subtype: 4, bytes: &self.id }));
        if let Some(uid) = &self.uid {
            doc.append("uid", Value::Binary(Binary { subtype: 0, bytes: uid }));
        }
    }

    /// Writes `{id: UUID, uid: digest}` as the field `key`: with the digest of nobody, if nobody has logged in.
    pub fn write_of_nobody<S: Sink>(&self, doc: &mut DocWriter<'_, S>, key: &str) {
        let mut id = doc.document(key);
        id.append("id", Value::Binary(Binary { subtype: 4, bytes: &self.id }));
        id.append("uid", Value::Binary(Binary { subtype: 0, bytes: &self.uid.unwrap_or(NOBODY) }));
    }

    /// Writes the [document](Self::document) as the field `key`.
    pub fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>, key: &str) {
        self.fill(&mut doc.document(key));
    }
}

/// The digest of a user, the field `uid` of the document at `place`; `None` for null.
///
/// Errors: `TypeMismatch`, and `UnsupportedFormat` for another length than SHA-256 has.
pub fn digest(value: Value<'_>, place: &str) -> Result<Option<[u8; 32]>> {
    match value {
        Value::Null | Value::Undefined => Ok(None),
        Value::Binary(Binary { subtype: 0, bytes }) => match <[u8; 32]>::try_from(bytes) {
            Ok(digest) => Ok(Some(digest)),
            Err(_) => bail!(Code::UNSUPPORTED_FORMAT, "Unsupported SHA256Block hash length: {}", bytes.len()),
        },
        Value::Binary(Binary { subtype, .. }) => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.uid' is the wrong binData type '{}', expected type 'general'",
            subtype_name(subtype)
        ),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.uid' is the wrong type '{}', expected type 'binData'",
            other.type_name()
        ),
    }
}

/// By what sessions name nobody: SHA-256 of nothing.
pub const NOBODY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
    0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

impl std::fmt::Display for LogicalSessionId {
    /// As MongoDB's messages show a session: its UUID, and the digest of its user or of nobody.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let uid = sheaf_bson::json::base64(&self.uid.unwrap_or(NOBODY));
        write!(f, "{} - {uid} -  - ", uuid::Uuid::from_bytes(self.id))
    }
}
