//! Readers share few descriptors, and the log goes on where the process has none left. A process of its own, whose limit is
//! lowered.

use std::fs::{self, File};
use std::path::Path;

use sheaf_log::{Log, OpTime, Options, Reader};

const READERS: u64 = 200;

/// Descriptors that the process may have. The test's own: a few threads' and the log's.
const LIMIT: u64 = 64;

fn options(dir: &Path) -> Options {
    Options { dir: dir.to_owned(), segment_bytes: 400, retain_bytes: 1 << 20, spare_segments: 2 }
}

fn append(log: &Log, count: u64) {
    for _ in 0..count {
        let index = log.last().index + 1;
        log.append(1, index * 10, &[&[index as u8; 50]]).unwrap();
        log.sync().unwrap();
    }
}

/// How many descriptors the process has on files of the folder.
fn descriptors(dir: &Path) -> usize {
    let names = fs::read_dir("/proc/self/fd").unwrap();
    let files = names.filter_map(|name| fs::read_link(name.unwrap().path()).ok());
    files.filter(|file| file.starts_with(dir) && file.extension().is_some()).count()
}

/// Takes all descriptors that are free.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[allow(unsafe_code)]
fn limit_descriptors() {
    let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: a pointer to a valid `rlimit` that outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

fn next(reader: &mut Reader, index: u64) {
    let entry = reader.next().unwrap().unwrap();
    assert_eq!((entry.at.index, entry.at.time, entry.payload), (index, index * 10, vec![index as u8; 50]));
}

#[test]
fn readers_share_few_descriptors_and_the_log_keeps_its_own() {
    limit_descriptors();
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(options(dir.path()), OpTime::default()).unwrap();
    append(&log, READERS);
    let mut readers: Vec<Reader> = (1..=READERS).map(|index| log.read_from(index).unwrap()).collect();
    readers.extend((1..=READERS).map(|index| log.read_from_time(index * 10 - 3).unwrap()));
    let held = descriptors(dir.path());
    assert!(held <= 12, "{held} descriptors for {} readers", readers.len());
    // Others take what is left. The log has what it needs for new segments, readers what they need for any.
    let others = take_all();
    for _ in 0..20 {
        // None of these segments is synced before the next one is needed.
        let index = log.last().index + 1;
        log.append(1, index * 10, &[&[index as u8; 50]]).unwrap();
    }
    for (at, reader) in readers.iter_mut().enumerate() {
        next(reader, at as u64 % READERS + 1);
    }
    for reader in &mut readers {
        while reader.index() <= READERS + 20 {
            next(reader, reader.index());
        }
        assert!(reader.next().unwrap().is_none());
    }
    append(&log, 1);
    readers.iter_mut().for_each(|reader| next(reader, READERS + 21));
    // A cut has to open the segment that it cuts.
    log.truncate_after(OpTime { term: 1, index: 50, time: 500 }).unwrap();
    append(&log, 20);
    assert!(descriptors(dir.path()) <= held);
    drop(others);
    let mut oldest = log.read_from(1).unwrap();
    // What is removed is open nowhere.
    log.set_retain_bytes(0);
    assert!(log.retain(60).unwrap() > 10);
    assert!(log.read_from(1).is_err() && oldest.next().is_err());
    let gone =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|name| fs::read_link(name.unwrap().path()).ok());
    assert_eq!(gone.filter(|file| file.to_string_lossy().ends_with("(deleted)")).count(), 0);
    drop((readers, oldest, log));
    assert_eq!(descriptors(dir.path()), 0);
}
