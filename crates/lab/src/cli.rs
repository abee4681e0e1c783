//! The command line of the laboratory: `sheaf bench ...`, `sheaf cluster ...` and `sheaf doctor`.

mod folder;
mod generator;
mod letters;
mod lines;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};

use crate::doctor::Status;
use crate::error::{Error, Result};
use crate::experiment::{Experiment, Overrides, ready};
use crate::journal::{Journal, now_ms};
use crate::results::{RunResult, SCHEMA};
use crate::runner::{self, Observer, RunOptions};
use crate::stop::Stop;
use crate::target::Target;
use folder::Folder;
use lines::Lines;

pub use crate::cluster::{Cluster, cluster};

/// A check failed, or a row could not be finished.
const EXIT_FAILED: u8 = 1;
/// What was asked for makes no sense.
const EXIT_USAGE: u8 = 2;
/// As shells have it for a program that SIGINT ended.
const EXIT_INTERRUPTED: u8 = 130;

/// `sheaf bench`.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum BenchCommand {
    /// Run an experiment, ready-made or from a file
    Run(Box<RunArgs>),
    /// List the ready-made experiments
    List,
    /// Print the file of a ready-made experiment, as a start for your own
    Show {
        /// Name of the experiment
        name: String,
    },
    /// Compare two runs
    Compare {
        /// Folder (or results.json) of the first run, the base
        a: PathBuf,
        /// Folder (or results.json) of the second run
        b: PathBuf,
        /// Write the comparison as an HTML page too
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Print the table of a run and make its HTML page again
    Report {
        /// Folder (or results.json) of the run
        run: PathBuf,
    },
    /// Measure the load generator alone, against a responder that does nothing
    Generator(generator::GeneratorArgs),
}

/// `sheaf bench run`.
#[derive(Args, Clone, Debug)]
struct RunArgs {
    /// Name of a ready-made experiment (see `sheaf bench list`), or a file
    experiment: String,
    /// Of ycsb and at-size, only these workloads: b, or a,c, or a..d; repeatable [default: all]
    #[arg(long = "workload", value_name = "LETTERS")]
    workloads: Vec<String>,
    /// Size and length as a part of the full experiment
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Change a setting: rounds=3, server.cache_gb=0.5, phases.measure.seconds=10
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How often each row is measured
    #[arg(long)]
    repetitions: Option<u32>,
    /// What to measure: sheaf, sheaf=FILE, a folder with mongod, mongodb://..., postgres, postgresql://...; repeatable
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Only rows whose name contains this; repeatable
    #[arg(long = "row", value_name = "PART")]
    rows: Vec<String>,
    /// Folder for the results, without any yet [default: a new one below lab-results]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Folder in which the servers' data folders are made [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    dbpath: Option<PathBuf>,
    /// Leave the data folders there
    #[arg(long)]
    keep: bool,
    /// Start of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// No live view
    #[arg(long)]
    quiet: bool,
}

/// `sheaf bench`: runs it and says how the process should end.
pub fn bench(bench: &Bench) -> ExitCode {
    let outcome = match &bench.command {
        BenchCommand::Run(arguments) => run(arguments),
        BenchCommand::List => list(),
        BenchCommand::Show { name } => show(name),
        BenchCommand::Compare { a, b, html } => compare(a, b, html.as_deref()),
        BenchCommand::Report { run } => report(run),
        BenchCommand::Generator(arguments) => generator::run(arguments),
    };
    exit_code(outcome)
}

