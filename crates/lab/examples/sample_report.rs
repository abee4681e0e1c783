//! Writes a made-up run into a folder, as `sheaf bench run` would (`results.json`, `report.html`), and its comparison with
//! another one (`compare.html`).
//!
//! `cargo run -p sheaf-lab --example sample_report -- FOLDER [failed]`

use std::path::PathBuf;

use sheaf_lab::compare::compare;
use sheaf_lab::{report, results};

#[path = "../src/report/sample.rs"]
mod sample;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(folder) = arguments.next().map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: sample_report FOLDER [failed]"));
    };
    let run = if arguments.next().is_some() { sample::failed_run() } else { sample::run() };
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("results.json"), serde_json::to_vec_pretty(&run)?)?;
    std::fs::write(folder.join("report.html"), report::html(&run))?;
    let compared = compare(&run, &sample::other_run());
    std::fs::write(folder.join("compare.html"), compared.html())?;
    print!("{}\n{}", report::table(&run), compared.table());
    Ok(())
}
