//! Both sides over a real connection, with what goes wrong between them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sheaf_bson::doc;
use sheaf_errors::Result;
use sheaf_storage::{CreateCollection, Direction, Engine, Options, Range, Write as _, install_at_next_open};

use super::frames::MAGIC;
use super::source::Source;
use super::target::{Control, Target};
use super::who::Who;
use super::{InitialSync, SERVING_MAX};
use crate::secured::Secrets;

const GO_ON: &(dyn Fn() -> Result<()> + Sync) = &|| Ok(());

fn filled(path: &Path, documents: i32) -> Engine {
    let engine = Engine::open(Options { cache_bytes: 32 << 20, ..Options::new(path) }).unwrap();
    engine.create_collection("db.c", &CreateCollection::default(), GO_ON).unwrap();
    insert(&engine, 0, documents);
    engine
}

fn insert(engine: &Engine, from: i32, to: i32) {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.c").unwrap().unwrap();
    for id in from..to {
        // Nothing that can be compressed.
        let text: Vec<u8> = (0..50_000).map(|_| rand::random()).collect();
        let binary = sheaf_bson::Value::Binary(sheaf_bson::Binary { subtype: 0, bytes: &text });
        unit.insert(&collection, doc! { "_id": id, "b": binary }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
}

fn count(engine: &Engine) -> usize {
    let view = engine.view().unwrap();
    let mut cursor = view.records(view.collection("db.c").unwrap(), Range::ALL, Direction::Forward).unwrap();
    let mut n = 0;
    while cursor.next().unwrap() {
        n += 1;
    }
    n
}

/// A source that listens, and a proxy before it that cuts connections after so many bytes.
struct Serving {
    address: String,
    cut_after: Arc<AtomicU64>,
    connections: Arc<AtomicUsize>,
    exports: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(path: &Path, engine: &Engine) -> Serving {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let serving = Serving {
        address: listener.local_addr().unwrap().to_string(),
        cut_after: Arc::new(AtomicU64::new(u64::MAX)),
        connections: Arc::default(),
        exports: Arc::default(),
        stop: Arc::default(),
    };
    let inside = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = inside.local_addr().unwrap();
    let (source, engine) = (Arc::new(Source::open(path)), engine.clone());
    let (exports, stop) = (serving.exports.clone(), serving.stop.clone());
    std::thread::spawn(move || {
        for stream in inside.incoming() {
            if stop.load(Ordering::Acquire) {
                return;
            }
            let (source, engine, exports) = (source.clone(), engine.clone(), exports.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut magic = [0; 4];
                if stream.read_exact(&mut magic).is_err() {
                    return;
                }
                assert_eq!(magic, MAGIC);
                // The other side may break off at any time.
                let Ok(request) = super::frames::read_document(&mut stream) else { return };
                let _ = source.serve(
                    crate::secured::Secured::plain(stream),
                    request.as_raw(),
                    "rs",
                    false,
                    &|folder| {
                        exports.fetch_add(1, Ordering::AcqRel);
                        let pin = engine.pin_log();
                        Ok((engine.export_copy(folder)?, pin))
                    },
                );
            });
        }
    });
    let (cut_after, connections, stop) =
        (serving.cut_after.clone(), serving.connections.clone(), serving.stop.clone());
    std::thread::spawn(move || {
        for outer in listener.incoming() {
            if stop.load(Ordering::Acquire) {
                let _ = TcpStream::connect(to);
                return;
            }
            connections.fetch_add(1, Ordering::AcqRel);
            let outer = outer.unwrap();
            let inner = TcpStream::connect(to).unwrap();
            let (from, into) = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
            std::thread::spawn(move || relay(from, into, u64::MAX));
            let cut_after = cut_after.load(Ordering::Acquire);
            std::thread::spawn(move || relay(inner, outer, cut_after));
        }
    });
    serving
}

fn relay(mut from: TcpStream, mut to: TcpStream, cut_after: u64) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(n) = from.read(&mut buffer) {
        passed += n as u64;
        if n == 0 || passed > cut_after || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Whoever it says that it is: that is asked before a request comes to the [`Source`].
fn who(set: &str) -> Who {
    Who { set: set.to_owned(), id: 0, nonce: [0; 16] }
}

fn fetch(
    target: &Target,
    address: &str,
    at_least: u64,
    limit: u64,
) -> std::io::Result<sheaf_storage::OpTime> {
    let control = Control { bytes_per_second: &|| limit, stopped: &|| false, secrets: &Secrets::default() };
    target.fetch(("a:1", address), &who("rs"), at_least, &control)
}

fn folders(path: &Path) -> usize {
    std::fs::read_dir(path.join("sync-source")).map_or(0, |items| items.count())
}

#[test]
fn a_copy_is_fetched_and_taken_into_use() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 300);
    let serving = serve(from.path(), &engine);
    let target = Target::open(to.path());
    let at = fetch(&target, &serving.address, 1, 0).unwrap();
    assert_eq!(at, engine.last_applied());
    {
        let progress = target.progress.lock();
        assert!(progress.total > 14 << 20, "{}", progress.total);
        assert_eq!((progress.copied, progress.received), (progress.total, progress.total));
    }
    // Asked again, what is here is enough; the source has let go of its copy.
    assert_eq!(fetch(&target, &serving.address, at.index, 0).unwrap(), at);
    assert_eq!(serving.connections.load(Ordering::Acquire), 1);
    let deadline = Instant::now() + Duration::from_secs(5);
    while folders(from.path()) > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(folders(from.path()), 0);
    install_at_next_open(to.path(), &target.files()).unwrap();
    let copy = Engine::open(Options::new(to.path())).unwrap();
    assert_eq!((copy.last_applied(), count(&copy)), (at, 300));
    drop(copy);
    Target::open(to.path());
    assert!(!to.path().join("sync").exists());
}

#[test]
fn broken_connections_and_restarts_cost_little() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 300);
    engine.checkpoint().unwrap();
    insert(&engine, 300, 600);
    let serving = serve(from.path(), &engine);
    serving.cut_after.store(5 << 20, Ordering::Release);
    let mut target = Target::open(to.path());
    let mut tries = 0;
    let at = loop {
        match fetch(&target, &serving.address, 1, 0) {
            Ok(at) => break at,
            Err(_) => tries += 1,
        }
        assert!(tries < 50);
        if tries == 4 {
            // The process ends: only whole files count.
            target = Target::open(to.path());
        }
    };
    assert!(tries >= 5, "{tries}");
    assert_eq!(serving.exports.load(Ordering::Acquire), 1, "it went on with the same copy");
    install_at_next_open(to.path(), &target.files()).unwrap();
    let copy = Engine::open(Options::new(to.path())).unwrap();
    assert_eq!((copy.last_applied(), count(&copy)), (at, 600));
}

