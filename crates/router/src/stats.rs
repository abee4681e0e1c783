//! The documents of stages that show what servers do: of the shards all together, or of this router.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_aggregate::{Namespace, StatsSource};
use sheaf_bson::{ArrayBuf, DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_cluster::{ELECTION, GoOn, Patience, Preference, Shard};
use sheaf_errors::Result;
use sheaf_front::front::Front;
use sheaf_front::operations;
use sheaf_front::sampling::SAMPLES;
use sheaf_rows::{Cx, Operator};
use sheaf_server::commands::crud::pipeline::digests;
use sheaf_timeseries::{BUCKETS_PREFIX, TimeseriesOptions, buckets_namespace, listed_index};

use crate::addressed::{Addressed, Placed};
use crate::gather::{self, Gather, Link, Order};
use crate::router::Router;
use crate::target::Target;

/// How often it is looked for one.
const LOOK: Duration = Duration::from_millis(20);

/// What such stages read.
pub struct Source<'s> {
    /// This router.
    pub router: &'s Arc<Router>,
    /// The way to the shards.
    pub link: &'s Arc<Link>,
}

impl Source<'_> {
    /// The documents of a stage with this argument.
    ///
    /// Errors: those of the shards and of the way there.
    pub fn documents(
        &self,
        of: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        let flag = |name: &str| spec.get(name).is_some_and(|flag| flag.truthy());
        match of {
            // On shards all operations are the router's, so who sees only his own sees those of this router.
            StatsSource::CurrentOp if flag("localOps") || !self.of_all(&flag) => {
                Ok(self.own_operations(&flag))
            }
            StatsSource::CurrentOp => self.operations(spec, cx),
            StatsSource::ListLocalSessions | StatsSource::ListSessions => {
                Ok(self.sessions(spec, self.of_all(&flag)))
            }
            StatsSource::QuerySettings => {
                let interrupt = cx.interrupt();
                self.router.take_over_parameters(None, &|| interrupt())?;
                self.router.query_settings.list(flag("showDebugQueryShape"))
            }
            StatsSource::QueryStats => {
                let (stats, now) = (&self.router.query_stats, self.router.clock_millis());
                Ok(stats.list(spec, now, &*self.router.cursors))
            }
            StatsSource::ListSampledQueries => self.samples(spec, cx),
            StatsSource::ShardedDataDistribution => self.distribution(cx),
            StatsSource::ListClusterCatalog => self.catalog(namespace, spec, cx),
            StatsSource::CollStats | StatsSource::IndexStats | StatsSource::PlanCacheStats => {
                self.of_collection(of, namespace, spec, cx)
            }
        }
    }

    /// What each shard says of a collection, of which it has something.
    fn of_collection(
        &self,
        of: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let measured = self.measured(of, namespace, &go_on)?;
        let on = measured.as_ref().map_or(namespace, |(buckets, _)| buckets);
        let stages = ArrayBuf::of(&[doc! { (of.stage_name()): spec }]);
        let command = doc! {
            "aggregate": &*on.collection, "pipeline": Value::Array(stages.as_raw()), "cursor": {}
        };
        let remotes = self.link.until_fresh(on, false, &go_on, |placed| {
            let to = match placed {
                Placed::Whole(to) => vec![to.clone()],
                Placed::Spread(sharded) => {
                    let owners = sharded.table.shards();
                    owners.map(|shard| self.link.addressed(sharded, shard, &go_on)).collect::<Result<_>>()?
                }
            };
            let answers = self.link.ask_each(&to, &namespace.database, &command, false, &go_on)?;
            gather::opened(self.link.abandoned(), &to, answers)
        })?;
        let told = all(Gather::new(self.link.clone(), remotes, Order::None), cx)?;
        let Some((_, options)) = &measured else { return Ok(told) };
        let shown = told.iter().filter_map(|told| of_measurements(told.as_raw(), namespace, options));
        Ok(shown.collect())
    }

    /// The buckets of a time-series collection, if these are sharded: only the database's primary shard knows the collection by its own name.
    ///
    /// Errors: those of asking the config servers.
    fn measured(
        &self,
        of: StatsSource,
        namespace: &Namespace,
        go_on: GoOn<'_>,
    ) -> Result<Option<(Namespace, TimeseriesOptions)>> {
        let (db, name) = (&*namespace.database, &*namespace.collection);
        let is_own = matches!(db, "admin" | "config" | "local") || name.starts_with("system.");
        if is_own || of == StatsSource::PlanCacheStats {
            return Ok(None);
        }
        let directory = &self.router.directory;
        if directory.collection(&namespace.to_string(), go_on)?.sharded.is_some() {
            return Ok(None);
        }
        let buckets = directory.collection(&buckets_namespace(db, name), go_on)?;
        let options = buckets.sharded.as_ref().and_then(|sharded| sharded.timeseries.clone());
        Ok(options.map(|options| (Namespace::new(db, format!("{BUCKETS_PREFIX}{name}")), options)))
    }

    /// Whether all users' are meant, not only those of who asks.
    fn of_all(&self, flag: &dyn Fn(&str) -> bool) -> bool {
        self.link.rights().are_everything() || flag("allUsers")
    }

    fn own_operations(&self, flag: &dyn Fn(&str) -> bool) -> Vec<DocBuf> {
        let (front, cursors): (&Front, _) = (self.router.front(), &*self.router.cursors);
        let mut all = operations::under_way(front, cursors, flag("idleConnections"));
        if flag("idleCursors") {
            all.extend(operations::idle_cursors(front, cursors));
        }
        all.extend(front.sampling.operations(true));
        let of_all = self.of_all(flag);
        all.retain(|operation| of_all || operations::is_of(operation.as_raw(), self.link.rights()));
        all
    }

    /// What all sets of the cluster are doing.
    fn operations(&self, spec: RawDoc<'_>, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        let command = of_admin(doc! { "$currentOp": spec });
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let sets = self.router.directory.sets(&go_on)?;
        check_reachable(&sets, &go_on)?;
        let mut all = Vec::new();
        for set in sets {
            let name = set.name.clone();
            for entry in self.ask(Target::Shard(set).into(), "admin", &command, cx)? {
                all.push(DocBuf::build(|out| append_operation(out, &name, entry.as_raw())));
            }
        }
        Ok(all)
    }

    /// All that a set gives to a command with a cursor.
    ///
    /// Errors: those of the set and of the way there.
    pub fn ask(&self, to: Addressed, db: &str, command: &DocBuf, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        all(self.open(to, db, command, cx)?, cx)
    }

    fn open(&self, to: Addressed, db: &str, command: &DocBuf, cx: &mut Cx<'_>) -> Result<Gather> {
        let interrupt = cx.interrupt();
        let to = [to];
        let answers = self.link.ask_each(&to, db, command, false, &|| interrupt())?;
        let remotes = gather::opened(self.link.abandoned(), &to, answers)?;
        Ok(Gather::new(self.link.clone(), remotes, Order::None))
    }

    /// What a command with a cursor gives on the database `config` of the config servers.
    ///
    /// Errors: those of asking.
    pub fn of_config(&self, command: &DocBuf, cx: &mut Cx<'_>) -> Result<Gather> {
        let config = Target::Config(self.router.directory.config().clone());
        self.open(config.into(), "config", command, cx)
    }

    /// The samples of queries, with what this router has not written yet.
    fn samples(&self, spec: RawDoc<'_>, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        let interrupt = cx.interrupt();
        self.router.write_samples(&|| interrupt())?;
        let filter = match spec.get("namespace") {
            Some(namespace) => doc! { "ns": namespace },
            None => DocBuf::new(),
        };
        all(self.of_config(&doc! { "find": SAMPLES, "filter": filter.as_raw() }, cx)?, cx)
    }

    /// The sessions that this router knows: all, those of the users that are named, or those of who asks.
    fn sessions(&self, spec: RawDoc<'_>, of_all: bool) -> Vec<DocBuf> {
        let (router, now) = (self.router, self.router.front().clock.now_millis());
        let mut sessions = router.sessions.list();
        let named = spec.get("users").and_then(|users| users.as_array()).unwrap_or(RawDoc::EMPTY);
        let of_users = digests(named);
        let own = self.link.rights().account().map(|account| account.digest());
        sessions.retain(|session| match of_users.as_slice() {
            [] => of_all || session.id.uid == own,
            users => session.id.uid.is_some_and(|uid| users.contains(&uid)),
        });
        sessions.sort_by_key(|session| session.id);
        sessions.dedup_by_key(|session| session.id);
        let shown = sessions.iter().map(|session| {
            let used = session.last_used.load(std::sync::atomic::Ordering::Relaxed);
            let idle = router.uptime_millis().saturating_sub(used);
            DocBuf::build(|out| {
                session.id.write(out, "_id");
                out.append("lastUse", Value::DateTime(now - idle as i64));
            })
        });
        shown.collect()
    }

    /// How each sharded collection lies on the shards.
    fn distribution(&self, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let entries = self.router.directory.find("collections", &doc! {}, &go_on)?;
        let shards = self.router.directory.shards(&go_on)?;
        let stages = ArrayBuf::of(&[doc! { "$collStats": { "storageStats": {} } }]);
        let mut all = Vec::new();
        check_reachable(&shards, &go_on)?;
        for entry in &entries {
            let ns = entry.as_raw().get("_id").and_then(|ns| ns.as_str()).unwrap_or_default();
            let Some((db, collection)) = ns.split_once('.') else { continue };
            if entry.as_raw().get("unsplittable").is_some_and(|flag| flag.truthy()) {
                continue;
            }
            let command =
                doc! { "aggregate": collection, "pipeline": Value::Array(stages.as_raw()), "cursor": {} };
            let mut found = Vec::new();
            let mut believed = self.router.directory.collection(ns, &go_on)?;
            if believed.sharded.is_none() {
                // It has become one that is sharded, and nobody has asked this router about it since.
                self.router.directory.stale(&believed);
                believed = self.router.directory.collection(ns, &go_on)?;
            }
            let Some(sharded) = &believed.sharded else { continue };
            for shard in &shards {
                let owns = sharded.table.shards().any(|owner| owner.as_str() == &*shard.name);
                let to = Target::Shard(shard.clone()).into();
                for told in self.ask(to, db, &command, cx)? {
                    let stats = told.as_raw().get("storageStats").and_then(|stats| stats.as_doc());
                    found.extend(stats.and_then(|stats| part(&shard.name, stats, owns)));
                }
            }
            all.push(doc! { "ns": ns, "shards": &ArrayBuf::of(&found) });
        }
        Ok(all)
    }
}

