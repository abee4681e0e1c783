//! What a workload works with: the database, its settings, and clients that are paced and measured.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, json};

use crate::client::{Client, ConnectionString};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::experiment::Settings;
use crate::fault::FaultPlan;
use crate::generate::Random;
use crate::journal::Journal;
use crate::measure::cost::{Meter, queued_seconds};
use crate::measure::{Load, Local, Measured, Pace, Recorder, Ticket};
use crate::results::{Fault, Step};
use crate::stop::Stop;
use crate::target::Member;
use crate::workload::Memory;

/// Pause of a client after an operation that failed while something is done to the servers.
const AFTER_FAILURE: Duration = Duration::from_millis(10);

/// Nothing is known about the progress.
const UNKNOWN: u32 = u32::MAX;

/// What a workload gets for one repetition of one variation.
pub struct Context {
    /// What is measured.
    pub database: Database,
    /// "host:port" of every server, the first one being where operations go when there is a choice.
    pub nodes: Vec<String>,
    /// Every member with its role and its data folder; see [`Context::data_members`].
    pub members: Vec<Member>,
    /// What is done to the servers while [`Context::run`] goes on. Everything is healed, and the set is whole again,
    /// when the workload's check begins.
    pub faults_planned: FaultPlan,
    /// The workload's settings: the experiment's, the variation's and `--set` together.
    pub settings: Settings,
    /// `--scale`; see [`Context::scaled`].
    pub scale: f64,
    /// What all random choices of this repetition derive from.
    pub seed: u64,
    /// Counts from 0.
    pub repetition: u32,
    /// The phases that the experiment asks for, already scaled.
    pub load: Load,
    /// How the servers' memory is limited.
    pub memory: Memory,
    /// Where latencies go.
    pub recorder: Arc<Recorder>,
    /// Whether the report tells of every stall; the recorder traces then.
    pub(crate) tells_stalls: bool,
    /// Set when the run is to end early.
    pub stop: Stop,
    pub(crate) journal: Arc<Journal>,
    pub(crate) meter: Meter,
    pub(crate) steps: Mutex<Vec<Step>>,
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) warnings: Mutex<Vec<String>>,
    /// In thousandths, or [`UNKNOWN`].
    progress: AtomicU32,
}

impl Context {
    /// A number of the full experiment at this run's scale, at least 1.
    pub fn scaled(&self, full: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(1)
    }

    /// The MongoDB deployment; an error for the person who asked when it is something else.
    pub fn mongodb(&self) -> Result<&ConnectionString> {
        match &self.database {
            Database::MongoDb(to) => Ok(to),
            Database::PostgreSql(_) => Err(Error::usage("this workload does not know PostgreSQL")),
        }
    }

    /// Whether something is done to the servers during the run, so that operations may fail.
    pub fn under_faults(&self) -> bool {
        !self.faults_planned.is_empty()
    }

