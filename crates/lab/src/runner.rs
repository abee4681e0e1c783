//! Running an experiment: every variation on every target, as often as asked for, from starting servers to the checks.

mod room;

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

pub use crate::report::live::LiveOperation;

use crate::context::Context;
use crate::database::Database;
use crate::environment;
use crate::error::{Error, Result};
use crate::experiment::{Experiment, Overrides, ServerOptions, Topology, Variation};
use crate::fault::{self, Injector};
use crate::journal::{Journal, now_ms};
use crate::measure::cost::{Cost, Meter};
use crate::measure::monitor::{self, Watched};
use crate::measure::{Measured, Recorder, Span, stalls};
use crate::part::Part;
use crate::results::{self, Metric, Repetition, Row, RunResult};
use crate::stop::Stop;
use crate::target::{LaunchOptions, Running, Target, bring_up, bytes_on_disk};
use crate::workload::{self, Figure, MAY_LACK, Memory, Workload};
use room::Room;

/// What the command line says about a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Everything that has a size or a length, as a part of the full experiment.
    pub scale: f64,
    /// `--set`.
    pub overrides: Overrides,
    /// Instead of the experiment's.
    pub repetitions: Option<u32>,
    /// Instead of the experiment's.
    pub targets: Vec<Target>,
    /// Only rows whose name contains one of these; all when empty.
    pub rows: Vec<String>,
    /// Folder in which data folders are made.
    pub data: PathBuf,
    /// Data folders stay.
    pub keep: bool,
    /// What all random choices derive from.
    pub seed: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        RunOptions {
            scale: 1.0,
            overrides: Overrides::default(),
            repetitions: None,
            targets: Vec::new(),
            rows: Vec::new(),
            data: std::env::temp_dir(),
            keep: false,
            seed: 1,
        }
    }
}

/// Follows a run while it goes on.
pub trait Observer: Send {
    /// About once a second: the row, seconds since its measured part began, what happened in the last full second, and
    /// how much is done, 0 to 1, where that is known.
    fn update(&mut self, row: &str, elapsed_s: f64, operations: &[LiveOperation], progress: Option<f64>);
    /// As often: by node, per cent of one processor and MB resident.
    fn nodes(&mut self, nodes: &[(String, f64, f64)]);
    /// The row's workload has ended.
    fn finish(&mut self);
    /// A line for people.
    fn say(&mut self, line: &str);
}

/// An observer that sees nothing.
pub struct Blind;

impl Observer for Blind {
    fn update(&mut self, _: &str, _: f64, _: &[LiveOperation], _: Option<f64>) {}
    fn nodes(&mut self, _: &[(String, f64, f64)]) {}
    fn finish(&mut self) {}
    fn say(&mut self, _: &str) {}
}

/// A run in progress.
struct Run<'a> {
    experiment: &'a Experiment,
    options: &'a RunOptions,
    stop: &'a Stop,
    journal: Arc<Journal>,
    observer: Mutex<&'a mut dyn Observer>,
    result: RunResult,
}

/// What is run on what.
///
/// Errors: what makes no sense, or is missing.
fn plan(experiment: &Experiment, options: &RunOptions) -> Result<(Vec<Target>, Vec<Variation>)> {
    if !(options.scale > 0.0 && options.scale.is_finite()) {
        return Err(Error::usage(format!("--scale {}: must be more than 0", options.scale)));
    }
    let mut variations = experiment.variations(&options.overrides)?;
    if !options.rows.is_empty() {
        variations.retain(|row| options.rows.iter().any(|part| row.name.contains(part.as_str())));
    }
    if variations.is_empty() {
        return Err(Error::usage("no row of the experiment has such a name"));
    }
    for variation in &variations {
        variation.check(&experiment.workload)?;
    }
    let targets = match options.targets.as_slice() {
        [] => experiment.targets.iter().map(|text| text.parse()).collect::<Result<Vec<Target>>>()?,
        given => given.to_vec(),
    };
    let known = |name: &str| workload::by_name(name).is_some_and(|workload| workload.knows_postgresql());
    for target in &targets {
        if target.is_postgresql() && !known(&experiment.workload) {
            let others: Vec<_> = workload::names().filter(|name| known(name)).collect();
            return Err(Error::usage(format!(
                "--target {target}: {} does not run on PostgreSQL; {} does",
                experiment.name,
                others.join(", ")
            )));
        }
        target.check()?;
    }
    // What a deployment has, which is there already, is not known here.
    if targets.iter().any(Target::is_launched) {
        let room = Room::look(&options.data);
        for variation in &variations {
            let mut workload = workload_of(experiment)?;
            workload.configure(&variation.settings)?;
            room.check(workload.as_ref(), variation, options.scale)?;
        }
    }
    Ok((targets, variations))
}

