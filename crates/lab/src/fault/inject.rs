//! Doing what a plan says, while a workload runs.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sheaf_bson::{doc, json};

use super::{Fault, FaultPlan, Kind, Whom};
use crate::client::Connection;
use crate::cluster::Cut;
use crate::error::{Error, Result};
use crate::journal::Journal;
use crate::part::Part;
use crate::results;
use crate::stop::Stop;
use crate::target::Running;
use crate::target::set::{State, ask, primary_among};

/// How long a set may take to be whole again when everything is healed.
const RECOVERY: Duration = Duration::from_secs(120);
/// How long a fault that is meant for the primary waits for there to be one.
const ELECTION: Duration = Duration::from_secs(10);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Looks whether the plan can be carried out on these servers.
pub fn check(plan: &FaultPlan, running: &Running) -> Result<()> {
    let members = running.members.len();
    let parts = running.parts();
    let largest = parts.iter().filter(|part| part.is_set()).map(|part| running.of_part(*part).len()).max();
    for fault in &plan.faults {
        let kind = fault.kind;
        if fault.place.among(&parts).is_none() && !parts.is_empty() {
            let parts: Vec<String> = parts.iter().map(Part::to_string).collect();
            return Err(Error::usage(format!(
                "faults: {}: there is no such part; there are {}",
                kind.name(),
                parts.join(", ")
            )));
        }
        if running.processes.is_empty() && kind != Kind::Stepdown {
            return Err(Error::usage(format!(
                "faults: {}: only servers that the laboratory has started can be treated so",
                kind.name()
            )));
        }
        if kind == Kind::Stepdown && largest.unwrap_or(0) < 2 {
            return Err(Error::usage("faults: stepdown: it takes a replica set of two members or more"));
        }
        if let Whom::Members(numbers) = &fault.whom
            && let Some(number) = numbers.iter().find(|number| **number >= members)
        {
            return Err(Error::usage(format!(
                "faults: {}: there is no member {number}; the first is 0, the last {}",
                kind.name(),
                members.saturating_sub(1)
            )));
        }
        if fault.whom == Whom::Arbiter && !running.members.iter().any(|member| member.arbiter) {
            return Err(Error::usage(format!("faults: {}: there is no arbiter", kind.name())));
        }
    }
    Ok(())
}

/// What is there to be undone.
#[derive(Clone, Debug, PartialEq)]
enum Undo {
    Start(usize),
    Resume(usize),
    /// The cut around this side.
    Heal(Vec<usize>),
}

/// One who injects.
pub struct Injector<'a> {
    running: &'a Running,
    journal: &'a Journal,
    stop: &'a Stop,
    origin: Instant,
    done: Vec<results::Fault>,
    /// When, of which fault, what.
    pending: Vec<(Instant, usize, Undo)>,
    cuts: Vec<Vec<usize>>,
}

impl<'a> Injector<'a> {
    /// Carries the plan out from the moment on that `origin` gives, until the sender of `end` is gone. Then everything is
    /// healed: what was done, and when. An error when the set does not become whole again.
    pub fn run(
        plan: &FaultPlan,
        running: &'a Running,
        journal: &'a Journal,
        stop: &'a Stop,
        origin: impl Fn() -> Option<Instant>,
        end: &Receiver<()>,
    ) -> (Vec<results::Fault>, Result<()>) {
        let origin = loop {
            match origin() {
                Some(origin) => break origin,
                None if is_over(end, LOOK, stop) => return (Vec::new(), Ok(())),
                None => {}
            }
        };
        let (done, pending, cuts) = (Vec::new(), Vec::new(), Vec::new());
        let mut injector = Injector { running, journal, stop, origin, done, pending, cuts };
        let outcome = injector.work(plan, end);
        let healed = injector.heal_all();
        (injector.done, outcome.and(healed))
    }

    fn work(&mut self, plan: &FaultPlan, end: &Receiver<()>) -> Result<()> {
        let mut faults = plan.faults.iter().peekable();
        loop {
            let undo = self.pending.iter().map(|(at, ..)| *at).min();
            let next = faults.peek().map(|fault| self.origin + fault.at);
            let Some(at) = [undo, next].into_iter().flatten().min() else {
                // Nothing more to do but to wait.
                let _ = end.recv();
                return Ok(());
            };
            if is_over(end, at.saturating_duration_since(Instant::now()), self.stop) {
                return Ok(());
            }
            if undo == Some(at) {
                self.undo_due(at)?;
            } else if let Some(fault) = faults.next() {
                self.inject(fault, end)?;
            }
        }
    }

