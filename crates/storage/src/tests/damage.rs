//! A damaged log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sheaf_bson::doc;
use sheaf_errors::Code;
use sheaf_log::SegmentFile;

use super::position::flush_unordered;
use super::support::*;
use crate::{Engine, Kept, OpTime, cut_log, repair};

const DOCUMENTS: u64 = 50;

/// What a crash leaves of a folder with documents 0 to 49, each an entry that was synced by itself; the first twenty are flushed. And the
/// position of the last entry.
fn folder() -> (tempfile::TempDir, OpTime) {
    let (dir, engine) = fresh();
    for id in 0..DOCUMENTS {
        insert(&engine, C, &doc! { "_id": id as i32 }).unwrap();
        engine.core().durability.log().unwrap().sync().unwrap();
        if id == 19 {
            engine.checkpoint().unwrap();
        }
    }
    (crash_copy(dir.path()), engine.last_applied())
}

fn segments(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let items = std::fs::read_dir(folder.join("log")).unwrap().map(|item| item.unwrap().path());
    items.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Flips a bit in what an entry says.
fn damage(folder: &Path, index: u64) {
    let (path, mut bytes) = segments(folder).pop_first().unwrap();
    let mut file = SegmentFile::open(&path).unwrap();
    while let Some((at, offset, _)) = file.next().unwrap() {
        if at.index == index {
            bytes[offset as usize + 20] ^= 4;
        }
    }
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn what_is_before_the_damage_stays() {
    let (dir, last) = folder();
    // That of document 34.
    let bad = last.index - 15;
    damage(dir.path(), bad);
    let before = segments(dir.path());
    let error = Engine::open(options(dir.path())).err().expect("the log is damaged");
    assert_eq!(error.code(), Code::CHECKSUM_MISMATCH);
    let name = before.keys().next().unwrap().file_name().unwrap().to_str().unwrap();
    let entry = format!("entry {bad} (term {})", last.term);
    for part in
        [name, "at byte", &entry, "do not have that entry", "Restore", "sheaf repair --dbpath", "--cut-log"]
    {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    let seen = repair(options(dir.path()), &[]).unwrap().damaged.pop().unwrap();
    assert!(seen.aside.is_none() && segments(dir.path()) == before);

    let done = cut_log(options(dir.path())).unwrap();
    let [cut] = &done.damaged[..] else { panic!("{done:?}") };
    assert!(matches!(cut.mending.kept, Kept::UpTo(kept) if kept.index == bad - 1), "{cut:?}");
    assert_eq!((cut.mending.last_lost, done.last.index), (Some(last), bad - 1));
    let aside = cut.aside.as_deref().unwrap();
    assert!(aside.starts_with(dir.path().join("repair")));
    assert_eq!(std::fs::read(aside.join(name)).unwrap(), before.into_values().next().unwrap());
    assert!(cut_log(options(dir.path())).unwrap().damaged.is_empty());
    let engine = open(dir.path());
    assert_eq!(all(&engine, C).len(), 34);
    insert(&engine, C, &doc! { "_id": 100 }).unwrap();
    assert_valid(&engine, C);
    drop(engine);
    assert_eq!(all(&open(dir.path()), C).len(), 35);
}

#[test]
fn what_is_flushed_is_not_lost_with_the_log() {
    for flushed in [0, 19] {
        let (dir, last) = folder();
        damage(dir.path(), last.index - (DOCUMENTS - 1) + flushed);
        let error = Engine::open(options(dir.path())).err().expect("the log is damaged");
        assert!(error.message().contains("RocksDB's files have that entry"), "{error}");
        let done = cut_log(options(dir.path())).unwrap();
        let [cut] = &done.damaged[..] else { panic!("{done:?}") };
        assert!(matches!(cut.mending.kept, Kept::From(first) if first <= cut.flushed.index + 1), "{cut:?}");
        assert_eq!((cut.mending.last_lost, done.last), (None, last));
        let engine = open(dir.path());
        assert_eq!(all(&engine, C).len() as u64, DOCUMENTS);
        insert(&engine, C, &doc! { "_id": 100 }).unwrap();
        assert_valid(&engine, C);
    }
}

/// RocksDB has flushed by itself, so that counters are to be made anew from a part of the log that is damaged.
#[test]
fn a_log_that_begins_behind_the_last_checkpoint_is_enough() {
    let (dir, engine) = fresh();
    let insert_some = |ids: std::ops::Range<i32>| {
        for id in ids {
            insert(&engine, C, &doc! { "_id": id }).unwrap();
        }
        engine.core().durability.log().unwrap().sync().unwrap();
    };
    engine.checkpoint().unwrap();
    insert_some(0..20);
    flush_unordered(&engine);
    let held = engine.last_applied().index;
    insert_some(20..30);
    for (bad, in_part) in [(held - 5, false), (held, true)] {
        let copy = crash_copy(dir.path());
        damage(copy.path(), bad);
        let done = cut_log(options(copy.path())).unwrap();
        let [cut] = &done.damaged[..] else { panic!("{done:?}") };
        assert_eq!((cut.mending.kept, cut.flushed.index), (Kept::From(bad + 1), held));
        assert_eq!(cut.in_part, in_part);
        let again = open(copy.path());
        assert_eq!(all(&again, C), all(&engine, C));
        assert_valid(&again, C);
    }
}

#[test]
fn a_member_is_told_to_copy_the_others() {
    let (dir, last) = folder();
    damage(dir.path(), last.index - 15);
    let member = crate::Options { replica: true, ..options(dir.path()) };
    let error = Engine::open(member).err().expect("the log is damaged");
    assert!(error.message().contains("Empty the folder: the member copies everything"), "{error}");
}
