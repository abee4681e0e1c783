//! docs/options.md: what there is of every option of the command line and the configuration file that the reference of MongoDB's manual
//! has. The flags' own tables and the reader of the file are asked. `UPDATE=1` writes the page anew.
#![allow(clippy::disallowed_methods, reason = "a test reads and writes a file of the repository")]

#[path = "../../server/tests/reference/page.rs"]
mod page;

use clap::CommandFactory;

use crate::config::{self, Process};
use crate::flags::Cli;
use page::Known;

const HEAD: &str = "\
# What there is of MongoDB's options

Every option of mongod's and mongos' command line and configuration file that the reference of MongoDB 8.2's manual has, and its state
here. [reference.md](reference.md) is the same of everything else.

A test makes this page of the names in `crates/server/tests/reference/options.txt` and of what the code knows
(`UPDATE=1 cargo test -p sheaf --bin sheaf reference` writes it anew). What is unknown ends the start with an error.

## Our own

| option | in the file | |
| --- | --- | --- |
| `--cacheSizeGB N` | `storage.cacheSizeGB` | Memory for caches and for writes that are not flushed yet, in GiB, with decimals: 0.001 to 10000. `--wiredTigerCacheSizeGB` is the same within mongod's bounds, 0.25 to 10000; where both are said this one counts. Default: half of the memory above 1 GiB, at least 256 MiB, at most a quarter of the memory; the memory is the machine's, or the limit of the control group where that is less |
| `--metricsPort N` | `metrics.port` | Answers HTTP on this port, at the first address of `--bind_ip`, with the figures in Prometheus' text format (version 0.0.4), whatever the path; without TLS, and whoever asks. Default: no port. [operating.md](operating.md#watching) has an example. Not with `--shards` |

## MongoDB's, in numbers
";

/// The long flags of a role, other spellings with them.
fn flags(role: &str) -> Vec<String> {
    let mut cli = Cli::command();
    cli.build();
    let role = cli.find_subcommand(role).expect("a role");
    let long = role.get_arguments().flat_map(|flag| flag.get_long_and_visible_aliases().unwrap_or_default());
    let hidden = role.get_arguments().flat_map(|flag| flag.get_all_aliases().unwrap_or_default());
    long.chain(hidden).map(|name| format!("--{name}")).collect()
}

fn known(probe: &str, name: &str) -> Known {
    let known = match probe {
        "file" if name == "setParameter" => true,
        "file" => [Process::Server, Process::Router].into_iter().any(|process| {
            let read = config::parse(&format!("{name}: 1"), process);
            read.is_ok() || read.is_err_and(|text| !text.contains("Unrecognized option"))
        }),
        role => flags(role).iter().any(|flag| flag == name),
    };
    if known { Ok(()) } else { Err("unknown".to_owned()) }
}

#[test]
fn options_are_what_the_page_says() {
    let table = include_str!("../../server/tests/reference/options.txt");
    let others = |probe: &str| if probe == "file" { Vec::new() } else { flags(probe) };
    page::check(("../../docs/options.md", HEAD, table), known, others);
}
