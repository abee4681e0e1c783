use std::cmp::Ordering;
use std::ops::Range;

use proptest::prelude::*;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_meter::{Meter, Process};

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
        // An array at a position is one value where the path ends, as in an index.
        (doc! { "a.0": 1 }, doc! { "a": [[5, 0], 7] }, r#"[Array({"0": Int32(5), "1": Int32(0)})]"#),
        (doc! { "a.0": -1 }, doc! { "a": [[]] }, "[Array({})]"),
        (doc! { "a.0.b": 1 }, doc! { "a": [[{ "b": 3 }, { "b": 2 }]] }, "[Int32(2)]"),
        (
            doc! { "a.0": 1, "a.1": 1 },
            doc! { "a": [[5], [6]] },
            r#"[Array({"0": Int32(5)}), Array({"0": Int32(6)})]"#,
        ),
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

    fn open_some(&mut self, which: Range<usize>) -> sheaf_errors::Result<Vec<Run>> {
        let which = which.start..which.end.min(self.0.len());
        let open = |run: &Vec<(Vec<u8>, Vec<u8>)>| {
            Box::new(MemoryRun(run.clone().into_iter(), Default::default())) as Run
        };
        Ok(self.0[which].iter().map(open).collect())
    }

    fn merge(&mut self, which: Range<usize>, merged: &mut Sorted) -> sheaf_errors::Result<()> {
        let mut run = Vec::new();
        while merged.advance()? {
            let mut key = Vec::new();
            merged.copy_key(&mut key)?;
            run.push((key, merged.payload().to_vec()));
        }
        self.0.splice(which, [run]);
        Ok(())
    }
}

/// What is still to come, and the item at hand.
struct MemoryRun(std::vec::IntoIter<(Vec<u8>, Vec<u8>)>, (Vec<u8>, Vec<u8>));

impl ReadRun for MemoryRun {
    fn advance(&mut self, key: &mut Vec<u8>) -> sheaf_errors::Result<Option<usize>> {
        let Some(item) = self.0.next() else { return Ok(None) };
        self.1 = item;
        key.clear();
        key.extend(self.1.0.iter().take(KEY_AT_HAND));
        Ok(Some(self.1.0.len()))
    }

    fn key_at(&self, at: usize, into: &mut [u8]) -> sheaf_errors::Result<()> {
        into.copy_from_slice(&self.1.0[at..at + into.len()]);
        Ok(())
    }

    fn payload(&mut self, payload: &mut Vec<u8>) -> sheaf_errors::Result<()> {
        *payload = std::mem::take(&mut self.1.1);
        Ok(())
    }
}

#[test]
fn a_full_sorter_fails_without_runs() {
    let mut sorter = Sorter::new(None, 1000, None);
    let failed = (0..100).find_map(|n: u8| sorter.add(&[n], &[0; 50]).err());
    assert_eq!(failed.map(|e| e.code().0), Some(292));
}

/// Runs in memory are counted nowhere, as files are: what is in use is the sorter's.
#[test]
fn large_keys_are_counted_before_they_are_taken_and_few_are_read_at_a_time() {
    const LARGE: usize = 700 << 10;
    // The operation ends where it has more than that at any time.
    let process = Process::new(64 << 20, 2 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    for limit in [None, Some(30)] {
        let mut sorter = Sorter::new(limit, 1 << 20, Some(Box::new(MemoryRuns::default())));
        let mut most = 0;
        for at in 0..40_u8 {
            sorter.add(&[vec![39 - at], vec![0; LARGE]].concat(), &[39 - at]).unwrap();
            most = most.max(process.used());
        }
        assert!(sorter.spills().count > 1);
        let mut sorted = sorter.finish().unwrap();
        for at in 0..limit.unwrap_or(40) as u8 {
            assert!(sorted.advance().unwrap());
            assert_eq!(sorted.payload(), [at]);
            most = most.max(process.used());
        }
        assert!(!sorted.advance().unwrap());
        assert!(most > LARGE as u64, "{most} bytes");
        drop(sorted);
        assert_eq!(process.used(), 0);
    }
}

#[test]
fn an_item_for_which_there_is_no_memory_sends_to_disk_what_is_there() {
    let process = Process::new(64 << 20, 1 << 20);
    let _entered = sheaf_meter::enter(Meter::background(&process));
    let mut sorter = Sorter::new(None, 100 << 20, Some(Box::new(MemoryRuns::default())));
    (0..10).for_each(|at: u8| sorter.add(&[9 - at], &vec![at; 300 << 10]).unwrap());
    assert_eq!(sorter.spills().records, 9);
    // What is larger than all that there may be is refused, and nothing of it was taken.
    let refused = sorter.add(&[0], &vec![0; 2 << 20]).unwrap_err();
    assert_eq!(refused.code(), sheaf_errors::Code::EXCEEDED_MEMORY_LIMIT);
    assert!(process.used() <= 1 << 20);
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
