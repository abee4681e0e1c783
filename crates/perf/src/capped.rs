//! A full capped collection beside a plain one: batches of 256 documents of 16 KB, and single small inserts.

use std::io;
use std::time::Instant;

use sheaf_bson::{DocBuf, doc};

use crate::bulk::{BATCH, PAYLOAD, batch};
use crate::client::Client;
use crate::latency::document;
use crate::process::Server;
use crate::{Settings, table};

/// Bytes of the collection that batches go into; it holds some fifty of them.
const LARGE: i64 = 200 << 20;
/// Documents of the collection that single inserts go into.
const FEW: i64 = 1000;
/// Single inserts before the other collection has its turn.
const SINGLES: usize = 500;
/// Batches before the other collection has its turn.
const BATCHES: usize = 4;

/// A kind of insert: its capped and its plain collection, documents of a command, commands of a turn.
struct Kind {
    what: &'static str,
    unit: &'static str,
    collections: [&'static str; 2],
    turn: usize,
    /// Commands after which the capped collection is full.
    fill: usize,
    rounds: usize,
    /// What a command counts for.
    each: f64,
    make: fn(usize) -> Vec<DocBuf>,
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    client.call(&doc! { "create": "much", "capped": true, "size": LARGE, "$db": "perf" })?;
    client.call(&doc! { "create": "few", "capped": true, "size": 1i64 << 20, "max": FEW, "$db": "perf" })?;
    let kinds = [
        Kind {
            what: "batches of 256 documents of 16 KB",
            unit: "MB/s",
            collections: ["much", "plain_much"],
            turn: BATCHES,
            fill: LARGE as usize / (BATCH * PAYLOAD) * 3 / 2,
            rounds: settings.count(100),
            each: (BATCH * PAYLOAD) as f64 / 1e6,
            make: batch,
        },
        Kind {
            what: "small documents, one by one",
            unit: "inserts/s",
            collections: ["few", "plain_few"],
            turn: SINGLES,
            fill: FEW as usize * 3 / 2,
            rounds: settings.count(100),
            each: 1.0,
            make: |number| vec![document(number as i32)],
        },
    ];
    let rows = kinds.iter().map(|kind| measure(&mut client, kind)).collect::<io::Result<Vec<_>>>()?;
    table(&["w:1, one client", "plain", "capped and full", "of plain", "aim"], &rows);
    Ok(())
}

/// Fills the capped collection, then lets both have their turns.
fn measure(client: &mut Client, kind: &Kind) -> io::Result<Vec<String>> {
    let [capped, plain] = kind.collections;
    let mut number = 0;
    let mut turn = |client: &mut Client, collection: &str| {
        let mut seconds = 0.0;
        for _ in 0..kind.turn {
            let documents = (kind.make)(number);
            number += 1;
            let began = Instant::now();
            client.insert(collection, &documents)?;
            seconds += began.elapsed().as_secs_f64();
        }
        Ok::<f64, io::Error>(seconds)
    };
    for _ in 0..kind.fill.div_ceil(kind.turn) {
        turn(client, capped)?;
    }
    let (mut of_capped, mut of_plain) = (0.0, 0.0);
    for _ in 0..kind.rounds {
        of_plain += turn(client, plain)?;
        of_capped += turn(client, capped)?;
    }
    let rate = |seconds: f64| (kind.rounds * kind.turn) as f64 * kind.each / seconds;
    let text = |seconds: f64| format!("{:.0} {}", rate(seconds), kind.unit);
    let share = format!("{:.2}", of_plain / of_capped);
    Ok(vec![kind.what.to_owned(), text(of_plain), text(of_capped), share, "0.9".to_owned()])
}
