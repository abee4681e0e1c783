//! Index specifications: what `createIndexes` accepts, and the form in which they are kept.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_collation::Collation;
use sheaf_errors::{Code, Result, bail};
use sheaf_query::matcher::{Features, Matcher};

mod fields;
mod relate;
mod wildcard;

pub use fields::without_unknown;
pub use relate::{Relation, relate, same_key};

use fields::check_fields;

/// Checks the specification and gives it in normal form: `{v: 2, key, name, ...options}`.
///
/// Errors: `CannotCreateIndex`, `InvalidIndexSpecificationOption`, `TypeMismatch`, `FailedToParse`.
pub fn normalize(spec: RawDoc<'_>) -> Result<DocBuf> {
    let key = check_fields(spec)?;
    check_name(spec, key)?;
    check_version(spec)?;
    check_options(spec, key)?;
    if !sheaf_text::is_text_key(key) {
        return Ok(DocBuf::build(|out| write_normal(out, spec, key)));
    }
    let (words, fields) = (sheaf_text::normal_key(key)?, sheaf_text::normal_fields(spec, key)?);
    Ok(DocBuf::build(|out| {
        write_normal(out, spec, words.as_raw());
        fields.as_raw().iter().for_each(|field| _ = out.append_element(field));
    }))
}

/// Checks a specification as `createIndexes` does, and completes it: an index has its collection's collation
/// unless it names another.
///
/// Errors: those of [`normalize`], with the specification named.
pub fn prepare(spec: RawDoc<'_>, default_collation: Option<RawDoc<'_>>) -> Result<DocBuf> {
    let normal = normalize(spec)
        .map_err(|error| error.context(format!("Error in specification {}", shown(Value::Document(spec)))))?;
    // Indexes of version 1 know of no collation: they do not take over that of their collection.
    let first_version = normal.as_raw().get_or_missing("v").as_exact_i64() == Some(1);
    if first_version || spec.element("collation").is_some() {
        return Ok(normal);
    }
    Ok(match default_collation {
        Some(collation) if normal.as_raw().element("textIndexVersion").is_some() => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Index type 'text' does not support collation: {}",
            shown(Value::Document(collation))
        ),
        Some(collation) => normal.with("collation", collation),
        None => normal,
    })
}

/// The name that a driver gives an index without one: `a_1_b_-1`.
pub fn default_name(key: RawDoc<'_>) -> String {
    let mut name = String::new();
    for element in key.iter() {
        if !name.is_empty() {
            name.push('_');
        }
        name.push_str(element.key());
        name.push('_');
        match element.value() {
            Value::String(kind) => name.push_str(kind),
            Value::Double(n) if n.trunc() == n => name.push_str(&format!("{n:.0}")),
            other => name.push_str(&sheaf_bson::value_text(other)),
        }
    }
    name
}

/// Most fields of an index.
const FIELDS_MAX: usize = 32;

/// Longest key pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 2048;

/// Checks an index's key pattern.
///
/// Errors: `CannotCreateIndex`, 13103.
pub fn check_key_pattern(key: RawDoc<'_>) -> Result<()> {
    if key.is_empty() {
        bail!(Code::CANNOT_CREATE_INDEX, "Index keys cannot be empty.");
    }
    if key.iter().nth(FIELDS_MAX).is_some() {
        bail!(13103, "too many compound keys");
    }
    if key.len() > PATTERN_BYTES_MAX {
        bail!(Code::CANNOT_CREATE_INDEX, "Index key pattern too large.");
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut kind: Option<&str> = None;
    let mut hashed = 0;
    let mut wildcards = 0;
    for element in key.iter() {
        let name = element.key();
        if seen.contains(&name) {
            bail!(
                Code::BAD_VALUE,
                "The field '{name}' appears multiple times in the index key pattern {}",
                shown(Value::Document(key))
            );
        }
        seen.push(name);
        check_direction(element.value())?;
        if let Value::String(plugin) = element.value() {
            check_plugin(plugin)?;
            if kind.is_some_and(|other| other != plugin) {
                bail!(Code::CANNOT_CREATE_INDEX, "Can't use more than one index plugin for a single index.");
            }
            kind = Some(plugin);
            hashed += usize::from(plugin == "hashed");
        }
        // Of a text index, `$**` are all texts.
        let text = element.value().as_str() == Some("text");
        wildcards += usize::from(is_wildcard(name) && !text);
        if !(name == "_fts" && text || name == "_ftsx") {
            check_path(name)?;
        }
    }
    if hashed > 1 {
        bail!(
            31303,
            "A maximum of one index field is allowed to be hashed but found {hashed} for 'key' {}",
            shown(Value::Document(key))
        );
    }
    if wildcards > 1 {
        bail!(7246201, "wildcard indexes do not allow more than one wildcard field");
    }
    if wildcards == 1 && kind.is_some() {
        bail!(67, "wildcard indexes do not allow index plugins: {}", kind.unwrap_or_default());
    }
    Ok(())
}

fn check_direction(value: Value<'_>) -> Result<()> {
    match value {
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => {
            let number = value.as_f64().unwrap_or(f64::NAN);
            if number.is_nan() {
                bail!(Code::CANNOT_CREATE_INDEX, "Values in the index key pattern cannot be NaN.");
            }
            if number == 0.0 {
                bail!(Code::CANNOT_CREATE_INDEX, "Values in the index key pattern cannot be 0.");
            }
            Ok(())
        }
        Value::String(_) => Ok(()),
        other => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and strings are allowed.",
            other.type_name()
        ),
    }
}

