//! The languages that texts can be in.

use rust_stemmers::Algorithm;
use sheaf_errors::{Error, Result};

/// A language of a text index of version 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// Words as they are: no stems, no stop words.
    None,
    #[allow(missing_docs)]
    Danish,
    #[allow(missing_docs)]
    Dutch,
    #[allow(missing_docs)]
    English,
    #[allow(missing_docs)]
    Finnish,
    #[allow(missing_docs)]
    French,
    #[allow(missing_docs)]
    German,
    #[allow(missing_docs)]
    Hungarian,
    #[allow(missing_docs)]
    Italian,
    #[allow(missing_docs)]
    Norwegian,
    #[allow(missing_docs)]
    Portuguese,
    #[allow(missing_docs)]
    Romanian,
    #[allow(missing_docs)]
    Russian,
    #[allow(missing_docs)]
    Spanish,
    #[allow(missing_docs)]
    Swedish,
    #[allow(missing_docs)]
    Turkish,
}

/// Name, short name, stemmer.
const TABLE: &[(Language, &str, &str, Option<Algorithm>)] = &[
    (Language::None, "none", "none", None),
    (Language::Danish, "danish", "da", Some(Algorithm::Danish)),
    (Language::Dutch, "dutch", "nl", Some(Algorithm::Dutch)),
    (Language::English, "english", "en", Some(Algorithm::English)),
    (Language::Finnish, "finnish", "fi", Some(Algorithm::Finnish)),
    (Language::French, "french", "fr", Some(Algorithm::French)),
    (Language::German, "german", "de", Some(Algorithm::German)),
    (Language::Hungarian, "hungarian", "hu", Some(Algorithm::Hungarian)),
    (Language::Italian, "italian", "it", Some(Algorithm::Italian)),
    (Language::Norwegian, "norwegian", "nb", Some(Algorithm::Norwegian)),
    (Language::Portuguese, "portuguese", "pt", Some(Algorithm::Portuguese)),
    (Language::Romanian, "romanian", "ro", Some(Algorithm::Romanian)),
    (Language::Russian, "russian", "ru", Some(Algorithm::Russian)),
    (Language::Spanish, "spanish", "es", Some(Algorithm::Spanish)),
    (Language::Swedish, "swedish", "sv", Some(Algorithm::Swedish)),
    (Language::Turkish, "turkish", "tr", Some(Algorithm::Turkish)),
];

impl Language {
    /// The language of a name (`english`, `en`), in letters of either case.
    ///
    /// Errors: `BadValue`.
    pub fn named(name: &str) -> Result<Language> {
        TABLE
            .iter()
            .find(|(_, long, short, _)| name.eq_ignore_ascii_case(long) || name.eq_ignore_ascii_case(short))
            .map(|(language, ..)| *language)
            .ok_or_else(|| {
                Error::bad_value(format!("unsupported language: \"{name}\" for text index version 3"))
            })
    }

    /// Its name: `english`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        self.row().3
    }

    fn row(self) -> &'static (Language, &'static str, &'static str, Option<Algorithm>) {
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&TABLE[0])
    }
}
