//! `sheaf bench generator`.

use std::process::ExitCode;

use clap::Args;

use crate::error::{Error, Result};
use crate::measure::cost::own_cpu_seconds;
use crate::measure::generator::drive;

/// `sheaf bench generator`.
#[derive(Args, Clone, Debug)]
pub(super) struct GeneratorArgs {
    /// Clients at once, with commas between them
    #[arg(long, default_value = "1,2,4,8,16", value_delimiter = ',')]
    clients: Vec<u32>,
    /// Seconds for each
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
}

pub(super) fn run(arguments: &GeneratorArgs) -> Result<ExitCode> {
    if arguments.clients.contains(&0) || !(arguments.seconds > 0.0 && arguments.seconds <= 3600.0) {
        return Err(Error::usage("--clients and --seconds must be more than 0"));
    }
    let stop = super::stop_on_signals()?;
    super::print(&format!(
        "Single small inserts against a responder in this process that does nothing.\n\
         The processor time is that of clients and responder together.\n\
         {:>8} {:>12} {:>10} {:>10} {:>10}\n",
        "clients", "1/s", "p50 us", "p99 us", "us cpu/op"
    ));
    for &clients in &arguments.clients {
        let before = own_cpu_seconds();
        let measured = drive(clients, arguments.seconds, &stop)?;
        let insert = measured.operation("insert");
        let cpu_us = (own_cpu_seconds() - before) * 1e6 / insert.count().max(1) as f64;
        super::print(&format!(
            "{clients:>8} {:>12.0} {:>10.1} {:>10.1} {cpu_us:>10.2}\n",
            measured.rate("insert"),
            insert.percentile_us(50.0),
            insert.percentile_us(99.0),
        ));
    }
    Ok(ExitCode::SUCCESS)
}
