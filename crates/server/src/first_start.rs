//! What the server itself writes into its data folder when it starts.

use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_errors::{Code, Result};
use sheaf_front::commands::build_info;
use sheaf_storage::{CreateCollection, Engine, Interrupt, Write};

use crate::feature_version::{DOCUMENT, NAMESPACE};
use crate::node::Node;
use crate::version::FEATURE_VERSION;

const STARTUP_LOG: &str = "local.startup_log";
const STARTUP_LOG_BYTES: i64 = 10 << 20;

/// Writes the document that tools look for to know which version made the data, as mongod does. Because of
/// it the database `admin` is always listed. Then sets right what a crash may have left half done. A member of a replica
/// set does it whenever it becomes primary.
pub fn prepare(engine: &Engine, interrupt: Interrupt<'_>) -> Result<()> {
    write_version(engine, interrupt)?;
    engine.drop_temporary_collections(interrupt)?;
    crate::commands::ddl::views::reconcile(engine, interrupt)
}

const SESSIONS: &str = "config.system.sessions";
/// The index by which sessions that nobody uses go away.
const SESSIONS_INDEX: &str = "lsidTTLIndex";

/// Makes the collection in which sessions are noted.
pub fn prepare_sessions(node: &Node) -> Result<()> {
    let (engine, interrupt) = (node.engine(), || node.until_end());
    ensure(engine, SESSIONS, DocBuf::new(), &interrupt)?;
    let known =
        engine.catalog().collection(SESSIONS).is_some_and(|found| found.index(SESSIONS_INDEX).is_some());
    if known {
        return Ok(());
    }
    let seconds = node.parameters.int("localLogicalSessionTimeoutMinutes") * 60;
    let spec = doc! { "v": 2, "key": { "lastUse": 1 }, "name": SESSIONS_INDEX, "expireAfterSeconds": seconds as i32 };
    engine.create_indexes(SESSIONS, &[spec.as_raw()], &interrupt)?;
    Ok(())
}

/// Notes which sessions have been used since they were noted last. While writes are locked it does not wait.
pub fn note_sessions(node: &Node) -> Result<()> {
    let used = node
        .sessions
        .those(|session| session.noted.load(Ordering::Relaxed) != session.last_used.load(Ordering::Relaxed));
    if used.is_empty() {
        return Ok(());
    }
    let noted: Vec<u64> = used.iter().map(|session| session.last_used.load(Ordering::Relaxed)).collect();
    let unless_locked = || node.unless_locked();
    let mut unit = node.engine().write(&unless_locked);
    let Some(collection) = unit.collection(SESSIONS)? else { return Ok(()) };
    for session in &used {
        let entry = DocBuf::build(|out| {
            session.id.write_of_nobody(out, "_id");
            out.append("lastUse", Value::DateTime(node.last_use_millis(session)));
        });
        let key = collection.record_key(entry.as_raw().get_or_missing("_id"))?;
        match unit.read_for_update(&collection, &key)? {
            Some(old) if old == entry.as_bytes() => {}
            Some(old) => {
                unit.update(&collection, &key, sheaf_bson::RawDoc::new(&old), entry.as_raw(), None)?
            }
            None => unit.insert(&collection, entry.as_raw())?,
        }
    }
    unit.commit()?;
    used.iter().zip(noted).for_each(|(session, noted)| session.noted.store(noted, Ordering::Relaxed));
    Ok(())
}

/// Adds this start to `local.startup_log`.
pub fn log_start(node: &Node) -> Result<()> {
    let engine = node.engine();
    let options = doc! { "capped": true, "size": STARTUP_LOG_BYTES };
    let until_end = || node.until_end();
    ensure(engine, STARTUP_LOG, options, &until_end)?;
    let now = node.clock.now_millis();
    let hostname = crate::node::hostname();
    let start = DocBuf::build(|out| {
        out.append("_id", &format!("{hostname}-{now}"));
        out.append("hostname", &hostname);
        // The log has whole seconds here.
        out.append("startTime", Value::DateTime(now - now % 1000));
        out.append("startTimeLocal", &crate::log::date::long_date(now));
        out.append("cmdLine", &node.front().options.parsed);
        out.append("pid", i64::from(std::process::id()));
        build_info::write(&mut out.document("buildinfo"));
    });
    let go_on = || Ok(());
    let mut unit = engine.write(&go_on);
    if let Some(collection) = unit.collection(STARTUP_LOG)? {
        unit.insert(&collection, start.as_raw())?;
    }
    unit.commit()?;
    // In a set that is the primary's work.
    if node.options.set_name.is_some() { Ok(()) } else { prepare_sessions(node) }
}

fn ensure(engine: &Engine, namespace: &str, options: DocBuf, interrupt: Interrupt<'_>) -> Result<()> {
    if engine.catalog().collection(namespace).is_some() {
        return Ok(());
    }
    let spec = CreateCollection { options, ..CreateCollection::default() };
    match engine.create_collection(namespace, &spec, interrupt) {
        Err(error) if error.code() != Code::NAMESPACE_EXISTS => Err(error),
        _ => Ok(()),
    }
}

fn write_version(engine: &Engine, interrupt: Interrupt<'_>) -> Result<()> {
    if engine.catalog().collection(NAMESPACE).is_some() {
        return Ok(());
    }
    ensure(engine, NAMESPACE, DocBuf::new(), interrupt)?;
    let mut unit = engine.write(interrupt);
    if let Some(collection) = unit.collection(NAMESPACE)? {
        let version = doc! { "_id": DOCUMENT, "version": FEATURE_VERSION };
        unit.insert(&collection, version.as_raw())?;
    }
    unit.commit()?;
    Ok(())
}
