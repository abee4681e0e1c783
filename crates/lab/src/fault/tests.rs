use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::*;
use crate::cluster::Cut;
use crate::journal::Journal;
use crate::results;
use crate::stop::Stop;
use crate::target::Running;
use crate::target::fake::{self, FakeMember};

fn plan(text: &str) -> FaultPlan {
    FaultPlan::parse(&serde_yaml_ng::from_str(text).unwrap(), 1.0, 1).unwrap()
}

/// Three fake members, and what happened to them under the plan while `meanwhile` went on.
fn inject(
    faults: &str,
    meanwhile: impl FnOnce(&Running, &[FakeMember]),
) -> (Vec<results::Fault>, Vec<String>) {
    let (folder, journal) = (tempfile::tempdir().unwrap(), Journal::silent());
    let (running, fakes) = fake::running(3, folder.path(), &journal);
    let plan = plan(faults);
    check(&plan, &running).unwrap();
    let (calm, end) = channel::<()>();
    let began = Instant::now();
    let (stop, started) = (Stop::default(), journal.lines().len());
    let (done, outcome) = std::thread::scope(|scope| {
        let (plan, running, journal, stop) = (&plan, &running, &journal, &stop);
        let thread = scope.spawn(move || Injector::run(plan, running, journal, stop, || Some(began), &end));
        meanwhile(running, &fakes);
        drop(calm);
        thread.join().unwrap()
    });
    outcome.unwrap();
    assert!(running.processes.iter().all(|process| process.is_up()), "somebody is still down");
    let links = running.links.as_ref().unwrap();
    assert!((0..3).all(|to| to == 1 || links.get(1, to).unwrap() == Cut::Open));
    (done, journal.lines().into_iter().skip(started).map(|line| line.text).collect())
}

fn wait(until: impl Fn() -> bool) {
    let began = Instant::now();
    while !until() {
        assert!(began.elapsed() < Duration::from_secs(120), "it never happened");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_primary_is_killed_and_comes_back() {
    let (done, lines) = inject("[{at: 10ms, kill: primary, for: 100ms}]", |running, fakes| {
        let process = &running.processes[0];
        let first = process.pid().unwrap();
        // It may be back before anybody looks.
        wait(|| process.pid() != Some(first));
        // The others elect.
        *fakes[1].says.lock().unwrap() = fake::primary();
        *fakes[0].says.lock().unwrap() = fake::secondary();
        wait(|| process.is_up());
        assert_ne!(process.pid().unwrap(), first);
    });
    assert_eq!(done.len(), 1);
    assert!(done[0].what.starts_with("kill -9 127.0.0.1:") && done[0].what.ends_with(", the primary"));
    assert!(done[0].until_s.unwrap() >= done[0].at_s + 0.1);
    assert!(lines[1].starts_with("kill -9 ") && lines[2] == "sleep 1000", "{lines:?}");
}

#[test]
fn what_lasts_longer_than_the_run_is_undone_at_its_end() {
    let faults = "[{at: 0s, pause: 2, for: 1h}, {at: 1ms, cut: 1, for: 1h}, {at: 1h, kill: 0}]";
    let (done, lines) = inject(faults, |running, _| {
        wait(|| !running.processes[2].is_up());
        let links = running.links.as_ref().unwrap();
        wait(|| links.get(1, 0).unwrap() == Cut::Silent && links.get(2, 1).unwrap() == Cut::Silent);
        assert_eq!(links.get(0, 2).unwrap(), Cut::Open);
    });
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|fault| fault.until_s.is_some()));
    assert!(lines.iter().any(|line| line.starts_with("kill -STOP ")));
    assert!(lines.iter().any(|line| line.starts_with("kill -CONT ")) && lines.iter().any(|l| l == "heal"));
}

#[test]
fn cuts_that_overlap_are_healed_one_by_one() {
    let faults = "[{at: 0s, cut: 0, for: 150ms}, {at: 1ms, split: [0, 1], for: 1h}]";
    inject(faults, |running, _| {
        let links = running.links.as_ref().unwrap();
        wait(|| links.get(1, 2).unwrap() == Cut::Silent);
        // The first is over: what only it has cut is open, what the other cuts too is not.
        wait(|| links.get(0, 1).unwrap() == Cut::Open);
        assert_eq!(links.get(0, 2).unwrap(), Cut::Silent);
    });
}

#[test]
fn the_primary_is_asked_to_step_down() {
    let (done, lines) = inject("[{at: 0s, stepdown: primary, for: 7s}]", |_, fakes| {
        wait(|| fakes[0].heard.lock().unwrap().iter().any(|name| name == "replSetStepDown"));
    });
    assert!(done[0].what.starts_with("replSetStepDown on ") && done[0].until_s.is_none());
    assert!(lines.iter().any(|line| line.contains(r#""replSetStepDown":7"#)), "{lines:?}");
}

#[test]
fn an_orderly_restart() {
    let (_, lines) = inject("[{at: 0s, restart: secondary}]", |running, _| {
        let pids: Vec<_> = running.processes.iter().map(|process| process.pid()).collect();
        let changed = |at: usize| running.processes[at].pid().is_some_and(|pid| Some(pid) != pids[at]);
        wait(|| changed(1) || changed(2));
        assert!(!changed(0), "it is the primary");
    });
    assert!(lines[1].starts_with("kill ") && !lines[1].contains("-9"), "{lines:?}");
}

#[test]
fn nothing_happens_before_the_measured_part() {
    let (folder, journal) = (tempfile::tempdir().unwrap(), Journal::silent());
    let (running, _fakes) = fake::running(1, folder.path(), &journal);
    let (calm, end) = channel::<()>();
    let (plan, stop) = (plan("[{at: 0s, kill: 0}]"), Stop::default());
    std::thread::scope(|scope| {
        let (plan, running, journal, stop) = (&plan, &running, &journal, &stop);
        let thread = scope.spawn(move || Injector::run(plan, running, journal, stop, || None, &end));
        std::thread::sleep(Duration::from_millis(50));
        drop(calm);
        let (done, outcome) = thread.join().unwrap();
        assert!(done.is_empty() && outcome.is_ok() && running.processes[0].is_up());
    });
}

#[test]
fn plans_that_do_not_fit_the_servers_are_refused() {
    let (folder, journal) = (tempfile::tempdir().unwrap(), Journal::silent());
    let (mut running, _fakes) = fake::running(1, folder.path(), &journal);
    let refused = |text: &str, running: &Running| check(&plan(text), running).unwrap_err().to_string();
    assert!(refused("[{at: 1s, kill: 1}]", &running).contains("no member 1"));
    assert!(refused("[{at: 1s, kill: arbiter}]", &running).contains("no arbiter"));
    assert!(refused("[{at: 1s, stepdown: primary}]", &running).contains("two members"));
    running.processes.clear();
    assert!(refused("[{at: 1s, kill: 0}]", &running).contains("started"));
}
