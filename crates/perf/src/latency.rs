//! One client: `ping` against a bare echo of the same sizes, then insert, update and find by `_id` against `ping`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use hdrhistogram::Histogram;
use sheaf_bson::{DocBuf, doc};

use crate::client::{Client, message, message_with};
use crate::process::Server;
use crate::{Settings, table};

/// Operations of one kind before the next kind has its turn.
const BLOCK: usize = 200;
/// Documents that are there before the measurement.
const DOCUMENTS: i32 = 100_000;

/// Runs as the echo process: prints its port, then answers each request with as many bytes as the request's first eight
/// bytes (request length, reply length) ask for, with a thread for each connection. It ends with the first one.
pub(crate) fn echo_server() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    let (first, _) = listener.accept()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || echo(stream));
        }
    });
    echo(first)
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 1 << 16];
    let mut have = 0;
    loop {
        let got = stream.read(&mut buffer[have..])?;
        if got == 0 {
            // The client has gone.
            return Ok(());
        }
        have += got;
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| buffer[at + i])) as usize;
        if have >= 8 && have >= number(0) {
            let reply = number(4);
            stream.write_all(&buffer[..reply])?;
            have = 0;
        }
    }
}

/// An echo process, and a client of it.
pub(crate) struct Echo {
    child: Child,
    port: u16,
    client: EchoClient,
}

/// A connection to an echo process.
pub(crate) struct EchoClient {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Echo {
    /// One that is asked with so many bytes and answers with so many.
    pub fn start(request: usize, reply: usize) -> io::Result<Echo> {
        let mut child =
            Command::new(std::env::current_exe()?).arg("--echo").stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        BufReader::new(output).read_line(&mut line)?;
        let port = line.trim().parse().map_err(io::Error::other)?;
        Ok(Echo { child, port, client: EchoClient::connect(port, request, reply)? })
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Another client, which asks for the same.
    pub fn connect(&self) -> io::Result<EchoClient> {
        EchoClient::connect(self.port, self.client.request.len(), self.client.reply.len())
    }

    pub fn round_trip(&mut self) -> io::Result<()> {
        self.client.round_trip()
    }
}

impl EchoClient {
    fn connect(port: u16, request: usize, reply: usize) -> io::Result<EchoClient> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut bytes = vec![0; request];
        bytes[..4].copy_from_slice(&(request as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(reply as u32).to_le_bytes());
        Ok(EchoClient { stream, request: bytes, reply: vec![0; reply] })
    }

