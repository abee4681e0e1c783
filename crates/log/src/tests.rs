mod damage;
mod recycled;

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use crate::entry::{HEADER_LEN, Header, Salt};
use crate::recover::recover;
use crate::segment::{list, segment_header};
use crate::{Error, Log, OpTime, Options};

fn options(dir: &Path) -> Options {
    Options { dir: dir.to_owned(), segment_bytes: 400, retain_bytes: 0, spare_segments: 2 }
}

fn entries(log: &Log, from: u64) -> Vec<(u64, Vec<u8>)> {
    let mut reader = log.read_from(from).unwrap();
    std::iter::from_fn(|| reader.next().unwrap()).map(|entry| (entry.at.index, entry.payload)).collect()
}

fn fill(dir: &Path, payloads: &[Vec<u8>], sync_each: bool) {
    let (log, _) = Log::open(options(dir), OpTime::default()).unwrap();
    for (n, payload) in payloads.iter().enumerate() {
        let (head, tail) = payload.split_at(payload.len() / 2);
        log.append(1, 10 * (n as u64 + 1), &[head, tail]).unwrap();
        if sync_each {
            log.sync().unwrap();
            log.make_room();
        }
    }
}

fn segment_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn reads_back_across_segments_and_follows_appends() {
    let dir = tempfile::tempdir().unwrap();
    let payloads: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 50]).collect();
    fill(dir.path(), &payloads, false);
    let (log, recovered) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    assert_eq!((recovered.last.index, recovered.last.time, recovered.cut_bytes), (20, 200, 0));
    assert!(segment_files(dir.path()).len() > 3);
    assert_eq!(entries(&log, 1).len(), 20);
    assert_eq!(entries(&log, 13)[0], (13, vec![12; 50]));
    let mut reader = log.read_from(20).unwrap();
    assert_eq!(reader.next().unwrap().unwrap().at.index, 20);
    assert!(reader.next().unwrap().is_none());
    for n in 0..10 {
        log.append(2, 300 + n, &[&[7; 100]]).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().at.index, 21 + n);
    }
    assert_eq!(log.read_from_time(95).unwrap().index(), 10);
    assert_eq!(log.read_from_time(100).unwrap().index(), 10);
    assert_eq!(log.read_from_time(0).unwrap().index(), 1);
    assert_eq!(log.read_from_time(1000).unwrap().index(), 31);
}

#[test]
fn retention_keeps_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &vec![vec![1; 100]; 20], false);
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    assert_eq!(log.retain(0).unwrap(), 0);
    assert!(log.retain(9).unwrap() > 0);
    assert_eq!(entries(&log, 10).first().unwrap().0, 10);
    assert!(matches!(log.read_from(1), Err(Error::Gone { .. })));
}

fn at(index: u64) -> OpTime {
    OpTime { term: 1, index, time: index * 10 }
}

#[test]
fn cutting_back_and_going_on() {
    for keep in [0, 1, 6, 7, 8, 19] {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &vec![vec![1; 100]; 20], true);
        {
            let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
            log.truncate_after(at(keep)).unwrap();
            assert_eq!((log.last(), log.durable_index()), (at(keep), keep));
            assert_eq!(entries(&log, 1).len(), keep as usize);
            assert_eq!(log.append(2, keep * 10 + 5, &[b"new"]).unwrap().index, keep + 1);
            assert_eq!(entries(&log, keep + 1), vec![(keep + 1, b"new".to_vec())]);
            assert_eq!(log.durable_index(), keep);
            assert_eq!(log.sync().unwrap(), keep + 1);
        }
        let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
        assert_eq!(entries(&log, 1).len() as u64, keep + 1);
        assert_eq!(entries(&log, keep + 1), vec![(keep + 1, b"new".to_vec())]);
    }
}

fn copy_of(dir: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in segment_files(dir) {
        fs::copy(&file, to.path().join(file.file_name().unwrap())).unwrap();
    }
    to
}

