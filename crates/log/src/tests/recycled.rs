//! Segments in files that were other segments before.

use super::*;

/// So large that pages are crossed.
fn wide(dir: &Path) -> Options {
    Options { segment_bytes: 20_000, ..options(dir) }
}

/// Appends until a segment begins in a file that was another one's; gives it.
fn recycle(log: &Log, dir: &Path, payload: &[u8]) -> std::path::PathBuf {
    for _ in 0..1000 {
        let at = log.last().index + 1;
        let newest = segment_files(dir).pop().unwrap();
        log.append(1, at, &[payload]).unwrap();
        if newest.exists() && segment_files(dir).last() == Some(&newest) {
            continue;
        }
        let (segments, _) = list(dir).unwrap();
        let newest = segments.last().unwrap();
        if newest.is_recycled() {
            log.sync().unwrap();
            return newest.path.clone();
        }
        log.sync().unwrap();
        log.retain(at).unwrap();
    }
    panic!("no segment was written into the file of another");
}

fn spares(dir: &Path) -> usize {
    segment_files(dir).iter().filter(|path| path.extension().is_some_and(|suffix| suffix == "spare")).count()
}

#[test]
fn a_segment_in_an_old_file_reads_back_without_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    let file = recycle(&log, dir.path(), &[7; 300]);
    let length = fs::metadata(&file).unwrap().len();
    assert!(length > 15_000, "{length}");
    let first = log.stats().first_index;
    for n in 0..20u64 {
        let at = log.last().index + 1;
        log.append(1, 1000 * at, &[&vec![n as u8; 37 * n as usize]]).unwrap();
        log.sync().unwrap();
    }
    assert_eq!(fs::metadata(&file).unwrap().len(), length, "a sync changed the file's length");
    let before = entries(&log, first);
    drop(log);
    for _ in 0..2 {
        let (log, recovered) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        assert_eq!(recovered.cut_bytes, 0, "what was another segment's is not lost");
        assert_eq!(entries(&log, first), before);
        assert_eq!(spares(dir.path()), 0, "a start has no use for them");
    }
}

/// The file of a full segment ends behind its last entry, but a power failure may undo that.
#[test]
fn old_entries_behind_a_full_segment_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    let file = recycle(&log, dir.path(), &[7; 300]);
    let full = fs::read(&file).unwrap();
    while list(dir.path()).unwrap().0.last().unwrap().path == file {
        log.append(1, log.last().index + 1, &[&[8; 3000]]).unwrap();
        log.sync().unwrap();
    }
    let first = log.stats().first_index;
    let before = entries(&log, first);
    drop(log);
    let mut bytes = fs::read(&file).unwrap();
    assert!(bytes.len() < full.len());
    bytes.extend_from_slice(&full[bytes.len()..]);
    fs::write(&file, bytes).unwrap();
    let (log, recovered) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    assert_eq!(recovered.cut_bytes, 0);
    assert_eq!(entries(&log, first), before);
}

#[test]
fn no_more_files_are_spared_than_are_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    for at in 1..=40 {
        log.append(1, at, &[&[8; 3000]]).unwrap();
    }
    log.sync().unwrap();
    assert!(log.retain(40).unwrap() > 3);
    assert_eq!(spares(dir.path()), 2);
    assert_eq!(log.append(1, 41, &[b"on"]).unwrap().index, 41);
    log.be_lean(true, true);
    assert_eq!(spares(dir.path()), 0);
    for at in 42..=80 {
        log.append(1, at, &[&[8; 3000]]).unwrap();
    }
    log.sync().unwrap();
    assert!(log.retain(80).unwrap() > 3);
    assert_eq!(spares(dir.path()), 0, "where room is scarce");
}

#[test]
fn room_that_is_kept_ends_no_segment() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
    let segments = || {
        let files = std::fs::read_dir(dir.path()).unwrap().flatten();
        files.filter(|file| file.path().extension().is_some_and(|suffix| suffix == "log")).count()
    };
    for at in 1..=20 {
        log.append(1, at, &[b"small"]).unwrap();
        log.keep_room(1 << 30).unwrap();
    }
    assert_eq!(segments(), 1);
}

#[test]
fn segments_differ_in_salt() {
    let base = Salt::new();
    let salts: Vec<Salt> = (1..1000).map(|first| crate::segment::salt_of(3, first, base)).collect();
    let header = Header::encode(at(7), 3, &[b"payload"], salts[0]);
    assert!(Header::decode(&header, salts[0]).is_some());
    assert!(salts[1..].iter().all(|salt| Header::decode(&header, *salt).is_none()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Of what was written into an old file and not synced, any sectors may be as they were before: the longest whole prefix stays, and
    /// nothing that was there before comes back.
    #[test]
    fn any_lost_sectors_leave_the_longest_whole_prefix(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..900), 1..12),
        old in 1usize..700,
        lost in prop::collection::vec(any::<bool>(), 40),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        let file = recycle(&log, dir.path(), &vec![7; old]);
        let first = log.last().index + 1;
        let mut synced = fs::read(&file).unwrap();
        let (segments, _) = list(dir.path()).unwrap();
        let mut end = 32 + ((first - segments.last().unwrap().first_index) as usize) * (HEADER_LEN + old);
        for (n, payload) in payloads.iter().enumerate() {
            log.append(1, 1_000_000 + n as u64, &[payload]).unwrap();
        }
        if list(dir.path()).unwrap().0.last().unwrap().path != file {
            return Ok(());
        }
        let written = fs::read(&file).unwrap();
        prop_assert_eq!(written.len(), synced.len());
        drop(log);
        for (sector, _) in lost.iter().enumerate().filter(|(_, lost)| !**lost) {
            let range = (sector * 512).min(written.len())..((sector + 1) * 512).min(written.len());
            synced[range.clone()].copy_from_slice(&written[range]);
        }
        let mut whole = 0;
        for payload in &payloads {
            let next = end + HEADER_LEN + payload.len();
            if synced[end..next] != written[end..next] {
                break;
            }
            (end, whole) = (next, whole + 1);
        }
        fs::write(&file, &synced).unwrap();
        let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        let found = entries(&log, first);
        prop_assert_eq!(found.len(), whole);
        for (n, (_, payload)) in found.iter().enumerate() {
            prop_assert_eq!(payload, &payloads[n]);
        }
        let next = first + whole as u64;
        prop_assert_eq!(log.append(1, 9_000_000, &[b"on"]).unwrap().index, next);
        drop(log);
        let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        prop_assert_eq!(log.last().index, next);
    }

    /// A flipped bit of what was durable is never taken for the end of the log.
    #[test]
    fn damage_in_an_old_file_is_told(at in 0usize..1_000_000, bit in 0u32..8) {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = Log::open(wide(dir.path()), OpTime::default()).unwrap();
        let file = recycle(&log, dir.path(), &[7; 300]);
        let first = log.last().index;
        for n in 0..6u64 {
            log.append(1, 1_000_000 + n, &[&[9; 200]]).unwrap();
            log.sync().unwrap();
        }
        drop(log);
        // The last of them is vouched for by nobody.
        let end = 32 + HEADER_LEN + 300 + 5 * (HEADER_LEN + 200);
        let mut bytes = fs::read(&file).unwrap();
        bytes[32 + at % (end - 32)] ^= 1 << bit;
        fs::write(&file, &bytes).unwrap();
        match Log::open(wide(dir.path()), OpTime::default()) {
            Err(Error::Damaged { .. }) => {}
            other => prop_assert!(false, "entries from {} on: {:?}", first, other.map(|(log, _)| log.last())),
        }
    }
}
