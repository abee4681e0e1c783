use std::cmp::Ordering;

use proptest::prelude::*;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};

use super::*;

fn pattern(doc: DocBuf) -> SortPattern {
    SortPattern::parse(doc.as_raw()).unwrap()
}

fn key_of(sort: DocBuf, doc: &DocBuf) -> String {
    let pattern = pattern(sort);
    let key = pattern.key(doc.as_raw(), RawDoc::EMPTY).unwrap();
    format!("{key:?}")
}

#[test]
fn arrays_count_as_their_extreme_element() {
    let table: &[(DocBuf, DocBuf, &str)] = &[
        (doc! { "a": 1 }, doc! { "a": [3, 1, 2] }, "[Int32(1)]"),
        (doc! { "a": -1 }, doc! { "a": [3, 1, 2] }, "[Int32(3)]"),
        (doc! { "a": 1 }, doc! { "a": [] }, "[Undefined]"),
        (doc! { "a.b": 1 }, doc! { "a": [] }, "[Null]"),
        (doc! { "a": 1 }, doc! {}, "[Null]"),
        (doc! { "a.b": 1 }, doc! { "a": [{ "b": 2 }, { "b": [0, 5] }] }, "[Int32(0)]"),
        (doc! { "a.b": 1 }, doc! { "a": [{ "b": 2 }, 7] }, "[Null]"),
        (doc! { "a.1": 1 }, doc! { "a": [3, 1, 2] }, "[Int32(1)]"),
        (doc! { "a.1.b": -1 }, doc! { "a": [3, { "b": [4, 6] }] }, "[Int32(6)]"),
        (doc! { "a": 1 }, doc! { "a": [[5, 0], [4, 9]] }, r#"[Array({"0": Int32(4), "1": Int32(9)})]"#),
        // Keys below one array are taken together, not each for itself.
        (
            doc! { "a.b": 1, "a.c": 1 },
            doc! { "a": [{ "b": 2, "c": 1 }, { "b": 1, "c": 9 }] },
            "[Int32(1), Int32(9)]",
        ),
        (
            doc! { "a.b": 1, "a.c": -1 },
            doc! { "a": [{ "b": 1, "c": 1 }, { "b": 1, "c": 9 }] },
            "[Int32(1), Int32(9)]",
        ),
    ];
    for (sort, doc, key) in table {
        assert_eq!(key_of(sort.clone(), doc), *key, "{sort:?} {doc:?}");
    }
}

#[test]
fn parallel_arrays_are_an_error() {
    let sort = pattern(doc! { "a": 1, "b": 1 });
    let doc = doc! { "a": [1], "b": [2] };
    assert_eq!(sort.key(doc.as_raw(), RawDoc::EMPTY).unwrap_err().code().0, 2);
}

#[test]
fn wrong_patterns() {
    let table: &[(DocBuf, i32)] = &[
        (doc! { "a": "asc" }, 15974),
        (doc! { "a": true }, 15974),
        (doc! { "a": 2 }, 15975),
        (doc! { "a": 0 }, 15975),
        (doc! { "": 1 }, 40352),
        (doc! { "a.": 1 }, 40353),
        (doc! { "a..b": 1 }, 15998),
        (doc! { "$a": 1 }, 16410),
        (doc! { "a": { "$foo": 1 } }, 17312),
        (doc! { "a": { "$meta": "nonsense" } }, 31138),
        (doc! { "a": 1, "b": 1, "a": -1 }, 7472500),
    ];
    // More than there may be are not compared with each other.
    let long = DocBuf::build(|out| (0..300_000).for_each(|n| _ = out.append(&format!("f{n}"), 1)));
    assert_eq!(SortPattern::parse(long.as_raw()).unwrap_err().code().0, 13103);
    for (sort, code) in table {
        assert_eq!(SortPattern::parse(sort.as_raw()).unwrap_err().code().0, *code, "{sort:?}");
    }
    assert_eq!(SortPattern::parse_stage(Value::Int32(1)).unwrap_err().code().0, 15973);
    assert_eq!(SortPattern::parse_stage(Value::Document(RawDoc::EMPTY)).unwrap_err().code().0, 15976);
    assert!(matches!(FindSort::parse(doc! { "$natural": -1 }.as_raw()), Ok(FindSort::Natural(true))));
    assert_eq!(FindSort::parse(doc! { "$natural": 3 }.as_raw()).unwrap_err().code().0, 2);
    assert_eq!(FindSort::parse(doc! { "$natural": 1, "a": 1 }.as_raw()).unwrap_err().code().0, 2);
}

/// Runs kept in memory.
#[derive(Default)]
struct MemoryRuns(Vec<Vec<(Vec<u8>, Vec<u8>)>>);

impl Runs for MemoryRuns {
    fn write(&mut self, items: &mut dyn Iterator<Item = (&[u8], &[u8])>) -> sheaf_errors::Result<()> {
        self.0.push(items.map(|(key, payload)| (key.to_vec(), payload.to_vec())).collect());
        Ok(())
    }

    fn open(&mut self) -> sheaf_errors::Result<Vec<Run>> {
        Ok(self.0.clone().into_iter().map(|run| Box::new(MemoryRun(run.into_iter())) as Run).collect())
    }
}

struct MemoryRun(std::vec::IntoIter<(Vec<u8>, Vec<u8>)>);

impl ReadRun for MemoryRun {
    fn read(&mut self, key: &mut Vec<u8>, payload: &mut Vec<u8>) -> sheaf_errors::Result<bool> {
        let next = self.0.next();
        Ok(next.map(|next| (*key, *payload) = next).is_some())
    }
}

#[test]
fn a_full_sorter_fails_without_runs() {
    let mut sorter = Sorter::new(None, 1000, None);
    let failed = (0..100).find_map(|n: u8| sorter.add(&[n], &[0; 50]).err());
    assert_eq!(failed.map(|e| e.code().0), Some(292));
}

proptest! {
    #[test]
    fn sorter_is_a_stable_sort(keys in prop::collection::vec(0u8..20, 0..200), limit in 0u64..60, memory in 200usize..20_000) {
        for limit in [None, Some(limit)] {
            let mut sorter = Sorter::new(limit, memory, Some(Box::new(MemoryRuns::default())));
            let mut expected: Vec<(u8, usize)> = keys.iter().copied().zip(0..).collect();
            for (key, at) in &expected {
                sorter.add(&[*key], &at.to_le_bytes()).unwrap();
            }
            expected.sort_by_key(|(key, _)| *key);
            expected.truncate(limit.map_or(usize::MAX, |n| n as usize));
            let got: Vec<Vec<u8>> = sorter.finish().unwrap().map(Result::unwrap).collect();
            let expected: Vec<Vec<u8>> = expected.iter().map(|(_, at)| at.to_le_bytes().to_vec()).collect();
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn keys_of_any_length_and_payloads_of_any_size_are_sorted(
        items in prop::collection::vec(("[ab\\x00]{0,12}", 0usize..3000), 0..300),
        memory in 2000usize..400_000,
    ) {
        let mut sorter = Sorter::new(None, memory, Some(Box::new(MemoryRuns::default())));
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for (at, (key, size)) in items.iter().enumerate() {
            let payload = at.to_string().repeat(*size);
            let (first, rest) = payload.as_bytes().split_at(payload.len() / 3);
            sorter.add_parts(key.as_bytes(), &[first, rest]).unwrap();
            expected.push((key.as_bytes().to_vec(), payload.into_bytes()));
        }
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        let mut sorted = sorter.finish().unwrap();
        for (_, payload) in &expected {
            prop_assert!(sorted.advance().unwrap());
            prop_assert_eq!(sorted.payload(), &payload[..]);
        }
        prop_assert!(!sorted.advance().unwrap());
    }

    #[test]
    fn key_bytes_order_as_documents_do(a in -5i32..5, b in -5.0f64..5.0, text in "[a-c]{0,3}") {
        let docs = [
            doc! { "x": a, "y": b }, doc! { "x": b, "y": a }, doc! { "x": &text, "y": a },
            doc! { "x": [a, 2], "y": &text }, doc! { "y": b }, doc! { "x": [], "y": (), },
        ];
        let sort = pattern(doc! { "x": 1, "y": -1 });
        let bytes = |doc: &DocBuf| {
            let mut out = Vec::new();
            sort.put_key_bytes(doc.as_raw(), RawDoc::EMPTY, &mut out).unwrap();
            out
        };
        for left in &docs {
            for right in &docs {
                let order: Ordering = sort.compare_docs(left.as_raw(), right.as_raw()).unwrap();
                prop_assert_eq!(bytes(left).cmp(&bytes(right)), order);
            }
        }
    }
}