#[test]
fn a_crash_while_cutting_leaves_a_log_that_ends_between() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &vec![vec![1; 100]; 20], true);
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    let mut copies = Vec::new();
    log.truncate_in_steps(at(7), &mut || copies.push(copy_of(dir.path()))).unwrap();
    assert!(copies.len() > 5);
    let mut last = 20;
    for copy in &copies {
        for _ in 0..2 {
            let (log, recovered) = Log::open(options(copy.path()), OpTime::default()).unwrap();
            assert_eq!(recovered.cut_bytes, 0);
            assert!((7..=last).contains(&recovered.last.index));
            last = recovered.last.index;
            assert_eq!(entries(&log, 1).len() as u64, last);
        }
        // The member does it again then, and goes on.
        let (log, _) = Log::open(options(copy.path()), at(5)).unwrap();
        log.truncate_after(at(7)).unwrap();
        assert_eq!(log.append(2, 75, &[b"new"]).unwrap().index, 8);
        drop(log);
        let (log, _) = Log::open(options(copy.path()), at(5)).unwrap();
        assert_eq!((log.last().index, log.last().term), (8, 2));
    }
    assert_eq!(last, 7);
}

#[test]
fn starts_anew_behind_what_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let applied = OpTime { term: 3, index: 50, time: 999 };
    let (log, recovered) = Log::open(options(dir.path()), applied).unwrap();
    assert_eq!(recovered.last, applied);
    assert_eq!(log.append(3, 1000, &[b"x"]).unwrap().index, 51);
    assert_eq!(entries(&log, 51).len(), 1);
}

#[test]
fn room_ahead_is_zeros_and_no_part_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let wide = |dir: &Path| Options { segment_bytes: 64 << 20, ..options(dir) };
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    log.append(1, 10, &[b"one"]).unwrap();
    log.sync().unwrap();
    log.make_room();
    let file = segment_files(dir.path())[0].clone();
    let len = fs::metadata(&file).unwrap().len();
    assert!(len > 1 << 20);
    assert!(log.stats().bytes < 200);
    for n in 2..=50u64 {
        log.append(1, n * 10, &[b"more"]).unwrap();
        log.sync().unwrap();
        log.make_room();
    }
    assert_eq!(fs::metadata(&file).unwrap().len(), len, "a sync changed the file's length");
    assert_eq!(entries(&log, 1).len(), 50);
    drop(log);
    for round in 0..3 {
        let (log, recovered) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        assert_eq!((recovered.last.index, recovered.cut_bytes), (50 + round, 0));
        log.append(1, 1000 + round, &[b"again"]).unwrap();
        log.sync().unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), len);
        assert_eq!(entries(&log, 50 + round)[1].1, b"again");
    }
}

#[test]
fn a_torn_entry_before_zeros_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let wide = |dir: &Path| Options { segment_bytes: 64 << 20, ..options(dir) };
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    for n in 1..=3u64 {
        log.append(1, n, &[&[n as u8; 500]]).unwrap();
        log.sync().unwrap();
        log.make_room();
    }
    // Nothing has said that this one is durable.
    log.append(1, 4, &[&[4; 500]]).unwrap();
    drop(log);
    let file = segment_files(dir.path())[0].clone();
    let mut bytes = fs::read(&file).unwrap();
    let last = 32 + 3 * 540;
    bytes[last + 200..last + 300].fill(0);
    fs::write(&file, &bytes).unwrap();
    let (log, recovered) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    assert_eq!(recovered.last.index, 3);
    assert!(recovered.cut_bytes > 0);
    // What is written over it leaves no trace of it behind.
    log.append(1, 4, &[b"x"]).unwrap();
    drop(log);
    let (log, recovered) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    assert_eq!((recovered.last.index, recovered.cut_bytes), (4, 0));
    assert_eq!(entries(&log, 4), vec![(4, b"x".to_vec())]);
}

#[test]
fn an_unsynced_end_of_a_segment_may_be_lost_though_the_next_one_is_there() {
    for durable in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &vec![vec![1; 100]; 6], durable);
        let files = segment_files(dir.path());
        assert!(files.len() > 2);
        let len = fs::metadata(&files[0]).unwrap().len();
        fs::OpenOptions::new().write(true).open(&files[0]).unwrap().set_len(len - 140).unwrap();
        match Log::open(options(dir.path()), OpTime::default()) {
            Ok((log, recovered)) => {
                assert!(!durable);
                assert_eq!(entries(&log, 1).len() as u64, recovered.last.index);
                assert!(recovered.last.index < 6 && recovered.cut_bytes > 0);
            }
            Err(error) => assert!(durable && matches!(error, Error::Damaged { .. }), "{error}"),
        }
    }
}

