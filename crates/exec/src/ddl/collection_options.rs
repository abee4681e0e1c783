//! Options of collections and views: what `create` and `collMod` accept, and the form in which they are kept.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_collation::Collation;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{Features, Matcher};

use super::index_spec;

/// Largest size of a capped collection: one pebibyte.
const CAPPED_SIZE_MAX: i64 = 1 << 50;

/// The options of a new collection or view, read but not yet checked against each other.
#[derive(Clone, Copy, Default, Debug)]
pub struct CollectionOptions<'a> {
    /// `capped`
    pub capped: bool,
    /// `size`, in bytes
    pub size: Option<i64>,
    /// `max`, in documents
    pub max: Option<i64>,
    /// `temp`
    pub temp: bool,
    /// `changeStreamPreAndPostImages`
    pub pre_and_post_images: Option<RawDoc<'a>>,
    /// `storageEngine`
    pub storage_engine: Option<RawDoc<'a>>,
    /// `indexOptionDefaults`
    pub index_option_defaults: Option<RawDoc<'a>>,
    /// `validator`
    pub validator: Option<RawDoc<'a>>,
    /// `validationLevel`
    pub validation_level: Option<&'a str>,
    /// `validationAction`
    pub validation_action: Option<&'a str>,
    /// `collation`
    pub collation: Option<RawDoc<'a>>,
    /// `viewOn`
    pub view_on: Option<&'a str>,
    /// `pipeline`
    pub pipeline: Option<RawDoc<'a>>,
    /// `clusteredIndex`
    pub clustered_index: Option<Value<'a>>,
    /// `expireAfterSeconds`
    pub expire_after_seconds: Option<Value<'a>>,
}

