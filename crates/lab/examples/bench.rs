//! `sheaf bench` without the server, for work on the laboratory: `cargo run --example bench -- run insert-latency
//! --target sheaf=FILE`.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    bench: sheaf_lab::cli::Bench,
}

fn main() -> ExitCode {
    sheaf_lab::cli::bench(&Cli::parse().bench)
}
