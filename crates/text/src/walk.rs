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
        Value::String(name) => Language::named(name)
            .map_err(|_| Error::location(17262, format!("language override unsupported: {name}"))),
        _ => bail!(17261, "found language override field in document with non-string type"),
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