fn workload_of(experiment: &Experiment) -> Result<Box<dyn Workload>> {
    workload::by_name(&experiment.workload)
        .ok_or_else(|| Error::usage(format!("there is no workload {}", experiment.workload)))
}

/// Whether there is something to run, asked before anything is done.
pub fn check(experiment: &Experiment, options: &RunOptions) -> Result<()> {
    plan(experiment, options).map(drop)
}

/// Runs an experiment. What goes wrong within a row is in the row; an error means that there was nothing to run.
pub fn run(
    experiment: &Experiment,
    options: &RunOptions,
    journal: Arc<Journal>,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<RunResult> {
    let (targets, variations) = plan(experiment, options)?;
    let began = Instant::now();
    let mut run = Run {
        experiment,
        options,
        stop,
        journal,
        observer: Mutex::new(observer),
        result: RunResult {
            schema: results::SCHEMA,
            experiment: experiment.name.clone(),
            title: experiment.title.clone(),
            started_ms: now_ms(),
            scale: options.scale,
            settings: options.overrides.iter().collect(),
            environment: environment::look(&options.data)?,
            ..RunResult::default()
        },
    };
    run.judge_environment();
    run.all_rows(&targets, &variations);
    run.result.duration_s = began.elapsed().as_secs_f64();
    run.result.commands = run.journal.lines();
    Ok(run.result)
}

impl Run<'_> {
    fn say(&self, line: &str) {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).say(line);
    }

    fn warn(&mut self, text: String) {
        if !self.result.warnings.contains(&text) {
            self.say(&format!("warning: {text}"));
            self.result.warnings.push(text);
        }
    }

    fn judge_environment(&mut self) {
        let environment = &self.result.environment;
        let (load, cores) = (environment.load, environment.cores);
        if environment.filesystem.starts_with("tmpfs") || environment.filesystem.starts_with("ramfs") {
            let folder = self.options.data.display();
            self.warn(format!("{folder} is in memory: syncs cost nothing there; name another with --dbpath"));
        }
        if load > f64::from(cores) / 2.0 {
            self.warn(format!("the machine was busy when the run began: load {load} on {cores} processors"));
        }
    }

    fn all_rows(&mut self, targets: &[Target], variations: &[Variation]) {
        let total = targets.len() * variations.len();
        let mut number = 0;
        for target in targets {
            for variation in variations {
                number += 1;
                if self.stop.is_set() {
                    return;
                }
                self.say(&format!("row {number} of {total}: {} on {target}", variation.name));
                if !target.is_launched()
                    && (variation.server != ServerOptions::default()
                        || variation.topology != Topology::default())
                {
                    self.warn(format!(
                        "{target} was there already: the experiment's server options and topology do not apply"
                    ));
                }
                let row = self.row(target, variation);
                if let Some(why) = &row.failed {
                    self.say(&format!("FAILED: {why}"));
                }
                for check in row.repetitions.iter().flat_map(|r| &r.checks).filter(|check| !check.passed) {
                    self.say(&format!("CHECK FAILED: {}: {}", check.name, check.detail));
                }
                self.result.rows.push(row);
            }
        }
    }

    fn row(&mut self, target: &Target, variation: &Variation) -> Row {
        let mut row = Row {
            name: variation.name.clone(),
            variation: variation.values.clone(),
            target: target.to_string(),
            ..Row::default()
        };
        for repetition in 0..self.options.repetitions.unwrap_or(self.experiment.repetitions) {
            if let Err(error) = self.repetition(target, variation, repetition, &mut row) {
                row.failed = Some(error.to_string());
                break;
            }
        }
        let mut columns = self.experiment.columns.clone();
        if !columns.is_empty() && row.metrics.iter().any(|metric| metric.name == fault::COLUMNS[0]) {
            let further = fault::COLUMNS.map(str::to_owned);
            columns.extend(further.into_iter().filter(|name| !self.experiment.columns.contains(name)));
        }
        if row.failed.is_none()
            && let Err(error) = pick_columns(&mut row.metrics, &columns)
        {
            row.failed = Some(error.to_string());
        }
        row
    }

    fn repetition(
        &mut self,
        target: &Target,
        variation: &Variation,
        number: u32,
        row: &mut Row,
    ) -> Result<()> {
        let mut workload = workload_of(self.experiment)?;
        workload.configure(&variation.settings)?;
        let (keep, scale) = (self.options.keep, self.options.scale);
        let launch = LaunchOptions { data: self.options.data.clone(), keep, scale };
        let mut running = bring_up(target, variation, &launch, &self.journal, self.stop)?;
        std::mem::take(&mut running.warnings).into_iter().for_each(|warning| self.warn(warning));
        row.target.clone_from(&running.name);
        let (program, version) = running.name.split_once(' ').unwrap_or((&running.name, ""));
        self.result.environment.versions.insert(program.to_owned(), version.to_owned());
        let mut context = self.context(&running, variation, number)?;
        context.tells_stalls = workload.looks_for_stalls();
        if context.tells_stalls {
            context.recorder = Arc::new(Recorder::tracing());
        }
        fault::check(&context.faults_planned, &running)?;
        workload.setup(&context).map_err(|error| error.context("setup"))?;
        let patient = context.database.clone();
        if let Database::MongoDb(to) = &mut context.database
            && !context.faults_planned.is_empty()
        {
            *to = to.enduring();
        }
        let measured = self.measured(workload.as_mut(), &context, &running, &variation.name);
        context.database = patient;
        let (mut repetition, outcome) = measured;
        if let Some(process) = running.processes.iter().find(|process| process.has_ended_by_itself()) {
            self.collect(&mut repetition, &context, &running, row);
            row.repetitions.push(repetition);
            let (address, how, log) = (&process.address, process.how_it_ended(), process.end_of_log());
            return Err(Error::failed(format!(
                "{address} ended during the run, with {how}. The end of its log:\n  {log}"
            )));
        }
        if let Err(error) = outcome {
            // What was done to the servers until then may say why.
            self.collect(&mut repetition, &context, &running, row);
            row.repetitions.push(repetition);
            return Err(error.context("run"));
        }
        // Even if this fails, what was measured is kept with the failed row.
        let checked = workload.check(&context).map_err(|error| error.context("check"));
        self.collect(&mut repetition, &context, &running, row);
        let mut figures = workload.metrics(&context);
        if context.under_faults() {
            figures.extend(fault::figures(&repetition.faults));
        }
        let figures = add_figures(&mut row.metrics, figures, number as usize);
        let checked = checked.map(|checks| repetition.checks = checks);
        row.repetitions.push(repetition);
        checked?;
        figures?;
        running.shut_down()
    }

    fn context(&self, running: &Running, variation: &Variation, repetition: u32) -> Result<Context> {
        let mut context = Context::bare(running.database.clone(), Default::default());
        context.nodes.clone_from(&running.nodes);
        context.settings = variation.settings.clone();
        context.scale = self.options.scale;
        // Each repetition makes other choices, and each run with this seed makes the same ones.
        context.seed = self.options.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(repetition));
        context.repetition = repetition;
        context.faults_planned = variation.fault_plan(self.options.scale, context.seed)?;
        if context.under_faults() {
            context.recorder = Arc::new(Recorder::tracing());
        }
        context.load = variation.phases.load(self.options.scale)?;
        if let Span::Seconds(seconds) = context.load.measure {
            context.faults_planned.end_after(seconds);
        }
        context.stop = self.stop.clone();
        context.journal = self.journal.clone();
        context.meter = Meter::new(running.processes.iter().map(|process| process.server.clone()).collect());
        context.members.clone_from(&running.members);
        let groups = running.processes.iter().filter_map(|process| process.group.clone());
        let limit =
            variation.server.memory_bytes(self.options.scale).filter(|_| !running.processes.is_empty());
        context.memory = Memory { limit, groups: groups.collect() };
        Ok(context)
    }

    /// Runs the workload while the servers are looked at.
    #[expect(clippy::disallowed_methods, reason = "nothing is sent: an end that is dropped is the message")]
    fn measured(
        &mut self,
        workload: &mut dyn Workload,
        context: &Context,
        running: &Running,
        row: &str,
    ) -> (Repetition, Result<()>) {
        let to = |node: &String| match &running.database {
            Database::MongoDb(to) => Some(to.for_node(node)),
            Database::PostgreSql(_) => None,
        };
        let process = |node: &String| {
            running.processes.iter().find(|process| process.address == *node).map(|p| p.server.clone())
        };
        let watched: Vec<Watched> = running
            .nodes
            .iter()
            .map(|node| Watched { node: node.clone(), process: process(node), to: to(node) })
            .collect();
        let (done, waiting) = channel::<()>();
        let (calm, end) = channel::<()>();
        let recorder = context.recorder.clone();
        let (observer, journal, stop) = (&self.observer, &self.journal, self.stop);
        let (outcome, cost, length, servers, faults) = std::thread::scope(|scope| {
            let monitor = scope.spawn(move || {
                let each = |nodes: &[_]| show(observer, row, nodes, &recorder, context);
                monitor::watch(watched, &waiting, each, || recorder.origin())
            });
            let plan = &context.faults_planned;
            let faults = (!plan.is_empty()).then(|| {
                let origin = || context.recorder.origin();
                scope.spawn(move || Injector::run(plan, running, journal, stop, origin, &end))
            });
            let outcome = workload.run(context);
            let length = context.recorder.origin().map_or(0.0, |origin| origin.elapsed().as_secs_f64());
            let cost = context.meter.cost();
            drop(done);
            drop(calm);
            (outcome, cost, length, monitor.join(), faults.map(|faults| faults.join()))
        });
        self.observer.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let mut servers = servers.unwrap_or_default();
        for server in &mut servers {
            let member = running.members.iter().find(|member| member.address == server.node);
            if let Some(member) = member.filter(|member| member.part != Part::Set) {
                server.node = format!("{}, {}", member.part, server.node);
            }
        }
        let mut repetition = Repetition {
            seconds: cost.seconds,
            servers,
            client_cpu_s: cost.client_s,
            server_cpu_s: cost.server_s,
            ..Repetition::default()
        };
        let healed = match faults {
            None => Ok(()),
            Some(Err(_)) => Err(Error::failed("the thread that injects faults panicked")),
            Some(Ok((mut faults, healed))) => {
                fault::complete(&mut faults, &context.recorder.traces(), length);
                self.judge_faults(row, context, faults.len());
                repetition.faults = faults;
                healed
            }
        };
        if outcome.is_ok() && !context.under_faults() {
            self.judge_generator(row, cost, &context.measured());
        }
        (repetition, outcome.and(healed))
    }

    /// Says how many scheduled faults came too late.
    fn judge_faults(&mut self, row: &str, context: &Context, done: usize) {
        let plan = &context.faults_planned;
        if !plan.random && done < plan.faults.len() {
            let missed = plan.faults.len() - done;
            self.warn(format!("row \"{row}\": the run ended before {missed} of its faults"));
        }
    }

    fn collect(&mut self, repetition: &mut Repetition, context: &Context, running: &Running, row: &Row) {
        let measured = context.measured();
        repetition.seconds = measured.seconds;
        repetition.operations = context.recorder.operations();
        if context.tells_stalls {
            // A kind that is asked for in a part of the run only is judged by that part.
            let seconds = |name: &str| {
                let own = repetition.operations.iter().find(|operation| operation.name == name);
                own.map_or(0.0, |operation| operation.series.len() as f64)
            };
            repetition.stalls = stalls::longest(&context.recorder.traces(), seconds);
        }
        let take = PoisonError::into_inner;
        repetition.steps = std::mem::take(&mut context.steps.lock().unwrap_or_else(take));
        // What the workload itself has done to servers, beside the plan.
        repetition.faults.append(&mut context.faults.lock().unwrap_or_else(PoisonError::into_inner));
        for process in &running.processes {
            repetition.disk_bytes.insert(process.address.clone(), bytes_on_disk(&process.data));
        }
        let warnings = std::mem::take(&mut *context.warnings.lock().unwrap_or_else(PoisonError::into_inner));
        for warning in warnings {
            self.warn(format!("row \"{}\": {warning}", row.name));
        }
    }

    /// The generator could drive so many times what it drove: the time that its threads could have had, by that which
    /// they used. With less than three times, the figures are partly its own.
    fn judge_generator(&mut self, row: &str, cost: Cost, measured: &Measured) {
        let cores = self.result.environment.cores;
        let Cost { seconds: took, client_s: cpu, .. } = cost;
        let Some(headroom) = headroom(cpu, measured, took, cores) else { return };
        if headroom < ENOUGH {
            self.warn(format!(
                "row \"{row}\": the load generator was part of the bottleneck: {} client threads used {cpu:.1} processor \
                 seconds in {took:.1} s on {cores} processors and could have driven only {headroom:.1} times as much",
                measured.clients
            ));
        }
    }
}

