//! Letters of one case, and letters without their marks.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The text in lower case. Turkish has its own pairs of i, with a dot and without.
pub(crate) fn lower(text: &str, turkish: bool) -> String {
    if text.is_ascii() && !turkish {
        return text.to_ascii_lowercase();
    }
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            'I' if turkish => out.push('ı'),
            'İ' => out.push('i'),
            letter => out.extend(letter.to_lowercase()),
        }
    }
    out
}

/// The text without diacritics.
pub(crate) fn without_marks(text: &str) -> String {
    if text.is_ascii() {
        return text.to_owned();
    }
    text.nfd().filter(|letter| !is_combining_mark(*letter)).nfc().collect()
}