/// Prints to standard output. That nobody reads to the end (`| head`) is no error.
fn print(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

pub(crate) fn exit_code(outcome: Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(Error::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(error) => {
            eprintln!("sheaf: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { EXIT_USAGE } else { EXIT_FAILED })
        }
    }
}

fn run(arguments: &RunArgs) -> Result<ExitCode> {
    let mut experiment = Experiment::open(&arguments.experiment)?;
    let mut overrides = Overrides::default();
    letters::choose(&arguments.workloads, &mut experiment, &mut overrides)?;
    for text in &arguments.set {
        overrides.add(text)?;
    }
    if arguments.repetitions == Some(0) {
        return Err(Error::usage("--repetitions: must be at least 1"));
    }
    let options = RunOptions {
        scale: arguments.scale,
        overrides,
        repetitions: arguments.repetitions,
        targets: arguments.targets.iter().map(|text| text.parse()).collect::<Result<Vec<Target>>>()?,
        rows: arguments.rows.clone(),
        data: arguments.dbpath.clone().unwrap_or_else(std::env::temp_dir),
        keep: arguments.keep,
        seed: arguments.seed,
    };
    runner::check(&experiment, &options)?;
    std::fs::create_dir_all(&options.data)?;
    let folder = match &arguments.out {
        Some(path) => Folder::given(path)?,
        None => Folder::of_its_own(Path::new(""), &experiment.name, now_ms())?,
    };
    let stop = stop_on_signals()?;
    let mut observer = Lines::new(arguments.quiet);
    let journal = Arc::new(Journal::new());
    let result = match runner::run(&experiment, &options, journal, &mut observer, &stop) {
        Ok(result) => result,
        Err(error) => {
            folder.give_up();
            return Err(error);
        }
    };
    // What was measured is seen even when the disk is full.
    print(&crate::report::table(&result));
    write(&result, folder.path())?;
    observer.say(&format!("results: {}", folder.path().display()));
    Ok(if stop.is_set() {
        ExitCode::from(EXIT_INTERRUPTED)
    } else if result.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    })
}

const RESULTS: &str = "results.json";
const PAGE: &str = "report.html";

/// Writes what a run leaves behind.
pub fn write(result: &RunResult, folder: &Path) -> Result<()> {
    let place = |error: std::io::Error| Error::from(error).context(folder.display());
    std::fs::create_dir_all(folder).map_err(place)?;
    let text = serde_json::to_string(result).map_err(|error| Error::failed(error.to_string()))?;
    std::fs::write(folder.join(RESULTS), text).map_err(place)?;
    std::fs::write(folder.join(PAGE), crate::report::html(result)).map_err(place)
}

/// Reads a run back from its folder or from its `results.json`.
pub fn read(path: &Path) -> Result<RunResult> {
    let file = if path.is_dir() { path.join(RESULTS) } else { path.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(|error| Error::from(error).context(file.display()))?;
    let result: RunResult = serde_json::from_str(&text)
        .map_err(|error| Error::usage(format!("{}: not the results of a run: {error}", file.display())))?;
    if result.schema != SCHEMA {
        return Err(Error::usage(format!(
            "{}: written in layout {}, this program reads layout {SCHEMA}",
            file.display(),
            result.schema
        )));
    }
    Ok(result)
}

fn report(path: &Path) -> Result<ExitCode> {
    let result = read(path)?;
    print(&crate::report::table(&result));
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let page = folder.join(PAGE);
    std::fs::write(&page, crate::report::html(&result))
        .map_err(|error| Error::from(error).context(page.display()))?;
    print(&format!("page: {}\n", page.display()));
    Ok(if result.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_FAILED) })
}

fn compare(a: &Path, b: &Path, html: Option<&Path>) -> Result<ExitCode> {
    let comparison = crate::compare::compare(&read(a)?, &read(b)?);
    print(&comparison.table());
    if let Some(file) = html {
        std::fs::write(file, comparison.html())
            .map_err(|error| Error::from(error).context(file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> Result<ExitCode> {
    for ready in ready() {
        let experiment = Experiment::open(ready.name)?;
        let rows = experiment.variations(&Overrides::default())?.len();
        let rows = if rows == 1 { String::new() } else { format!(" ({rows} rows)") };
        print(&format!("{:20} {}{rows}\n", ready.name, experiment.title));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(name: &str) -> Result<ExitCode> {
    match ready().find(|ready| ready.name == name) {
        Some(ready) => {
            print(ready.text);
            Ok(ExitCode::SUCCESS)
        }
        None => Err(Error::usage(format!("there is no ready-made experiment {name}"))),
    }
}

/// The first SIGINT or SIGTERM ends the run in order: what was measured is written. The second ends the process at
/// once; the guards then end the servers.
pub(crate) fn stop_on_signals() -> Result<Stop> {
    let stop = Stop::default();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first signal finds the flag not yet set.
        signal_hook::flag::register_conditional_shutdown(signal, i32::from(EXIT_INTERRUPTED), stop.flag())?;
        signal_hook::flag::register(signal, stop.flag())?;
    }
    Ok(stop)
}

/// `sheaf doctor`.
#[derive(Args, Clone, Debug)]
pub struct Doctor {
    /// Folder of the data, on the disk that is to be checked
    #[arg(long, value_name = "DIR", default_value = ".")]
    dbpath: PathBuf,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// `sheaf doctor`: looks at this machine and says what to mend. Fails when something is bad, so that a
/// deployment can ask for it.
pub fn doctor(doctor: &Doctor) -> ExitCode {
    if !doctor.dbpath.is_dir() {
        return exit_code(Err(Error::usage(format!("{}: no such folder", doctor.dbpath.display()))));
    }
    let findings = crate::doctor::run(&doctor.dbpath);
    if doctor.json {
        match serde_json::to_string_pretty(&findings) {
            Ok(text) => print(&(text + "\n")),
            Err(error) => return exit_code(Err(Error::failed(error.to_string()))),
        }
    } else {
        print(&crate::doctor::print(&findings));
    }
    let bad = findings.iter().any(|finding| finding.status == Status::Bad);
    if bad { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_back_and_other_layouts_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut result = RunResult { schema: SCHEMA, experiment: "x".into(), ..RunResult::default() };
        write(&result, folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap().experiment, "x");
        assert_eq!(read(&folder.path().join(RESULTS)).unwrap().experiment, "x");
        assert!(std::fs::read_to_string(folder.path().join(PAGE)).unwrap().contains("<html"));
        result.schema = SCHEMA + 1;
        write(&result, folder.path()).unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("layout"));
        std::fs::write(folder.path().join(RESULTS), "{}").unwrap();
        assert!(read(folder.path()).unwrap_err().to_string().contains("not the results of a run"));
        assert!(read(&folder.path().join("nothing")).is_err());
    }
}
