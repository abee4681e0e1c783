//! Analysis beside a plain scan of the same documents: filters, groups, sorts, joins, windows over documents of a kilobyte, and the five
//! questions of JSONBench over events that are generated like its first million.

use std::io;

use sheaf_bson::{ArrayBuf, DocBuf, array, doc};

use crate::Settings;
use crate::client::Client;
use crate::measured::{Measured, alternate, show};
use crate::process::Server;

/// Documents for each insert, and of each batch of a read.
const BATCH: usize = 2000;
/// Runs of each row; they alternate.
const ROUNDS: usize = 5;
/// Documents on each side of the joins.
const JOINED: usize = 100_000;
/// 2024-11-21 in microseconds, when JSONBench's events begin.
const FIRST_EVENT: i64 = 1_732_206_349_000_000;

/// What JSONBench's events do, with how many of a thousand do it.
const COLLECTIONS: [(&str, u64); 7] = [
    ("app.bsky.feed.like", 450),
    ("app.bsky.graph.follow", 366),
    ("app.bsky.feed.post", 92),
    ("app.bsky.feed.repost", 71),
    ("app.bsky.graph.block", 15),
    ("app.bsky.graph.listitem", 4),
    ("app.bsky.actor.profile", 2),
];

/// Numbers that follow no order, and are the same on every run.
fn spread(n: usize) -> u64 {
    let mut bits = (n as u64).wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn aggregate(collection: &'static str, pipeline: &ArrayBuf) -> DocBuf {
    doc! {
        "aggregate": collection, "pipeline": pipeline, "cursor": { "batchSize": BATCH as i32 }, "allowDiskUse": true, "$db": "perf"
    }
}

fn scan(collection: &'static str) -> Measured {
    let find = doc! { "find": collection, "batchSize": BATCH as i32, "$db": "perf" };
    Measured::new("plain scan", collection, find, "")
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    let count = settings.count(1_000_000);
    fill(&mut client, "wide", count, wide)?;
    index(&mut client, "wide", "v")?;
    let mut rows = of_wide();
    println!("{count} documents of a kilobyte; medians of {ROUNDS} runs.\n");
    alternate(&mut client, &mut rows, ROUNDS, BATCH)?;
    show(&rows, count);

    let joined = settings.count(JOINED);
    fill(
        &mut client,
        "left",
        joined,
        move |n| doc! { "_id": n as i32, "f": (spread(n) % joined as u64) as i32 },
    )?;
    fill(&mut client, "right", joined, |n| doc! { "_id": n as i32, "x": n as i32, "y": n as i32 })?;
    index(&mut client, "right", "x")?;
    let lookup = |field: &str| {
        let join = doc! { "from": "right", "localField": "f", "foreignField": field, "as": "j" };
        aggregate("left", &array![{ "$lookup": &join }, { "$match": { "j.x": -1 } }])
    };
    let mut rows = [
        scan("left"),
        Measured::new("$lookup by an index", "left", lookup("x"), ""),
        Measured::new("$lookup by a table in memory", "left", lookup("y"), ""),
    ];
    println!("{joined} documents joined with as many.\n");
    alternate(&mut client, &mut rows, ROUNDS, BATCH)?;
    show(&rows, joined);

    fill(&mut client, "bluesky", count, event)?;
    let mut rows = of_events();
    println!("{count} events as JSONBench has them.\n");
    alternate(&mut client, &mut rows, ROUNDS, BATCH)?;
    show(&rows, count);
    Ok(())
}

/// A document of a kilobyte.
fn wide(n: usize) -> DocBuf {
    let far = spread(n);
    let pad = "x".repeat(880);
    let tags: ArrayBuf = ArrayBuf::of((0..3).map(|at| ((far >> (8 * at)) % 50) as i32));
    doc! {
        "_id": n as i32, "ten": (far % 10) as i32, "many": (far % 100_000) as i32, "v": (far % 1_000_003) as f64 / 7.0,
        "tags": &tags, "s": pad.as_str()
    }
}

fn of_wide() -> Vec<Measured> {
    let group = |field: &str| array![{ "$group": { "_id": field, "n": { "$sum": "$v" } } }];
    let row = |what, pipeline: ArrayBuf, aim| Measured::new(what, "wide", aggregate("wide", &pipeline), aim);
    let window = doc! {
        "partitionBy": "$ten", "sortBy": { "_id": 1 },
        "output": { "sum": { "$sum": "$v", "window": { "documents": [-10, 0] } } }
    };
    let slim = doc! { "$project": { "v": 1, "ten": 1 } };
    vec![
        scan("wide"),
        row("filter that nothing passes", array![{ "$match": { "s": "" } }], "2"),
        row("$group, 10 groups", group("$ten"), "2"),
        row("$group, 100,000 groups", group("$many"), "2"),
        row("$sort by an index", array![{ "$sort": { "v": 1 } }, slim.as_raw()], "2"),
        row("$sort by no index", array![{ "$sort": { "many": 1 } }, slim.as_raw()], "2"),
        row("$sort of whole documents, more than memory", array![{ "$sort": { "many": 1 } }], "2"),
        row("$sort and $limit 10", array![{ "$sort": { "many": 1 } }, { "$limit": 10 }], "2"),
        row(
            "$unwind and $group",
            array![{ "$unwind": "$tags" }, { "$group": { "_id": "$tags", "n": { "$sum": 1 } } }],
            "2",
        ),
        row(
            "sums over windows of ten",
            array![slim.as_raw(), { "$setWindowFields": &window }, { "$match": { "sum": -1 } }],
            "2",
        ),
    ]
}

/// An event.
fn event(n: usize) -> DocBuf {
    let far = spread(n);
    let mut of_thousand = (far >> 40) % 1000;
    let mut collection = COLLECTIONS[0].0;
    for (name, share) in COLLECTIONS {
        collection = name;
        if of_thousand < share {
            break;
        }
        of_thousand -= share;
    }
    // A few are busy: the square of an even number is mostly small.
    let even = (far % 100_000) as f64 / 100_000.0;
    let user = (even * even * 200_000.0) as u64;
    let did = format!("did:plc:{:024x}", spread(user as usize + 7));
    let operation = if (far >> 20).is_multiple_of(10) { "delete" } else { "create" };
    let (rev, rkey) = (format!("{:013x}", far >> 12), format!("{:013x}", spread(n + 1) >> 12));
    let text = if collection == "app.bsky.feed.post" {
        "words that somebody has written ".repeat(4)
    } else {
        String::new()
    };
    let record = doc! {
        "$type": collection, "createdAt": "2024-11-21T16:25:49.000167Z",
        "subject": { "cid": format!("bafyrei{far:048x}").as_str(), "uri": format!("at://{did}/{collection}/{rkey}").as_str() },
        "text": text.as_str()
    };
    doc! {
        "did": did.as_str(), "time_us": FIRST_EVENT + n as i64 * 1300, "kind": "commit",
        "commit": {
            "rev": rev.as_str(), "operation": operation, "collection": collection, "rkey": rkey.as_str(), "record": &record,
            "cid": format!("bafyrei{:048x}", spread(n + 2)).as_str()
        }
    }
}

fn of_events() -> Vec<Measured> {
    let row = |what, pipeline: ArrayBuf| Measured::new(what, "bluesky", aggregate("bluesky", &pipeline), "");
    let created = doc! { "kind": "commit", "commit.operation": "create" };
    let feed = array!["app.bsky.feed.post", "app.bsky.feed.repost", "app.bsky.feed.like"];
    let fed = doc! { "kind": "commit", "commit.operation": "create", "commit.collection": { "$in": &feed } };
    let posts =
        doc! { "kind": "commit", "commit.operation": "create", "commit.collection": "app.bsky.feed.post" };
    let date = doc! { "$toDate": { "$divide": ["$time_us", 1000] } };
    vec![
        scan("bluesky"),
        row(
            "1: what is done most",
            array![{ "$group": { "_id": "$commit.collection", "count": { "$sum": 1 } } }, { "$sort": { "count": -1 } }],
        ),
        row(
            "2: and by how many",
            array![
                { "$match": &created },
                { "$group": { "_id": "$commit.collection", "count": { "$sum": 1 }, "users": { "$addToSet": "$did" } } },
                { "$project": { "event": "$_id", "count": 1, "users": { "$size": "$users" } } },
                { "$sort": { "count": -1 } }
            ],
        ),
        row(
            "3: at which hours",
            array![
                { "$match": &fed },
                { "$group": { "_id": { "event": "$commit.collection", "hour": { "$hour": &date } }, "count": { "$sum": 1 } } },
                { "$sort": { "_id.hour": 1, "_id.event": 1 } }
            ],
        ),
        row(
            "4: who posted first",
            array![
                { "$match": &posts },
                { "$group": { "_id": "$did", "first": { "$min": &date } } },
                { "$sort": { "first": 1 } },
                { "$limit": 3 }
            ],
        ),
        row(
            "5: whose posts span most time",
            array![
                { "$match": &posts },
                { "$group": { "_id": "$did", "min": { "$min": "$time_us" }, "max": { "$max": "$time_us" } } },
                { "$project": { "span": { "$divide": [{ "$subtract": ["$max", "$min"] }, 1000] } } },
                { "$sort": { "span": -1 } },
                { "$limit": 3 }
            ],
        ),
    ]
}

/// Fills a collection with so many documents.
pub(crate) fn fill(
    client: &mut Client,
    collection: &str,
    count: usize,
    document: impl Fn(usize) -> DocBuf,
) -> io::Result<()> {
    for first in (0..count).step_by(BATCH) {
        let documents: Vec<DocBuf> = (first..(first + BATCH).min(count)).map(&document).collect();
        client.insert(collection, &documents)?;
    }
    Ok(())
}

fn index(client: &mut Client, collection: &str, field: &str) -> io::Result<()> {
    let name = format!("{field}_1");
    let indexes = array![{ "key": { (field): 1 }, "name": name.as_str() }];
    client.call(&doc! { "createIndexes": collection, "indexes": &indexes, "$db": "perf" }).map(drop)
}
