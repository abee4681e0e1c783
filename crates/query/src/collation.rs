//! The collation document: `{locale: "fr", strength: 1}`.
//!
//! Collations are read and checked; only the simple one (comparison of bytes) has an effect yet. Comparison
//! of strings by locale will hook in where [`Collation`] is passed along.

use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// A parsed collation.
#[derive(Clone, PartialEq, Debug)]
pub enum Collation {
    /// `{locale: "simple"}`: strings compare by their bytes. What applies where none is given.
    Simple,
    /// Rules of a locale; every field is filled in.
    Locale(Rules),
}

/// The fields of a collation other than the simple one.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Rules {
    pub locale: String,
    pub case_level: bool,
    pub case_first: &'static str,
    pub strength: i32,
    pub numeric_ordering: bool,
    pub alternate: &'static str,
    pub max_variable: &'static str,
    pub normalization: bool,
    pub backwards: bool,
}

impl Collation {
    /// Parses a collation document; an empty one is the simple collation.
    pub fn parse(spec: RawDoc<'_>) -> Result<Collation> {
        if spec.is_empty() {
            return Ok(Collation::Simple);
        }
        let Some(locale) = spec.get("locale") else {
            bail!(40414, "BSON field 'collation.locale' is missing but a required field");
        };
        let Value::String(locale) = locale else { return wrong_type("locale", locale, "string") };
        let mut rules = Rules {
            locale: locale.to_owned(),
            case_level: false,
            case_first: "off",
            strength: 3,
            numeric_ordering: false,
            alternate: "non-ignorable",
            max_variable: "punct",
            normalization: false,
            // Canadian French compares accents from the end of the word.
            backwards: locale.starts_with("fr_CA"),
        };
        for element in spec.iter() {
            read_field(&mut rules, element)?;
        }
        if locale == "simple" {
            if spec.count() > 1 {
                bail!(
                    Code::BAD_VALUE,
                    "Field 'locale' cannot be 'simple' in: {}. If 'simple' is specified, no other fields are allowed",
                    sheaf_bson::document_text(spec)
                );
            }
            return Ok(Collation::Simple);
        }
        if !is_locale(locale) {
            bail!(Code::BAD_VALUE, "Field 'locale' is invalid in: {}", sheaf_bson::document_text(spec));
        }
        if rules.backwards && rules.strength == 1 && spec.get("backwards").is_some() {
            bail!(
                Code::BAD_VALUE,
                "'backwards' is invalid with 'strength' of 1 in: {}",
                sheaf_bson::document_text(spec)
            );
        }
        if rules.case_first != "off" && !rules.case_level && rules.strength < 3 {
            bail!(
                Code::BAD_VALUE,
                "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2"
            );
        }
        Ok(Collation::Locale(rules))
    }

    /// Whether strings compare by their bytes.
    pub fn is_simple(&self) -> bool {
        matches!(self, Collation::Simple)
    }

    /// The complete document, as listCollections and listIndexes show it.
    pub fn to_doc(&self) -> DocBuf {
        let Collation::Locale(rules) = self else {
            return sheaf_bson::doc! { "locale": "simple" };
        };
        sheaf_bson::doc! {
            "locale": &rules.locale,
            "caseLevel": rules.case_level,
            "caseFirst": rules.case_first,
            "strength": rules.strength,
            "numericOrdering": rules.numeric_ordering,
            "alternate": rules.alternate,
            "maxVariable": rules.max_variable,
            "normalization": rules.normalization,
            "backwards": rules.backwards,
            "version": "57.1",
        }
    }
}

fn read_field(rules: &mut Rules, element: Element<'_>) -> Result<()> {
    let (name, value) = (element.key(), element.value());
    match name {
        "locale" | "version" => {}
        "caseLevel" => rules.case_level = boolean(name, value)?,
        "numericOrdering" => rules.numeric_ordering = boolean(name, value)?,
        "normalization" => rules.normalization = boolean(name, value)?,
        "backwards" => rules.backwards = boolean(name, value)?,
        "caseFirst" => rules.case_first = one_of(name, value, &["upper", "lower", "off"])?,
        "alternate" => rules.alternate = one_of(name, value, &["non-ignorable", "shifted"])?,
        "maxVariable" => rules.max_variable = one_of(name, value, &["punct", "space"])?,
        "strength" => {
            if !value.is_number() {
                return wrong_types("strength", value, "int, decimal, double, long");
            }
            let strength = value.as_exact_i64().unwrap_or(0);
            if !(1..=5).contains(&strength) {
                bail!(
                    Code::BAD_VALUE,
                    "Enumeration value '{}' for field 'collation.strength' is not a valid value.",
                    sheaf_bson::value_text(value)
                );
            }
            rules.strength = strength as i32;
        }
        _ => bail!(40415, "BSON field 'collation.{name}' is an unknown field."),
    }
    Ok(())
}

fn boolean(name: &str, value: Value<'_>) -> Result<bool> {
    match value {
        Value::Bool(b) => Ok(b),
        value if value.is_number() => Ok(value.truthy()),
        value => wrong_types(name, value, "bool, int, decimal, long, double"),
    }
}

fn one_of(name: &str, value: Value<'_>, known: &[&'static str]) -> Result<&'static str> {
    let Value::String(text) = value else { return wrong_type(name, value, "string") };
    match known.iter().find(|k| **k == text) {
        Some(known) => Ok(known),
        None => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{text}' for field 'collation.{name}' is not a valid value."
        ),
    }
}

fn wrong_type<T>(name: &str, value: Value<'_>, expected: &str) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field 'collation.{name}' is the wrong type '{}', expected type '{expected}'",
        value.type_name()
    )
}

fn wrong_types<T>(name: &str, value: Value<'_>, expected: &str) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field 'collation.{name}' is the wrong type '{}', expected types '[{expected}]'",
        value.type_name()
    )
}

/// Whether a text has the form of a locale: a language of two or three letters, then parts behind `_` or `@`.
fn is_locale(locale: &str) -> bool {
    let language = locale.split(['_', '@', '-']).next().unwrap_or_default();
    (2..=3).contains(&language.len())
        && language.bytes().all(|b| b.is_ascii_lowercase())
        && locale.bytes().all(|b| b.is_ascii_alphanumeric() || b"_@-=;".contains(&b))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn fills_in_defaults() {
        let collation = Collation::parse(doc! { "locale": "en", "strength": 2 }.as_raw()).unwrap();
        let doc = collation.to_doc();
        assert_eq!(doc.as_raw().get("strength").and_then(|v| v.as_exact_i64()), Some(2));
        assert_eq!(doc.as_raw().get("maxVariable").and_then(|v| v.as_str()), Some("punct"));
        assert!(Collation::parse(doc! { "locale": "simple" }.as_raw()).unwrap().is_simple());
        assert!(Collation::parse(doc! {}.as_raw()).unwrap().is_simple());
    }

    #[test]
    fn refuses_what_mongodb_refuses() {
        let code = |doc: DocBuf| Collation::parse(doc.as_raw()).unwrap_err().code();
        assert_eq!(code(doc! { "strength": 2 }), Code(40414));
        assert_eq!(code(doc! { "locale": 3 }), Code::TYPE_MISMATCH);
        assert_eq!(code(doc! { "locale": "en", "strength": 6 }), Code::BAD_VALUE);
        assert_eq!(code(doc! { "locale": "en", "foo": 6 }), Code(40415));
        assert_eq!(code(doc! { "locale": "nonsense" }), Code::BAD_VALUE);
    }
}
