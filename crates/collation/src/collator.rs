//! Comparing by a collation, and keys that agree with it.

use std::cmp::Ordering;
use std::fmt;
use std::fmt::Write as _;
use std::hash::Hasher;
use std::sync::Arc;

use bumpalo::Bump;
use icu_collator::options::{AlternateHandling, CaseLevel, CollatorOptions, MaxVariable, Strength};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::{CollatorBorrowed, CollatorPreferences};
use icu_locale_core::Locale;
use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Value, array_in, compare, document_in, hash_value};
use sheaf_errors::{Code, Error, Result};

use crate::locales;
use crate::spec::{Collation, Rules};

/// Compares strings by the rules of a locale.
pub struct Collator {
    rules: Rules,
    icu: CollatorBorrowed<'static>,
}

/// A collator that parsed queries, plans and indexes share.
pub type SharedCollator = Arc<Collator>;

impl fmt::Debug for Collator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

impl PartialEq for Collator {
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Collator {
    /// The collator of a specification; `None` for the simple collation, and for an empty document.
    ///
    /// ```
    /// use sheaf_bson::doc;
    /// use sheaf_collation::Collator;
    ///
    /// let caseless = Collator::parse(doc! { "locale": "en", "strength": 2 }.as_raw())?.unwrap();
    /// assert!(caseless.compare("Rye", "rye").is_eq());
    /// assert!(caseless.compare("rye", "ryé").is_lt());
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    ///
    /// Errors: those of [`Collation::parse`].
    pub fn parse(spec: RawDoc<'_>) -> Result<Option<SharedCollator>> {
        if spec.is_empty() {
            return Ok(None);
        }
        Collator::new(&Collation::parse(spec)?)
    }

    /// The collator of a collation; `None` for the simple one.
    ///
    /// Errors: `InternalError` if there is no data for it.
    pub fn new(collation: &Collation) -> Result<Option<SharedCollator>> {
        let Collation::Locale(rules) = collation else { return Ok(None) };
        let failed = |what: &dyn fmt::Display| {
            Error::new(
                Code::INTERNAL_ERROR,
                format!("no rules to compare by locale '{}': {what}", rules.locale),
            )
        };
        let tag = locales::language_tag(&rules.locale, rules.backwards);
        let locale = Locale::try_from_str(&tag).map_err(|error| failed(&error))?;
        let mut preferences = CollatorPreferences::from(&locale);
        preferences.numeric_ordering = Some(match rules.numeric_ordering {
            true => CollationNumericOrdering::True,
            false => CollationNumericOrdering::False,
        });
        preferences.case_first = Some(match rules.case_first {
            "upper" => CollationCaseFirst::Upper,
            "lower" => CollationCaseFirst::Lower,
            _ => CollationCaseFirst::False,
        });
        let icu = CollatorBorrowed::try_new(preferences, options(rules)).map_err(|error| failed(&error))?;
        Ok(Some(Arc::new(Collator { rules: rules.clone(), icu })))
    }

    /// The complete specification.
    pub fn to_doc(&self) -> DocBuf {
        self.rules.to_doc()
    }

    /// Order of two strings.
    pub fn compare(&self, a: &str, b: &str) -> Ordering {
        if a == b { Ordering::Equal } else { self.icu.compare(a, b) }
    }

    /// A text whose bytes have the string's place: those of its sort key, each as one character.
    pub fn key_text(&self, text: &str) -> String {
        let mut key = Vec::with_capacity(2 * text.len() + 8);
        let Ok(()) = self.icu.write_sort_key_to(text, &mut key);
        key.into_iter().map(char::from).collect()
    }

    /// The value with each string, also in documents and arrays, replaced with its [key text](Collator::key_text): keys compare by
    /// bytes as the values do by the collation. A value without strings is given back as it is.
    pub fn key<'a>(&self, value: Value<'a>, arena: &'a Bump) -> Value<'a> {
        match value {
            Value::String(text) | Value::Symbol(text) => Value::String(arena.alloc_str(&self.key_text(text))),
            Value::Document(doc) if has_strings(doc) => Value::Document(document_in(arena, |out| {
                for element in doc.iter() {
                    out.append(element.key(), self.key(element.value(), arena));
                }
            })),
            Value::Array(array) if has_strings(array) => Value::Array(array_in(arena, |out| {
                for item in array.values() {
                    out.push(self.key(item, arena));
                }
            })),
            other => other,
        }
    }

    /// Order of two values: MongoDB's, with strings by the collation.
    pub fn compare_values(&self, a: Value<'_>, b: Value<'_>) -> Ordering {
        match (a, b) {
            (Value::String(a) | Value::Symbol(a), Value::String(b) | Value::Symbol(b)) => self.compare(a, b),
            (Value::Document(a), Value::Document(b)) => self.compare_fields(a, b, true),
            (Value::Array(a), Value::Array(b)) => self.compare_fields(a, b, false),
            (a, b) => compare(a, b),
        }
    }

    /// As [`sheaf_bson::compare_docs`] (with names) and [`sheaf_bson::compare_arrays`] have it.
    fn compare_fields(&self, a: RawDoc<'_>, b: RawDoc<'_>, names: bool) -> Ordering {
        if a == b {
            return Ordering::Equal;
        }
        let (mut left, mut right) = (a.iter(), b.iter());
        loop {
            let (x, y) = match (left.next(), right.next()) {
                (Some(x), Some(y)) => (x, y),
                (None, None) => return Ordering::Equal,
                (None, Some(_)) => return Ordering::Less,
                (Some(_), None) => return Ordering::Greater,
            };
            let mut order = x.kind().order().cmp(&y.kind().order());
            if names {
                order = order.then_with(|| x.key_bytes().cmp(y.key_bytes()));
            }
            let order = order.then_with(|| self.compare_values(x.value(), y.value()));
            if order.is_ne() {
                return order;
            }
        }
    }
}

/// The bytes of a [key text](Collator::key_text), as errors and explain show them: `0x2a2c`.
pub fn key_hex(key_text: &str) -> String {
    let mut out = String::from("0x");
    for byte in key_text.chars() {
        let _ = write!(out, "{:02x}", u32::from(byte));
    }
    out
}

/// [`sheaf_bson::compare`] where there is no collator, [`Collator::compare_values`] where there is one.
#[inline]
pub fn compare_by(collator: Option<&SharedCollator>, a: Value<'_>, b: Value<'_>) -> Ordering {
    match collator {
        None => compare(a, b),
        Some(collator) => collator.compare_values(a, b),
    }
}

/// [`sheaf_bson::hash_value`] that agrees with [`compare_by`].
#[inline]
pub fn hash_by<H: Hasher>(collator: Option<&SharedCollator>, value: Value<'_>, state: &mut H) {
    match collator {
        None => hash_value(value, state),
        Some(collator) => {
            let arena = Bump::new();
            hash_value(collator.key(value, &arena), state);
        }
    }
}

/// What maps and sets that agree with [`compare_by`] are keyed by.
pub fn key_of(collator: Option<&SharedCollator>, value: Value<'_>) -> OwnedValue {
    match collator {
        None => OwnedValue::from(value),
        Some(collator) => OwnedValue::from(collator.key(value, &Bump::new())),
    }
}

fn has_strings(doc: RawDoc<'_>) -> bool {
    doc.values().any(|value| match value {
        Value::String(_) | Value::Symbol(_) => true,
        Value::Document(doc) | Value::Array(doc) => has_strings(doc),
        _ => false,
    })
}

fn options(rules: &Rules) -> CollatorOptions {
    let mut options = CollatorOptions::default();
    options.strength = Some(match rules.strength {
        1 => Strength::Primary,
        2 => Strength::Secondary,
        4 => Strength::Quaternary,
        5 => Strength::Identical,
        _ => Strength::Tertiary,
    });
    options.alternate_handling = Some(match rules.alternate {
        "shifted" => AlternateHandling::Shifted,
        _ => AlternateHandling::NonIgnorable,
    });
    options.max_variable = Some(match rules.max_variable {
        "space" => MaxVariable::Space,
        _ => MaxVariable::Punctuation,
    });
    options.case_level = Some(if rules.case_level { CaseLevel::On } else { CaseLevel::Off });
    options
}

#[cfg(test)]
mod tests;
