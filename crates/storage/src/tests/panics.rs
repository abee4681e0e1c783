//! What ends the process: a panic where work is left half done, an entry that cannot be applied. Each is played by a child.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::doc;
use sheaf_errors::{Code, Error};

use super::apply::Follower;
use super::member::Member;
use super::support::*;
use crate::{HookPoint, LogEntry};

/// Tells the child.
const CHILD: &str = "SHEAF_TEST_CHILD";

/// In the parent: runs the test in a child, which must be ended by SIGABRT within a minute, and gives what it has said.
/// `None` in the child.
fn child_aborts(test: &str) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if began.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    let status = status.unwrap_or_else(|| panic!("it waits for ever: {said}"));
    assert_eq!(status.signal(), Some(6), "{status}: {said}");
    Some(said)
}

fn entry(index: u64, payload: &[u8]) -> LogEntry {
    LogEntry { term: 1, index, time: 1000 + index, payload: bytes::Bytes::copy_from_slice(payload) }
}

#[test]
fn an_entry_that_cannot_be_applied_is_not_passed_over() {
    if let Some(said) = child_aborts("tests::panics::an_entry_that_cannot_be_applied_is_not_passed_over") {
        assert!(said.contains("(1, 2)") && said.contains("unknown operation"), "{said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(dir.path());
    follower.take(vec![entry(1, b"")]);
    follower.give(vec![entry(2, doc! { "op": "zz" }.as_bytes())]);
    let first = follower.engine.apply_units();
    follower.give(vec![entry(3, b"")]);
    let second = follower.engine.apply_units();
    eprintln!("{first:?}, then {second:?}, acknowledged {}", follower.acknowledged());
}

#[test]
fn a_disk_that_fails_under_an_application_ends_the_process() {
    if let Some(said) = child_aborts("tests::panics::a_disk_that_fails_under_an_application_ends_the_process")
    {
        assert!(said.contains("input/output") && said.contains("(1, 1) to (1, 2)"), "{said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut follower = Follower::open(dir.path());
    let fails = || Err(Error::new(Code::INTERNAL_ERROR, "input/output error"));
    follower.engine.set_hook(HookPoint::Apply, Some(Arc::new(fails)));
    follower.give(vec![entry(1, b""), entry(2, b"")]);
    eprintln!("{:?}", follower.engine.apply_units());
}

#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    if let Some(said) = child_aborts("tests::panics::a_leader_that_panics_leaves_nobody_waiting") {
        assert!(said.contains("planted") && said.contains("commit pipeline"), "{said}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.lead();
    create(&member.engine, "db.c", doc! {});
    let armed = Arc::new(AtomicBool::new(false));
    let seen = armed.clone();
    let panics = move || if seen.load(Ordering::Acquire) { panic!("planted") } else { Ok(()) };
    member.engine.set_hook(HookPoint::Append, Some(Arc::new(panics)));
    armed.store(true, Ordering::Release);
    std::thread::scope(|scope| {
        for id in 0..4 {
            let engine = &member.engine;
            // As a command does that goes on after a panic.
            scope.spawn(move || {
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    insert(engine, "db.c", &doc! { "_id": id })
                }));
            });
        }
    });
}
