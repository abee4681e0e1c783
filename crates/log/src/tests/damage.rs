//! What is kept of a damaged log.

use std::os::unix::fs::FileExt;

use super::*;
use crate::segment::{Segment, segment_path};
use crate::{Damage, Kept, Mending, Recovered};

const ENTRIES: u64 = 20;

fn open(dir: &Path, applied: u64) -> crate::Result<(Log, Recovered)> {
    Log::open(options(dir), up_to(applied))
}

fn up_to(applied: u64) -> OpTime {
    if applied > 0 { at(applied) } else { OpTime::default() }
}

fn damage_of(dir: &Path, applied: u64) -> Option<Damage> {
    match open(dir, applied) {
        Ok(_) => None,
        Err(Error::Damaged(damage)) => Some(damage),
        Err(error) => panic!("{error}"),
    }
}

fn payload(index: u64) -> Vec<u8> {
    vec![index as u8; 50 + index as usize]
}

/// A log of several segments whose entries were synced one by one.
fn synced() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &(1..=ENTRIES).map(payload).collect::<Vec<_>>(), true);
    dir
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    // As a new file: copies of the folder may share the old one.
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
}

/// Mends a log that is damaged in one place, and checks that what must be there still is.
fn mend(dir: &Path, applied: u64, what: &str) -> Kept {
    let damage = damage_of(dir, applied).unwrap();
    let before: Vec<_> =
        segment_files(dir).iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
    let mending = Mending::of(dir, damage.clone(), up_to(applied)).unwrap();
    let aside = tempfile::tempdir().unwrap();
    mending.carry_out(aside.path()).unwrap();
    for (file, bytes) in before {
        let kept = aside.path().join(file.file_name().unwrap());
        let is_there =
            [&file, &kept].into_iter().any(|file| fs::read(file).is_ok_and(|there| there == bytes));
        assert!(is_there, "{what}: {} is gone", file.display());
    }
    check_kept(dir, applied, &mending, what);
    // The next entry does not meet what was there.
    let (log, _) = open(dir, applied).unwrap();
    let next = log.append(2, 9_000, &[b"anew"]).unwrap();
    drop(log);
    assert_eq!(open(dir, applied).unwrap().0.last(), next, "{what}");
    mending.kept
}

fn check_kept(dir: &Path, applied: u64, mending: &Mending, what: &str) {
    let bad = mending.damage.entry;
    let (log, _) = open(dir, applied).unwrap_or_else(|error| panic!("{what}: {error}"));
    let first = log.stats().first_index;
    let found = entries(&log, first);
    assert!(found.iter().all(|(index, bytes)| *bytes == payload(*index)), "{what}");
    assert!((first..).zip(&found).all(|(index, entry)| entry.0 == index), "{what}");
    match mending.kept {
        Kept::All => assert_eq!(found.len() as u64, ENTRIES, "{what}"),
        Kept::UpTo(last) => {
            assert!(bad > applied, "{what}");
            assert_eq!((first, last.index, log.last()), (1, bad - 1, last), "{what}");
            let lost = mending.last_lost.map(|lost| lost.index);
            assert!(lost == Some(ENTRIES) || bad == ENTRIES, "{what}: {lost:?}");
        }
        Kept::From(index) => {
            assert!(bad <= applied && index <= applied + 1 && first == index, "{what}: {first}");
            assert_eq!((log.last().index, mending.last_lost), (ENTRIES, None), "{what}");
        }
        Kept::Nothing => {
            assert_eq!((applied, bad, found.len(), mending.last_lost), (ENTRIES, ENTRIES, 0, None), "{what}");
        }
    }
}

#[test]
fn a_flipped_byte_costs_no_more_than_it_must() {
    let mut seen = [0; 4];
    for applied in [0, 6, 7, 13, ENTRIES] {
        let whole = synced();
        for file in 0..segment_files(whole.path()).len() {
            let len = fs::metadata(&segment_files(whole.path())[file]).unwrap().len() as usize;
            for byte in (0..len).step_by(11) {
                let dir = copy_of(whole.path());
                flip(&segment_files(dir.path())[file], byte);
                // In the last entry it is a torn end, and before what is applied nobody has looked.
                if damage_of(dir.path(), applied).is_none() {
                    continue;
                }
                let what = format!("byte {byte} of file {file}, applied {applied}");
                seen[match mend(dir.path(), applied, &what) {
                    Kept::All => 0,
                    Kept::UpTo(_) => 1,
                    Kept::From(_) => 2,
                    Kept::Nothing => 3,
                }] += 1;
            }
        }
    }
    assert!(seen.iter().all(|times| *times > 3), "{seen:?}");
}

