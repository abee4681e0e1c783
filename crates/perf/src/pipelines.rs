//! What queries and stages cost beside a plain scan of the same documents, and joins by index.

use std::io;

use sheaf_bson::{ArrayBuf, DocBuf, Value, array, doc};

use crate::Settings;
use crate::client::Client;
use crate::measured::{Measured, alternate, show};
use crate::process::Server;

/// Documents for each insert, and of each batch of a read.
const BATCH: usize = 5000;
/// Runs of each row; they alternate.
const ROUNDS: usize = 7;

fn aggregate(pipeline: &ArrayBuf) -> DocBuf {
    doc! { "aggregate": "here", "pipeline": pipeline, "cursor": { "batchSize": BATCH as i32 }, "$db": "perf" }
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    let count = settings.count(100_000);
    load(&mut client, count)?;
    let lookup = |field: &str| array![{ "$lookup": { "from": "there", "localField": "f", "foreignField": field, "as": "j" } }, { "$match": { "j.x": -1 } }];
    let none = array![{ "$match": { "v": { "$lt": 0 } } }];
    let group = array![{ "$group": { "_id": "$k", "n": { "$sum": "$v" } } }];
    let top = array![{ "$sort": { "v": 1 } }, { "$limit": 10 }];
    let mut rows = [
        Measured::new(
            "plain scan (find)",
            "here",
            doc! { "find": "here", "batchSize": BATCH as i32, "$db": "perf" },
            "",
        ),
        Measured::new("plain scan (aggregate)", "here", aggregate(&ArrayBuf::new()), ""),
        Measured::new("filter that nothing passes", "here", aggregate(&none), "2"),
        Measured::new("$group by a field, 1000 groups", "here", aggregate(&group), "2"),
        Measured::new("$sort and $limit 10", "here", aggregate(&top), ""),
        Measured::new("$lookup by an index", "here", aggregate(&lookup("x")), ""),
        Measured::new("$lookup by _id", "here", aggregate(&lookup("_id")), ""),
    ];
    println!("{count} documents of 180 bytes, joined with as many; medians of {ROUNDS} runs.\n");
    alternate(&mut client, &mut rows, ROUNDS, BATCH)?;
    show(&rows, count);
    Ok(())
}

/// Two collections: documents with a key (`k`), a number (`v`) and the number of one of the other collection's (`f`).
fn load(client: &mut Client, count: usize) -> io::Result<()> {
    let pad = "x".repeat(100);
    for first in (0..count).step_by(BATCH) {
        let numbers = first..(first + BATCH).min(count);
        let here: Vec<DocBuf> = numbers
            .clone()
            .map(|n| {
                // Spread over the other collection, so that no lookup follows its neighbour.
                let far = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
                doc! {
                    "_id": n as i32, "k": (n % 1000) as i32, "v": (far % 10_000) as f64 / 10_000.0,
                    "s": pad.as_str(), "f": (far % count as u64) as i32,
                }
            })
            .collect();
        client.insert("here", &here)?;
        let there: Vec<DocBuf> =
            numbers.map(|n| doc! { "_id": n as i32, "x": n as i32, "t": &pad[..50] }).collect();
        client.insert("there", &there)?;
    }
    let index = doc! { "key": { "x": 1 }, "name": "x_1" };
    let indexes = ArrayBuf::build(|out| _ = out.push(Value::Document(index.as_raw())));
    client.call(&doc! { "createIndexes": "there", "indexes": &indexes, "$db": "perf" }).map(drop)
}