#[test]
fn the_header_of_a_segment_in_between_may_be_lost() {
    for durable in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &vec![vec![1; 100]; 8], durable);
        let files = segment_files(dir.path());
        assert!(files.len() > 3);
        let mut bytes = fs::read(&files[1]).unwrap();
        bytes[..32].fill(0);
        fs::write(&files[1], &bytes).unwrap();
        match Log::open(options(dir.path()), OpTime::default()) {
            Ok((log, recovered)) => {
                assert!(!durable && recovered.cut_bytes > 0);
                assert_eq!(entries(&log, 1).len() as u64, recovered.last.index);
                assert_eq!(segment_files(dir.path()), files[..1]);
                // What is appended now is not followed by what was there before.
                let next = log.append(2, 9_000, &[b"anew"]).unwrap();
                drop(log);
                let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
                assert_eq!(log.last(), next);
            }
            Err(error) => assert!(durable && matches!(error, Error::Damaged { .. }), "{error}"),
        }
    }
}

/// The only segment of a log is not thrown away because a bit of its header has flipped.
#[test]
fn a_damaged_header_of_the_only_segment_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let wide = |dir: &Path| Options { segment_bytes: 1 << 20, ..options(dir) };
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    for _ in 0..8 {
        log.append(1, 10, &[&[1; 100]]).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    let file = segment_files(dir.path()).remove(0);
    let whole = fs::read(&file).unwrap();
    for at in 0..32 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let opened = Log::open(wide(dir.path()), OpTime::default());
        assert!(matches!(opened, Err(Error::Damaged { .. })), "byte {at}: {:?}", opened.err());
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
    // Zeros instead of it: the entries cannot be told from others, but storage has some of them.
    let mut bytes = whole.clone();
    bytes[..32].fill(0);
    fs::write(&file, &bytes).unwrap();
    assert!(matches!(Log::open(wide(dir.path()), at(3)), Err(Error::Damaged { .. })));
    fs::write(&file, &whole).unwrap();
    let (log, _) = Log::open(wide(dir.path()), at(3)).unwrap();
    assert_eq!(entries(&log, 1).len(), 8);
}

/// Power was lost in the moment in which the folder was made.
#[test]
fn a_first_segment_that_was_only_begun_is_made_anew() {
    let salt = Salt(7);
    for bytes in [Vec::new(), vec![0; 10], vec![0; 4096], segment_header(1, salt, 2)[..20].to_vec()] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(format!("{:020}.log", 1)), bytes).unwrap();
        let (log, recovered) = Log::open(options(dir.path()), OpTime::default()).unwrap();
        assert_eq!(recovered.last.index, 0);
        assert_eq!(log.append(1, 1, &[b"x"]).unwrap().index, 1);
    }
}

#[test]
fn a_sync_does_not_rely_on_one_that_has_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    for _ in 0..6 {
        log.append(1, 1, &[&[1; 100]]).unwrap();
    }
    let appended = log.stats().append_bytes;
    assert!(appended > 600 && log.unsynced_bytes() == appended, "over all segments");
    let mut both = Vec::new();
    let mut first = 0;
    log.sync_in_steps(&mut || {
        if first == 0 {
            // Another thread's, which begins while this one has synced nothing yet.
            log.sync_in_steps(&mut || both.push(log.durable_index())).unwrap();
        }
        first += 1;
    })
    .unwrap();
    assert_eq!(first, segment_files(dir.path()).len());
    assert_eq!(both, vec![0; first], "every file is synced before anything counts as durable");
    assert_eq!(log.unsynced_bytes(), 0);
    let mut later = 0;
    log.sync_in_steps(&mut || later += 1).unwrap();
    assert_eq!(later, 1, "what is synced need not be synced again");
    log.append(1, 1, &[&[1; 100]]).unwrap();
    assert_eq!(log.unsynced_bytes(), log.stats().append_bytes - appended);
}

#[test]
fn what_recovery_has_read_is_synced_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), &vec![vec![1; 100]; 6], false);
    let files = segment_files(dir.path()).len() as u64;
    assert!(files > 2);
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    assert_eq!(log.stats().files_synced, files);
    drop(log);
    let (log, _) = Log::open(options(dir.path()), at(6)).unwrap();
    assert_eq!(log.stats().files_synced, 1, "what is in the database need not be synced again");
}

