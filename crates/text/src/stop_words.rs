//! Words that say nothing about what a text is about: Snowball's lists.

use std::collections::HashSet;
use std::sync::LazyLock;

use crate::language::Words;

macro_rules! lists {
    ($($language:ident $file:literal),* $(,)?) => {
        /// Whether a word, in lower case, counts for nothing in its language.
        pub(crate) fn is_stop_word(language: Words, word: &str) -> bool {
            match language {
                Words::None => false,
                $(Words::$language => {
                    static WORDS: LazyLock<HashSet<&str>> =
                        LazyLock::new(|| include_str!(concat!("stop_words/", $file, ".txt")).lines().collect());
                    WORDS.contains(word)
                })*
            }
        }
    };
}

lists! {
    Danish "danish",
    Dutch "dutch",
    English "english",
    Finnish "finnish",
    French "french",
    German "german",
    Hungarian "hungarian",
    Italian "italian",
    Norwegian "norwegian",
    Portuguese "portuguese",
    Romanian "romanian",
    Russian "russian",
    Spanish "spanish",
    Swedish "swedish",
    Turkish "turkish",
}