/// What a generator must be able to drive, by what the server delivers.
const ENOUGH: f64 = 3.0;

/// See [`Run::judge_generator`]. `None` when there is too little to judge by.
fn headroom(client_cpu_s: f64, measured: &Measured, took: f64, cores: u32) -> Option<f64> {
    // With more clients than processors, waiting for one of them is what the server makes them do.
    let queued_s = if measured.clients <= cores { measured.queued_s } else { 0.0 };
    let threads = f64::from(measured.clients.min(cores));
    (client_cpu_s > 0.01 && threads > 0.0).then(|| threads * took / (client_cpu_s + queued_s))
}

fn show(
    observer: &Mutex<&mut dyn Observer>,
    row: &str,
    nodes: &[(String, f64, f64)],
    recorder: &Recorder,
    context: &Context,
) {
    let now: Vec<LiveOperation> =
        recorder.now().into_iter().map(|now| (now.name, now.rate, now.p50_us, now.p99_us)).collect();
    let elapsed = recorder.origin().map_or(0.0, |origin| origin.elapsed().as_secs_f64());
    let by_clock = match context.load.measure {
        Span::Seconds(seconds) if seconds > 0.0 => Some((elapsed / seconds).min(1.0)),
        _ => None,
    };
    let progress = context.progress().or(by_clock);
    let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
    observer.nodes(nodes);
    observer.update(row, elapsed, &now, progress);
}

