//! A client that pauses between its inserts, beside one that does not: what waking up costs.

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheaf_bson::doc;

use crate::client::message;
use crate::latency::{Echo, bind, insert_message};
use crate::process::Server;
use crate::{Settings, table};

/// Pauses before each operation.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(5)];
/// Operations of a kind before the next one has its turn.
const BLOCK: usize = 50;

/// Where the client and the servers run; `None` is left to the kernel.
const PLACEMENTS: [(&str, Option<(&str, &str)>); 3] = [
    ("left to the kernel", None),
    ("client and server share a processor", Some(("0", "0"))),
    ("a processor for each", Some(("0", "1"))),
];

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let all = format!("0-{}", settings.processors - 1);
    let mut rows = Vec::new();
    for (place, processors) in PLACEMENTS {
        let (own, servers) = processors.unwrap_or((&all, &all));
        if servers == "1" && settings.processors < 2 {
            continue;
        }
        bind(std::process::id(), own)?;
        rows.extend(at(settings, place, servers)?);
    }
    bind(std::process::id(), &all)?;
    println!("Medians in microseconds; the clock runs from the end of the pause to the answer.\n");
    table(
        &["where", "pause", "bare TCP echo", "insert, w:1", "beyond the echo", "without a pause", "aim"],
        &rows,
    );
    Ok(())
}

fn at(settings: &Settings, place: &str, processors: &str) -> io::Result<Vec<Vec<String>>> {
    let server = Server::start(settings)?;
    bind(server.id(), processors)?;
    let mut client = server.connect()?;
    client.checked(&message(&doc! { "ping": 1, "$db": "admin" }))?;
    client.checked(&insert_message(-1))?;
    let mut echo = Echo::start(insert_message(0).len(), client.reply_len())?;
    bind(echo.id(), processors)?;
    let histogram = || Histogram::<u64>::new(3).map_err(io::Error::other);
    let mut times = Vec::new();
    for _ in PAUSES {
        times.push([histogram()?, histogram()?]);
    }
    let mut id = 0;
    for _ in 0..settings.count(60) {
        for (pause, [echoed, inserted]) in PAUSES.into_iter().zip(&mut times) {
            for _ in 0..BLOCK {
                std::thread::sleep(pause);
                let began = Instant::now();
                echo.round_trip()?;
                echoed.record(began.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
            }
            for _ in 0..BLOCK {
                let request = insert_message(id);
                id += 1;
                std::thread::sleep(pause);
                let began = Instant::now();
                client.checked(&request)?;
                inserted.record(began.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
            }
        }
    }
    let middle = |histogram: &Histogram<u64>| histogram.value_at_quantile(0.5) as f64 / 1000.0;
    let unpaused = middle(&times[0][1]);
    let row = |(pause, [echoed, inserted]): (Duration, &[Histogram<u64>; 2])| {
        let (echoed, inserted) = (middle(echoed), middle(inserted));
        vec![
            place.to_owned(),
            format!("{} ms", pause.as_millis()),
            format!("{echoed:.1}"),
            format!("{inserted:.1}"),
            format!("{:.1}", inserted - echoed),
            format!("{:.2}", inserted / unpaused),
            if pause.is_zero() { String::new() } else { "12 us".to_owned() },
        ]
    };
    Ok(PAUSES.into_iter().zip(&times).map(row).collect())
}
