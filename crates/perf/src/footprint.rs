//! Start-up time, idle memory, ten thousand idle connections, bytes on disk per byte stored.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use sheaf_bson::{DocBuf, doc};

use crate::latency::document;
use crate::process::Server;
use crate::{Settings, table};

const MB: f64 = 1e6;

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut row =
        |what: &str, value: String, aim: &str| rows.push(vec![what.to_owned(), value, aim.to_owned()]);
    let mut server = Server::start(settings)?;
    row("start, empty folder", millis(server.start_took), "100 ms");
    sleep(Duration::from_secs(2));
    row("idle memory", format!("{:.0} MB", server.resident()? as f64 / MB), "60 MB");

    let connections = if settings.quick { 1000 } else { 10_000 };
    let before = server.resident()?;
    let idle = (0..connections).map(|_| server.connect()).collect::<io::Result<Vec<_>>>();
    match idle {
        Ok(idle) => {
            sleep(Duration::from_secs(2));
            let text = format!("{:.0} MB more", (server.resident()?.saturating_sub(before)) as f64 / MB);
            row(&format!("{connections} idle connections"), text, "a few hundred MB");
            drop(idle);
        }
        Err(error) => row(&format!("{connections} idle connections"), format!("not measured: {error}"), ""),
    }

    let stored = load(&server, if settings.quick { 200 << 20 } else { settings.gigabytes << 30 })?;
    let size = format!("{:.1} GB of small documents", stored as f64 / 1e9);
    row(&format!("memory after loading {size}"), format!("{:.0} MB", server.resident()? as f64 / MB), "");
    server.kill()?;
    server.restart()?;
    row(&format!("start after a kill, {size}"), millis(server.start_took), "");
    let took = server.shut_down()?;
    row("clean shutdown", millis(took), "");
    let (all, log) = server.bytes_on_disk()?;
    row(
        "bytes on disk per byte stored, without the log",
        format!("{:.2}", (all - log) as f64 / stored as f64),
        "",
    );
    row("log kept", format!("{:.0} MB", log as f64 / MB), "");
    server.restart()?;
    row(&format!("start, {size}"), millis(server.start_took), "2 s");
    table(&["what", "measured", "aim"], &rows);
    Ok(())
}

fn millis(took: Duration) -> String {
    format!("{:.0} ms", took.as_secs_f64() * 1000.0)
}

/// Inserts small documents until so many bytes are stored.
fn load(server: &Server, bytes: u64) -> io::Result<u64> {
    let mut client = server.connect()?;
    let (mut stored, mut id) = (0, 0);
    while stored < bytes {
        let batch: Vec<DocBuf> = (id..id + 5000).map(document).collect();
        stored += batch.iter().map(|document| document.as_bytes().len() as u64).sum::<u64>();
        id += 5000;
        client.insert("footprint", &batch)?;
    }
    let count =
        client.call(&doc! { "count": "footprint", "$db": "perf" })?.get("n").and_then(|n| n.as_exact_i64());
    assert_eq!(count, Some(i64::from(id)), "the server lost something");
    Ok(stored)
}