/// Adds a repetition's figures to the row's metrics. All repetitions must have the same ones; what one of them cannot tell where it may be so
/// is told of none.
fn add_figures(metrics: &mut Vec<Metric>, figures: Vec<Figure>, repetition: usize) -> Result<()> {
    for Figure { name, unit, better, value, aim } in figures {
        if !value.is_finite() {
            return Err(Error::failed(format!("the workload's figure \"{name}\" is {value}")));
        }
        match metrics.iter_mut().find(|metric| metric.name == name) {
            Some(metric) => metric.values.push(value),
            None => metrics.push(Metric { name, unit: unit.to_owned(), better, values: vec![value], aim }),
        }
    }
    metrics
        .retain(|metric| metric.values.len() == repetition + 1 || !MAY_LACK.contains(&metric.name.as_str()));
    match metrics.iter().find(|metric| metric.values.len() != repetition + 1) {
        Some(metric) => {
            Err(Error::failed(format!("not every repetition has the figure \"{}\"", metric.name)))
        }
        None => Ok(()),
    }
}

/// Keeps the columns that the experiment asks for, in its order.
fn pick_columns(metrics: &mut Vec<Metric>, columns: &[String]) -> Result<()> {
    if columns.is_empty() {
        return Ok(());
    }
    let mut picked = Vec::new();
    for column in columns {
        let Some(metric) = metrics.iter().find(|metric| metric.name == *column) else {
            let known: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
            return Err(Error::usage(format!("columns: no metric {column}; there are {}", known.join(", "))));
        };
        picked.push(metric.clone());
    }
    *metrics = picked;
    Ok(())
}

#[cfg(test)]
mod tests;
