//! The texts of a document that an index is about.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Error, Result, bail};

use crate::language::Language;
use crate::spec::TextSpec;

/// What words of fields without a weight of their own weigh.
const DEFAULT_WEIGHT: f64 = 1.0;

/// One text of a document.
pub(crate) struct Text<'d> {
    pub(crate) text: &'d str,
    pub(crate) language: Language,
    pub(crate) weight: f64,
}

type Visit<'d, 'v> = dyn FnMut(Text<'d>) -> Result<()> + 'v;

/// Calls `visit` with each text of a document that the index is about.
///
/// Errors: 17261, 17262 for languages of documents; those of `visit`.
pub(crate) fn each_text<'d>(spec: &TextSpec, doc: RawDoc<'d>, visit: &mut Visit<'d, '_>) -> Result<()> {
    let mut walk = Walk { spec, path: String::new(), visit };
    let language = language_of(spec, doc, spec.default_language)?;
    walk.fields(doc, language, false)
}

/// A document's own language, or that of what it is in.
fn language_of(spec: &TextSpec, doc: RawDoc<'_>, outer: Language) -> Result<Language> {
    match doc.get_or_missing(&spec.language_override) {
        Value::Missing => Ok(outer),
        Value::String(name) => Language::named(name, spec.version())
            .map_err(|_| Error::location(17262, format!("language override unsupported: {name}"))),
        _ => bail!(17261, "found language override field in document with non-string type"),
    }
}

/// Calls `visit` with each text of a document as an index of version 1 finds it: one language for all of it, no documents within
/// arrays of its fields' ends, and below a wildcard weights by the last name of a path.
pub(crate) fn each_text_of_old<'d>(
    spec: &TextSpec,
    doc: RawDoc<'d>,
    visit: &mut Visit<'d, '_>,
) -> Result<()> {
    let language = match doc.get(&spec.language_override) {
        Some(Value::String(name)) if !name.is_empty() => Language::named(name, spec.version())?,
        _ => spec.default_language,
    };
    if spec.wildcard {
        return all_texts(spec, doc, language, visit);
    }
    for (path, weight) in spec.weights() {
        sheaf_meter::tick(1)?;
        let (value, rest) = at_or_array(doc, path);
        let mut text = |value: Value<'d>| match value {
            Value::String(text) => visit(Text { text, language, weight }),
            _ => Ok(()),
        };
        match value {
            Value::Array(items) => {
                for item in items.iter() {
                    sheaf_meter::tick(1)?;
                    text(match item.value() {
                        Value::Document(inner) | Value::Array(inner) if !rest.is_empty() => {
                            at_or_array(inner, rest).0
                        }
                        value => value,
                    })?;
                }
            }
            value => text(value)?,
        }
    }
    Ok(())
}

fn all_texts<'d>(
    spec: &TextSpec,
    doc: RawDoc<'d>,
    language: Language,
    visit: &mut Visit<'d, '_>,
) -> Result<()> {
    for element in doc.iter().filter(|element| element.key() != spec.language_override) {
        sheaf_meter::tick(1)?;
        match element.value() {
            Value::String(text) => {
                visit(Text { text, language, weight: spec.weight(element.key()).unwrap_or(DEFAULT_WEIGHT) })?;
            }
            Value::Document(inner) | Value::Array(inner) => all_texts(spec, inner, language, visit)?,
            _ => {}
        }
    }
    Ok(())
}

/// What stands at the path, or the first array on the way, and what is left of the path there.
fn at_or_array<'d, 'p>(doc: RawDoc<'d>, path: &'p str) -> (Value<'d>, &'p str) {
    let (name, rest) = path.split_once('.').unwrap_or((path, ""));
    match doc.get_or_missing(name) {
        Value::Document(inner) if !rest.is_empty() => at_or_array(inner, rest),
        array @ Value::Array(_) => (array, rest),
        _ if !rest.is_empty() => (Value::Missing, ""),
        value => (value, ""),
    }
}

struct Walk<'s, 'd, 'v, 'f> {
    spec: &'s TextSpec,
    path: String,
    visit: &'v mut Visit<'d, 'f>,
}

impl<'d> Walk<'_, 'd, '_, '_> {
    fn fields(&mut self, doc: RawDoc<'d>, language: Language, in_array: bool) -> Result<()> {
        for element in doc.iter() {
            sheaf_meter::tick(1)?;
            if self.spec.wildcard && element.key() == self.spec.language_override {
                continue;
            }
            let len = self.path.len();
            if !in_array {
                if len > 0 {
                    self.path.push('.');
                }
                self.path.push_str(element.key());
            }
            self.field(element.value(), language, in_array)?;
            self.path.truncate(len);
        }
        Ok(())
    }

    fn field(&mut self, value: Value<'d>, language: Language, in_array: bool) -> Result<()> {
        let own = self.spec.weight(&self.path);
        let wildcard = self.spec.wildcard;
        match value {
            Value::String(text) if own.is_some() || wildcard => {
                (self.visit)(Text { text, language, weight: own.unwrap_or(DEFAULT_WEIGHT) })
            }
            Value::Document(inner) if wildcard || (own.is_none() && self.spec.has_below(&self.path)) => {
                self.fields(inner, language_of(self.spec, inner, language)?, false)
            }
            // An array right within an array is looked into by wildcards only.
            Value::Array(items) if wildcard || (!in_array && self.spec.has_at_or_below(&self.path)) => {
                self.fields(items, language, true)
            }
            _ => Ok(()),
        }
    }
}
