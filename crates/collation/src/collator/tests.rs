use proptest::prelude::*;
use sheaf_bson::{DocBuf, doc};

use super::*;

fn collator(spec: DocBuf) -> SharedCollator {
    Collator::parse(spec.as_raw()).unwrap().unwrap()
}

fn sorted(spec: DocBuf, mut words: Vec<&str>) -> Vec<&str> {
    let collator = collator(spec);
    words.sort_by(|a, b| collator.compare(a, b));
    words
}

#[test]
fn every_locale_has_its_rules() {
    for locale in locales::all() {
        let collator = collator(doc! { "locale": locale });
        assert!(collator.compare("a", "b").is_lt(), "{locale}");
    }
}

#[test]
fn locales_and_options_count() {
    assert_eq!(sorted(doc! { "locale": "sv" }, vec!["ö", "z", "å", "ä"]), ["z", "å", "ä", "ö"]);
    assert_eq!(sorted(doc! { "locale": "de" }, vec!["ö", "z", "o"]), ["o", "ö", "z"]);
    assert!(collator(doc! { "locale": "de@collation=phonebook" }).compare("ä", "af").is_lt());
    assert!(collator(doc! { "locale": "es@collation=traditional" }).compare("ch", "cz").is_gt());
    assert_eq!(sorted(doc! { "locale": "en", "numericOrdering": true }, vec!["10", "9"]), ["9", "10"]);
    assert_eq!(sorted(doc! { "locale": "en", "caseFirst": "upper" }, vec!["a", "A"]), ["A", "a"]);
    let words = || vec!["côte", "coté", "cote"];
    for spec in [doc! { "locale": "fr_CA" }, doc! { "locale": "fr", "backwards": true }] {
        assert_eq!(sorted(spec, words()), ["cote", "côte", "coté"]);
    }
    for spec in [doc! { "locale": "fr" }, doc! { "locale": "fr_CA", "backwards": false }] {
        assert_eq!(sorted(spec, words()), ["cote", "coté", "côte"]);
    }
    let shifted = |extra: DocBuf| {
        let mut spec = doc! { "locale": "en", "strength": 3, "alternate": "shifted" };
        spec.edit(|out| _ = out.append_all(extra.as_raw()));
        collator(spec)
    };
    assert!(shifted(doc! {}).compare("a-b", "ab").is_eq());
    assert!(shifted(doc! { "maxVariable": "space" }).compare("a-b", "ab").is_ne());
    assert!(shifted(doc! { "maxVariable": "space" }).compare("a b", "ab").is_eq());
}

#[test]
fn strings_count_wherever_they_are() {
    let collator = collator(doc! { "locale": "en", "strength": 2 });
    let (a, b) = (doc! { "x": ["A", { "y": "b" }], "z": 1 }, doc! { "x": ["a", { "y": "B" }], "z": 1.0 });
    assert!(collator.compare_values(Value::Document(a.as_raw()), Value::Document(b.as_raw())).is_eq());
    assert!(compare_by(None, Value::Document(a.as_raw()), Value::Document(b.as_raw())).is_ne());
    let c = doc! { "X": ["a"] };
    assert!(collator.compare_values(Value::Document(a.as_raw()), Value::Document(c.as_raw())).is_ne());
}

/// Locales with rules of their own: other orders, letters of several characters, contractions, other scripts, letters that count
/// by accents from behind.
const LOCALES: &[&str] = &[
    "en",
    "fr",
    "fr_CA",
    "de@collation=phonebook",
    "sv",
    "da",
    "cs",
    "hu",
    "es@collation=traditional",
    "tr",
    "th",
    "ja",
    "zh",
    "zh@collation=stroke",
    "ko",
    "ar",
    "hi",
    "ru",
    "en_US_POSIX",
];