fn check_plugin(plugin: &str) -> Result<()> {
    match plugin {
        "hashed" | "text" => Ok(()),
        kind if sheaf_geo::is_geo_kind(kind) => Ok(()),
        "2dsphere_bucket" => {
            bail!(Code::CANNOT_CREATE_INDEX, "Index type '{plugin}' is not supported by this server yet")
        }
        "" => bail!(Code::CANNOT_CREATE_INDEX, "Values in the index key pattern cannot be an empty string."),
        "wildcard" => bail!(7246202, "Index type 'wildcard' is chosen by a field '$**', not by its name"),
        _ => bail!(Code::CANNOT_CREATE_INDEX, "Unknown index plugin '{plugin}'"),
    }
}

fn is_wildcard(name: &str) -> bool {
    name == "$**" || name.ends_with(".$**")
}

fn check_path(name: &str) -> Result<()> {
    if name.is_empty() {
        bail!(Code::CANNOT_CREATE_INDEX, "Index keys cannot be an empty field.");
    }
    if name == "_fts" {
        bail!(Code::CANNOT_CREATE_INDEX, "Index key contains an illegal field name: '_fts'");
    }
    let plain = if name == "$**" { return Ok(()) } else { name.strip_suffix(".$**").unwrap_or(name) };
    for (at, part) in plain.split('.').enumerate() {
        if part.is_empty() {
            bail!(Code::CANNOT_CREATE_INDEX, "Index keys cannot contain an empty field.");
        }
        // The parts of a DBRef may be indexed, though their names start with a dollar.
        if part.starts_with('$') && !(at > 0 && matches!(part, "$id" | "$ref" | "$db")) {
            bail!(
                Code::CANNOT_CREATE_INDEX,
                "Index key contains an illegal field name: field name starts with '$'."
            );
        }
    }
    Ok(())
}

fn check_name(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<()> {
    let name = spec.get("name").and_then(|v| v.as_str()).unwrap_or_default();
    if name.is_empty() {
        bail!(Code::CANNOT_CREATE_INDEX, "The index name cannot be empty");
    }
    if name.contains('\0') {
        bail!(Code::CANNOT_CREATE_INDEX, "The index name cannot contain an embedded null byte");
    }
    if name == "*" {
        bail!(Code::BAD_VALUE, "The index name '*' is not valid.");
    }
    if name == "_id_" && !is_id_key(key) {
        bail!(
            Code::BAD_VALUE,
            "The index name '_id_' is reserved for the _id index, which must have key pattern {{_id: 1}}, found key: {}",
            shown(Value::Document(key))
        );
    }
    Ok(())
}

/// Whether the key pattern is `{_id: 1}`, its number cut to a whole one.
pub fn is_id_key(key: RawDoc<'_>) -> bool {
    let mut fields = key.iter();
    let first = fields.next();
    let ascending =
        first.is_some_and(|e| e.key() == "_id" && e.value().as_f64().is_some_and(|n| n.trunc() == 1.0));
    ascending && fields.next().is_none()
}

fn check_version(spec: RawDoc<'_>) -> Result<()> {
    let Some(version) = spec.get("v") else { return Ok(()) };
    if !version.is_number() {
        bail!(Code::TYPE_MISMATCH, "The field 'v' must be a number, but got {}", version.type_name());
    }
    match version.as_exact_i64() {
        Some(1 | 2) => Ok(()),
        Some(0) => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Invalid index specification {}; cannot create an index with v=0",
            shown(Value::Document(spec))
        ),
        Some(n) => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Invalid index specification {}; cannot create an index with v={n}",
            shown(Value::Document(spec))
        ),
        None => bail!(
            Code::BAD_VALUE,
            "Index version must be representable as a 32-bit integer, but got {}",
            shown(version)
        ),
    }
}

fn flag(spec: RawDoc<'_>, name: &str) -> bool {
    spec.get(name).is_some_and(|v| v.truthy())
}

