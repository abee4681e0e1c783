//! Text indexes' specifications: their normal form, and what is read from it.

use std::collections::{BTreeMap, HashMap};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::language::Language;
use crate::tokens::{Options, each_word};
use crate::walk::{each_text, each_text_of_old};

/// What a text index is about.
#[derive(Clone, Debug)]
pub struct TextSpec {
    weights: BTreeMap<String, f64>,
    /// All texts are indexed.
    pub(crate) wildcard: bool,
    pub(crate) default_language: Language,
    pub(crate) language_override: String,
    version: i32,
}

/// The fields that a normal specification of a text index has beside those of all indexes.
pub const NORMAL_FIELDS: &[&str] = &["weights", "default_language", "language_override", "textIndexVersion"];

/// No weight is as large as this.
const WEIGHT_MAX: i64 = 100_000;

/// Whether a key pattern is that of a text index.
pub fn is_text_key(key: RawDoc<'_>) -> bool {
    key.iter().any(|element| element.value().as_str() == Some("text"))
}

/// The key pattern of a text index as it is kept: `{before..., _fts: "text", _ftsx: 1, after...}`.
///
/// Errors: `CannotCreateIndex`.
pub fn normal_key(key: RawDoc<'_>) -> Result<DocBuf> {
    let mut out = DocBuf::new();
    let (mut met, mut behind) = (false, false);
    for element in key.iter() {
        match (element.key(), element.value()) {
            ("_fts", value) if value.as_str() != Some("text") => {
                bail!(Code::CANNOT_CREATE_INDEX, "expecting _fts:\"text\"")
            }
            ("_ftsx", value) => {
                if value.as_exact_i64() != Some(1) {
                    bail!(Code::CANNOT_CREATE_INDEX, "expecting _ftsx:1");
                }
            }
            (_, Value::String("text")) => {
                if behind {
                    bail!(Code::CANNOT_CREATE_INDEX, "'text' fields in index must all be adjacent");
                }
                if !met {
                    out.append("_fts", "text");
                    out.append("_ftsx", 1);
                }
                met = true;
            }
            _ => {
                behind = met;
                out.append(element.key(), element.value());
            }
        }
    }
    Ok(out)
}

