//! The locales that MongoDB knows, and what some of them say otherwise than the rest.

/// All that `locale` may be, as the manual lists them.
const LOCALES: &[&str] = &[
    "af",
    "am",
    "ar",
    "ar@collation=compat",
    "as",
    "az",
    "az@collation=search",
    "be",
    "bg",
    "bn",
    "bn@collation=traditional",
    "bs",
    "bs@collation=search",
    "bs_Cyrl",
    "ca",
    "ca@collation=search",
    "chr",
    "cs",
    "cs@collation=search",
    "cy",
    "da",
    "da@collation=search",
    "de",
    "de@collation=eor",
    "de@collation=phonebook",
    "de@collation=search",
    "de_AT",
    "de_AT@collation=phonebook",
    "dsb",
    "dz",
    "ee",
    "el",
    "en",
    "en_US",
    "en_US_POSIX",
    "eo",
    "es",
    "es@collation=search",
    "es@collation=traditional",
    "et",
    "fa",
    "fa_AF",
    "fi",
    "fi@collation=search",
    "fi@collation=traditional",
    "fil",
    "fo",
    "fo@collation=search",
    "fr",
    "fr_CA",
    "ga",
    "gl",
    "gl@collation=search",
    "gu",
    "ha",
    "haw",
    "he",
    "he@collation=search",
    "hi",
    "hr",
    "hr@collation=search",
    "hsb",
    "hu",
    "hy",
    "id",
    "ig",
    "is",
    "is@collation=search",
    "it",
    "ja",
    "ja@collation=unihan",
    "ka",
    "kk",
    "kl",
    "kl@collation=search",
    "km",
    "kn",
    "kn@collation=traditional",
    "ko",
    "ko@collation=search",
    "ko@collation=searchjl",
    "ko@collation=unihan",
    "kok",
    "ky",
    "lb",
    "li",
    "lkt",
    "ln",
    "ln@collation=phonetic",
    "lo",
    "lt",
    "lv",
    "mk",
    "ml",
    "mn",
    "mr",
    "ms",
    "mt",
    "my",
    "nb",
    "nb@collation=search",
    "ne",
    "nl",
    "nn",
    "nn@collation=search",
    "om",
    "or",
    "pa",
    "pl",
    "ps",
    "pt",
    "ro",
    "ru",
    "se",
    "se@collation=search",
    "si",
    "si@collation=dictionary",
    "sk",
    "sk@collation=search",
    "sl",
    "smn",
    "smn@collation=search",
    "sq",
    "sr",
    "sr_Latn",
    "sr_Latn@collation=search",
    "sv",
    "sv@collation=reformed",
    "sv@collation=search",
    "sw",
    "ta",
    "te",
    "th",
    "to",
    "tr",
    "tr@collation=search",
    "ug",
    "uk",
    "ur",
    "vi",
    "vi@collation=traditional",
    "wae",
    "yi",
    "yi@collation=search",
    "yo",
    "zh",
    "zh@collation=big5han",
    "zh@collation=gb2312han",
    "zh@collation=stroke",
    "zh@collation=unihan",
    "zh@collation=zhuyin",
    "zh_Hant",
    "zu",
];

/// What the locale itself says, where a specification says nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Defaults {
    pub case_first: &'static str,
    pub alternate: &'static str,
    pub normalization: bool,
    pub backwards: bool,
}

/// Whether MongoDB takes it for a locale.
pub(crate) fn is_known(locale: &str) -> bool {
    LOCALES.contains(&locale)
}

/// All locales.
#[cfg(test)]
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    LOCALES.iter().copied()
}

/// The locale's own settings.
pub(crate) fn defaults(locale: &str) -> Defaults {
    let language = locale.split(['_', '@']).next().unwrap_or_default();
    Defaults {
        case_first: if matches!(language, "da" | "mt") { "upper" } else { "off" },
        alternate: if language == "th" { "shifted" } else { "non-ignorable" },
        normalization: matches!(
            language,
            "as" | "bn" | "gu" | "hi" | "kn" | "ml" | "mr" | "or" | "pa" | "ta" | "te" | "th" | "vi"
        ),
        // Canadian French compares accents from the end of the word.
        backwards: locale == "fr_CA",
    }
}

/// The locale as a language tag of BCP 47. `backwards` is a matter of the data: only Canadian French has it, which is
/// otherwise as languages without rules of their own.
pub(crate) fn language_tag(locale: &str, backwards: bool) -> String {
    let (name, variant) = locale.split_once("@collation=").unwrap_or((locale, ""));
    let name = match (name, backwards) {
        ("fr_CA", false) => "fr",
        (
            "en" | "en_US" | "fr" | "de" | "it" | "nl" | "pt" | "id" | "ga" | "ms" | "sw" | "zu" | "lb",
            true,
        ) if variant.is_empty() => "fr_CA",
        ("en_US_POSIX", _) => "en_US-posix",
        (name, _) => name,
    };
    let mut tag = name.replace('_', "-");
    let variant = match variant {
        "phonebook" => "phonebk",
        "traditional" => "trad",
        "dictionary" => "dict",
        "gb2312han" => "gb2312",
        "reformed" => "standard",
        // Data for searching is not compiled in: ICU makes it from the standard order.
        "search" | "searchjl" => "",
        other => other,
    };
    if !variant.is_empty() {
        tag.push_str("-u-co-");
        tag.push_str(variant);
    }
    tag
}
