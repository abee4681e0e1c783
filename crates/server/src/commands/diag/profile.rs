//! `profile`, and writing `system.profile`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::request::Request;
use sheaf_query::matcher::{Features, Matcher};
use sheaf_storage::{CreateCollection, Write};

use crate::args::{Args, safe_i64};
use crate::command::*;
use crate::node::Node;
use crate::op::Operation;
use crate::profile::{ProfileSettings, Profiling};
use crate::reply::Reply;

/// Size of `system.profile`, as MongoDB makes it.
const PROFILE_BYTES: i64 = 1024 * 1024;

/// `{profile: level, slowms: n, sampleRate: x, filter: {...} | "unset"}`.
pub struct Profile<'a> {
    level: i64,
    slow_ms: Option<i64>,
    sample_rate: Option<f64>,
    filter: Option<Value<'a>>,
}

/// Whether it is more than the question how things stand: `{profile: -1}`.
fn changes_something(asked: Asked<'_>) -> bool {
    let asks = asked.body.get("profile").and_then(safe_i64).is_some_and(|level| !(0..=2).contains(&level));
    !asks || ["slowms", "sampleRate", "filter"].iter().any(|setting| asked.has(setting))
}

impl<'a> Command<'a, Operation<'a>> for Profile<'a> {
    const NAME: &'static str = "profile";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the profiler's level and what counts as slow",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Database, &[Action::EnableProfiler])
                .if_asked("something is to change", changes_something),
            Privilege::on(Resource::CollectionNamed("system.profile"), &[Action::Find])
                .or(Action::EnableProfiler)
                .if_asked("nothing is to change", |asked| !changes_something(asked)),
        ]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let level = args.own::<i64>()?;
        let filter = args.optional::<Value<'a>>("filter")?;
        match filter {
            None | Some(Value::Document(_) | Value::String("unset")) => {}
            Some(_) => bail!(Code::BAD_VALUE, "Expected an object, or the string 'unset'."),
        }
        let sample_rate: Option<f64> = args.optional("sampleRate")?;
        if sample_rate.is_some_and(|rate| !(0.0..=1.0).contains(&rate)) {
            bail!(Code::BAD_VALUE, "'sampleRate' must be between 0.0 and 1.0 inclusive");
        }
        Ok(Profile { level, slow_ms: args.optional("slowms")?, sample_rate, filter })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        self.set(&op.node().profiling, op.db())
    }
}

impl Profile<'_> {
    /// Whether the profiler is to write somewhere.
    pub fn records(&self) -> bool {
        !matches!(self.level, -1 | 0)
    }

    /// Sets what is to be set, and tells how it was before.
    ///
    /// Errors: those of the filter; `ExceededMemoryLimit`.
    pub fn set(self, profiling: &Profiling, db: &str) -> Result<Reply> {
        let filter = match self.filter {
            Some(Value::Document(filter)) => Some(Arc::new(Matcher::parse_lasting(filter, Features::All)?)),
            _ => None,
        };
        let before = profiling.of(db);
        let level = if (0..=2).contains(&self.level) { self.level as i32 } else { before.level };
        let reply = Reply::ok().with_fields(|doc| {
            doc.append("was", before.level);
            doc.append("slowms", profiling.slow_ms.load(Ordering::Relaxed) as i32);
            doc.append("sampleRate", profiling.sample_rate());
            if let Some(filter) = &before.filter {
                doc.append("filter", filter.filter());
                doc.append("note", "When a filter expression is set, slowms and sampleRate are not used for profiling and slow-query log lines.");
            }
        });
        // No filter given: the old one stays; "unset": none.
        let filter = if self.filter.is_none() { before.filter } else { filter };
        profiling.set(db, ProfileSettings { level, filter })?;
        if let Some(slow_ms) = self.slow_ms {
            profiling.slow_ms.store(slow_ms, Ordering::Relaxed);
        }
        if let Some(rate) = self.sample_rate {
            profiling.set_sample_rate(rate);
        }
        Ok(reply)
    }
}

/// Writes the entries of a finished operation to its database's `system.profile`, which may be what it was about. What
/// can't be written is logged and forgotten: profiling never makes an operation fail.
pub fn record(node: &Node, op: &Request<'_>, db: &str, entries: &[DocBuf]) {
    let namespace = format!("{db}.system.profile");
    let result = tokio::task::block_in_place(|| write(node, &namespace, entries));
    if let Err(error) = result {
        let attributes = doc! { "error": error.message() };
        crate::log::warning(
            "COMMAND",
            crate::log::ids::PROFILE_FAILED,
            &op.client().context(),
            "Caught exception while trying to profile operation",
            Some(attributes),
        );
    }
}

fn write(node: &Node, namespace: &str, entries: &[DocBuf]) -> Result<()> {
    let engine = node.engine();
    // Nobody waits for fsyncUnlock in order to be profiled.
    let unless_locked = || node.unless_locked();
    if unless_locked().is_err() {
        return Ok(());
    }
    if engine.catalog().collection(namespace).is_none() {
        let spec = CreateCollection {
            options: doc! { "capped": true, "size": PROFILE_BYTES },
            ..CreateCollection::default()
        };
        match engine.create_collection(namespace, &spec, &unless_locked) {
            Err(error) if error.code() != Code::NAMESPACE_EXISTS => return Err(error),
            _ => {}
        }
    }
    let mut unit = engine.write(&unless_locked);
    if let Some(collection) = unit.collection(namespace)? {
        for entry in entries {
            unit.insert(&collection, entry.as_raw())?;
        }
    }
    unit.commit()?;
    Ok(())
}
