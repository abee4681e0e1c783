//! `lsid`.

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Sink, Value};
use sheaf_errors::{Code, Result, bail};

/// `lsid`: a UUID made by the driver and, with authentication, the digest of a user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct LogicalSessionId {
    /// The session's UUID.
    pub id: [u8; 16],
}

impl LogicalSessionId {
    /// Parses `{id: UUID}`.
    ///
    /// Errors: 40414 without `id`, `TypeMismatch`, `InvalidUUID`, 40415.
    pub fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let mut id = None;
        for field in doc {
            match (field.key(), field.value()) {
                ("id", Value::Binary(Binary { subtype: 4, bytes })) => match <[u8; 16]>::try_from(bytes) {
                    Ok(bytes) => id = Some(bytes),
                    Err(_) => bail!(Code::INVALID_UUID, "uuid must be 16 bytes long, got {}", bytes.len()),
                },
                ("id", Value::Binary(Binary { subtype, .. })) => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'OperationSessionInfo.lsid.id' is the wrong binData type '{}', expected type 'UUID'",
                    subtype_name(subtype)
                ),
                ("id", other) => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'OperationSessionInfo.lsid.id' is the wrong type '{}', expected type 'binData'",
                    other.type_name()
                ),
                ("uid" | "txnNumber" | "txnUUID" | "stmtId", _) => {}
                (name, _) => {
                    bail!(40415, "BSON field 'OperationSessionInfo.lsid.{name}' is an unknown field.")
                }
            }
        }
        match id {
            Some(id) => Ok(LogicalSessionId { id }),
            None => bail!(40414, "BSON field 'OperationSessionInfo.lsid.id' is missing but a required field"),
        }
    }

    /// `{id: UUID}`: how storage names the session.
    pub fn document(&self) -> DocBuf {
        DocBuf::build(|doc| {
            doc.append("id", Value::Binary(Binary { subtype: 4, bytes: &self.id }));
        })
    }

    /// Writes `{id: UUID}` as the field `key`.
    pub fn write<S: Sink>(&self, doc: &mut DocWriter<'_, S>, key: &str) {
        doc.document(key).append("id", Value::Binary(Binary { subtype: 4, bytes: &self.id }));
    }
}

fn subtype_name(subtype: u8) -> &'static str {
    match subtype {
        0 => "general",
        1 => "function",
        2 => "general(deprecated)",
        3 => "UUID(deprecated)",
        5 => "MD5",
        6 => "encrypt",
        7 => "column",
        8 => "sensitive",
        9 => "vector",
        _ => "user-defined",
    }
}

impl std::fmt::Display for LogicalSessionId {
    /// As MongoDB's messages show a session: its UUID, and the digest of nobody.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nobody = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        write!(f, "{} - {nobody} -  - ", uuid::Uuid::from_bytes(self.id))
    }
}