    fn since_origin(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// Whom the fault meets now. `None` when nobody fits.
    fn find(&self, fault: &Fault, end: &Receiver<()>) -> Option<usize> {
        let members = &self.running.members;
        let up = |at: &usize| self.running.processes.get(*at).is_none_or(|process| process.is_up());
        let pick = |from: Vec<usize>, choice: u64| {
            (!from.is_empty()).then(|| from[(choice % from.len() as u64) as usize])
        };
        let part = fault.place.among(&self.running.parts())?;
        let own = self.running.of_part(part);
        let whom = match &fault.whom {
            // Routers are all alike.
            Whom::Primary | Whom::Secondary(_) if part == Part::Router => &Whom::Any(fault.place.choice),
            whom => whom,
        };
        match whom {
            Whom::Members(numbers) => numbers.first().copied().filter(up),
            Whom::Any(choice) => {
                pick(own.into_iter().filter(|at| !members[*at].arbiter).filter(up).collect(), *choice)
            }
            Whom::Arbiter => own.into_iter().filter(|at| members[*at].arbiter).find(up),
            Whom::Primary | Whom::Secondary(_) => {
                let deadline = Instant::now() + ELECTION;
                loop {
                    let states = self.running.states();
                    let found = match *whom {
                        Whom::Secondary(choice) => {
                            let follows = |at: &usize| states[*at] == State::Secondary;
                            pick(own.iter().copied().filter(follows).collect(), choice)
                        }
                        _ => primary_among(&states, &own),
                    };
                    if found.is_some() || Instant::now() > deadline || is_over(end, LOOK, self.stop) {
                        return found;
                    }
                }
            }
        }
    }

    /// What is done to this member: on routers, what a random plan has for members of sets is another thing.
    fn kind(&self, fault: &Fault, member: usize) -> Kind {
        let router = self.running.members[member].part == Part::Router;
        if router && !fault.kind.suits_routers() { Kind::Pause } else { fault.kind }
    }

    fn inject(&mut self, fault: &Fault, end: &Receiver<()>) -> Result<()> {
        let Some(member) = self.find(fault, end) else {
            self.record(format!("{}: {} was not there to be met", fault.kind.name(), fault.whom));
            return Ok(());
        };
        let address = &self.running.members[member].address;
        let part = self.running.members[member].part;
        let role = role(part, &fault.whom, || ask(self.running.access.direct(address)));
        let role = role.as_str();
        let seconds = fault.length.as_secs_f64();
        let process = self.running.processes.get(member);
        match (self.kind(fault, member), process) {
            (Kind::Kill, Some(process)) => {
                self.record(format!("kill -9 {address}{}", role.trim_end_matches(',')));
                process.kill(self.journal);
                self.later(fault.length, Undo::Start(member));
            }
            (Kind::Restart, Some(process)) => {
                self.record(format!("kill {address}{role} and start again"));
                process.terminate(self.journal)?;
                self.later(fault.length, Undo::Start(member));
            }
            (Kind::Pause, Some(process)) => {
                self.record(format!("pause {address}{role} for {seconds:.1} s"));
                process.pause(self.journal);
                self.later(fault.length, Undo::Resume(member));
            }
            (Kind::Cut, _) => {
                self.record(format!("cut {address}{role} off for {seconds:.1} s"));
                self.cut(vec![member], fault.length)?;
            }
            (Kind::Split, _) => {
                let side = self.side(&fault.whom, member);
                let names: Vec<&str> =
                    side.iter().map(|at| self.running.members[*at].address.as_str()).collect();
                self.record(format!("split {} from the others for {seconds:.1} s", names.join(", ")));
                self.cut(side, fault.length)?;
            }
            (Kind::Stepdown, _) => {
                self.record(format!("replSetStepDown on {address}{}", role.trim_end_matches(',')));
                self.step_down(address, fault.length);
            }
            (_, None) => {}
        }
        Ok(())
    }

    /// The side of a split that the member is on: a minority with it, unless its members are named.
    fn side(&self, whom: &Whom, member: usize) -> Vec<usize> {
        if let Whom::Members(numbers) = whom
            && numbers.len() > 1
        {
            return numbers.clone();
        }
        let own = self.running.of_part(self.running.members[member].part);
        let at = own.iter().position(|of_part| *of_part == member).unwrap_or(0);
        let size = ((own.len() - 1) / 2).max(1);
        (0..size).map(|further| own[(at + further) % own.len()]).collect()
    }

    fn record(&mut self, what: String) {
        self.journal.note("fault", what.clone());
        self.done.push(results::Fault { at_s: self.since_origin(), what, ..results::Fault::default() });
    }

    fn later(&mut self, length: Duration, undo: Undo) {
        let fault = self.done.len().saturating_sub(1);
        self.pending.push((Instant::now() + length, fault, undo));
    }

    fn cut(&mut self, side: Vec<usize>, length: Duration) -> Result<()> {
        self.cuts.push(side.clone());
        self.apply_cuts()?;
        self.later(length, Undo::Heal(side));
        Ok(())
    }

    /// Every way is cut that some cut goes through, and no other.
    fn apply_cuts(&self) -> Result<()> {
        let Some(links) = &self.running.links else {
            return Err(Error::failed("the members are not linked by proxies"));
        };
        let all = links.members();
        for (from, to) in (0..all).flat_map(|a| (0..all).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let through = self.cuts.iter().any(|side| side.contains(&from) != side.contains(&to));
            links.set(from, to, if through { Cut::Silent } else { Cut::Open })?;
        }
        Ok(())
    }

    /// What the member answers is for the workload to feel; that it cannot be reached is no error of the run.
    fn step_down(&mut self, address: &str, length: Duration) {
        let seconds = (length.as_secs_f64().ceil() as i32).max(1);
        // It must catch somebody up in less time than it stays away.
        let wait = (seconds - 1).clamp(0, 10);
        let command = doc! { "replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": wait };
        let text = json::to_json(command.as_raw(), json::Style::Relaxed);
        self.journal.note(address, format!("use admin; db.runCommand({text})"));
        let mut to = self.running.access.direct(address);
        (to.connect_timeout, to.socket_timeout) = (Duration::from_secs(2), Duration::from_secs(15));
        let outcome = Connection::open(address, &to)
            .and_then(|mut connection| connection.command("admin", &command).map(drop));
        if let (Err(error @ Error::Server(_)), Some(fault)) = (outcome, self.done.last_mut()) {
            fault.what = format!("{} (refused: {error})", fault.what);
        }
    }

    fn undo_due(&mut self, at: Instant) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.pending).into_iter().partition(|(when, ..)| *when <= at);
        self.pending = later;
        let due: Vec<(Instant, usize, Undo)> = due;
        for (_, fault, undo) in due {
            self.undo(fault, undo)?;
        }
        Ok(())
    }

    fn undo(&mut self, fault: usize, undo: Undo) -> Result<()> {
        let until_s = Some(self.since_origin());
        if let Some(fault) = self.done.get_mut(fault) {
            fault.until_s = until_s;
        }
        match undo {
            Undo::Start(member) => self.running.processes[member].start_again(self.journal),
            Undo::Resume(member) => {
                self.running.processes[member].resume(self.journal);
                Ok(())
            }
            Undo::Heal(side) => {
                if let Some(at) = self.cuts.iter().position(|cut| *cut == side) {
                    self.cuts.remove(at);
                }
                self.journal.note("fault", "heal");
                self.apply_cuts()
            }
        }
    }

    /// Undoes everything that is not yet undone, and waits until the set is whole.
    fn heal_all(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for (_, fault, undo) in std::mem::take(&mut self.pending) {
            outcome = outcome.and(self.undo(fault, undo));
        }
        outcome?;
        if self.done.is_empty() {
            return Ok(());
        }
        let whole = self.running.wait_until_whole(RECOVERY, self.stop);
        whole.map_err(|error| error.context("after the faults"))
    }
}

