//! `encryptedFields` of `create`: which fields of a collection clients encrypt, and how they are searched. The cryptography
//! is the clients'; the server checks the description and keeps it.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Uuid;

use crate::args::{Args, Array};

mod domain;
mod queries;

/// Checks the description of a collection's encrypted fields.
///
/// Errors: `TypeMismatch`, 40414, 40415 and the codes of what is said twice, or cannot be encrypted.
pub fn check(config: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part("create.encryptedFields", config)?;
    for (name, kind, code) in [("escCollection", "State", 7406900), ("ecocCollection", "Compaction", 7406902)]
    {
        if let Some(given) = args.optional::<&str>(name)?
            && !is_state_collection(given)
        {
            bail!(
                Code(code),
                "Encrypted {kind} Collection name should follow enxcol_.<collection>.{} naming pattern",
                name.trim_end_matches("Collection")
            );
        }
    }
    args.optional::<i64>("strEncodeVersion")?;
    let Array(list) = args.required("fields")?;
    args.finish()?;
    let mut fields = Vec::new();
    for field in list.iter() {
        let Value::Document(field) = field.value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'create.encryptedFields.fields.{}' is the wrong type '{}', expected type 'object'",
                field.key(),
                field.kind().name()
            );
        };
        fields.push(Field::parse(field)?);
    }
    fields.iter().try_for_each(Field::check)?;
    fields.iter().enumerate().try_for_each(|(at, field)| field.check_against(&fields[..at]))
}

/// The description as it is kept: with the names of the collections in which clients' tokens are.
pub fn completed(config: RawDoc<'_>, collection: &str) -> DocBuf {
    DocBuf::build(|out| {
        for (name, end) in [("escCollection", "esc"), ("ecocCollection", "ecoc")] {
            match config.element(name) {
                Some(given) => out.append_element(given),
                None => out.append(name, &format!("enxcol_.{collection}.{end}")),
            };
        }
        for field in config.iter().filter(|field| !matches!(field.key(), "escCollection" | "ecocCollection"))
        {
            out.append_element(field);
        }
    })
}

fn is_state_collection(name: &str) -> bool {
    name.starts_with("enxcol_.")
        && [".esc", ".ecc", ".ecoc", ".ecoc.compact"].iter().any(|end| name.ends_with(end))
}

/// One encrypted field.
struct Field<'a> {
    key: Uuid,
    path: &'a str,
    bson_type: Option<&'a str>,
    queries: Option<Vec<queries::QueryType<'a>>>,
}

impl<'a> Field<'a> {
    fn parse(field: RawDoc<'a>) -> Result<Self> {
        let mut args = Args::of_part("create.encryptedFields.fields", field)?;
        let key = args.required("keyId")?;
        let path = args.required("path")?;
        let bson_type = args.optional("bsonType")?;
        if let Some(name) = bson_type.filter(|name| !TYPES.contains(name)) {
            bail!(Code::BAD_VALUE, "Unknown type name: {name}");
        }
        let queries = match args.value("queries") {
            Value::Missing => None,
            Value::Document(one) => Some(vec![queries::QueryType::parse(one)?]),
            Value::Array(several) => Some(queries::parse_all(several)?),
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'create.encryptedFields.fields.queries' is the wrong type '{}', expected types '[array, object]'",
                other.type_name()
            ),
        };
        args.finish()?;
        Ok(Field { key, path, bson_type, queries })
    }

    /// What the field is in itself.
    fn check(&self) -> Result<()> {
        match (&self.queries, self.bson_type) {
            (Some(queries), bson_type) => queries::check(queries, bson_type),
            (None, Some(name @ ("null" | "undefined" | "minKey" | "maxKey"))) => {
                bail!(6338406, "Type '{name}' is not a supported unindexed type")
            }
            (None, _) => Ok(()),
        }
    }

    /// What it is beside the others.
    fn check_against(&self, others: &[Field<'_>]) -> Result<()> {
        if others.iter().any(|other| other.key == self.key) {
            bail!(6338401, "Duplicate key ids are not allowed");
        }
        if self.path.is_empty() {
            bail!(6316402, "Encrypted field must have a non-empty path");
        }
        if self.path.contains('\0') {
            bail!(9867600, "Encrypted field path cannot contain a null byte");
        }
        if self.path == "_id" || self.path.starts_with("_id.") {
            bail!(6316403, "Cannot encrypt _id or its subfields");
        }
        for other in others {
            if other.path == self.path {
                bail!(6338402, "Duplicate paths are not allowed");
            }
            let above = |outer: &str, inner: &str| {
                inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'))
            };
            if above(other.path, self.path) || above(self.path, other.path) {
                bail!(
                    6338403,
                    "Conflicting index paths found as one is a prefix of another '{}' and '{}'",
                    self.path,
                    other.path
                );
            }
        }
        Ok(())
    }
}

/// Names of BSON's types.
const TYPES: [&str; 21] = [
    "double",
    "string",
    "object",
    "array",
    "binData",
    "undefined",
    "objectId",
    "bool",
    "date",
    "null",
    "regex",
    "dbPointer",
    "javascript",
    "symbol",
    "javascriptWithScope",
    "int",
    "timestamp",
    "long",
    "decimal",
    "minKey",
    "maxKey",
];

#[cfg(test)]
mod tests;