#[test]
fn damage_names_segment_byte_and_entry() {
    let dir = synced();
    let second = segment_files(dir.path()).remove(1);
    flip(&second, 32 + HEADER_LEN + 3);
    let damage = damage_of(dir.path(), 0).unwrap();
    let first: u64 = damage.segment.trim_end_matches(".log").parse().unwrap();
    assert_eq!((damage.offset, damage.entry, damage.term), (32, first, Some(1)));
    let text = damage.to_string();
    assert!(text.contains(&format!("{first:020}.log at byte 32, entry {first} (term 1)")), "{text}");
    // A head that is not readable says no term.
    flip(&second, 32 + HEADER_LEN + 3);
    flip(&second, 32 + 9);
    assert_eq!(damage_of(dir.path(), 0).unwrap().term, None);
    flip(&second, 32 + 9);
    flip(&second, 9);
    let damage = damage_of(dir.path(), 0).unwrap();
    assert_eq!((damage.offset, damage.entry), (0, first));
}

#[test]
fn damage_in_several_places_is_mended_one_after_another() {
    let dir = synced();
    let segment_of = |index| {
        let first =
            |file: &std::path::PathBuf| file.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
        segment_files(dir.path()).into_iter().rfind(|file| first(file) <= index).unwrap()
    };
    // One entry that is applied, and one that is not.
    let applied = 14;
    for bad in [13, 17] {
        let segment = segment_of(bad);
        let bytes = fs::read(&segment).unwrap();
        let place = bytes.windows(50).position(|window| window == &payload(bad)[..50]);
        flip(&segment, place.unwrap());
    }
    let mut seen = Vec::new();
    while let Some(damage) = damage_of(dir.path(), applied) {
        let aside = tempfile::tempdir().unwrap();
        let mending = Mending::of(dir.path(), damage, at(applied)).unwrap();
        mending.carry_out(aside.path()).unwrap();
        seen.push((mending.kept, mending.next, mending.last_lost));
    }
    let expected = [(Kept::From(14), Some(17), None), (Kept::UpTo(at(16)), None, Some(at(ENTRIES)))];
    assert_eq!(seen, expected);
    let (log, _) = open(dir.path(), applied).unwrap();
    assert_eq!(entries(&log, 14), (14..17).map(|index| (index, payload(index))).collect::<Vec<_>>());
}

#[test]
fn a_log_without_anything_readable_begins_anew() {
    let dir = synced();
    for file in segment_files(dir.path()) {
        let mut bytes = fs::read(&file).unwrap();
        bytes[32..].fill(7);
        fs::write(&file, bytes).unwrap();
    }
    let damage = damage_of(dir.path(), 11).unwrap();
    let mending = Mending::of(dir.path(), damage, at(11)).unwrap();
    assert_eq!((mending.kept, mending.last_lost), (Kept::Nothing, None));
    mending.carry_out(tempfile::tempdir().unwrap().path()).unwrap();
    assert_eq!(open(dir.path(), 11).unwrap().0.append(1, 500, &[b"x"]).unwrap().index, 12);
}

#[test]
fn a_log_that_ends_before_what_storage_has_is_damaged() {
    let whole = synced();
    let last = segment_files(whole.path()).pop().unwrap();
    let cut =
        |dir: &Path| fs::OpenOptions::new().write(true).open(dir.join(last.file_name().unwrap())).unwrap();
    // The first entry of the last segment.
    let bad = 19;
    let harms: [&dyn Fn(&Path); 3] = [
        &|dir| cut(dir).set_len(32).unwrap(),
        &|dir| cut(dir).write_all_at(&[0; 400 - 32], 32).unwrap(),
        &|dir| fs::remove_file(dir.join(last.file_name().unwrap())).unwrap(),
    ];
    for harm in harms {
        let dir = copy_of(whole.path());
        // As a file of its own.
        fs::copy(&last, dir.path().join("other")).unwrap();
        fs::rename(dir.path().join("other"), dir.path().join(last.file_name().unwrap())).unwrap();
        harm(dir.path());
        assert_eq!(damage_of(dir.path(), bad - 1), None);
        let damage = damage_of(dir.path(), ENTRIES).unwrap();
        assert_eq!((damage.entry, damage.term), (bad, None), "{damage}");
        let mending = Mending::of(dir.path(), damage, at(ENTRIES)).unwrap();
        assert_eq!((mending.kept, mending.last_lost), (Kept::Nothing, None));
        let left = segment_files(dir.path());
        let aside = tempfile::tempdir().unwrap();
        mending.carry_out(aside.path()).unwrap();
        assert_eq!(segment_files(aside.path()).len(), left.len());
        assert_eq!(open(dir.path(), ENTRIES).unwrap().0.append(1, 500, &[b"x"]).unwrap().index, ENTRIES + 1);
    }
}