impl CollectionOptions<'_> {
    /// Checks everything that needs no other collection, and gives the form that the catalog keeps, in the
    /// order of fields in which `listCollections` shows it.
    ///
    /// Errors: `InvalidOptions`, `BadValue` and those of validators, collations and clustered indexes.
    pub fn normalize(&self) -> Result<DocBuf> {
        // What the arguments' own parser refuses comes before what does not go together.
        check_level(self.validation_level, "create")?;
        check_action(self.validation_action, "create")?;
        let images = self.pre_and_post_images.map(|images| check_images(images, "create")).transpose()?;
        if let Some(size) = self.size {
            check_capped_size(size.min(CAPPED_SIZE_MAX))?;
        }
        match self.view_on {
            Some(_) => self.check_view(images)?,
            None if self.pipeline.is_some() => {
                bail!(Code::INVALID_OPTIONS, "'pipeline' requires 'viewOn' to also be specified")
            }
            None => {}
        }
        self.check_capped()?;
        let clustered = self.clustered_index()?;
        let expire = self.expire_after_seconds(clustered.is_some())?;
        if let Some(validator) = self.validator {
            check_validator(validator, self.validation_level, self.validation_action)?;
        }
        super::storage_engine::check(self.storage_engine.unwrap_or(RawDoc::EMPTY))?;
        let collation = self.collation.map(Collation::parse).transpose()?.filter(|c| !c.is_simple());
        Ok(DocBuf::build(|doc| {
            self.write_capped(doc);
            if self.temp {
                doc.append("temp", true);
            }
            if images == Some(true) {
                doc.document("changeStreamPreAndPostImages").append("enabled", true);
            }
            append_object(doc, "storageEngine", self.storage_engine);
            append_object(doc, "indexOptionDefaults", self.index_option_defaults);
            self.write_validation(doc);
            if let Some(collation) = &collation {
                doc.append("collation", &collation.to_doc());
            }
            if let Some(source) = self.view_on {
                doc.append("viewOn", source);
                doc.append("pipeline", Value::Array(self.pipeline.unwrap_or(RawDoc::EMPTY)));
            }
            if let Some(spec) = &clustered {
                doc.append("clusteredIndex", spec);
            }
            if let Some(seconds) = expire {
                doc.append("expireAfterSeconds", seconds);
            }
        }))
    }

    /// The `_id` index that the collection gets, if it is not the usual one.
    pub fn id_index(&self) -> Result<Option<DocBuf>> {
        if self.view_on.is_some() {
            return Ok(None);
        }
        let collation = self.collation.map(Collation::parse).transpose()?.filter(|c| !c.is_simple());
        if let Some(clustered) = self.clustered_index()? {
            let spec = clustered.with("clustered", true);
            return Ok(Some(match collation {
                Some(collation) => spec.with("collation", &collation.to_doc()),
                None => spec,
            }));
        }
        let Some(collation) = collation else { return Ok(None) };
        Ok(Some(DocBuf::build(|doc| {
            doc.append("v", 2).document("key").append("_id", 1);
            doc.append("name", "_id_").append("collation", &collation.to_doc());
        })))
    }

    fn check_view(&self, images: Option<bool>) -> Result<()> {
        if self.view_on == Some("") {
            bail!(Code::BAD_VALUE, "'viewOn' cannot be empty");
        }
        if self.clustered_index.is_some() {
            bail!(6026500, "The 'clusteredIndex' option is not supported with views");
        }
        let forbidden = [
            (self.capped, "capped"),
            (self.size.is_some(), "size"),
            (self.max.is_some(), "max"),
            (self.validator.is_some(), "validator"),
            (self.validation_level.is_some(), "validationLevel"),
            (self.validation_action.is_some(), "validationAction"),
            (self.storage_engine.is_some(), "storageEngine"),
            (self.index_option_defaults.is_some(), "indexOptionDefaults"),
            (images == Some(true), "changeStreamPreAndPostImages"),
            (self.expire_after_seconds.is_some(), "expireAfterSeconds"),
        ];
        for (given, name) in forbidden {
            if given {
                bail!(Code::INVALID_OPTIONS, "the '{name}' option is not supported on a view");
            }
        }
        Ok(())
    }

    fn check_capped(&self) -> Result<()> {
        if !self.capped {
            if self.size.is_some() || self.max.is_some() {
                bail!(
                    Code::INVALID_OPTIONS,
                    "the 'capped' field needs to be true when either the 'size' or 'max' fields are present"
                );
            }
            return Ok(());
        }
        match self.size {
            None => bail!(Code::INVALID_OPTIONS, "the 'size' field is required when 'capped' is true"),
            Some(size) => check_capped_size(size)?,
        }
        self.max.map_or(Ok(()), check_capped_max)
    }

    fn write_capped(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        if !self.capped {
            return;
        }
        doc.append("capped", true);
        doc.append("size", small(self.size.unwrap_or(0).max(1)));
        if let Some(max) = self.max.filter(|max| *max > 0) {
            doc.append("max", small(max));
        }
    }

    /// A validator is kept with its level and action, given or not.
    fn write_validation(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        let validator = self.validator.filter(|validator| !validator.is_empty());
        append_object(doc, "validator", validator);
        let default = |word: &'static str| validator.map(|_| word);
        if let Some(level) = self.validation_level.or(default("strict")) {
            doc.append("validationLevel", level);
        }
        if let Some(action) = self.validation_action.or(default("error")) {
            doc.append("validationAction", action);
        }
    }

    /// `clusteredIndex` in normal form.
    fn clustered_index(&self) -> Result<Option<DocBuf>> {
        let spec = match self.clustered_index {
            None | Some(Value::Missing | Value::Null | Value::Bool(false)) => return Ok(None),
            Some(Value::Document(spec)) => spec,
            Some(flag) if flag.is_number() && !flag.truthy() => return Ok(None),
            Some(flag) if flag.is_number() || flag.as_bool() == Some(true) => bail!(
                5979703,
                "The clusteredIndex option is not supported in the legacy format for this namespace"
            ),
            Some(other) => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'create.clusteredIndex' is the wrong type '{}', expected types '[object, bool]'",
                other.type_name()
            ),
        };
        if self.max.is_some() {
            bail!(6049204, "Cannot create a collection with both 'clusteredIndex' and 'max'");
        }
        if self.capped {
            bail!(6049200, "Cannot create a collection with both 'clusteredIndex' and 'capped'");
        }
        read_clustered(spec).map(Some)
    }

    fn expire_after_seconds(&self, clustered: bool) -> Result<Option<i64>> {
        let Some(value) = self.expire_after_seconds.filter(|value| !value.is_nullish()) else {
            return Ok(None);
        };
        if !clustered {
            bail!(
                Code::INVALID_OPTIONS,
                "'expireAfterSeconds' is only supported on time-series collections or when the 'clusteredIndex' option is specified"
            );
        }
        collection_ttl(value)
    }
}