fn check_options(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<()> {
    check_geo_options(spec)?;
    let hashed = key.iter().any(|e| e.value().as_str() == Some("hashed"));
    let text = sheaf_text::is_text_key(key);
    let wildcard = key.iter().any(|e| is_wildcard(e.key())) && !text;
    let unique = flag(spec, "unique");
    let sparse = flag(spec, "sparse");
    if hashed && unique {
        bail!(16764, "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.");
    }
    if text {
        check_text(spec, key)?;
    }
    if wildcard {
        for (on, what) in [(unique, "unique"), (spec.get("expireAfterSeconds").is_some(), "TTL")] {
            if on {
                bail!(67, "Index type 'wildcard' does not support the {what} option");
            }
        }
        if sparse {
            bail!(67, "Index type 'wildcard' does not support the sparse option");
        }
    } else if spec.get("wildcardProjection").is_some() {
        bail!(Code::BAD_VALUE, "The field 'wildcardProjection' is only allowed in an 'wildcard' index");
    }
    if means_id_index(key) {
        check_id_spec(spec)?;
    }
    if unique && flag(spec, "prepareUnique") {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "Invalid index specification {}; cannot create an index with the 'unique' option and the 'prepareUnique' option",
            shown(Value::Document(spec))
        );
    }
    let text = key.iter().any(|e| e.value().as_str() == Some("text"));
    if !text && spec.element("weights").is_some() {
        bail!(Code::CANNOT_CREATE_INDEX, "The field 'weights' can only be specified with text indexes");
    }
    if let Some(collation) = spec.get("collation").and_then(|v| v.as_doc()) {
        if collation.is_empty() {
            bail!(Code::BAD_VALUE, "The field 'collation' cannot be an empty object.");
        }
        if spec.get("v").and_then(|version| version.as_exact_i64()) == Some(1) {
            bail!(
                Code::CANNOT_CREATE_INDEX,
                "Invalid index specification {}; cannot create an index with the 'collation' option and v=1",
                shown(Value::Document(spec))
            );
        }
        Collation::parse(collation)?;
    }
    if let Some(filter) = spec.get("partialFilterExpression").and_then(|v| v.as_doc()) {
        if sparse {
            bail!(Code::CANNOT_CREATE_INDEX, "cannot mix \"partialFilterExpression\" and \"sparse\" options");
        }
        check_partial_filter(filter)?;
    }
    if wildcard {
        if spec.get("v").and_then(|v| v.as_exact_i64()) == Some(1) {
            bail!(Code::CANNOT_CREATE_INDEX, "Index version v=1 does not support wildcard indexes");
        }
        wildcard::check(key, spec.get("wildcardProjection").and_then(|v| v.as_doc()))?;
    }
    if let Some(seconds) = spec.get("expireAfterSeconds") {
        check_ttl(seconds, key)?;
    }
    match spec.get("storageEngine").and_then(|options| options.as_doc()) {
        Some(options) if options.is_empty() => bail!(
            Code::CANNOT_CREATE_INDEX,
            "Empty \"storageEngine\" options are invalid. Please remove the field or include valid options."
        ),
        Some(options) => super::storage_engine::check(options),
        None => Ok(()),
    }
}

fn check_text(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<()> {
    if flag(spec, "unique") {
        bail!(Code::CANNOT_CREATE_INDEX, "Index type 'text' does not support the unique option");
    }
    if let Some(collation) = spec.get("collation").and_then(|v| v.as_doc())
        && !Collation::parse(collation)?.is_simple()
    {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "Index type 'text' does not support collation: {}",
            shown(Value::Document(collation))
        );
    }
    sheaf_text::normal_key(key)?;
    sheaf_text::normal_fields(spec, key).map(drop)
}

/// Checks the specification of the index on `_id`, of which nearly nothing can be chosen.
///
/// Errors: `InvalidIndexSpecificationOption`, `BadValue` for another key than `{_id: 1}`.
pub fn check_id_spec(spec: RawDoc<'_>) -> Result<()> {
    if spec.element("clustered").is_none() {
        let known = |name| matches!(name, "key" | "name" | "ns" | "v" | "collation");
        if let Some(other) = spec.iter().find(|field| !known(field.key())) {
            bail!(
                Code::INVALID_INDEX_SPECIFICATION_OPTION,
                "The field '{}' is not valid for an _id index specification. Specification: {}",
                other.key(),
                shown(Value::Document(spec))
            );
        }
    }
    let key = spec.get_or_missing("key");
    let plain = key.as_doc().is_some_and(|key| {
        let first = key.iter().next().filter(|field| field.key() == "_id");
        key.iter().count() == 1 && first.is_some_and(|field| field.value().as_exact_i64() == Some(1))
    });
    if !plain {
        bail!(Code::BAD_VALUE, "The field 'key' for an _id index must be {{_id: 1}}, but got {}", shown(key));
    }
    Ok(())
}