#[test]
fn a_crash_while_mending_leaves_what_can_be_mended() {
    for (applied, file, byte) in
        [(0, 2, 60), (0, 2, 5), (13, 4, 60), (13, 1, 5), (ENTRIES, 6, 90), (0, 0, 60)]
    {
        let dir = synced();
        let what = format!("byte {byte} of file {file}, applied {applied}");
        flip(&segment_files(dir.path())[file], byte);
        let Some(damage) = damage_of(dir.path(), applied) else { panic!("{what}: no damage") };
        let mending = Mending::of(dir.path(), damage, up_to(applied)).unwrap();
        let mut copies = Vec::new();
        let aside = tempfile::tempdir().unwrap();
        mending.in_steps(aside.path(), &mut || copies.push(copy_of(dir.path()))).unwrap();
        assert!(copies.len() > 1);
        for copy in &copies {
            while let Some(damage) = damage_of(copy.path(), applied) {
                let aside = tempfile::tempdir().unwrap();
                Mending::of(copy.path(), damage, up_to(applied)).unwrap().carry_out(aside.path()).unwrap();
            }
            let (mended, _) = open(copy.path(), applied).unwrap();
            let (log, _) = open(dir.path(), applied).unwrap();
            assert_eq!(mended.last(), log.last(), "{what}");
            let first = log.stats().first_index;
            assert_eq!(entries(&mended, first), entries(&log, first), "{what}");
        }
    }
}

#[test]
fn the_only_segment_is_read_though_its_header_is_damaged() {
    let whole = tempfile::tempdir().unwrap();
    let one = Options { segment_bytes: 1 << 20, ..options(whole.path()) };
    let (log, _) = Log::open(one, OpTime::default()).unwrap();
    for index in 1..=ENTRIES {
        log.append(1, index, &[&payload(index)]).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    assert_eq!(segment_files(whole.path()).len(), 1);
    // Magic, version, check, first index, salt.
    for byte in [0, 7, 8, 12, 16, 24, 31] {
        let dir = copy_of(whole.path());
        flip(&segment_files(dir.path())[0], byte);
        assert_eq!(mend(dir.path(), 0, &format!("byte {byte}")), Kept::All);
    }
}

#[test]
fn segments_are_read_though_all_their_headers_are_damaged() {
    let dir = synced();
    let files = segment_files(dir.path());
    files.iter().for_each(|file| flip(file, 3));
    let aside = tempfile::tempdir().unwrap();
    for (number, _) in files.iter().enumerate() {
        let mending = Mending::of(dir.path(), damage_of(dir.path(), 0).unwrap(), OpTime::default()).unwrap();
        assert_eq!(mending.kept, Kept::All);
        let aside = aside.path().join(number.to_string());
        fs::create_dir(&aside).unwrap();
        mending.carry_out(&aside).unwrap();
    }
    let (log, _) = open(dir.path(), 0).unwrap();
    assert_eq!(entries(&log, 1).len() as u64, ENTRIES);
}

proptest! {
    /// The salt of all segments may look like that of the first of them, where entries' numbers are small.
    #[test]
    fn the_salt_of_a_damaged_header_is_found(
        salt in 1u64..,
        first in prop_oneof![1u64..300, 1u64..1 << 40],
        version in 2u32..=4,
        byte in 0usize..32,
        change in 1u8..,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::new(segment_path(dir.path(), first), first, 0, version, Salt(salt));
        let at = OpTime { term: 1, index: first, time: 7 };
        let mut bytes = segment_header(first, segment.base, version).to_vec();
        bytes.extend(Header::encode(at, 0, &[b"abc"], segment.salt));
        bytes.extend(b"abc");
        bytes[byte] ^= change;
        fs::write(&segment.path, bytes).unwrap();
        let (whole, torn) = list(dir.path()).unwrap();
        prop_assert!(whole.is_empty());
        prop_assert_eq!(torn[0].salt, segment.salt);
    }
}