/// `expireAfterSeconds` of a whole collection: seconds, or `"off"`.
///
/// Errors: `InvalidOptions`.
pub fn collection_ttl(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        Value::String("off") => Ok(None),
        Value::String(_) => bail!(
            Code::INVALID_OPTIONS,
            "Invalid string value for the 'clusteredIndex::expireAfterSeconds' option. Got: '{}'. Accepted value is 'off'",
            value.as_str().unwrap_or_default()
        ),
        number if number.is_number() => {
            let seconds = number.as_f64().unwrap_or(f64::NAN);
            if seconds.is_nan() || seconds < 0.0 || seconds > f64::from(i32::MAX) {
                bail!(
                    Code::INVALID_OPTIONS,
                    "'expireAfterSeconds' must be between 0 and {}, but was {seconds}",
                    i32::MAX
                );
            }
            Ok(Some(seconds as i64))
        }
        other => check_ttl_type(other, "expireAfterSeconds").map(|()| None),
    }
}

/// Errors: `TypeMismatch`.
pub fn check_ttl_type(value: Value<'_>, field: &str) -> Result<()> {
    if value.is_number() || matches!(value, Value::String(_)) {
        return Ok(());
    }
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field '{field}' is the wrong type '{}', expected types '[string, decimal, double, int, long]'",
        value.type_name()
    )
}

fn read_clustered(spec: RawDoc<'_>) -> Result<DocBuf> {
    for field in spec.iter() {
        let value = field.value();
        let expected = match field.key() {
            "key" if value.as_doc().is_none() => "object",
            "name" if value.as_str().is_none() => "string",
            "unique" if value.as_bool().is_none() && !value.is_number() => {
                "[bool, long, int, decimal, double]"
            }
            "v" if !value.is_number() => "[long, int, decimal, double]",
            "key" | "name" | "unique" | "v" => continue,
            unknown => bail!(40415, "BSON field 'create.clusteredIndex.{unknown}' is an unknown field."),
        };
        // What is null counts as not given.
        if !value.is_nullish() {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'create.clusteredIndex.{}' is the wrong type '{}', expected type '{expected}'",
                field.key(),
                value.type_name()
            );
        }
    }
    let given = |name: &str| spec.get(name).filter(|value| !value.is_nullish());
    let (Some(Value::Document(key)), Some(unique)) = (given("key"), given("unique")) else {
        let missing = if given("key").is_none() { "key" } else { "unique" };
        bail!(40414, "BSON field 'create.clusteredIndex.{missing}' is missing but a required field");
    };
    if !unique.truthy() {
        bail!(5979700, "The clusteredIndex option requires unique: true to be specified");
    }
    // Fractions are cut.
    if given("v").is_some_and(|v| v.as_f64().is_none_or(|v| v.trunc() != 2.0)) {
        bail!(5979704, "The clusteredIndex option is only supported for v: 2");
    }
    if !index_spec::is_id_key(key) {
        bail!(
            Code::INVALID_INDEX_SPECIFICATION_OPTION,
            "The clusteredIndex option is only supported for key: {{_id: 1}}"
        );
    }
    let name = given("name").and_then(|v| v.as_str()).unwrap_or("_id_");
    Ok(sheaf_bson::doc! { "v": 2, "key": { "_id": 1 }, "name": name, "unique": true })
}

/// Errors: `BadValue`.
pub fn check_capped_size(size: i64) -> Result<()> {
    if size < 1 {
        bail!(Code::BAD_VALUE, "BSON field 'size' value must be >= 1, actual value '{size}'");
    }
    if size > CAPPED_SIZE_MAX {
        bail!(Code::BAD_VALUE, "size cannot exceed 1 PB");
    }
    Ok(())
}

/// Errors: `BadValue`.
pub fn check_capped_max(max: i64) -> Result<()> {
    if max >= 1 << 31 {
        bail!(Code::BAD_VALUE, "max in a capped collection has to be < 2^31 or not set");
    }
    Ok(())
}