/// Bytes of a document that look like entries `3, 3, ..., 4, 4, ...`: each has a right successor, and each says that
/// the log was durable further than it is. Checksums are right where `whole`.
fn forged(len: usize, payload: usize, salt: Salt, whole: bool) -> Vec<u8> {
    let step = HEADER_LEN + payload;
    let mut bytes = vec![7; len];
    let mut at = len % HEADER_LEN;
    while at + step <= len {
        let index = 4 + (at / step) as u64;
        let position = OpTime { term: 1, index, time: 1000 + index };
        let covered = if whole { &bytes[at + HEADER_LEN..at + step] } else { &[] };
        let mut header = Header::encode(position, 3, &[covered], salt);
        header[..4].copy_from_slice(&(payload as u32).to_le_bytes());
        bytes[at..at + HEADER_LEN].copy_from_slice(&header);
        at += if whole { step } else { HEADER_LEN };
    }
    bytes
}

/// A folder with one segment of version 1: two entries, the second with this payload and torn at its end.
fn old_folder(payload: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = segment_header(1, Salt(0), 1).to_vec();
    for (index, payload) in [(1, &b"first"[..]), (2, payload)] {
        bytes.extend_from_slice(&Header::encode(at(index), 0, &[payload], Salt(0)));
        bytes.extend_from_slice(payload);
    }
    let len = bytes.len();
    bytes[len - 100..].fill(0);
    fs::write(dir.path().join(format!("{:020}.log", 1)), bytes).unwrap();
    dir
}

#[test]
fn a_log_of_version_1_is_read_and_goes_on() {
    let dir = old_folder(&[3; 300]);
    let wide = || Options { segment_bytes: 64 << 20, ..options(dir.path()) };
    for round in 0..3 {
        let (log, recovered) = Log::open(wide(), OpTime::default()).unwrap();
        assert_eq!(recovered.last.index, 1 + round);
        assert_eq!(log.append(1, 100 + round, &[b"more"]).unwrap().index, 2 + round);
        log.sync().unwrap();
    }
    assert_eq!(segment_files(dir.path()).len(), 1);
    let (log, _) = Log::open(wide(), OpTime::default()).unwrap();
    assert_eq!(entries(&log, 1)[0], (1, b"first".to_vec()));
    assert_eq!(entries(&log, 4), vec![(4, b"more".to_vec())]);
}

#[test]
fn a_document_that_looks_like_entries_makes_no_work() {
    // Each of 25,000 headers claims 100 kB that follow: 2.5 GB to be checksummed.
    let document = forged(1 << 20, 100_000 - HEADER_LEN, Salt(0), false);
    let dir = old_folder(&document);
    let (mut segments, torn) = list(dir.path()).unwrap();
    let tail = recover(&mut segments, torn, OpTime::default()).unwrap();
    assert_eq!(tail.last.index, 1);
    assert!(tail.checksummed < 24 << 20, "{} bytes were checksummed", tail.checksummed);
}

#[test]
fn a_document_full_of_numbers_is_read_once() {
    // Each of 400,000 places may be where an entry's number stands.
    let document: Vec<u8> = (0..400_000u64).flat_map(|number| (1000 + number).to_le_bytes()).collect();
    let dir = old_folder(&document);
    let (mut segments, torn) = list(dir.path()).unwrap();
    let tail = recover(&mut segments, torn, OpTime::default()).unwrap();
    assert_eq!(tail.last.index, 1);
    assert!(tail.read < 4 * document.len() as u64, "{} bytes were read", tail.read);
}

