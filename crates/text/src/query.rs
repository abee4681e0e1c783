//! `$text` conditions.

use std::collections::BTreeSet;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use crate::fold;
use crate::language::Language;
use crate::spec::TextSpec;
use crate::tokens::{Options, each_word};
use crate::walk::each_text;

/// A condition as it was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// `$search`.
    pub search: String,
    /// `$language`.
    pub language: Option<String>,
    /// `$caseSensitive`.
    pub case_sensitive: bool,
    /// `$diacriticSensitive`.
    pub diacritic_sensitive: bool,
}

/// A parsed condition.
#[derive(Clone, Debug)]
pub struct TextQuery {
    options: Options,
    /// Words to look up in an index, without case and marks.
    bounds: BTreeSet<String>,
    positive: BTreeSet<String>,
    negative: BTreeSet<String>,
    phrases: Vec<String>,
    negative_phrases: Vec<String>,
}

impl TextQuery {
    /// Parses a condition in its own language, or else in that of the index.
    ///
    /// Errors: `BadValue` for a language that is unknown.
    pub fn parse(params: &Params, spec: &TextSpec) -> Result<TextQuery> {
        let language = match &params.language {
            Some(name) => Language::named(name, spec.version())?,
            None => spec.default_language(),
        };
        let options = Options {
            case_sensitive: params.case_sensitive,
            diacritic_sensitive: params.diacritic_sensitive,
            ..spec.options()
        };
        let parts = Parts::of(&params.search);
        let words = |sentence: &str, options| {
            let mut words = BTreeSet::new();
            each_word(sentence, language, options, |word| {
                words.insert(word);
                Ok(())
            })
            .map(|()| words)
        };
        Ok(TextQuery {
            options,
            bounds: words(&parts.positive, spec.options())?,
            positive: words(&parts.positive, options)?,
            negative: words(&parts.negative, options)?,
            phrases: parts.phrases,
            negative_phrases: parts.negative_phrases,
        })
    }

    /// The words of which a matching document has at least one, as an index has them.
    pub fn bounds(&self) -> impl Iterator<Item = &str> {
        self.bounds.iter().map(String::as_str)
    }

    /// Words that a matching document has.
    pub fn terms(&self) -> impl Iterator<Item = &str> {
        self.positive.iter().map(String::as_str)
    }

    /// Words that it must not have.
    pub fn negated_terms(&self) -> impl Iterator<Item = &str> {
        self.negative.iter().map(String::as_str)
    }

    /// Phrases that it has all of.
    pub fn phrases(&self) -> impl Iterator<Item = &str> {
        self.phrases.iter().map(String::as_str)
    }

    /// Phrases that it must not have.
    pub fn negated_phrases(&self) -> impl Iterator<Item = &str> {
        self.negative_phrases.iter().map(String::as_str)
    }

    /// How well a document fits; `None` if it does not match.
    ///
    /// Errors: 17261, 17262; what the meter says.
    pub fn score(&self, spec: &TextSpec, doc: RawDoc<'_>) -> Result<Option<f64>> {
        let terms = spec.terms(doc)?;
        let mut found = self.bounds.iter().filter_map(|word| terms.get(word)).peekable();
        if found.peek().is_none() {
            return Ok(None);
        }
        let score = found.sum();
        Ok(self.holds(spec, doc)?.then_some(score))
    }

    /// Whether what an index cannot tell holds, too.
    fn holds(&self, spec: &TextSpec, doc: RawDoc<'_>) -> Result<bool> {
        let insensitive = !self.options.case_sensitive && !self.options.diacritic_sensitive;
        let mut has_positive = insensitive;
        let mut has_negative = false;
        if !insensitive || !self.negative.is_empty() {
            each_text(spec, doc, &mut |text| {
                each_word(text.text, text.language, self.options, |word| {
                    has_positive |= self.positive.contains(&word);
                    has_negative |= self.negative.contains(&word);
                    Ok(())
                })
            })?;
        }
        if !has_positive || has_negative {
            return Ok(false);
        }
        for phrase in &self.phrases {
            if !self.has_phrase(spec, doc, phrase)? {
                return Ok(false);
            }
        }
        for phrase in &self.negative_phrases {
            if self.has_phrase(spec, doc, phrase)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a text has the phrase, letter by letter.
    fn has_phrase(&self, spec: &TextSpec, doc: RawDoc<'_>, phrase: &str) -> Result<bool> {
        let phrase = self.folded(phrase);
        let mut found = false;
        each_text(spec, doc, &mut |text| {
            sheaf_meter::tick_for(text.text.len())?;
            found = found || self.folded(text.text).contains(&phrase);
            Ok(())
        })?;
        Ok(found)
    }

    fn folded(&self, text: &str) -> String {
        let cased = match self.options.case_sensitive {
            true => text.to_owned(),
            false if self.options.ascii => text.to_ascii_lowercase(),
            false => fold::lower(text, false),
        };
        if self.options.diacritic_sensitive || self.options.ascii {
            cased
        } else {
            fold::without_marks(&cased)
        }
    }
}

/// A search text taken apart.
#[derive(Default)]
struct Parts {
    positive: String,
    negative: String,
    phrases: Vec<String>,
    negative_phrases: Vec<String>,
}

impl Parts {
    /// `-` before a word or a phrase negates it, up to the next blank; `"` begins and ends a phrase. The words of
    /// phrases are looked for as well.
    fn of(search: &str) -> Parts {
        let mut parts = Parts::default();
        let (mut negated, mut phrase_start) = (false, None);
        let mut behind_blank = true;
        let mut at = 0;
        while let Some(letter) = search[at..].chars().next() {
            match letter {
                letter if is_blank(letter) => {
                    behind_blank = true;
                    // A negation goes to the next blank.
                    negated &= phrase_start.is_some();
                }
                '-' => {
                    negated |= phrase_start.is_none() && behind_blank;
                    behind_blank = false;
                }
                '"' => {
                    match phrase_start.take() {
                        Some(start) => {
                            let phrase = search[start..at].to_owned();
                            match negated {
                                true => parts.negative_phrases.push(phrase),
                                false => parts.phrases.push(phrase),
                            }
                        }
                        None => phrase_start = Some(at + 1),
                    }
                    behind_blank = false;
                }
                _ => {
                    let rest = &search[at..];
                    let end =
                        rest.find(|c: char| is_blank(c) || matches!(c, '-' | '"')).unwrap_or(rest.len());
                    let in_phrase = phrase_start.is_some();
                    if !(in_phrase && negated) {
                        let sentence = if negated { &mut parts.negative } else { &mut parts.positive };
                        sentence.push_str(&rest[..end]);
                        sentence.push(' ');
                    }
                    behind_blank = false;
                    at += end;
                    continue;
                }
            }
            at += letter.len_utf8();
        }
        parts
    }
}

fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\u{c}' | '\u{b}' | '\t' | '\r' | '\n')
}
