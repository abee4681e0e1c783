//! The collation document: `{locale: "fr", strength: 1}`.

use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::locales;

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
    /// Parses a collation document. Commands for whom an empty one is as good as none do not come here with it.
    ///
    /// Errors: 40414 without a locale, 40415 for unknown fields, `TypeMismatch`, `BadValue`, `IncompatibleCollationVersion`.
    pub fn parse(spec: RawDoc<'_>) -> Result<Collation> {
        let mut given = Given::default();
        for (at, element) in spec.iter().enumerate() {
            read_field(&mut given, element)?;
            // All that come so far are known ones, so that they are few.
            if spec.iter().take(at).any(|before| before.key_bytes() == element.key_bytes()) {
                bail!(40413, "BSON field 'collation.{}' is a duplicate field", element.key());
            }
        }
        let Some(locale) = given.locale.clone() else {
            bail!(40414, "BSON field 'collation.locale' is missing but a required field");
        };
        if locale == "simple" {
            return Ok(Collation::Simple);
        }
        if !locales::is_known(&locale) {
            bail!(Code::BAD_VALUE, "Field 'locale' is invalid in: {}", sheaf_bson::document_text(spec));
        }
        let own = locales::defaults(&locale);
        let rules = Rules {
            case_level: given.case_level.unwrap_or(false),
            case_first: given.case_first.unwrap_or(own.case_first),
            strength: given.strength.unwrap_or(3),
            numeric_ordering: given.numeric_ordering.unwrap_or(false),
            alternate: given.alternate.unwrap_or(own.alternate),
            max_variable: given.max_variable.unwrap_or("punct"),
            normalization: given.normalization.unwrap_or(own.normalization),
            backwards: given.backwards.unwrap_or(own.backwards),
            locale,
        };
        rules.check(spec)?;
        Ok(Collation::Locale(rules))
    }

    /// Whether strings compare by their bytes.
    pub fn is_simple(&self) -> bool {
        matches!(self, Collation::Simple)
    }

    /// The complete document, as listCollections and listIndexes show it.
    pub fn to_doc(&self) -> DocBuf {
        match self {
            Collation::Locale(rules) => rules.to_doc(),
            Collation::Simple => sheaf_bson::doc! { "locale": "simple" },
        }
    }
}

impl Rules {
    /// What of the options does not go together, also of those that the locale brings: what is shown must be a collation, too.
    fn check(&self, spec: RawDoc<'_>) -> Result<()> {
        if self.backwards && self.strength == 1 {
            bail!(
                Code::BAD_VALUE,
                "'backwards' is invalid with 'strength' of 1 in: {}",
                sheaf_bson::document_text(spec)
            );
        }
        if self.case_first != "off" && !self.case_level && self.strength < 3 {
            bail!(
                Code::BAD_VALUE,
                "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: {}",
                sheaf_bson::document_text(spec)
            );
        }
        Ok(())
    }

    /// The complete document.
    pub fn to_doc(&self) -> DocBuf {
        sheaf_bson::doc! {
            "locale": &*self.locale,
            "caseLevel": self.case_level,
            "caseFirst": self.case_first,
            "strength": self.strength,
            "numericOrdering": self.numeric_ordering,
            "alternate": self.alternate,
            "maxVariable": self.max_variable,
            "normalization": self.normalization,
            "backwards": self.backwards,
            "version": VERSION,
        }
    }
}

/// The version of ICU that MongoDB compares with, which specifications name.
const VERSION: &str = "57.1";

/// What a document says; null says nothing.
#[derive(Default)]
struct Given {
    locale: Option<String>,
    case_level: Option<bool>,
    case_first: Option<&'static str>,
    strength: Option<i32>,
    numeric_ordering: Option<bool>,
    alternate: Option<&'static str>,
    max_variable: Option<&'static str>,
    normalization: Option<bool>,
    backwards: Option<bool>,
}