/// The other fields of a text index's specification as they are kept: `weights`, `default_language`,
/// `language_override`, `textIndexVersion`.
///
/// Errors: `CannotCreateIndex`.
pub fn normal_fields(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<DocBuf> {
    if spec.get("textIndexVersion").and_then(|version| version.as_f64()).is_some_and(|n| n as i32 == 1) {
        return normal_old_fields(spec, key);
    }
    let weights = normal_weights(spec, key)?;
    let default_language = match spec.get_or_missing("default_language") {
        Value::Missing => "english",
        Value::String(name) if Language::named(name, 3).is_ok() => name,
        Value::String(_) => bail!(Code::CANNOT_CREATE_INDEX, "default_language is not valid"),
        _ => return wrong_type("default_language", "string"),
    };
    let language_override = match spec.get_or_missing("language_override") {
        Value::Missing => "language",
        Value::String(name) if !name.is_empty() && !name.starts_with('$') && !name.contains('.') => name,
        Value::String(_) => bail!(Code::CANNOT_CREATE_INDEX, "language_override is not valid"),
        _ => return wrong_type("language_override", "string"),
    };
    let version = match spec.get_or_missing("textIndexVersion") {
        Value::Missing => 3,
        version if version.is_number() => match version.as_f64().map_or(0, |n| n as i32) {
            known @ (2 | 3) => known,
            other => bail!(Code::CANNOT_CREATE_INDEX, "bad textIndexVersion: {other}"),
        },
        _ => return wrong_type("textIndexVersion", "number"),
    };
    Ok(written(&weights, default_language, language_override, version))
}

fn written(
    weights: &BTreeMap<String, i32>,
    default_language: &str,
    language_override: &str,
    version: i32,
) -> DocBuf {
    DocBuf::build(|out| {
        let mut list = out.document("weights");
        for (path, weight) in weights {
            list.append(path, *weight);
        }
        drop(list);
        out.append("default_language", default_language);
        out.append("language_override", language_override);
        out.append("textIndexVersion", version);
    })
}

/// The fields of an index of version 1, which takes any language, any path and what is of a wrong type for missing.
fn normal_old_fields(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<DocBuf> {
    let mut weights = key_weights(key);
    match spec.get_or_missing("weights") {
        Value::Document(given) | Value::Array(given) => {
            for element in given.iter() {
                weights.insert(element.key().to_owned(), element.value().as_f64().map_or(0, |n| n as i64));
            }
        }
        Value::String("$**") => _ = weights.insert("$**".to_owned(), 1),
        _ => {}
    }
    if weights.is_empty() {
        bail!(Code::CANNOT_CREATE_INDEX, "text index option 'weights' must specify fields");
    }
    let mut checked = BTreeMap::new();
    for (path, weight) in weights {
        checked.insert(path, checked_weight(weight)?);
    }
    let text = |field: &str, default| match spec.get(field) {
        Some(Value::String(name)) if !name.is_empty() => name,
        _ => default,
    };
    Ok(written(&checked, text("default_language", "english"), text("language_override", "language"), 1))
}

fn wrong_type<T>(field: &str, kind: &str) -> Result<T> {
    bail!(Code::TYPE_MISMATCH, "The field '{field}' of an index specification must be a {kind}")
}

fn normal_weights(spec: RawDoc<'_>, key: RawDoc<'_>) -> Result<BTreeMap<String, i32>> {
    let mut weights = key_weights(key);
    match spec.get_or_missing("weights") {
        Value::Missing => {}
        Value::Document(given) => {
            for element in given.iter() {
                let value = element.value();
                if !value.is_number() {
                    bail!(Code::CANNOT_CREATE_INDEX, "weight for text index needs numeric type");
                }
                weights.insert(element.key().to_owned(), value.as_f64().map_or(0, |n| n as i64));
            }
        }
        Value::String("$**") => _ = weights.insert("$**".to_owned(), 1),
        _ => bail!(Code::CANNOT_CREATE_INDEX, "text index option 'weights' must be an object"),
    }
    if weights.is_empty() {
        bail!(Code::CANNOT_CREATE_INDEX, "text index option 'weights' must specify fields");
    }
    let mut checked = BTreeMap::new();
    for (path, weight) in weights {
        let weight = checked_weight(weight)?;
        if path != "$**" {
            check_path(&path)?;
        }
        checked.insert(path, weight);
    }
    Ok(checked)
}

/// The fields that a key names, each of weight 1.
fn key_weights(key: RawDoc<'_>) -> BTreeMap<String, i64> {
    key.iter()
        .filter(|element| element.value().as_str() == Some("text") && element.key() != "_fts")
        .map(|element| (element.key().to_owned(), 1))
        .collect()
}

fn checked_weight(weight: i64) -> Result<i32> {
    if weight <= 0 || weight >= WEIGHT_MAX {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "text index weight must be in the exclusive interval (0,{WEIGHT_MAX}) but found: {weight}"
        );
    }
    Ok(weight as i32)
}

fn check_path(path: &str) -> Result<()> {
    for part in path.split('.') {
        if part.is_empty() {
            bail!(Code::CANNOT_CREATE_INDEX, "weight cannot have empty path component");
        }
        if part.starts_with('$') && !matches!(part, "$id" | "$ref" | "$db") {
            bail!(Code::CANNOT_CREATE_INDEX, "weight field name component cannot start with '$'");
        }
    }
    Ok(())
}

impl TextSpec {
    /// Reads a specification in normal form.
    ///
    /// Errors: `CannotCreateIndex` for another.
    pub fn read(spec: RawDoc<'_>) -> Result<TextSpec> {
        let (Some(Value::Document(weights)), Some(Value::String(language)), Some(Value::String(field))) =
            (spec.get("weights"), spec.get("default_language"), spec.get("language_override"))
        else {
            bail!(Code::CANNOT_CREATE_INDEX, "a text index's specification is not in its normal form");
        };
        let weight = |element: sheaf_bson::Element<'_>| {
            (element.key().to_owned(), element.value().as_f64().unwrap_or(1.0))
        };
        let mut weights: BTreeMap<String, f64> = weights.iter().map(weight).collect();
        let wildcard = weights.remove("$**").is_some();
        let version = match spec.get("textIndexVersion").and_then(|version| version.as_exact_i64()) {
            Some(1) => 1,
            Some(2) => 2,
            _ => 3,
        };
        let default_language = Language::named(language, version)?;
        Ok(TextSpec { weights, wildcard, default_language, language_override: field.to_owned(), version })
    }

    /// The language of conditions that name none.
    pub fn default_language(&self) -> Language {
        self.default_language
    }

    /// The words of a document with their scores: what the index has of it.
    ///
    /// Errors: 17261, 17262; what the meter says.
    pub fn terms(&self, doc: RawDoc<'_>) -> Result<BTreeMap<String, f64>> {
        let mut scores = BTreeMap::new();
        let walk = if self.version == 1 { each_text_of_old } else { each_text };
        walk(self, doc, &mut |text| {
            let mut words: HashMap<String, Word> = HashMap::new();
            let mut total = 0.0;
            each_word(text.text, text.language, self.options(), |word| {
                words.entry(word).or_default().count();
                total += 1.0;
                Ok(())
            })?;
            for (word, counted) in words {
                // Words that a text is full of weigh more, and what is all of a text a little more still.
                let share = 0.5 * counted.count / total + 0.5;
                let alone = text.text.len() == word.len() && text.text.eq_ignore_ascii_case(&word);
                let bonus = if alone { 1.1 } else { 1.0 };
                *scores.entry(word).or_insert(0.0) += text.weight * counted.frequency * share * bonus;
            }
            Ok(())
        })?;
        Ok(scores)
    }

    /// How the index has words.
    pub(crate) fn options(&self) -> Options {
        Options { ascii: self.version < 3, ..Options::default() }
    }

    /// The version of the index: 1 to 3.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The fields with their weights, without the wildcard.
    pub(crate) fn weights(&self) -> impl Iterator<Item = (&str, f64)> {
        self.weights.iter().map(|(path, weight)| (path.as_str(), *weight))
    }

    pub(crate) fn weight(&self, path: &str) -> Option<f64> {
        self.weights.get(path).copied()
    }

    /// Whether a field below the path is indexed.
    pub(crate) fn has_below(&self, path: &str) -> bool {
        self.weights.keys().any(|field| field.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
    }

    pub(crate) fn has_at_or_below(&self, path: &str) -> bool {
        self.weights.contains_key(path) || self.has_below(path)
    }
}

/// How often a word stands in a text: each time counts half of the one before.
#[derive(Default)]
struct Word {
    count: f64,
    frequency: f64,
    divisor: f64,
}

impl Word {
    fn count(&mut self) {
        self.divisor = if self.divisor == 0.0 { 1.0 } else { self.divisor * 2.0 };
        self.count += 1.0;
        self.frequency += 1.0 / self.divisor;
    }
}
