//! Texts taken apart into words, as a text index of version 3 has them.

use rust_stemmers::Stemmer;
use sheaf_errors::Result;

use crate::fold;
use crate::language::{Language, Words};
use crate::stop_words::is_stop_word;

/// Which differences between words count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// Capital letters are others than small ones.
    pub(crate) case_sensitive: bool,
    /// Letters with marks are others than those without.
    pub(crate) diacritic_sensitive: bool,
    /// Versions 1 and 2 of text indexes: only ASCII has cases and delimiters, and marks always count.
    pub(crate) ascii: bool,
}

/// What taking a word out of a text costs, as the meter counts.
const WORD: u32 = 4;

/// Calls `visit` with each word of a text: its stem, without those that say nothing.
pub(crate) fn each_word(
    text: &str,
    language: Language,
    options: Options,
    mut visit: impl FnMut(String) -> Result<()>,
) -> Result<()> {
    let stemmer = language.algorithm().map(Stemmer::create);
    let words = language.words();
    let turkish = words == Words::Turkish;
    let ends = |letter: char| (letter.is_ascii() || !options.ascii) && is_delimiter(letter, words);
    for word in text.split(ends).filter(|word| !word.is_empty()) {
        sheaf_meter::tick(WORD)?;
        sheaf_meter::tick_for(word.len())?;
        let lower = match options.ascii {
            true => word.to_ascii_lowercase(),
            false => fold::lower(word, turkish),
        };
        if is_stop_word(words, &lower) {
            continue;
        }
        let kept = if options.case_sensitive { word } else { &lower };
        // Stemmers know the marks, so that these go last.
        let stem = stemmer.as_ref().map_or(kept.into(), |stemmer| stemmer.stem(kept));
        visit(match options.diacritic_sensitive || options.ascii {
            true => stem.into_owned(),
            false => fold::without_marks(&stem),
        })?;
    }
    Ok(())
}

/// Whether a letter ends words: white space, dashes, quotation marks, terminal punctuation and the letters of patterns in
/// Unicode's sense. An apostrophe is part of English words.
fn is_delimiter(letter: char, language: Words) -> bool {
    match letter {
        '\'' => language != Words::English,
        '_' => false,
        letter if letter.is_ascii() => {
            letter.is_ascii_whitespace() || letter == '\u{b}' || letter.is_ascii_punctuation()
        }
        letter => {
            letter.is_whitespace()
                || DELIMITERS.iter().any(|(first, last)| (*first..=*last).contains(&u32::from(letter)))
        }
    }
}

/// Ranges of delimiters beyond ASCII.
const DELIMITERS: &[(u32, u32)] = &[
    (0xA1, 0xA7),
    (0xA9, 0xA9),
    (0xAB, 0xAE),
    (0xB0, 0xB1),
    (0xB6, 0xB6),
    (0xBB, 0xBB),
    (0xBF, 0xBF),
    (0xD7, 0xD7),
    (0xF7, 0xF7),
    (0x37E, 0x37E),
    (0x387, 0x387),
    (0x589, 0x58A),
    (0x5BE, 0x5BE),
    (0x5C3, 0x5C3),
    (0x60C, 0x60C),
    (0x61B, 0x61B),
    (0x61F, 0x61F),
    (0x6D4, 0x6D4),
    (0x700, 0x70A),
    (0x964, 0x965),
    (0xE5A, 0xE5B),
    (0xF0D, 0xF12),
    (0x104A, 0x104B),
    (0x1361, 0x1368),
    (0x1400, 0x1400),
    (0x166D, 0x166E),
    (0x17D4, 0x17D6),
    (0x1806, 0x1806),
    (0x2010, 0x203E),
    (0x2041, 0x2053),
    (0x2055, 0x205E),
    (0x2190, 0x245F),
    (0x2500, 0x2775),
    (0x2794, 0x2BFF),
    (0x2E00, 0x2E7F),
    (0x3001, 0x3003),
    (0x3008, 0x3020),
    (0x3030, 0x3030),
    (0x30A0, 0x30A0),
    (0xFD3E, 0xFD3F),
    (0xFE10, 0xFE19),
    (0xFE30, 0xFE52),
    (0xFE54, 0xFE63),
    (0xFF01, 0xFF0F),
    (0xFF1A, 0xFF20),
    (0xFF3B, 0xFF3D),
    (0xFF3F, 0xFF3F),
    (0xFF5B, 0xFF65),
];
