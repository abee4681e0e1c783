//! What has to be measured: how long an fsync takes and how fast the disk writes.

use std::fs::File;
use std::io::{Result, Write};
use std::time::{Duration, Instant};

use super::finding::{Finding, Host};
use super::reads;
use crate::report::latency;
use crate::stats::median;

/// The fsync measurement ends after so many, or after [`LONGEST`].
const SYNCS: usize = 200;
/// Bytes of each write before an fsync: a small commit.
const SMALL: usize = 4096;
/// Bytes of the sequential write.
const LARGE: usize = 64 << 20;
const BLOCK: usize = 1 << 20;
/// Neither measurement takes much longer, whatever the disk.
const LONGEST: Duration = Duration::from_secs(2);
/// Readers at once.
const READERS: usize = 8;
/// Nothing is measured on a disk with less room than this.
const ROOM: u64 = 1 << 30;

pub fn findings(host: &Host) -> Vec<Finding> {
    let sync = Finding::new(
        "measured fsync",
        "a write with j:true, and each majority write, waits for one: the median is the floor of their latency, and one client \
         alone reaches at most its inverse per second",
    );
    let speed = Finding::new(
        "measured write speed",
        "bulk loads, flushes and compactions write sequentially; each byte is written several times over its life",
    );
    let read = Finding::new(
        "measured reads",
        "a document that no cache has is read from the disk: this is the floor of its latency, and with more data than memory \
         most of it",
    );
    let room = rustix::fs::statvfs(&host.data).is_ok_and(|s| s.f_bavail * s.f_frsize >= ROOM);
    if !room {
        let reason = "not measured: less than 1 GiB free";
        return vec![sync.unknown(reason), speed.unknown(reason), read.unknown(reason)];
    }
    vec![
        match sync_latencies(host) {
            Ok(latencies) => judge_sync(sync, &latencies),
            Err(error) => sync.unknown(format!("not measured: {error}")),
        },
        match write_speed(host) {
            Ok(megabytes) => judge_speed(speed, megabytes),
            Err(error) => speed.unknown(format!("not measured: {error}")),
        },
        match reads::measure(&host.data, LARGE, READERS, LONGEST / 8) {
            Ok(reads) => judge_reads(read, &reads),
            Err(error) => read.unknown(format!("not measured: {error}")),
        },
    ]
}

/// A file without a name: it is gone when this process ends, however it ends.
fn scratch(host: &Host) -> Result<File> {
    tempfile::tempfile_in(&host.data)
}

/// Microseconds of each write + fdatasync at the end of a file, as a journal does it.
fn sync_latencies(host: &Host) -> Result<Vec<f64>> {
    let mut file = scratch(host)?;
    let bytes = [0x5a; SMALL];
    let mut latencies = Vec::with_capacity(SYNCS);
    let began = Instant::now();
    while latencies.len() < SYNCS && began.elapsed() < LONGEST {
        let at = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        latencies.push(at.elapsed().as_secs_f64() * 1e6);
    }
    Ok(latencies)
}

/// Megabytes (10^6) per second of large writes, their fdatasync included.
fn write_speed(host: &Host) -> Result<f64> {
    let mut file = scratch(host)?;
    // Not all the same byte: some file systems compress.
    let block: Vec<u8> =
        (0..BLOCK as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    let began = Instant::now();
    let mut written = 0;
    while written < LARGE && began.elapsed() < LONGEST {
        file.write_all(&block)?;
        written += BLOCK;
    }
    file.sync_data()?;
    Ok(written as f64 / 1e6 / began.elapsed().as_secs_f64())
}

fn judge_sync(finding: Finding, latencies: &[f64]) -> Finding {
    let Some(middle) = median(latencies) else { return finding };
    let worst = latencies.iter().copied().fold(0.0, f64::max);
    let seen = format!("median {}, worst {} of {}", latency(middle), latency(worst), latencies.len());
    let mend = "a solid-state disk with power-loss protection; on a hypervisor, a local or faster volume";
    match middle {
        us if us < 8.0 => finding.warn(
            format!("{seen}: no disk is that fast"),
            "the fsync is probably swallowed (memory file system, cache=unsafe): acknowledged writes may be lost by a power cut",
        ),
        us if us <= 3_000.0 => finding.ok(seen),
        us if us <= 20_000.0 => finding.warn(seen, mend),
        _ => finding.bad(seen, mend),
    }
}

fn judge_speed(finding: Finding, megabytes: f64) -> Finding {
    let seen = format!("{megabytes:.0} MB/s");
    let mend = "a faster volume, or one of its own for the database";
    match megabytes {
        speed if speed >= 100.0 => finding.ok(seen),
        speed if speed >= 20.0 => finding.warn(seen, mend),
        _ => finding.bad(seen, mend),
    }
}

fn judge_reads(finding: Finding, reads: &reads::Reads) -> Finding {
    let seen = format!(
        "median {} alone; {READERS} at once: 99.9 % within {}",
        latency(reads.median_us),
        latency(reads.p999_us)
    );
    match reads.median_us {
        us if us <= 1_000.0 => finding.ok(seen),
        us if us <= 15_000.0 => {
            finding.warn(seen, "a solid-state disk; on a hypervisor, a local or faster volume")
        }
        _ => finding.bad(seen, "a solid-state disk; on a hypervisor, a local or faster volume"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn measuring_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::new(std::path::Path::new("/"), folder.path());
        let findings = findings(&host);
        assert_eq!(findings.len(), 3);
        assert!(findings.iter().all(|f| !f.seen.contains("NaN")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn measurements_are_judged() {
        let sync = |us: f64| judge_sync(Finding::new("x", "y"), &[us; 5]).status;
        assert_eq!(
            [1.0, 300.0, 9_000.0, 50_000.0].map(sync),
            [Status::Warn, Status::Ok, Status::Warn, Status::Bad]
        );
        let read = |us: f64| {
            judge_reads(Finding::new("x", "y"), &reads::Reads { median_us: us, p999_us: us, count: 1 }).status
        };
        assert_eq!([80.0, 9_000.0, 40_000.0].map(read), [Status::Ok, Status::Warn, Status::Bad]);
        let speed = |mb: f64| judge_speed(Finding::new("x", "y"), mb).status;
        assert_eq!([900.0, 50.0, 5.0].map(speed), [Status::Ok, Status::Warn, Status::Bad]);
    }
}