#[test]
fn a_document_with_whole_entries_in_it_does_not_pass_for_the_log() {
    for salt in [Salt(0), Salt(12345)] {
        let dir = tempfile::tempdir().unwrap();
        let wide = || Options { segment_bytes: 64 << 20, ..options(dir.path()) };
        {
            let (log, _) = Log::open(wide(), OpTime::default()).unwrap();
            log.append(1, 1, &[b"first"]).unwrap();
            log.sync().unwrap();
            // Synced by nobody when the power fails; its last page is lost.
            log.append(1, 2, &[&forged(100_000, 1000, salt, true)]).unwrap();
        }
        let file = segment_files(dir.path())[0].clone();
        let mut bytes = fs::read(&file).unwrap();
        let len = bytes.len();
        bytes[len - 500..].fill(0);
        fs::write(&file, bytes).unwrap();
        let (mut segments, torn) = list(dir.path()).unwrap();
        let tail = recover(&mut segments, torn, OpTime::default()).unwrap();
        assert_eq!(tail.last.index, 1);
        assert!(tail.checksummed <= 100_100, "{} bytes were checksummed", tail.checksummed);
        let (log, _) = Log::open(wide(), OpTime::default()).unwrap();
        assert_eq!(log.append(1, 3, &[b"on"]).unwrap().index, 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Unsynced bytes are lost at a power failure from any point on: the longest whole prefix stays.
    #[test]
    fn any_cut_recovers_the_longest_whole_prefix(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..6),
        cut in 0usize..400,
    ) {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &payloads, false);
        let file = segment_files(dir.path())[0].clone();
        let len = fs::metadata(&file).unwrap().len();
        let keep = (len as usize).saturating_sub(cut);
        for later in &segment_files(dir.path())[1..] {
            fs::remove_file(later).unwrap();
        }
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(keep as u64).unwrap();
        let mut end = 32;
        let whole = payloads.iter().take_while(|p| { end += 40 + p.len(); end <= keep }).count();
        let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
        let found = entries(&log, 1);
        prop_assert_eq!(found.len(), whole);
        for (at, (_, payload)) in found.iter().enumerate() {
            prop_assert_eq!(payload, &payloads[at]);
        }
        prop_assert_eq!(log.append(1, 9_000, &[b"on"]).unwrap().index, whole as u64 + 1);
    }

    /// A flipped byte is never read as data: durable entries give an error, and only the last entry,
    /// which nothing vouches for, may be taken for a torn tail.
    #[test]
    fn any_flipped_byte_is_detected(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 2..9),
        at in 0usize..2000,
        bit in 0u32..8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        fill(dir.path(), &payloads, true);
        let files = segment_files(dir.path());
        let mut sizes: Vec<usize> = files.iter().map(|f| fs::metadata(f).unwrap().len() as usize).collect();
        let mut at = at % sizes.iter().sum::<usize>();
        let file = files.iter().find(|_| { let n = sizes.remove(0); if at < n { true } else { at -= n; false } }).unwrap();
        let mut bytes = fs::read(file).unwrap();
        bytes[at] ^= 1 << bit;
        fs::write(file, &bytes).unwrap();
        match Log::open(options(dir.path()), OpTime::default()) {
            Err(Error::Damaged { .. } | Error::TooNew { .. }) => {}
            Err(other) => prop_assert!(false, "{}", other),
            Ok((log, recovered)) => {
                let found = entries(&log, 1);
                let last_segment_header = file == files.last().unwrap() && at < 32;
                // Behind the last entry are zeros, which tell nothing.
                let behind = file == files.last().unwrap() && recovered.last.index as usize == payloads.len();
                prop_assert!(recovered.last.index as usize == payloads.len() - 1 || last_segment_header || behind);
                for (n, (_, payload)) in found.iter().enumerate() {
                    prop_assert_eq!(payload, &payloads[n]);
                }
            }
        }
    }
}

#[test]
fn a_run_of_entries_is_as_good_as_one_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    let payloads: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; usize::from(n) * 9]).collect();
    let run: Vec<(u64, u64, &[u8])> =
        payloads.iter().enumerate().map(|(n, payload)| (1, 10 * (n as u64 + 1), &payload[..])).collect();
    let (mut done, mut runs) = (0, 0);
    while done < run.len() {
        let (count, at) = log.append_run(&run[done..]).unwrap();
        done += count;
        runs += 1;
        assert_eq!((at.index, at.time), (done as u64, 10 * done as u64));
    }
    // Small ones go together, and segments of 400 bytes hold at most one of the larger ones.
    assert!(runs < run.len() && segment_files(dir.path()).len() > 20, "{runs} runs");
    log.append(2, 1000, &[b"last"]).unwrap();
    let stored: Vec<Vec<u8>> = entries(&log, 1).into_iter().map(|(_, payload)| payload).collect();
    assert_eq!((&stored[..40], &stored[40][..]), (&payloads[..], &b"last"[..]));
    drop(log);
    let (_, recovered) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    assert_eq!((recovered.last.index, recovered.cut_bytes), (41, 0));
}

