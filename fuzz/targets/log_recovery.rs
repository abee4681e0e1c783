//! Any bytes behind the entries of a log, as a crash or a document in a torn entry may leave them: recovery returns, cuts what
//! is no entry or calls it damaged, and what it accepts is there at the next start and can be appended to.
#![no_main]

use std::fs::{self, OpenOptions};
use std::io::Write;

use libfuzzer_sys::fuzz_target;
use sheaf_log::{Log, OpTime, Options};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let options = || Options { segment_bytes: 1 << 20, ..Options::new(dir.path()) };
    let open = || Log::open(options(), OpTime::default());
    {
        let (log, _) = open().expect("a new log");
        for time in 1..=u64::from(kind % 3) {
            log.append(1, time, &[b"an entry"]).expect("appended");
        }
    }
    let segment = fs::read_dir(dir.path()).expect("the folder").flatten().next().expect("a segment").path();
    let mut file = OpenOptions::new().append(true).open(&segment).expect("the segment");
    file.write_all(data).expect("written");
    if kind & 0x80 != 0 {
        // Zeros, as a page that was lost.
        file.write_all(&[0; 4096]).expect("written");
    }
    let Ok((log, recovered)) = open() else { return };
    let next = log.append(9, u64::MAX, &[b"next"]).expect("appended behind what was recovered");
    assert_eq!(next.index, recovered.last.index + 1);
    drop(log);
    let (log, again) = open().expect("what was recovered once");
    assert_eq!((again.last, again.cut_bytes), (next, 0));
    drop(log);
});
