//! Large documents: 16 KB each in batches of 256, written and read back, against the same bytes through a raw file append
//! and RocksDB alone.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use rocksdb::{Cache, DB, DBCompressionType, Options, WriteBatch, WriteOptions};
use sheaf_bson::{DocBuf, Value, doc};

use crate::client::Client;
use crate::process::{Server, processor_seconds};
use crate::{Settings, table};

/// Documents of a batch.
pub(crate) const BATCH: usize = 256;
/// Bytes of a document's payload.
pub(crate) const PAYLOAD: usize = 16 << 10;
/// Holds all that a full run writes.
const CACHE_BYTES: usize = 2 << 30;

/// Bytes that compress to about half, as records of text and numbers do.
pub(crate) fn payload(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..PAYLOAD / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let mut word = state.to_le_bytes();
            word[4..].fill(0x20);
            word
        })
        .collect()
}

fn document(id: i32) -> DocBuf {
    let bytes = payload(id as u64 + 1);
    let binary = Value::Binary(sheaf_bson::Binary { subtype: 0, bytes: &bytes });
    doc! { "_id": id, "kind": "bulk", "payload": binary }
}

/// The documents of a batch.
pub(crate) fn batch(number: usize) -> Vec<DocBuf> {
    (0..BATCH).map(|i| document((number * BATCH + i) as i32)).collect()
}

fn raw_database(folder: &std::path::Path) -> io::Result<DB> {
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_enable_blob_files(true);
    options.set_min_blob_size(8 << 10);
    options.set_blob_compression_type(DBCompressionType::Lz4);
    // The server keeps large values in its cache too; without one this side would read files.
    options.set_blob_cache(&Cache::new_lru_cache(CACHE_BYTES));
    options.set_write_buffer_size(128 << 20);
    options.set_max_write_buffer_number(4);
    options.set_max_background_jobs(4);
    DB::open(&options, folder).map_err(io::Error::other)
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    let batches = settings.count(300);
    let server = Server::start(settings)?;
    let mut client = server.connect()?;
    let raw = tempfile::tempdir()?;
    let database = raw_database(&raw.path().join("db"))?;
    let mut file = File::create(raw.path().join("log"))?;
    let mut no_wal = WriteOptions::default();
    no_wal.disable_wal(true);

    let (mut raw_write, mut our_write) = (0.0, 0.0);
    let (mut raw_ran, served_before) = (0.0, server.serving_seconds()?);
    let own = std::path::Path::new("/proc/thread-self");
    let mut bytes = 0;
    for number in 0..batches {
        let documents = batch(number);
        bytes += documents.iter().map(|document| document.as_bytes().len()).sum::<usize>();
        let (began, ran) = (Instant::now(), processor_seconds(own)?);
        let mut write = WriteBatch::default();
        for (i, document) in documents.iter().enumerate() {
            file.write_all(document.as_bytes())?;
            write.put(((number * BATCH + i) as u32).to_be_bytes(), document.as_bytes());
        }
        database.write_opt(write, &no_wal).map_err(io::Error::other)?;
        raw_write += began.elapsed().as_secs_f64();
        raw_ran += processor_seconds(own)? - ran;
        let began = Instant::now();
        client.insert("bulk", &documents)?;
        our_write += began.elapsed().as_secs_f64();
    }

    let our_ran = server.serving_seconds()? - served_before;

    let (mut raw_read, mut our_read, mut loop_read) = (f64::MAX, f64::MAX, f64::MAX);
    let mut sink = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        let mut read = 0;
        for entry in database.iterator(rocksdb::IteratorMode::Start) {
            let (_, value) = entry.map_err(io::Error::other)?;
            sink.clear();
            sink.extend_from_slice(&value);
            read += sink.len();
        }
        assert_eq!(read, bytes, "RocksDB lost something");
        raw_read = raw_read.min(began.elapsed().as_secs_f64());
        let began = Instant::now();
        let find = doc! { "find": "bulk", "batchSize": BATCH as i32, "$db": "perf" };
        let (count, read) = client.drain(&find, "bulk", BATCH as i32)?;
        assert_eq!((count, read), (batches * BATCH, bytes), "the server lost something");
        our_read = our_read.min(began.elapsed().as_secs_f64());
        loop_read = loop_read.min(loopback(bytes / batches, batches)?);
    }
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    let row = |what: &str, raw: f64, ours: f64| {
        let percent = format!("{:.0} %", raw / ours * 100.0);
        vec![
            what.to_owned(),
            format!("{:.0}", rate(raw)),
            format!("{:.0}", rate(ours)),
            percent,
            "85 %".to_owned(),
        ]
    };
    let rows = [
        row("write", raw_write, our_write),
        // What it takes where no other program is in the way: the thread that writes, and those that serve.
        row("write, processor time", raw_ran, our_ran),
        row("read back", raw_read, our_read),
        row("read back, against the loopback alone", loop_read, our_read),
    ];
    println!("{} documents of 16 KB, {} MB, one client, w:1.\n", batches * BATCH, bytes / 1_000_000);
    table(&["batches of 256", "raw MB/s", "Sheaf MB/s", "of raw", "aim"], &rows);
    Ok(())
}

/// What it takes to ask so many times for a reply of this length, 100 bytes at least, that somebody has ready, on a connection like the server's.
fn loopback(reply: usize, times: usize) -> io::Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let message = {
        let mut bytes = vec![0x20; reply];
        bytes[..4].copy_from_slice(&(reply as i32).to_le_bytes());
        bytes
    };
    // Before anybody accepts it: who waits for it would wait for ever if it failed.
    let mut client = Client::bare(port)?;
    std::thread::scope(|scope| {
        let answers = scope.spawn(|| answer_all(&listener, &message));
        let began = Instant::now();
        for _ in 0..times {
            client.send(&message[..REQUEST])?;
        }
        let took = began.elapsed().as_secs_f64();
        drop(client);
        answers.join().map_err(|_| io::Error::other("the thread that answers has ended"))??;
        Ok(took)
    })
}

/// Bytes of what is asked with.
const REQUEST: usize = 100;

fn answer_all(listener: &TcpListener, message: &[u8]) -> io::Result<()> {
    let (mut stream, _): (TcpStream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    while stream.read_exact(&mut request).is_ok() {
        stream.write_all(message)?;
    }
    Ok(())
}