/// Bytes that are read to find an entry by its index, and by its time.
fn read_to_find(log: &Log, index: u64) -> u64 {
    let before = log.stats().read_bytes;
    let by_index = log.read_from(index).unwrap().next().unwrap().unwrap();
    let by_time = log.read_from_time(by_index.at.time).unwrap().next().unwrap().unwrap();
    assert_eq!((by_index.at.index, by_time.at.index), (index, index));
    log.stats().read_bytes - before
}

#[test]
fn an_entry_is_found_without_reading_all_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let payload = vec![7; 1000];
    {
        let (log, _) = Log::open(Options::new(dir.path()), OpTime::default()).unwrap();
        for at in 1..=5000 {
            log.append(1, 2 * at, &[&payload]).unwrap();
        }
        for run in 0..1000 {
            let entries: Vec<_> = (1..=5).map(|at| (1, 10_000 + 2 * (5 * run + at), &payload[..])).collect();
            assert_eq!(log.append_run(&entries).unwrap().0, 5);
        }
        for index in [1, 60, 4999, 5001, 7777, 10_000] {
            assert!(read_to_find(&log, index) < 600 << 10, "{index}: {}", read_to_find(&log, index));
        }
        // What is cut off is not found any more; what comes in its place is.
        let cut = log.read_from(7500).unwrap().next().unwrap().unwrap().at;
        log.truncate_after(cut).unwrap();
        let longer = vec![8; 1300];
        for at in 1..=2500 {
            log.append(2, cut.time + 3 * at, &[&longer]).unwrap();
        }
        for index in [7499, 7501, 8888, 10_000] {
            assert!(read_to_find(&log, index) < 600 << 10, "{index}: {}", read_to_find(&log, index));
        }
    }
    // After a restart the first search reads through, and the next ones know the way.
    let (log, _) = Log::open(Options::new(dir.path()), OpTime::default()).unwrap();
    assert!(read_to_find(&log, 9999) > 9 << 20);
    for index in [1, 60, 4999, 7777, 9999] {
        assert!(read_to_find(&log, index) < 600 << 10, "{index}: {}", read_to_find(&log, index));
    }
}

/// What may have the last of the space finds some, whatever else was reserved before.
#[test]
fn some_space_is_kept_for_what_frees() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let (log, _) =
        Log::open(Options { segment_bytes: 1 << 20, ..options(dir.path()) }, OpTime::default()).unwrap();
    let blocks = || segment_files(dir.path()).last().map(|file| fs::metadata(file).unwrap().blocks() * 512);
    // To the segment's end, and into the next one.
    for time in 1..16 {
        log.reserve(100 << 10, false).unwrap();
        log.append(1, time, &[&vec![7; 100 << 10]]).unwrap();
        let length = fs::metadata(segment_files(dir.path()).last().unwrap()).unwrap().len();
        let reserved = blocks().unwrap();
        if time == 1 && reserved < length + (64 << 10) {
            // This file system reserves nothing.
            return;
        }
        assert!(reserved >= length + (500 << 10), "{time}: {length} {reserved}");
    }
    let reserved = blocks();
    log.reserve(100 << 10, true).unwrap();
    assert_eq!(blocks(), reserved, "it takes what was kept");
}

#[test]
fn what_is_reserved_is_on_the_disk_and_no_part_of_the_log() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 4 << 20, ..options(dir.path()) };
    let (log, _) = Log::open(options.clone(), OpTime::default()).unwrap();
    log.append(1, 10, &[b"first"]).unwrap();
    let file = || fs::metadata(&segment_files(dir.path())[0]).unwrap();
    let length = file().len();
    log.reserve(3 << 20, true).unwrap();
    assert_eq!(file().len(), length);
    // Not every file system reserves.
    let reserved = file().blocks() * 512;
    log.append(1, 20, &[&vec![7; 3 << 20]]).unwrap();
    assert!(reserved == 0 || reserved < 3 << 20 || file().blocks() * 512 <= reserved + (64 << 10));
    // What goes into the next segment is reserved there.
    log.reserve(2 << 20, true).unwrap();
    assert_eq!(segment_files(dir.path()).len(), 2);
    drop(log);
    let (log, recovered) = Log::open(options, OpTime::default()).unwrap();
    assert_eq!((recovered.last.index, recovered.cut_bytes), (2, 0));
    assert_eq!(entries(&log, 1).len(), 2);
}