    /// Reads the reply in two parts, as a client of a length-prefixed protocol must.
    pub fn round_trip(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.request)?;
        self.stream.read_exact(&mut self.reply[..16])?;
        self.stream.read_exact(&mut self.reply[16..])
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A document of some 230 bytes with fields of the usual kinds.
pub(crate) fn document(id: i32) -> DocBuf {
    doc! {
        "_id": id, "name": "a name of usual length", "group": id % 1000, "score": f64::from(id) * 0.5, "flag": id % 2 == 0,
        "address": { "street": "Long Street 12", "city": "Somewhere", "zip": "12345" }, "tags": ["red", "green", "blue"],
        "note": "some more text, so that the document has the size of a small record"
    }
}

/// Fills `perf.<collection>` with `count` documents.
pub(crate) fn fill(client: &mut Client, collection: &str, count: i32) -> io::Result<()> {
    let ids: Vec<i32> = (0..count).collect();
    for chunk in ids.chunks(1000) {
        client.insert(collection, &chunk.iter().map(|id| document(*id)).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A cheap sequence of ids that hits all of them in no order.
pub(crate) fn spread(n: u64) -> i32 {
    (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as i32 % DOCUMENTS
}

pub(crate) fn insert_message(id: i32) -> Vec<u8> {
    message_with(&doc! { "insert": "latency", "$db": "perf" }, "documents", &[document(id)])
}

pub(crate) fn update_message(id: i32) -> Vec<u8> {
    let update =
        doc! { "q": { "_id": id }, "u": { "$inc": { "score": 1 }, "$set": { "note": "another note" } } };
    message_with(&doc! { "update": "latency", "$db": "perf" }, "updates", &[update])
}

pub(crate) fn find_message(id: i32) -> Vec<u8> {
    message(
        &doc! { "find": "latency", "filter": { "_id": id }, "limit": 1, "singleBatch": true, "$db": "perf" },
    )
}

/// Where the client and the servers run. The kernel puts a process that is woken now beside the one that wakes it and now on
/// the idle processor, whose waking costs more than all else; left to it, a ratio compares placements.
const PLACEMENTS: [(&str, &str, &str); 2] =
    [("client and server share a processor", "0", "0"), ("a processor for each", "0", "1")];

/// Binds a process with all its threads to a processor.
pub(crate) fn bind(pid: u32, processor: &str) -> io::Result<()> {
    let bound = Command::new("taskset")
        .args(["-a", "-c", "-p", processor, &pid.to_string()])
        .stdout(Stdio::null())
        .status()?;
    if bound.success() { Ok(()) } else { Err(io::Error::other(format!("taskset ended with {bound}"))) }
}

pub(crate) fn run(settings: &Settings) -> io::Result<()> {
    for (place, own, servers) in PLACEMENTS {
        if servers != "0" && settings.processors < 2 {
            continue;
        }
        println!("{place}:\n");
        bind(std::process::id(), own)?;
        run_at(settings, servers)?;
        println!();
    }
    // Other sections run after this one.
    bind(std::process::id(), &format!("0-{}", settings.processors - 1))
}

fn run_at(settings: &Settings, processor: &str) -> io::Result<()> {
    let server = Server::start(settings)?;
    bind(server.id(), processor)?;
    let mut client = server.connect()?;
    fill(&mut client, "latency", DOCUMENTS)?;
    let ping = message(&doc! { "ping": 1, "$db": "admin" });
    client.checked(&ping)?;
    let mut echo = Echo::start(ping.len(), client.reply_len())?;
    bind(echo.id(), processor)?;

    let mut times: [Histogram<u64>; 5] =
        std::array::from_fn(|_| Histogram::new(3).expect("three digits are allowed"));
    let blocks = settings.count(200);
    for block in 0..blocks {
        for (kind, times) in times.iter_mut().enumerate() {
            for i in 0..BLOCK {
                let n = (block * BLOCK + i) as u64;
                let request = match kind {
                    0 => Vec::new(),
                    1 => ping.clone(),
                    2 => insert_message(DOCUMENTS + n as i32),
                    3 => update_message(spread(n)),
                    _ => find_message(spread(n + 7)),
                };
                let began = Instant::now();
                if kind == 0 {
                    echo.round_trip()?;
                } else {
                    client.send(&request)?;
                }
                let took = began.elapsed().as_nanos() as u64;
                // The first blocks warm caches and branch predictors on both sides.
                if block >= blocks / 20 {
                    times.record(took).map_err(io::Error::other)?;
                }
            }
        }
    }
    report(&times);
    Ok(())
}

fn report(times: &[Histogram<u64>; 5]) {
    let micros =
        |histogram: &Histogram<u64>, quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    let kinds = ["bare TCP echo", "ping", "insert, w:1", "update by _id, w:1", "find by _id"];
    // Each kind, what it is compared with, and the aim.
    let bases = [None, Some((0, 1.3)), Some((1, 1.2)), Some((1, 1.35)), Some((1, 1.15))];
    let rows: Vec<Vec<String>> = (0..5)
        .map(|kind| {
            let (p50, p99) = (micros(&times[kind], 0.5), micros(&times[kind], 0.99));
            let mut row = vec![kinds[kind].to_owned(), format!("{p50:.1}"), format!("{p99:.1}")];
            row.extend(match bases[kind] {
                None => [String::new(), String::new(), String::new()],
                Some((base, aim)) => [
                    format!("{:.2}", p50 / micros(&times[base], 0.5)),
                    format!("{:.2}", p99 / micros(&times[base], 0.99)),
                    format!("{aim} of {}", kinds[base]),
                ],
            });
            row
        })
        .collect();
    table(&["one client", "p50 us", "p99 us", "p50 ratio", "p99 ratio", "aim"], &rows);
}