    /// "host:port" of every member that holds data.
    pub fn data_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.arbiter && member.part.holds_data())
    }

    /// A new client of the deployment.
    pub fn connect(&self) -> Result<Client> {
        Client::connect(self.mongodb()?)
    }

    /// Runs an administrative command on the primary. It is printed and kept with the results.
    pub fn admin(&self, client: &mut Client, db: &str, command: &DocBuf) -> Result<DocBuf> {
        let to = client.primary_address().unwrap_or("").to_owned();
        let text = json::to_json(command.as_raw(), json::Style::Relaxed);
        self.journal.note(&to, format!("use {db}; db.runCommand({text})"));
        client.command(db, command).map(DocBuf::from)
    }

    /// Runs groups of clients at once, each client on a thread and with a connection of its own, until all have ended:
    /// what they measured together. The first error of any of them stops the rest.
    pub fn run(&self, groups: &[Group<'_>]) -> Result<Measured> {
        let clients = groups.iter().map(|group| group.clients).sum();
        let paces = self.connect_and_run(groups)?;
        if self.stop.is_set() {
            return Err(Error::Interrupted);
        }
        let Ran { paces, locals, ended } = paces;
        let began = paces.iter().filter_map(Pace::measured_from).min().unwrap_or(ended);
        let mut run = Measured { clients, ..Measured::default() };
        run.seconds = ended.saturating_duration_since(began).as_secs_f64();
        run.missed = paces.iter().map(Pace::missed).sum();
        if run.missed > 0 {
            self.warn(format!("{} operations were due but never started: the rate was too high", run.missed));
        }
        for local in locals {
            run.add_local(local);
        }
        Ok(self.recorder.add_run(run, began, ended))
    }

    fn connect_and_run(&self, groups: &[Group<'_>]) -> Result<Ran> {
        // All connect first, so that the clock starts with everybody ready.
        let mut workers = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            for index in 0..group.clients {
                let client = match &self.database {
                    Database::MongoDb(to) if group.connects => Some(Client::connect(to)?),
                    _ => None,
                };
                workers.push((at, index, client));
            }
        }
        let begin = Instant::now();
        let paces: Vec<Pace> =
            groups.iter().map(|group| Pace::start_at(group.load.unwrap_or(self.load), begin)).collect();
        if let Some(from) = paces.iter().filter_map(Pace::measured_from).min() {
            self.recorder.begin(from);
        }
        let halt = Stop::default();
        let failure = Mutex::new(None);
        let mut locals = Vec::new();
        let mut ended = begin;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, (at, index, client)) in workers.into_iter().enumerate() {
                let (group, pace, halt, failure) = (&groups[at], &paces[at], &halt, &failure);
                threads.push(scope.spawn(move || {
                    let mut worker = Worker {
                        index,
                        random: Random::for_client(self.seed, number),
                        client,
                        context: self,
                        local: Local::new(group.keep_calls),
                        pace,
                        halt,
                        last: begin,
                        queued_from: None,
                    };
                    if let Err(error) = (group.work)(&mut worker) {
                        let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                        first.get_or_insert(error.context(format_args!("{} {index}", group.name)));
                        halt.set();
                    }
                    worker.local.queued_s = worker.queued_from.map_or(0.0, |from| queued_seconds() - from);
                    worker.local.finish(&self.recorder);
                    (worker.local, worker.last)
                }));
            }
            for thread in threads {
                match thread.join() {
                    Ok((local, last)) => {
                        locals.push(local);
                        ended = ended.max(last);
                    }
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Ran { paces, locals, ended }),
        }
    }

    /// All runs of this repetition together.
    pub fn measured(&self) -> Measured {
        self.recorder.measured()
    }

    /// Says how much of the run is done, 0 to 1, where the workload knows better than the clock.
    pub fn set_progress(&self, done: f64) {
        let thousandths = (done.clamp(0.0, 1.0) * 1000.0) as u32;
        self.progress.store(thousandths, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> Option<f64> {
        let thousandths = self.progress.load(Ordering::Relaxed);
        (thousandths != UNKNOWN).then(|| f64::from(thousandths) / 1000.0)
    }

    /// Keeps a step with its own number of clients for the report.
    pub fn add_step(&self, step: Step) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// Keeps what was done to a server, at this moment.
    pub fn add_fault(&self, what: impl Into<String>) {
        let at_s = self.recorder.origin().map_or(0.0, |origin| origin.elapsed().as_secs_f64());
        let fault = Fault { at_s, what: what.into(), ..Fault::default() };
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
    }

    /// Says something that a reader must know to judge the figures.
    pub fn warn(&self, text: impl Into<String>) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(text.into());
    }

    /// A context with nothing in it but the database: no nodes, full scale, until the workload is done.
    pub fn bare(database: Database, settings: BTreeMap<String, serde_yaml_ng::Value>) -> Context {
        Context {
            database,
            nodes: Vec::new(),
            members: Vec::new(),
            faults_planned: FaultPlan::default(),
            settings: Settings::new(settings),
            scale: 1.0,
            seed: 1,
            repetition: 0,
            load: Load::unbounded(),
            memory: Memory::default(),
            recorder: Arc::default(),
            tells_stalls: false,
            stop: Stop::default(),
            journal: Arc::new(Journal::silent()),
            meter: Meter::default(),
            steps: Mutex::default(),
            faults: Mutex::default(),
            warnings: Mutex::default(),
            progress: AtomicU32::new(UNKNOWN),
        }
    }
}

struct Ran {
    paces: Vec<Pace>,
    locals: Vec<Local>,
    ended: Instant,
}