/// Checks a validator's filter, for a level and an action.
///
/// Errors: those of filters.
pub fn check_validator(validator: RawDoc<'_>, level: Option<&str>, action: Option<&str>) -> Result<()> {
    // What is to be encrypted must not get into the log, nor into the collection as it is.
    let features = match (level, action) {
        (Some("moderate"), _) | (_, Some("warn" | "errorAndLog")) => Features::LoggedValidator,
        _ => Features::Validator,
    };
    Matcher::parse_with(validator, features, &mut ParseCx::new()).map(|_| ())
}

/// Errors: `BadValue` for a word that is none of MongoDB's.
pub fn check_level(level: Option<&str>, command: &str) -> Result<()> {
    check_word(level, &["off", "strict", "moderate"], command, "validationLevel")
}

/// Errors: `BadValue` for a word that is none of MongoDB's.
pub fn check_action(action: Option<&str>, command: &str) -> Result<()> {
    check_word(action, &["error", "warn", "errorAndLog"], command, "validationAction")
}

fn check_word(word: Option<&str>, known: &[&str], command: &str, field: &str) -> Result<()> {
    match word {
        Some(word) if !known.contains(&word) => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{word}' for field '{command}.{field}' is not a valid value."
        ),
        _ => Ok(()),
    }
}

/// The databases of the server itself keep no documents before changes.
///
/// Errors: `InvalidOptions`.
pub fn check_images_place(db: &str) -> Result<()> {
    if matches!(db, "admin" | "config" | "local") {
        bail!(
            Code::INVALID_OPTIONS,
            "changeStreamPreAndPostImages collection option is not supported on the {db} database"
        );
    }
    Ok(())
}

/// Reads `{enabled: bool}`.
///
/// Errors: `TypeMismatch`, 40414, 40415.
pub fn check_images(images: RawDoc<'_>, command: &str) -> Result<bool> {
    let place = format!("{command}.changeStreamPreAndPostImages");
    if let Some(unknown) = images.iter().find(|field| field.key() != "enabled") {
        bail!(40415, "BSON field '{place}.{}' is an unknown field.", unknown.key());
    }
    match images.get_or_missing("enabled") {
        Value::Missing | Value::Null | Value::Undefined => {
            bail!(40414, "BSON field '{place}.enabled' is missing but a required field")
        }
        Value::Bool(enabled) => Ok(enabled),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.enabled' is the wrong type '{}', expected type 'bool'",
            other.type_name()
        ),
    }
}

/// Whether a `create` with these options may be repeated on a collection that has those.
pub fn same_options(a: RawDoc<'_>, b: RawDoc<'_>) -> bool {
    let covers = |a: RawDoc<'_>, b: RawDoc<'_>| {
        a.iter().filter(|field| field.key() != "temp").all(|field| {
            let default = match field.key() {
                "validationLevel" => Value::String("strict"),
                "validationAction" => Value::String("error"),
                _ => Value::Missing,
            };
            let other = b.get(field.key()).unwrap_or(default);
            !other.is_missing() && sheaf_bson::compare(field.value(), other).is_eq()
        })
    };
    covers(a, b) && covers(b, a)
}

/// Appends an object that is not empty.
fn append_object(doc: &mut DocWriter<'_, Vec<u8>>, key: &str, object: Option<RawDoc<'_>>) {
    if let Some(object) = object.filter(|object| !object.is_empty()) {
        doc.append(key, object);
    }
}

/// A size as MongoDB keeps it: an int32 if it is small.
pub fn small(n: i64) -> Value<'static> {
    match i32::try_from(n) {
        Ok(small) if small < 1 << 30 => Value::Int32(small),
        _ => Value::Int64(n),
    }
}

/// The options of a collection with some replaced or (given as missing) taken away; new ones come last.
pub fn with_changes(options: RawDoc<'_>, changes: &[(&str, Value<'_>)]) -> DocBuf {
    DocBuf::build(|doc| {
        for field in options.iter() {
            match changes.iter().find(|(name, _)| *name == field.key()) {
                None => doc.append_element(field),
                Some((name, value)) if !value.is_missing() => doc.append(name, *value),
                Some(_) => continue,
            };
        }
        for (name, value) in changes {
            if !value.is_missing() && options.element(name).is_none() {
                doc.append(name, *value);
            }
        }
    })
}

#[cfg(test)]
mod tests;