#[test]
fn a_copy_is_gone_on_with_while_its_source_has_it() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 200);
    let serving = serve(from.path(), &engine);
    serving.cut_after.store(3 << 20, Ordering::Release);
    let target = Target::open(to.path());
    let old = engine.last_applied();
    assert!(fetch(&target, &serving.address, old.index, 0).is_err());
    assert_eq!(target.begun_from().as_deref(), Some("a:1"));
    // The set goes on meanwhile.
    insert(&engine, 200, 250);
    serving.cut_after.store(u64::MAX, Ordering::Release);
    assert_eq!(fetch(&target, &serving.address, old.index + 1, 0).unwrap(), old);
    assert_eq!(serving.exports.load(Ordering::Acquire), 1);

    // Another member's source has restarted, and has no copy any more.
    let other = tempfile::tempdir().unwrap();
    let target = Target::open(other.path());
    serving.cut_after.store(3 << 20, Ordering::Release);
    assert!(fetch(&target, &serving.address, 1, 0).is_err());
    drop(serving);
    let serving = serve(from.path(), &engine);
    insert(&engine, 250, 260);
    let at = engine.last_applied();
    assert_eq!(fetch(&target, &serving.address, at.index, 0).unwrap(), at);
    install_at_next_open(other.path(), &target.files()).unwrap();
    assert_eq!(count(&Engine::open(Options::new(other.path())).unwrap()), 260);
}

#[test]
fn a_limit_is_kept_to() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 60);
    let serving = serve(from.path(), &engine);
    let target = Target::open(to.path());
    let began = Instant::now();
    fetch(&target, &serving.address, 1, 6 << 20).unwrap();
    let bytes = target.progress.lock().received;
    // Never faster, however slow the machine.
    assert!(began.elapsed().as_secs_f64() >= bytes as f64 / f64::from(6 << 20) * 0.95);
}

#[test]
fn who_is_refused_hears_why() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 1);
    let serving = serve(from.path(), &engine);
    let target = Target::open(to.path());
    let control = Control { bytes_per_second: &|| 0, stopped: &|| false, secrets: &Secrets::default() };
    let error = target.fetch(("a:1", &serving.address), &who("other"), 1, &control).unwrap_err();
    assert!(error.to_string().contains("belongs to the replica set rs"), "{error}");
    assert_eq!(folders(from.path()), 0);
}

#[test]
fn old_copies_go() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engine = filled(from.path(), 100);
    let serving = serve(from.path(), &engine);
    serving.cut_after.store(1 << 20, Ordering::Release);
    assert!(fetch(&Target::open(to.path()), &serving.address, 1, 0).is_err());
    assert_eq!(folders(from.path()), 1);
    Source::open(from.path());
    assert_eq!(folders(from.path()), 0);
}

#[test]
fn only_so_many_fetch_copies_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let sync = InitialSync::open(folder.path());
    let mut places: Vec<_> = (0..SERVING_MAX).map(|_| sync.place().unwrap()).collect();
    assert_eq!(sync.place().unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    places.pop();
    let _again = sync.place().unwrap();
    assert!(sync.place().is_err());
}
