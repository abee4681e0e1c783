//! `$sample`'s records by chance: each as likely as any other, however they lie.

use std::collections::BTreeMap;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_storage::{CreateCollection, Engine, Options, Write};

const RECORDS: i32 = 20_000;
const WANTED: usize = 200;
const DRAWS: usize = 300;

/// Ids in clumps, small documents and large ones, some on disk and some in memory, some gone and some new.
fn fill(engine: &Engine, namespace: &str) {
    let go_on = || Ok(());
    engine.create_collection(namespace, &CreateCollection::default(), &go_on).unwrap();
    let insert = |from: i32, to: i32, bytes: &dyn Fn(i32) -> usize| {
        let mut unit = engine.write(&go_on);
        let collection = unit.collection(namespace).unwrap().unwrap();
        for at in from..to {
            let id = if at % 7 == 0 { at * 1000 } else { at - 1_000_000 };
            let padding: String =
                (0..bytes(at)).map(|n| (b'a' + ((n as i32 * at) % 23) as u8) as char).collect();
            unit.insert(&collection, doc! { "_id": id, "at": at, "p": padding.as_str() }.as_raw()).unwrap();
        }
        unit.commit().unwrap();
    };
    insert(0, 9_000, &|at| if at < 2_000 { 900 } else { 150 });
    insert(9_000, 9_300, &|_| 12_000);
    engine.checkpoint().unwrap();
    insert(9_300, RECORDS, &|at| 100 + (at % 5) as usize * 100);
    assert!(engine.view().unwrap().collection(namespace).unwrap().count() == RECORDS as u64);
}

#[test]
fn every_record_is_as_likely() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    fill(&engine, "test.c");
    let view = engine.view().unwrap();
    let collection = view.collection("test.c").unwrap();
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(23)
    };
    // Groups by size and place.
    let mut groups: BTreeMap<i32, usize> = BTreeMap::new();
    for _ in 0..DRAWS {
        let keys = view.random_records(collection, WANTED, &mut random, &|| Ok(())).unwrap().unwrap();
        assert_eq!(keys.len(), WANTED);
        let mut different = keys.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), WANTED, "a record came twice");
        for key in keys {
            let found = DocBuf::from(view.get(collection, &key).unwrap().unwrap().as_raw());
            let Some(Value::Int32(at)) = found.as_raw().get("at") else { panic!("{found:?}") };
            *groups.entry(at / 500).or_default() += 1;
        }
    }
    let mean = (DRAWS * WANTED) as f64 * 500.0 / f64::from(RECORDS);
    assert_eq!(groups.len(), RECORDS as usize / 500);
    for (group, found) in groups {
        let off = found as f64 / mean;
        assert!((0.85..1.15).contains(&off), "documents {}.. came {off} times as often", group * 500);
    }
}

#[test]
fn few_records_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let go_on = || Ok(());
    engine.create_collection("test.c", &CreateCollection::default(), &go_on).unwrap();
    let view = engine.view().unwrap();
    let mut number = 0u64;
    let mut random = || {
        number += 1;
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let collection = view.collection("test.c").unwrap();
    assert_eq!(view.random_records(collection, 1, &mut random, &go_on).unwrap(), None);
    let mut unit = engine.write(&go_on);
    let collection = unit.collection("test.c").unwrap().unwrap();
    for id in 0..150 {
        unit.insert(&collection, doc! { "_id": id }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    let view = engine.view().unwrap();
    let collection = view.collection("test.c").unwrap();
    let keys = view.random_records(collection, 7, &mut random, &go_on).unwrap();
    assert_eq!(keys.map(|keys| keys.len()), Some(7));
}