/// Waits until each of these has a primary, not longer than an election takes: who looks how a cluster does is told soon that a shard is
/// out of reach.
///
/// Errors: `FailedToSatisfyReadPreference`; those of `go_on`.
fn check_reachable(shards: &[Shard], go_on: GoOn<'_>) -> Result<()> {
    let (began, primary) = (Instant::now(), Preference::default());
    for shard in shards {
        let patience = Patience::since(began, ELECTION);
        while !shard.set.can_answer(&primary) {
            patience.check(&shard.set, &primary)?;
            go_on()?;
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}

fn all(mut rows: Gather, cx: &mut Cx<'_>) -> Result<Vec<DocBuf>> {
    let mut all = Vec::new();
    while sheaf_rows::pull(&mut rows, cx)? {
        all.push(DocBuf::from(rows.row().document()));
    }
    Ok(all)
}

/// What is told of buckets, as it is told of their measurements. `None`: of an index that users do not see.
fn of_measurements(told: RawDoc<'_>, namespace: &Namespace, options: &TimeseriesOptions) -> Option<DocBuf> {
    let listed = match told.get("spec") {
        Some(spec) => Some(listed_index(spec.as_doc()?, options)?),
        None => None,
    };
    Some(DocBuf::build(|out| {
        for field in told {
            match (field.key(), &listed) {
                ("ns", _) => _ = out.append("ns", namespace.to_string().as_str()),
                ("key", Some(listed)) => _ = out.append("key", listed.as_raw().get_or_missing("key")),
                ("spec", Some(listed)) => _ = out.append("spec", listed),
                _ => _ = out.append_element(field),
            }
        }
    }))
}

/// What a shard has of a collection; `None`: nothing.
fn part(shard: &str, stats: RawDoc<'_>, owns: bool) -> Option<DocBuf> {
    // Buckets are counted apart.
    let buckets = stats.get("timeseries").and_then(|buckets| buckets.as_doc()).unwrap_or(RawDoc::EMPTY);
    let number = |of: RawDoc<'_>, name: &str| of.get(name).and_then(|number| number.as_exact_i64());
    let number = |name: &str, of_buckets: &str| {
        number(stats, name).or_else(|| number(buckets, of_buckets)).unwrap_or(0)
    };
    let (count, average) = (number("count", "bucketCount"), number("avgObjSize", "avgBucketSize"));
    let orphans = number("numOrphanDocs", "");
    if !owns && count == 0 {
        return None;
    }
    Some(DocBuf::build(|out| {
        out.append("shardName", shard);
        append(out, "numOrphanedDocs", orphans);
        append(out, "numOwnedDocuments", count - orphans);
        append(out, "ownedSizeBytes", (count - orphans) * average);
        append(out, "orphanedSizeBytes", orphans * average);
    }))
}

fn append(out: &mut DocWriter<'_, Vec<u8>>, name: &str, number: i64) {
    match i32::try_from(number) {
        Ok(small) => out.append(name, small),
        Err(_) => out.append(name, number),
    };
}

/// A pipeline of this stage, against `admin`.
pub fn of_admin(stage: DocBuf) -> DocBuf {
    let stages = ArrayBuf::of(&[stage]);
    doc! { "aggregate": 1, "pipeline": Value::Array(stages.as_raw()), "cursor": {} }
}

/// Adds an operation of a shard as routers show it: with the shard, by whose name its number is known here.
pub fn append_operation(out: &mut DocWriter<'_, Vec<u8>>, shard: &str, operation: RawDoc<'_>) {
    out.append("shard", shard);
    for field in operation {
        match (field.key(), field.value().as_exact_i64()) {
            ("opid", Some(number)) => _ = out.append("opid", &format!("{shard}:{number}")),
            // The shard's client is a router.
            ("client", _) => _ = out.append("client_s", field.value()),
            _ => _ = out.append_element(field),
        }
    }
}
