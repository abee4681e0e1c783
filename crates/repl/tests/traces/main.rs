//! Readable traces: what the members of a set say, keep and take for true, step by step, as text.
//!
//! Each file in `scripts/` is a series of commands (see [`set::Set::command`]), each block of them followed by `----` and by
//! what came of it. `REWRITE=1 cargo test -p sheaf-repl --test traces` writes what comes of them now; read the difference before
//! it is kept. Heartbeats between members (pings and their answers) are delivered like all else, and not shown.

mod script;
mod set;
mod words;

use std::path::PathBuf;

#[test]
fn members_do_as_their_traces_say() {
    let folder = PathBuf::from("tests/traces/scripts");
    let mut scripts: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= 8, "traces are missing in {}", folder.display());
    let rewrite = ["REWRITE", "UPDATE"].iter().any(|name| std::env::var_os(name).is_some());
    let differ: Vec<String> = scripts.iter().filter_map(|path| script::play(path, rewrite)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