fn read_field(given: &mut Given, element: Element<'_>) -> Result<()> {
    let (name, value) = (element.key(), element.value());
    match (name, value) {
        ("locale", Value::String(locale)) => given.locale = Some(locale.to_owned()),
        ("locale", Value::Null | Value::Undefined) => {}
        ("locale", value) => return wrong_type(name, value, "string"),
        (
            "caseLevel" | "numericOrdering" | "normalization" | "backwards" | "caseFirst" | "alternate"
            | "maxVariable" | "strength" | "version",
            Value::Null | Value::Undefined,
        ) => {}
        ("caseLevel", value) => given.case_level = Some(boolean(name, value)?),
        ("numericOrdering", value) => given.numeric_ordering = Some(boolean(name, value)?),
        ("normalization", value) => given.normalization = Some(boolean(name, value)?),
        ("backwards", value) => given.backwards = Some(boolean(name, value)?),
        ("caseFirst", value) => given.case_first = Some(one_of(name, value, &["upper", "lower", "off"])?),
        ("alternate", value) => given.alternate = Some(one_of(name, value, &["non-ignorable", "shifted"])?),
        ("maxVariable", value) => given.max_variable = Some(one_of(name, value, &["punct", "space"])?),
        ("version", Value::String(VERSION)) => {}
        ("version", Value::String(other)) => bail!(
            Code::INCOMPATIBLE_COLLATION_VERSION,
            "Requested collation version {other} but the only available collator version was {VERSION}"
        ),
        ("version", value) => return wrong_type(name, value, "string"),
        ("strength", value) => given.strength = Some(strength(value)?),
        _ => bail!(40415, "BSON field 'collation.{name}' is an unknown field."),
    }
    Ok(())
}

fn strength(value: Value<'_>) -> Result<i32> {
    if !value.is_number() {
        return wrong_types("strength", value, "int, decimal, double, long");
    }
    match value.as_exact_i64() {
        Some(strength @ 1..=5) => Ok(strength as i32),
        _ => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{}' for field 'collation.strength' is not a valid value.",
            sheaf_bson::value_text(value)
        ),
    }
}

fn boolean(name: &str, value: Value<'_>) -> Result<bool> {
    match value {
        Value::Bool(b) => Ok(b),
        value => wrong_type(name, value, "bool"),
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
        let canadian =
            Collation::parse(doc! { "locale": "fr_CA", "strength": () }.as_raw()).unwrap().to_doc();
        assert_eq!(canadian.as_raw().get("backwards").map(|v| v.truthy()), Some(true));
    }

    #[test]
    fn refuses_what_mongodb_refuses() {
        let code = |doc: DocBuf| Collation::parse(doc.as_raw()).unwrap_err().code();
        assert_eq!(code(doc! { "strength": 2 }), Code(40414));
        assert_eq!(code(doc! {}), Code(40414));
        assert_eq!(code(doc! { "locale": "en", "caseLevel": 1 }), Code::TYPE_MISMATCH);
        assert_eq!(code(doc! { "locale": "en", "version": "57.2" }), Code::INCOMPATIBLE_COLLATION_VERSION);
        assert_eq!(code(doc! { "locale": "fr", "backwards": true, "strength": 1 }), Code::BAD_VALUE);
        assert_eq!(code(doc! { "locale": "en", "caseFirst": "upper", "strength": 2 }), Code::BAD_VALUE);
        // Canadian French compares backwards, Danish has capitals first.
        assert_eq!(code(doc! { "locale": "fr_CA", "strength": 1 }), Code::BAD_VALUE);
        assert_eq!(code(doc! { "locale": "da", "strength": 2 }), Code::BAD_VALUE);
        assert_eq!(code(doc! { "locale": 3 }), Code::TYPE_MISMATCH);
        assert_eq!(code(doc! { "locale": "en", "strength": 6 }), Code::BAD_VALUE);
        assert_eq!(code(doc! { "locale": "en", "foo": 6 }), Code(40415));
        assert_eq!(code(doc! { "locale": "nonsense" }), Code::BAD_VALUE);
    }
}