/// What a member is, for the record. Who was looked for as the primary is not asked again: it might be slow to answer.
fn role(part: Part, whom: &Whom, ask: impl FnOnce() -> State) -> String {
    let role = match whom {
        _ if part == Part::Router => return ", a router,".to_owned(),
        Whom::Primary => "the primary",
        Whom::Secondary(_) => "a secondary",
        Whom::Arbiter => "an arbiter",
        Whom::Any(_) | Whom::Members(_) => match ask() {
            State::Primary(_) => "the primary",
            State::Secondary => "a secondary",
            State::Arbiter => "an arbiter",
            State::Away => "a member",
        },
    };
    match part {
        Part::Set if role == "a member" => String::new(),
        Part::Set => format!(", {role},"),
        part => format!(", {role} of {part},"),
    }
}

/// The run was interrupted: that is looked at so often.
const INTERRUPTION: Duration = Duration::from_millis(100);

/// Waits; whether the end has come meanwhile, or the run was interrupted: then clients that wait for somebody who is down
/// are not kept waiting.
fn is_over(end: &Receiver<()>, wait: Duration, stop: &Stop) -> bool {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if stop.is_set()
            || !matches!(end.recv_timeout(left.min(INTERRUPTION)), Err(RecvTimeoutError::Timeout))
        {
            return true;
        }
        if left <= INTERRUPTION {
            return false;
        }
    }
}
