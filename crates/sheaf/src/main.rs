//! The `sheaf` binary: flags, configuration files and wiring.
//!
//! `sheaf repair` is for a data folder whose log cannot be applied. `sheaf server` plays mongod's part, `sheaf router` that of mongos. Started
//! through a link named `mongod` or `mongos` the program is that role without being told.

mod allocator;
mod config;
mod end_other;
mod flags;
mod limits;
mod metrics;
#[cfg(not(feature = "lab"))]
mod no_lab;
mod process;
#[cfg(test)]
mod reference;
mod repair;
mod router;
mod server;
mod sharded;
mod tls_settings;
mod values;

use std::process::ExitCode;

use crate::process::passwords;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut argv: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    // Where this cannot be, the command line stays as readable as it is.
    let _ = passwords::hide(&argv);
    argv = passwords::revealed(&argv, |name| std::env::var(name).ok());
    let program = argv.first().map_or("", |path| path.rsplit('/').next().unwrap_or(""));
    match program {
        "mongod" => argv.insert(1, "server".to_owned()),
        "mongos" => argv.insert(1, "router".to_owned()),
        _ => {}
    }
    match flags::parse(&argv) {
        flags::Parsed::Server(flags) => server::main(*flags, &argv),
        flags::Parsed::Router(flags) => router::main(&flags, &argv),
        flags::Parsed::Done(code) => code,
    }
}
