//! Collections named by their UUIDs: `{find: UUID(...)}`. From here on the command has the name in its place.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error};

use crate::role::Role;

/// The commands that take a UUID for a name.
const COMMANDS: &[&str] = &["count", "distinct", "find", "listIndexes"];

/// How a command names its collection.
pub(super) enum Named {
    /// In no special way.
    Plain,
    /// By its UUID: this is the command with the name.
    Found(DocBuf),
    /// By the UUID of none, which its client is told if it may know.
    Unknown(Error),
}

/// Looks for a UUID in the place of a command's collection, and for the collection.
pub(super) fn resolve(role: &dyn Role, body: RawDoc<'_>, query_db: Option<&str>) -> Named {
    let Some(first) = body.iter().next() else { return Named::Plain };
    let Value::Binary(binary) = first.value() else { return Named::Plain };
    let Ok(uuid) = <[u8; 16]>::try_from(binary.bytes) else { return Named::Plain };
    if binary.subtype != 4 || !COMMANDS.contains(&first.key()) {
        return Named::Plain;
    }
    let db = body.get("$db").and_then(|db| db.as_str()).or(query_db).unwrap_or_default();
    let text = uuid_text(&uuid);
    let namespace = match role.namespace_of(&uuid) {
        None => return Named::Plain,
        Some(None) => {
            return Named::Unknown(Error::new(
                Code::NAMESPACE_NOT_FOUND,
                format!("Unable to resolve {text}"),
            ));
        }
        Some(Some(namespace)) => namespace,
    };
    let Some((_, name)) = namespace.split_once('.').filter(|(of, _)| *of == db) else {
        let told = format!(
            "UUID: {text} specified in provided db name: {db} resolved to a collection in a different database, resolved nss: {namespace}"
        );
        return Named::Unknown(Error::new(Code::NAMESPACE_NOT_FOUND, told));
    };
    Named::Found(DocBuf::build(|out| {
        out.append(first.key(), name);
        body.iter().skip(1).for_each(|field| _ = out.append_element(field));
    }))
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
