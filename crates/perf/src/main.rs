//! Measures what an operation costs against its floor: a bare TCP echo, a raw file append and fdatasync, RocksDB alone.
//!
//! `sheaf-perf [--bin PATH] [--quick] [--gigabytes N] [section...]` starts servers of its own with temporary data folders,
//! measures, and prints a Markdown table of ratios per section. Both sides of each ratio come from one run and alternate
//! in small blocks, so that a machine that is busy elsewhere slows both. The tables in docs/performance.md are its output.
//!
//! This crate is a client: it knows the server as a process and a socket, and uses nothing of it but BSON building.

#![forbid(unsafe_code)]

mod analysis;
mod build;
mod bulk;
mod capped;
mod client;
mod deletes;
mod footprint;
mod journal;
mod latency;
mod meanwhile;
mod measured;
mod pausing;
mod pipelines;
mod process;
mod scaling;
mod sensors;
mod settings;
mod writers;

use std::io;
use std::process::ExitCode;

pub(crate) use settings::{Settings, table};

type Section = (&'static str, fn(&Settings) -> io::Result<()>);

const SECTIONS: [Section; 13] = [
    ("latency", latency::run),
    ("pausing", pausing::run),
    ("bulk", bulk::run),
    ("capped", capped::run),
    ("writers", writers::run),
    ("journal", journal::run),
    ("scaling", scaling::run),
    ("pipelines", pipelines::run),
    ("analysis", analysis::run),
    ("sensors", sensors::run),
    ("build", build::run),
    ("deletes", deletes::run),
    ("footprint", footprint::run),
];

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sheaf-perf: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut settings = Settings {
        binary: process::default_binary(),
        quick: false,
        gigabytes: 5,
        processors: std::thread::available_parallelism()?.get(),
    };
    let mut wanted = Vec::new();
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| io::Error::other(format!("{argument} needs a value")));
        match argument.as_str() {
            // The other end of the echo is a process of its own, as the server is.
            "--echo" => return latency::echo_server(),
            "--bin" => settings.binary = value()?.into(),
            "--gigabytes" => settings.gigabytes = value()?.parse().map_err(io::Error::other)?,
            "--quick" => settings.quick = true,
            name => wanted.push(name.to_owned()),
        }
    }
    if let Some(unknown) =
        wanted.iter().find(|name| SECTIONS.iter().all(|section| section.0 != name.as_str()))
    {
        return Err(io::Error::other(format!(
            "no section {unknown}; there are: {:?}",
            SECTIONS.map(|s| s.0)
        )));
    }
    for (name, run) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            println!("\n### {name}\n");
            run(&settings)?;
        }
    }
    Ok(())
}
