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

proptest! {
    #[test]
    fn keys_have_the_order_of_comparisons(
        a in "[a-cA-C0-9 é\u{301}ﬁ\u{0}\\-ß]{0,6}",
        b in "[a-cA-C0-9 é\u{301}ﬁ\u{0}\\-ß]{0,6}",
        strength in 1..=5i32,
        flags in 0..32u32,
    ) {
        let flag = |at: u32| flags >> at & 1 == 1;
        let mut spec = doc! { "locale": if flag(0) { "fr_CA" } else { "en" }, "strength": strength };
        spec.append("numericOrdering", flag(1)).append("caseLevel", flag(2));
        spec.append("alternate", if flag(3) { "shifted" } else { "non-ignorable" });
        if strength >= 3 {
            spec.append("caseFirst", if flag(4) { "upper" } else { "off" });
        }
        let collator = collator(spec);
        let arena = Bump::new();
        let (x, y) = (doc! { "v": [&*a] }, doc! { "v": [&*b] });
        let (x, y) = (x.as_raw().get_or_missing("v"), y.as_raw().get_or_missing("v"));
        let by_keys = compare(collator.key(x, &arena), collator.key(y, &arena));
        prop_assert_eq!(by_keys, collator.compare_values(x, y));
    }
}
