//! The languages that texts can be in.

use rust_stemmers::Algorithm;
use sheaf_errors::{Error, Result};

/// Whose words a language has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Words {
    /// Words as they are: no stems, no stop words.
    None,
    Danish,
    Dutch,
    English,
    Finnish,
    French,
    German,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Turkish,
}

/// Words, name, short name, stemmer.
const TABLE: &[(Words, &str, &str, Option<Algorithm>)] = &[
    (Words::None, "none", "none", None),
    (Words::Danish, "danish", "da", Some(Algorithm::Danish)),
    (Words::Dutch, "dutch", "nl", Some(Algorithm::Dutch)),
    (Words::English, "english", "en", Some(Algorithm::English)),
    (Words::Finnish, "finnish", "fi", Some(Algorithm::Finnish)),
    (Words::French, "french", "fr", Some(Algorithm::French)),
    (Words::German, "german", "de", Some(Algorithm::German)),
    (Words::Hungarian, "hungarian", "hu", Some(Algorithm::Hungarian)),
    (Words::Italian, "italian", "it", Some(Algorithm::Italian)),
    (Words::Norwegian, "norwegian", "nb", Some(Algorithm::Norwegian)),
    (Words::Portuguese, "portuguese", "pt", Some(Algorithm::Portuguese)),
    (Words::Romanian, "romanian", "ro", Some(Algorithm::Romanian)),
    (Words::Russian, "russian", "ru", Some(Algorithm::Russian)),
    (Words::Spanish, "spanish", "es", Some(Algorithm::Spanish)),
    (Words::Swedish, "swedish", "sv", Some(Algorithm::Swedish)),
    (Words::Turkish, "turkish", "tr", Some(Algorithm::Turkish)),
];

/// The names of version 1 that later versions have not. The short names are of version 1 as well, except `nb`.
const OLD_NAMES: &[(&str, &str)] = &[
    ("dan", "danish"),
    ("deu", "german"),
    ("dut", "dutch"),
    ("eng", "english"),
    ("esl", "spanish"),
    ("fin", "finnish"),
    ("fra", "french"),
    ("fre", "french"),
    ("ger", "german"),
    ("hun", "hungarian"),
    ("ita", "italian"),
    ("nld", "dutch"),
    ("no", "norwegian"),
    ("nor", "norwegian"),
    ("por", "portuguese"),
    ("porter", "english"),
    ("ron", "romanian"),
    ("rum", "romanian"),
    ("rus", "russian"),
    ("spa", "spanish"),
    ("swe", "swedish"),
    ("tur", "turkish"),
];

/// A language of texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Language {
    words: Words,
    /// Under a short name of version 1, which knows its stems only.
    stems_only: bool,
}

impl Language {
    /// The language of a name (`english`, `en`) in a text index of the version. From version 2 on letters of either case
    /// will do; version 1 takes an unknown name for `none`.
    ///
    /// Errors: `BadValue`.
    pub fn named(name: &str, version: i32) -> Result<Language> {
        if version == 1 {
            return Ok(Language::old(name));
        }
        TABLE
            .iter()
            .find(|(_, long, short, _)| name.eq_ignore_ascii_case(long) || name.eq_ignore_ascii_case(short))
            .map(|(words, ..)| Language { words: *words, stems_only: false })
            .ok_or_else(|| {
                Error::bad_value(format!("unsupported language: \"{name}\" for text index version {version}"))
            })
    }

    /// The language of a name in a text index of version 1.
    fn old(name: &str) -> Language {
        let long = OLD_NAMES.iter().find(|(old, _)| *old == name).map_or(name, |(_, long)| *long);
        let row = TABLE.iter().find(|(_, full, short, _)| *full == long || (*short == long && long != "nb"));
        let (words, full, ..) = row.unwrap_or(&TABLE[0]);
        Language { words: *words, stems_only: *full != name }
    }

    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        TABLE.iter().find(|row| row.0 == self.words).and_then(|row| row.3)
    }

    /// Whose stop words and apostrophes it has.
    pub(crate) fn words(self) -> Words {
        if self.stems_only { Words::None } else { self.words }
    }
}