/// Whether the key pattern is taken for one of the index on `_id`, and has to be that: 1 or -1, cut to whole numbers.
fn means_id_index(key: RawDoc<'_>) -> bool {
    let mut fields = key.iter();
    let direction =
        fields.next().filter(|field| field.key() == "_id").and_then(|field| field.value().as_f64());
    direction.is_some_and(|n| n.trunc().abs() == 1.0) && fields.next().is_none()
}

/// Partial filters allow a small part of the query language.
fn check_partial_filter(filter: RawDoc<'_>) -> Result<()> {
    let matcher = Matcher::parse_lasting(filter, Features::None)?;
    crate::bounds::implication::check_partial_filter(&matcher)
}

/// What options of geometric indexes say together.
fn check_geo_options(spec: RawDoc<'_>) -> Result<()> {
    let Some(indexing) = sheaf_geo::Indexing::of_spec(spec)? else { return Ok(()) };
    let collation = spec.get("collation").and_then(|value| value.as_doc());
    let is_simple = collation.is_none_or(|doc| Collation::parse(doc).is_ok_and(|parsed| parsed.is_simple()));
    if matches!(indexing, sheaf_geo::Indexing::Grid(_)) && !is_simple {
        bail!(Code::CANNOT_CREATE_INDEX, "Index type '2d' does not support collation");
    }
    Ok(())
}

/// The greatest TTL: what a signed 32-bit count of seconds holds.
const TTL_MAX: i64 = i32::MAX as i64;

fn check_ttl(seconds: Value<'_>, key: RawDoc<'_>) -> Result<()> {
    if !seconds.is_number() {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "TTL index 'expireAfterSeconds' option must be numeric, but received a type of '{}'.",
            seconds.type_name()
        );
    }
    let number = seconds.as_f64().unwrap_or(f64::NAN);
    if number.is_nan() {
        bail!(Code::CANNOT_CREATE_INDEX, "TTL index 'expireAfterSeconds' option must not be NaN");
    }
    if number < 0.0 {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "TTL index 'expireAfterSeconds' option cannot be less than 0. Index spec: {}",
            shown(Value::Document(key))
        );
    }
    if number > TTL_MAX as f64 {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a different number than {number}"
        );
    }
    if key.iter().count() != 1 {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: {}",
            shown(Value::Document(key))
        );
    }
    if key.iter().next().is_some_and(|e| e.key() == "_id") {
        bail!(
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
            "The field 'expireAfterSeconds' is not valid for an _id index specification. Specification: {}",
            shown(Value::Document(key))
        );
    }
    Ok(())
}

fn write_normal(out: &mut DocWriter<'_, Vec<u8>>, spec: RawDoc<'_>, key: RawDoc<'_>) {
    let version = spec.get("v").and_then(|v| v.as_exact_i64()).unwrap_or(2) as i32;
    out.append("v", version);
    out.append("key", key);
    let (id, text) = (is_id_key(key), sheaf_text::is_text_key(key));
    match (id, spec.element("clustered")) {
        // Whatever the client calls it, there is one index on `_id`.
        (true, None) => out.append("name", "_id_"),
        _ => out.append("name", spec.get_or_missing("name")),
    };
    for element in spec.iter() {
        match element.key() {
            "v" | "key" | "name" | "ns" | "dropDups" | "originalSpec" => {}
            // They are brought to their normal form.
            name if text && sheaf_text::NORMAL_FIELDS.contains(&name) => {}
            "unique" | "sparse" | "hidden" | "background" | "prepareUnique" => {
                // `background` is kept as it came; a false flag is as good as none.
                let keep = element.value().truthy() || element.key() == "background";
                if keep && !(id && element.key() == "unique") {
                    match element.key() {
                        "background" => out.append_element(element),
                        key => out.append(key, true),
                    };
                }
            }
            "expireAfterSeconds" => {
                let seconds = element.value().as_f64().unwrap_or(0.0) as i64;
                match i32::try_from(seconds) {
                    Ok(n) => out.append("expireAfterSeconds", n),
                    Err(_) => out.append("expireAfterSeconds", seconds),
                };
            }
            "collation" => {
                let collation = element.value().as_doc().and_then(|doc| Collation::parse(doc).ok());
                if let Some(collation) = collation.filter(|collation| !collation.is_simple()) {
                    out.append("collation", &collation.to_doc());
                }
            }
            "2dsphereIndexVersion" => {
                out.append("2dsphereIndexVersion", element.value().as_f64().unwrap_or(3.0) as i32);
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    let on_sphere = key.iter().any(|field| field.value().as_str() == Some("2dsphere"));
    if on_sphere && spec.get("2dsphereIndexVersion").is_none() {
        out.append("2dsphereIndexVersion", 3);
    }
}

fn shown(value: Value<'_>) -> String {
    sheaf_bson::value_text(value)
}

#[cfg(test)]
mod tests;
