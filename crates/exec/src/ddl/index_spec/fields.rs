//! The fields of an index specification: which there are, and their types.

use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::{check_key_pattern, is_wildcard, shown};

/// The options that an index specification may have, beside those kept for kinds of index that this
/// server does not build.
const KNOWN: &[&str] = &[
    "v",
    "key",
    "name",
    "ns",
    "unique",
    "sparse",
    "background",
    "expireAfterSeconds",
    "partialFilterExpression",
    "collation",
    "hidden",
    "wildcardProjection",
    "storageEngine",
    "prepareUnique",
    "clustered",
    "dropDups",
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
    "2dsphereIndexVersion",
    "bits",
    "min",
    "max",
    "finestIndexedLevel",
    "coarsestIndexedLevel",
    "bucketSize",
    "columnstoreProjection",
    "originalSpec",
];

/// What a specification may have that says it is of a clustered collection's own index.
const CLUSTERED: &[&str] = &["v", "key", "name", "unique", "clustered", "expireAfterSeconds"];

/// A specification without the fields that no index has, as `ignoreUnknownIndexOptions` asks for it.
pub fn without_unknown(spec: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| {
        for field in spec.iter().filter(|field| KNOWN.contains(&field.key())) {
            out.append_element(field);
        }
    })
}

/// Checks the names of the fields, then, in their order, their types and the key's pattern, and gives the key.
pub(super) fn check_fields<'a>(spec: RawDoc<'a>) -> Result<RawDoc<'a>> {
    if let Some(unknown) = spec.iter().find(|field| !KNOWN.contains(&field.key())) {
        bail!(
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
            "The field '{}' is not valid for an index specification. Specification: {}",
            unknown.key(),
            shown(Value::Document(spec))
        );
    }
    let clustered = spec.get("clustered");
    if clustered.is_some()
        && let Some(other) = spec.iter().find(|field| !CLUSTERED.contains(&field.key()))
    {
        bail!(
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
            "The field '{}' is not valid for a clustered index specification. Specification: {}",
            other.key(),
            shown(Value::Document(spec))
        );
    }
    for element in spec.iter() {
        check_type(spec, element)?;
        if let ("key", Value::Document(key)) = (element.key(), element.value()) {
            check_key_pattern(key)?;
        }
    }
    let Some(key) = spec.get("key").and_then(|key| key.as_doc()) else {
        bail!(Code::FAILED_TO_PARSE, "The 'key' field is a required property of an index specification");
    };
    if spec.element("name").is_none() {
        bail!(Code::FAILED_TO_PARSE, "The 'name' field is a required property of an index specification");
    }
    if let Some(clustered) = clustered {
        if !clustered.truthy() {
            bail!(6492800, "Value 'false' for field 'clustered' is invalid");
        }
        if spec.get("unique").and_then(|unique| unique.as_bool()) != Some(true) {
            bail!(Code::CANNOT_CREATE_INDEX, "The 'unique' field is required when 'clustered' is specified");
        }
    }
    Ok(key)
}

fn check_type(spec: RawDoc<'_>, element: Element<'_>) -> Result<()> {
    let value = element.value();
    let name = element.key();
    let must_be = |what: &str| -> Result<()> {
        bail!(Code::TYPE_MISMATCH, "The field '{name}' must be {what}, but got {}", value.type_name())
    };
    match name {
        "name" | "default_language" | "language_override" if value.as_str().is_none() => must_be("a string"),
        "hidden" if value.as_bool().is_none() => must_be("a bool"),
        "unique" | "sparse" | "background" | "prepareUnique" | "clustered" | "dropDups" => {
            if value.is_number() || value.as_bool().is_some() {
                return Ok(());
            }
            bail!(
                Code::TYPE_MISMATCH,
                "The field '{name} has value {}, which is not convertible to bool",
                shown(value)
            )
        }
        "wildcardProjection" if !is_wildcard_spec(spec) => {
            bail!(Code::BAD_VALUE, "The field 'wildcardProjection' is only allowed in 'wildcard' indexes")
        }
        "key"
        | "partialFilterExpression"
        | "collation"
        | "storageEngine"
        | "wildcardProjection"
        | "originalSpec"
            if value.as_doc().is_none() =>
        {
            must_be("an object")
        }
        "originalSpec" if value.as_doc().is_some_and(|spec| spec.is_empty()) => {
            bail!(Code::BAD_VALUE, "The field 'originalSpec' cannot be an empty object.")
        }
        // A text index takes no list either, but that is found out where its words are read.
        "weights" if !matches!(value, Value::Document(_) | Value::Array(_) | Value::String(_)) => {
            must_be("an object")
        }
        "2dsphereIndexVersion"
        | "textIndexVersion"
        | "bits"
        | "min"
        | "max"
        | "finestIndexedLevel"
        | "coarsestIndexedLevel"
        | "bucketSize"
            if !value.is_number() =>
        {
            must_be("a number")
        }
        _ => Ok(()),
    }
}

fn is_wildcard_spec(spec: RawDoc<'_>) -> bool {
    let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    !sheaf_text::is_text_key(key) && key.iter().any(|field| is_wildcard(field.key()))
}
