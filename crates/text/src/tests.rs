use std::collections::BTreeSet;

use proptest::prelude::*;
use sheaf_bson::{DocBuf, Value, doc};

use super::*;

fn spec(key: DocBuf, options: DocBuf) -> TextSpec {
    TextSpec::read(normal_fields(options.as_raw(), key.as_raw()).unwrap().as_raw()).unwrap()
}

fn plain() -> TextSpec {
    spec(doc! { "a": "text" }, doc! {})
}

fn params(search: &str) -> Params {
    Params { search: search.to_owned(), language: None, case_sensitive: false, diacritic_sensitive: false }
}

fn score(spec: &TextSpec, doc: &DocBuf, params: &Params) -> Option<f64> {
    TextQuery::parse(params, spec).unwrap().score(spec, doc.as_raw()).unwrap()
}

#[test]
fn scores_are_mongodbs() {
    let one = |text: &str, search: &str| score(&plain(), &doc! { "a": text }, &params(search));
    assert_eq!(one("mongodb", "mongodb"), Some(1.1));
    assert_eq!(one("mongodb database", "mongodb"), Some(0.75));
    assert_eq!(one("the mongodb of databases", "database"), Some(0.75));
    assert_eq!(one("coffee coffee", "coffee"), Some(1.5));
    assert_eq!(one("hello world", "hello world"), Some(1.5));
    assert_eq!(one("hello world", "the"), None);
    assert_eq!(one("hello world", ""), None);
    assert_eq!(one("don't", "don't"), None);
}

#[test]
fn searches_negate_and_quote() {
    let found = |text: &str, search: &str| score(&plain(), &doc! { "a": text }, &params(search)).is_some();
    assert!(found("coffee shop", "coffee -cake"));
    assert!(!found("coffee cake", "coffee -cake"));
    assert!(found("coffee cake", "coffee - cake"));
    assert!(found("coffee cake", "coffee-cake"));
    assert!(!found("tea", "-coffee"));
    assert!(found("one coffee shop", "\"coffee shop\""));
    assert!(!found("coffee in a shop", "\"coffee shop\""));
    assert!(!found("coffee shop", "coffee -\"coffee shop\""));
    assert!(found("Running late", "runs"));
}

#[test]
fn case_and_marks_count_where_asked() {
    let text = doc! { "a": "Café au Lait" };
    let mut query = params("cafe");
    assert!(score(&plain(), &text, &query).is_some());
    query.diacritic_sensitive = true;
    assert!(score(&plain(), &text, &query).is_none());
    query = params("lait");
    query.case_sensitive = true;
    assert!(score(&plain(), &text, &query).is_none());
    query.search = "Lait".to_owned();
    assert!(score(&plain(), &text, &query).is_some());
}

#[test]
fn version_two_knows_ascii_only() {
    let old = spec(doc! { "a": "text" }, doc! { "textIndexVersion": 2 });
    let text = doc! { "a": "Café “crème” CAKE" };
    assert!(score(&old, &text, &params("cafe")).is_none());
    assert!(score(&old, &text, &params("café")).is_some());
    assert!(score(&old, &text, &params("cake")).is_some());
    assert!(score(&old, &text, &params("crème")).is_none());
    assert!(score(&plain(), &text, &params("creme")).is_some());
}

#[test]
fn version_one_takes_any_language() {
    let old = spec(doc! { "a.b": "text" }, doc! { "textIndexVersion": 1, "weights": { "c": 2.9 } });
    assert_eq!(old.version(), 1);
    let found = |doc: &DocBuf, search: &str, language: Option<&str>| {
        score(&old, doc, &Params { language: language.map(str::to_owned), ..params(search) })
    };
    let text = doc! { "a": [{ "b": "the running dogs" }, "x", { "b": ["y"] }], "c": "Café" };
    assert_eq!(found(&text, "run", None), Some(0.75));
    assert_eq!(found(&text, "café", None), Some(2.2));
    // Only what stands at the path itself, or right in the first array on it, is a text of it.
    assert_eq!(found(&text, "x", None), Some(1.1));
    assert_eq!(found(&text, "y", None), None);
    // Names of three letters know stems, but no stop words; letters' cases count; unknown names are none at all.
    assert!(found(&text, "runs", Some("eng")).is_some());
    assert!(found(&text, "runs", Some("ENGLISH")).is_none());
    assert!(found(&text, "runs", Some("klingon")).is_none());
    let eng = doc! { "c": "the dogs", "language": "eng" };
    assert!(found(&eng, "the", Some("none")).is_some() && found(&eng, "the", None).is_none());
    let within = doc! { "c": "the dogs", "language": 5, "a": { "language": "none", "b": "cats" } };
    assert!(found(&within, "cat", None).is_some());
    let everything = spec(doc! { "$**": "text" }, doc! { "textIndexVersion": 1, "weights": { "c": 3 } });
    let nested = doc! { "x": { "c": "dog", "y": [["cat"]] }, "language": "english" };
    assert_eq!(score(&everything, &nested, &params("dogs")), Some(3.0 * 1.1));
    assert_eq!(score(&everything, &nested, &params("cat")), Some(1.1));
    assert_eq!(score(&everything, &nested, &params("english")), None);
    let unknown = normal_fields(
        doc! { "textIndexVersion": 1.5, "default_language": "klingon", "language_override": 5 }.as_raw(),
        doc! { "a..b": "text" }.as_raw(),
    );
    let normal = doc! {
        "weights": { "a..b": 1 }, "default_language": "klingon", "language_override": "language", "textIndexVersion": 1
    };
    assert_eq!(unknown.unwrap(), normal);
}