/// What a client of a group does, from its first operation to its last.
type Work<'a> = Box<dyn Fn(&mut Worker<'_>) -> Result<()> + Sync + 'a>;

/// Clients that do the same.
pub struct Group<'a> {
    name: String,
    clients: u32,
    load: Option<Load>,
    keep_calls: bool,
    connects: bool,
    work: Work<'a>,
}

impl<'a> Group<'a> {
    /// So many clients; the name is for error messages ("writer").
    pub fn new(
        name: &str,
        clients: u32,
        work: impl Fn(&mut Worker<'_>) -> Result<()> + Sync + 'a,
    ) -> Group<'a> {
        let work = Box::new(work);
        Group { name: name.to_owned(), clients, load: None, keep_calls: false, connects: true, work }
    }

    /// Another load than the experiment's.
    #[must_use]
    pub fn load(mut self, load: Load) -> Self {
        self.load = Some(load);
        self
    }

    /// Keeps each call's latency in order.
    #[must_use]
    pub fn keep_calls(mut self) -> Self {
        self.keep_calls = true;
        self
    }

    /// The clients connect themselves: [`Worker::client`] is not there.
    #[must_use]
    pub fn without_client(mut self) -> Self {
        self.connects = false;
        self
    }
}

/// One client of a group, on its own thread.
pub struct Worker<'c> {
    /// Counts the group's clients from 0.
    pub index: u32,
    /// Random choices of this client; the same in each run with the same seed.
    pub random: Random,
    client: Option<Client>,
    context: &'c Context,
    local: Local,
    pace: &'c Pace,
    halt: &'c Stop,
    last: Instant,
    /// [`queued_seconds`] when this client's measured part began.
    queued_from: Option<f64>,
}

impl Worker<'_> {
    /// The connection.
    ///
    /// # Panics
    /// In a group that connects itself.
    pub fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("this group's clients connect themselves")
    }

    /// The context of the run.
    pub fn context(&self) -> &Context {
        self.context
    }

    /// The next turn, once it is due; `None` when the client is to end.
    #[expect(
        clippy::should_implement_trait,
        reason = "the loop's body needs the worker, which an iterator would hold"
    )]
    pub fn next(&mut self) -> Option<Ticket> {
        if self.halt.is_set() {
            return None;
        }
        let ticket = self.pace.next(&self.context.stop)?;
        if ticket.measured && self.queued_from.is_none() {
            self.queued_from = Some(queued_seconds());
            self.context.recorder.begin(self.pace.measured_from().unwrap_or(ticket.due));
            self.context.meter.begin();
        }
        Some(ticket)
    }

    /// Whether the run is to end: for loops that wait for something else than their turn.
    pub fn stopping(&self) -> bool {
        self.halt.is_set() || self.context.stop.is_set()
    }

    /// The operation of this turn has succeeded, now.
    pub fn done(&mut self, operation: &str, ticket: Ticket) {
        self.last = Instant::now();
        if ticket.measured {
            let took = self.last.saturating_duration_since(ticket.due);
            self.local.succeeded(&self.context.recorder, operation, took, self.last);
        }
    }

    /// The operation of this turn has failed for good, now.
    pub fn failed(&mut self, operation: &str, ticket: Ticket) {
        self.last = Instant::now();
        if ticket.measured {
            let took = self.last.saturating_duration_since(ticket.due);
            self.local.failed(&self.context.recorder, operation, took, self.last);
        }
    }

    /// The operation of this turn has failed with this error. While something is done to the servers, an error that
    /// this explains is counted and the client goes on; what the operation did is then unknown, and a check must allow
    /// both. Any other error is given back: it ends the run.
    pub fn endured(&mut self, operation: &str, ticket: Ticket, error: Error) -> Result<()> {
        if self.context.under_faults() && error.is_transient() {
            self.failed(operation, ticket);
            // Who is refused at once must not ask again as fast as it can.
            std::thread::sleep(AFTER_FAILURE);
            Ok(())
        } else {
            Err(error)
        }
    }

    /// The operation of this turn took more tries.
    pub fn retried(&mut self, operation: &str, ticket: Ticket, tries: u64) {
        if ticket.measured && tries > 0 {
            let now = Instant::now();
            let took = now.saturating_duration_since(ticket.due);
            self.local.retried(&self.context.recorder, operation, tries, took, now);
        }
    }
}
