//! Queries that are measured beside each other, the first of which is what the others are compared with.

use std::io;
use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;

use crate::client::Client;
use crate::table;

/// A row of the table: what runs, and its aim in multiples of the first row.
pub(crate) struct Measured {
    what: &'static str,
    collection: &'static str,
    command: DocBuf,
    aim: &'static str,
    times: Vec<Duration>,
}

impl Measured {
    /// A query of this collection that is not measured yet.
    pub fn new(what: &'static str, collection: &'static str, command: DocBuf, aim: &'static str) -> Self {
        Measured { what, collection, command, aim, times: Vec::new() }
    }

    /// Seconds.
    pub fn median(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
    }
}

/// Runs all of them so many times, in turns.
pub(crate) fn alternate(
    client: &mut Client,
    rows: &mut [Measured],
    rounds: usize,
    batch: usize,
) -> io::Result<()> {
    for _ in 0..rounds {
        for row in &mut *rows {
            let began = Instant::now();
            client.drain(&row.command, row.collection, batch as i32)?;
            row.times.push(began.elapsed());
        }
    }
    Ok(())
}

/// Prints them; the first is of so many documents.
pub(crate) fn show(rows: &[Measured], count: usize) {
    let Some(plain) = rows.first().map(Measured::median) else { return };
    let shown: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let median = row.median();
            vec![
                row.what.to_owned(),
                format!("{:.1}", median * 1e3),
                format!("{:.0}", median / count as f64 * 1e9),
                format!("{:.2}", median / plain),
                row.aim.to_owned(),
            ]
        })
        .collect();
    table(&["what", "ms", "ns a document", "plain scans", "aim"], &shown);
}