#[test]
fn fields_have_weights_and_documents_languages() {
    let weighted = spec(doc! { "a": "text", "b.c": "text" }, doc! { "weights": { "a": 10 } });
    let text = doc! { "a": "apple", "b": [{ "c": ["apple pie", 5] }, { "d": "pear" }] };
    assert_eq!(score(&weighted, &text, &params("apple")), Some(10.0 + 0.75));
    assert_eq!(score(&weighted, &text, &params("pear")), None);
    let everything = spec(doc! { "$**": "text" }, doc! {});
    assert_eq!(score(&everything, &text, &params("pear")), Some(1.1));
    let spanish = doc! { "a": "el perro de los perros", "language": "spanish" };
    let mut query = params("perros");
    query.language = Some("es".to_owned());
    assert!(score(&plain(), &spanish, &query).is_some());
    let code = |doc: DocBuf| plain().terms(doc.as_raw()).unwrap_err().code().0;
    assert_eq!(code(doc! { "a": "x", "language": 5 }), 17261);
    assert_eq!(code(doc! { "a": "x", "language": "klingon" }), 17262);
}

#[test]
fn specifications_are_checked() {
    let refused = |key: DocBuf, options: DocBuf| normal_fields(options.as_raw(), key.as_raw()).is_err();
    for options in [
        doc! { "weights": { "a": "x" } },
        doc! { "weights": { "a": 0 } },
        doc! { "weights": { "a": 1_000_000_000 } },
        doc! { "weights": { "a..b": 1 } },
        doc! { "weights": 1 },
        doc! { "default_language": "klingon" },
        doc! { "default_language": 1 },
        doc! { "language_override": "" },
        doc! { "language_override": "a.b" },
        doc! { "textIndexVersion": 4 },
    ] {
        assert!(refused(doc! { "a": "text" }, options.clone()), "{options:?}");
    }
    assert!(normal_key(doc! { "a": "text", "b": 1, "c": "text" }.as_raw()).is_err());
    let key = normal_key(doc! { "a": 1, "b": "text", "c": "text", "d": -1 }.as_raw()).unwrap();
    assert_eq!(key, doc! { "a": 1, "_fts": "text", "_ftsx": 1, "d": -1 });
    let again = normal_key(key.as_raw()).unwrap();
    assert_eq!(again, key);
}

/// The words of a text, found in the plainest way.
fn naive_words(text: &str) -> Vec<String> {
    text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

proptest! {
    /// Without stems and stop words, what matches and how well follows from the words alone.
    #[test]
    fn results_equal_a_naive_reference(
        texts in prop::collection::vec("[abc ]{0,12}", 1..4),
        wanted in prop::collection::vec("[abc]{1,2}", 0..3),
        unwanted in prop::collection::vec("[abc]{1,2}", 0..2),
    ) {
        let spec = spec(doc! { "t": "text" }, doc! { "default_language": "none" });
        let search = wanted.iter().cloned().chain(unwanted.iter().map(|word| format!("-{word}")));
        let search = search.collect::<Vec<_>>().join(" ");
        let doc = DocBuf::build(|out| {
            let mut list = out.array("t");
            texts.iter().for_each(|text| _ = list.push(Value::String(text)));
        });
        let mut expected = 0.0;
        let distinct: BTreeSet<&String> = wanted.iter().collect();
        for text in &texts {
            let words = naive_words(text);
            for word in &distinct {
                let count = words.iter().filter(|other| other == word).count();
                let frequency: f64 = (0..count).map(|n| 0.5f64.powi(n as i32)).sum();
                let share = if count == 0 { 0.0 } else { 0.5 * count as f64 / words.len() as f64 + 0.5 };
                expected += frequency * share * if text == *word { 1.1 } else { 1.0 };
            }
        }
        let spoiled = texts.iter().any(|text| naive_words(text).iter().any(|word| unwanted.contains(word)));
        match score(&spec, &doc, &params(&search)) {
            Some(found) => prop_assert!(!spoiled && (found - expected).abs() < 1e-9, "{found} {expected}"),
            None => prop_assert!(spoiled || expected == 0.0),
        }
    }
}