fn collation() -> impl Strategy<Value = DocBuf> {
    (prop::sample::select(LOCALES), 1..=5i32, 0..64u32).prop_map(|(locale, strength, flags)| {
        let flag = |at: u32| flags >> at & 1 == 1;
        let mut spec = doc! { "locale": locale, "strength": strength };
        spec.append("numericOrdering", flag(0)).append("caseLevel", flag(1));
        spec.append("alternate", if flag(2) { "shifted" } else { "non-ignorable" });
        spec.append("maxVariable", if flag(3) { "space" } else { "punct" });
        spec.append("normalization", flag(4));
        spec.append(
            "caseFirst",
            if strength < 3 { "off" } else { ["upper", "lower", "off"][flags as usize % 3] },
        );
        spec.append("backwards", strength > 1 && flag(5));
        spec
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[a-cA-C0-9 é\u{301}ﬁ\u{0}\\-ß]{0,6}",
        2 => "[chlzåÅäöıİ葉ばバ가ก็ลاय़я\u{300}-\u{304}.,'_]{0,5}",
        1 => "\\PC{0,8}",
    ]
}

fn value() -> impl Strategy<Value = DocBuf> {
    prop_oneof![
        4 => text().prop_map(|a| doc! { "v": &*a }),
        1 => (text(), text()).prop_map(|(a, b)| doc! { "v": [&*a, &*b] }),
        1 => (text(), text()).prop_map(|(a, b)| doc! { "v": { "s": &*a, "t": [1, { "u": &*b }] } }),
        1 => any::<i32>().prop_map(|n| doc! { "v": n }),
    ]
}

proptest! {
    #[test]
    fn keys_have_the_order_of_comparisons(x in value(), y in value(), spec in collation()) {
        let collator = collator(spec);
        let arena = Bump::new();
        let (x, y) = (x.as_raw().get_or_missing("v"), y.as_raw().get_or_missing("v"));
        let (a, b) = (collator.key(x, &arena), collator.key(y, &arena));
        prop_assert_eq!(compare(a, b), collator.compare_values(x, y));
        // As keys of indexes have them, upwards and downwards.
        let encoded = |value: Value<'_>, descending: bool| {
            let mut bytes = Vec::new();
            sheaf_bson::key::encode_bound(value, descending, &mut bytes);
            bytes
        };
        prop_assert_eq!(encoded(a, false).cmp(&encoded(b, false)), collator.compare_values(x, y));
        prop_assert_eq!(encoded(b, true).cmp(&encoded(a, true)), collator.compare_values(x, y));
    }
}

/// Locales for which CLDR has rules, and the data that is compiled in has none; docs/compatibility.md names them.
const WITHOUT_DATA: &[&str] = &["dz", "haw", "kl", "lkt", "ln@collation=phonetic", "se", "smn", "wae", "yi"];

#[test]
fn locales_have_the_rules_that_the_docs_promise() {
    // Letters that each of these sorts elsewhere by its own rules, and letters of the rest of the world.
    let words: Vec<String> = (0x21..0x2000u32).filter_map(char::from_u32).map(String::from).collect();
    let order = |locale: &str| {
        let collator = collator(doc! { "locale": locale });
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.sort_by(|a, b| collator.compare_values(Value::String(a), Value::String(b)));
        words.concat()
    };
    let root = order("en");
    for locale in WITHOUT_DATA {
        assert_eq!(order(locale), root, "{locale} has rules: the docs may say so");
    }
    for locale in ["en_US_POSIX", "se@collation=search", "sv", "da", "mt"] {
        assert_eq!(order(locale) == root, locale.starts_with("se"), "{locale}");
    }
}

#[test]
fn posix_has_the_order_of_ascii() {
    let collator = collator(doc! { "locale": "en_US_POSIX" });
    let mut words = ["b", "B", "a", "A", "_", "Z", "1", " "];
    words.sort_by(|a, b| collator.compare_values(Value::String(a), Value::String(b)));
    assert_eq!(words, [" ", "1", "A", "B", "Z", "_", "a", "b"]);
}
