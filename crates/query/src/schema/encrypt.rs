//! `encrypt` and `encryptMetadata`: what clients that encrypt fields read in a schema.
//!
//! The server has no keys. It checks the keywords, and that a field of `encrypt` is encrypted and names the right type.

use sheaf_bson::{Element, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::matcher::TypeSet;

/// The subtype of encrypted binary data.
const ENCRYPTED: u8 = 6;

/// In front of the encrypted bytes: how they are encrypted, the id of the key, and the type of what is in them.
const HEADER_BYTES: usize = 18;

/// Beyond this many keys a pointer is refused.
const POINTER_DEPTH_MAX: usize = 1000;

const ALGORITHMS: [&str; 2] =
    ["AEAD_AES_256_CBC_HMAC_SHA_512-Deterministic", "AEAD_AES_256_CBC_HMAC_SHA_512-Random"];

/// How a value breaks `encrypt`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plain {
    /// It is not encrypted.
    Value,
    /// What is encrypted has another type.
    Type,
}

/// What is wrong with a value that is to be encrypted; `None` for nothing.
pub(super) fn fault(value: Value<'_>, types: Option<&TypeSet>) -> Option<Plain> {
    let Value::Binary(data) = value else { return Some(Plain::Value) };
    if data.subtype != ENCRYPTED {
        return Some(Plain::Value);
    }
    let types = types?;
    let named = match data.bytes {
        // Deterministic and random encryption; the type is a byte, with the sign of a type's number.
        bytes @ [1 | 2, ..] if bytes.len() >= HEADER_BYTES => {
            let number = i32::from(bytes[HEADER_BYTES - 1] as i8);
            (types.number && matches!(number, 1 | 16 | 18 | 19)) || types.types.contains(&number)
        }
        _ => false,
    };
    if named { None } else { Some(Plain::Type) }
}

/// Checks the fields that both keywords have, and gives `bsonType`, which only `encrypt` has.
pub(super) fn check_fields<'a>(keyword: &str, fields: RawDoc<'a>) -> Result<Option<Element<'a>>> {
    let mut bson_type = None;
    for field in fields.iter() {
        match field.key() {
            "bsonType" if keyword == "encrypt" => bson_type = Some(field),
            "algorithm" => check_algorithm(keyword, field.value())?,
            "keyId" => check_key_id(field.value())?,
            other => bail!(Code(40415), "BSON field '{keyword}.{other}' is an unknown field."),
        }
    }
    Ok(bson_type)
}

fn check_algorithm(keyword: &str, value: Value<'_>) -> Result<()> {
    match value {
        Value::String(name) if ALGORITHMS.contains(&name) => Ok(()),
        Value::String(name) => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{name}' for field '{keyword}.algorithm' is not a valid value."
        ),
        value if value.is_nullish() => Ok(()),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{keyword}.algorithm' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
}

/// A pointer to the key's name in the document, or the ids of keys.
fn check_key_id(value: Value<'_>) -> Result<()> {
    match value {
        Value::String(pointer) => check_pointer(pointer),
        Value::Array(ids) => {
            for id in ids.values() {
                match id {
                    Value::Binary(data) if data.subtype != 4 => {
                        bail!(
                            51084,
                            "Array elements must have type UUID, found BinData subtype {}",
                            data.subtype
                        )
                    }
                    Value::Binary(data) if data.bytes.len() != 16 => {
                        bail!(Code::INVALID_UUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
                    }
                    Value::Binary(_) => {}
                    other => {
                        bail!(51088, "Array elements must have type BinData, found {}", other.type_name())
                    }
                }
            }
            Ok(())
        }
        other => bail!(
            51085,
            "Expected either string or array of UUID for EncryptSchemaKeyId, found {}",
            other.type_name()
        ),
    }
}

fn check_pointer(pointer: &str) -> Result<()> {
    if pointer.is_empty() {
        bail!(51064, "Empty JSONPointers are not supported");
    }
    let Some(keys) = pointer.strip_prefix('/') else {
        bail!(51065, "JSONPointer must start with a '/'");
    };
    let mut escapes = keys.split('~').skip(1);
    if !escapes.all(|rest| rest.starts_with(['0', '1'])) {
        bail!(51063, "JSONPointer cannot contain unescaped ~ character");
    }
    if keys.split('/').count() > POINTER_DEPTH_MAX {
        bail!(51067, "JSONPointer exceeds its maximum depth of {POINTER_DEPTH_MAX}");
    }
    Ok(())
}
