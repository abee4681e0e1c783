//! The balancer: a thread of the config servers' primary that asks shards for figures, has the rules decide
//! (`sheaf_shard::balance`), and cuts and moves as the commands do.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_shard::ShardId;
use sheaf_shard::balance::{Figures, ShardState, Step, Zone, decide};
use sheaf_shard::placement::{Key, RoutingTable};
use sheaf_storage::Interrupt;

use super::Conductor;
use super::chunks::{COLLECTIONS, Entry};
use super::ddl::text;
use super::ranges::Chunks;
use super::settings::permits_migrations;
use super::shards::Known;
use super::watch::{Watch, weighted};
use super::{uuid_of, uuid_value};
use crate::sharding::participants::name;

/// How long a shard may take to tell its figures.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a collection is left alone that is as it should be, and whose size has not changed much; and one that cannot be changed.
const REST: Duration = Duration::from_secs(10);
const FAILED: Duration = Duration::from_secs(3);

/// How often one collection is decided about in a round.
const STEPS: usize = 8;

pub(super) const ACTION_LOG: &str = "config.actionlog";

/// What a round has done.
#[derive(Default)]
struct Done {
    cuts: usize,
    moves: usize,
    failed: Option<Error>,
}

impl Conductor {
    /// A round.
    pub(super) fn balance(&self, watches: &mut HashMap<[u8; 16], Watch>, go_on: Interrupt<'_>) -> Result<()> {
        let _round = {
            if !self.balances_now() {
                return Ok(());
            }
            self.balancer.begin()
        };
        // It may have been stopped before the round was to be seen.
        if !self.balances_now() {
            return Ok(());
        }
        let entries: Result<Vec<Entry>> =
            self.find(COLLECTIONS, |_| true)?.into_iter().map(Entry::parse).collect();
        let mut entries = entries?;
        entries.retain(|entry| !entry.unsplittable());
        watches.retain(|uuid, _| entries.iter().any(|entry| entry.uuid == *uuid));
        let shards = self.shards()?;
        if entries.is_empty() || shards.len() < 2 {
            return Ok(());
        }
        let answering = self.ask_for_figures(&shards, &entries, watches, go_on);
        let began = Instant::now();
        let mut done = Done::default();
        let is_there = |namespace: &str| entries.iter().any(|entry| entry.namespace() == namespace);
        self.balancer.failed.lock().retain(|namespace, _| is_there(namespace));
        for entry in &entries {
            let watch = watches.entry(entry.uuid).or_default();
            if watch.failed.is_none_or(|until| Instant::now() >= until) {
                self.balancer.failed.lock().remove(entry.namespace());
            }
            if let Err(error) = self.balance_one(entry, &shards, &answering, watch, &mut done, go_on) {
                self.term()?;
                tracing::info!(%error, namespace = entry.namespace(), "a collection could not be balanced");
                watch.failed = Some(Instant::now() + FAILED);
                let why = error.message().to_owned();
                self.balancer.failed.lock().insert(entry.namespace().to_owned(), why);
                done.failed = Some(error);
            }
        }
        self.log_round(&done, began.elapsed(), go_on)
    }

    /// Has all shards tell their figures. Gives those that have.
    fn ask_for_figures(
        &self,
        shards: &[Known],
        entries: &[Entry],
        watches: &mut HashMap<[u8; 16], Watch>,
        go_on: Interrupt<'_>,
    ) -> Vec<String> {
        let mut answering = Vec::new();
        for shard in shards {
            let told = match self.ask_shard(&shard.name, &doc! { (name::FIGURES): 1 }, go_on) {
                Ok(told) => told,
                Err(error) => {
                    tracing::debug!(%error, shard = shard.name, "a shard tells no figures");
                    continue;
                }
            };
            let now = Instant::now();
            let list = told.as_raw().get("collections").and_then(|list| list.as_array());
            for of in list.into_iter().flat_map(|list| list.values()).filter_map(|of| of.as_doc()) {
                let Some(uuid) = uuid_of(of, "uuid") else { continue };
                let Some(entry) = entries.iter().find(|entry| entry.uuid == uuid) else { continue };
                watches.entry(uuid).or_default().tell(&shard.name, of, &entry.pattern, now);
            }
            answering.push(shard.name.clone());
        }
        answering
    }

    fn ask_shard(&self, shard: &str, command: &DocBuf, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let began = Instant::now();
        self.tell(shard, command, &|| {
            if began.elapsed() >= PATIENCE {
                return Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time"));
            }
            go_on()
        })
    }

    /// One collection's part of a round.
    fn balance_one(
        &self,
        entry: &Entry,
        shards: &[Known],
        answering: &[String],
        watch: &mut Watch,
        done: &mut Done,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let rests_from_failure = watch.failed.is_some_and(|until| Instant::now() < until);
        if rests_from_failure || !may_be_balanced(entry.document.as_raw()) {
            return Ok(());
        }
        let zones = self.zones_of(entry.namespace(), &entry.pattern)?;
        let chunk_bytes = self.chunk_bytes(entry)?.max(1) as u64;
        let is_forced = !zones.is_empty() || shards.iter().any(|shard| shard.draining);
        let able = shards.iter().filter(|shard| !shard.draining).map(|shard| shard.name.as_str());
        let is_uneven = watch.uneven(able) > 2 * chunk_bytes;
        let rests = watch.idle.is_some_and(|until| Instant::now() < until)
            && watch.bytes().abs_diff(watch.idle_bytes) < chunk_bytes;
        if !(watch.is_loading() || watch.is_filling() || is_forced || (is_uneven && !rests)) {
            return Ok(());
        }
        if watch.is_behind(Instant::now()) && !is_forced {
            return Ok(());
        }
        let moves = done.moves;
        if is_uneven && !rests && !watch.is_loading() {
            self.scan(entry, watch, go_on)?;
        }
        let zones: Vec<Zone> =
            zones.into_iter().map(|zone| Zone { min: zone.min, max: zone.max, name: zone.zone }).collect();
        let states: Vec<ShardState> = shards.iter().map(|shard| state_of(shard, answering)).collect();
        // Cuts come first, and what they have made is moved at once; in a first load one range after another, while there is little in them.
        for _ in 0..STEPS {
            let table = self.table(entry)?;
            let loads = watch.loads(&table);
            let recent = watch.recent();
            let figures = Figures {
                table: &table,
                loads: &loads,
                recent: &recent,
                zones: &zones,
                shards: &states,
                chunk_bytes,
            };
            let steps = decide(&figures);
            if steps.is_empty() {
                watch.idle = Some(Instant::now() + REST);
                watch.idle_bytes = watch.bytes();
                self.balancer.settled.lock().insert(entry.uuid, watch.bytes());
            } else {
                self.balancer.settled.lock().remove(&entry.uuid);
            }
            let cuts = steps.iter().all(|step| matches!(step, Step::Split { .. }));
            for step in steps.iter() {
                self.step_of_round(entry, &table, step, done, go_on)?;
            }
            if steps.is_empty() || !(cuts || watch.is_filling()) {
                break;
            }
        }
        if done.moves > moves {
            watch.moved(Instant::now());
        }
        Ok(())
    }

    /// Has the shards go through what they have of a collection, where that is not known.
    fn scan(&self, entry: &Entry, watch: &mut Watch, go_on: Interrupt<'_>) -> Result<()> {
        let shards = watch.to_scan(self.chunk_bytes(entry)?.max(1) as u64);
        if shards.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        for shard in shards {
            let ask = doc! { (name::SAMPLE): entry.namespace(), "uuid": uuid_value(&entry.uuid) };
            let told = self.tell(&shard, &ask, go_on)?;
            found.extend(weighted(told.as_raw(), &entry.pattern));
        }
        watch.scanned(found);
        Ok(())
    }

    fn step_of_round(
        &self,
        entry: &Entry,
        table: &RoutingTable,
        step: &Step,
        done: &mut Done,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        match step {
            Step::Split { cuts } => {
                self.cut_at(entry, cuts, go_on)?;
                done.cuts += cuts.len();
            }
            Step::Move { min, max, to } => {
                let from = table.owner(min).clone();
                self.move_by_balancer(entry, (min, max), &from, to, go_on)?;
                done.moves += 1;
            }
        }
        Ok(())
    }

    fn cut_at(&self, entry: &Entry, cuts: &[Key], go_on: Interrupt<'_>) -> Result<()> {
        self.change(go_on, |change| {
            let chunks = Chunks::read(change, entry.namespace())?;
            check_same(&chunks, entry)?;
            let changed = chunks.table.split(cuts);
            chunks.write(change, &changed)?;
            for cut in cuts {
                let details = doc! { "splitPoint": cut.document() };
                self.note(change, "split", entry.namespace(), details.as_raw())?;
            }
            Ok(())
        })
    }

    fn move_by_balancer(
        &self,
        entry: &Entry,
        (min, max): (&Key, &Key),
        from: &ShardId,
        to: &ShardId,
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        self.move_between(entry.namespace(), to.as_str(), go_on, |chunks| {
            // What was decided by is not so any more, or nobody wants it any more.
            check_same(chunks, entry)?;
            let chunk = chunks.table.chunk_of(min);
            let is_stopped = !self.balances_now() || !may_be_balanced(chunks.entry.document.as_raw());
            if is_stopped || chunk.shard() != from || *max > chunk.max {
                bail!(
                    Code::BALANCER_INTERRUPTED,
                    "the range was changed, or balancing was stopped meanwhile"
                );
            }
            Ok((min.clone(), max.clone()))
        })
    }

    /// What was done in a round is told, as MongoDB does.
    fn log_round(&self, done: &Done, took: Duration, go_on: Interrupt<'_>) -> Result<()> {
        if done.moves == 0 && done.cuts == 0 && done.failed.is_none() {
            return Ok(());
        }
        let now = self.front.clock.now_millis();
        let server = self.front.host_and_port();
        let id = format!("{server}-{now}-{}", sheaf_front::front::new_object_id());
        let mut details = doc! {
            "executionTimeMillis": took.as_millis() as i64, "errorOccured": done.failed.is_some(),
            "candidateChunks": done.moves as i32, "chunksMoved": done.moves as i32, "splits": done.cuts as i32
        };
        if let Some(error) = &done.failed {
            details.append("errmsg", error.message());
        }
        let entry = doc! {
            "_id": &id, "server": &server, "shard": "config", "clientAddr": "", "time": Value::DateTime(now),
            "what": "balancer.round", "ns": "", "details": details.as_raw()
        };
        self.change(go_on, |change| change.put(ACTION_LOG, entry.as_raw()))
    }

    /// Whether chunks may be moved now.
    fn balances_now(&self) -> bool {
        match self.balancer_settings() {
            Ok(settings) => {
                *self.balancer.refused.lock() = None;
                settings.on && self.is_in_window(settings.window)
            }
            Err(error) => {
                let text = error.to_string();
                let mut told = self.balancer.refused.lock();
                if told.as_ref() != Some(&text) {
                    tracing::warn!(error = &*text, "nothing is balanced: config.settings cannot be read");
                    *told = Some(text);
                }
                false
            }
        }
    }

    /// Whether the shards' bytes of a collection differ by more than they may.
    pub(super) fn is_uneven(&self, entry: &Entry, shards: &[Known], go_on: Interrupt<'_>) -> Result<bool> {
        let mut watches = HashMap::new();
        self.ask_for_figures(shards, std::slice::from_ref(entry), &mut watches, go_on);
        let Some(watch) = watches.get(&entry.uuid) else { return Ok(false) };
        let able = shards.iter().filter(|shard| !shard.draining).map(|shard| shard.name.as_str());
        let chunk_bytes = self.chunk_bytes(entry)?.max(1) as u64;
        // What has left a shard, and is not removed yet, counts in its bytes.
        let settled = self.balancer.settled.lock().get(&entry.uuid).copied();
        let is_settled = settled.is_some_and(|bytes| watch.bytes().abs_diff(bytes) < chunk_bytes);
        Ok(!is_settled && watch.uneven(able) > 3 * chunk_bytes)
    }
}

fn state_of(shard: &Known, answering: &[String]) -> ShardState {
    ShardState {
        id: ShardId::new(&*shard.name),
        draining: shard.draining,
        zones: shard.zones.iter().cloned().collect(),
        busy: !answering.contains(&shard.name),
    }
}

/// Whether a collection's entry lets it be balanced.
fn may_be_balanced(entry: RawDoc<'_>) -> bool {
    let is = |name: &str| entry.get(name).map(|flag| flag.truthy());
    is("noBalance") != Some(true) && permits_migrations(entry) && !text(entry, "_id").is_empty()
}

fn check_same(chunks: &Chunks, entry: &Entry) -> Result<()> {
    if chunks.entry.uuid != entry.uuid || chunks.entry.pattern.document() != entry.pattern.document() {
        bail!(Code::BALANCER_INTERRUPTED, "{} is another collection now", entry.namespace());
    }
    Ok(())
}
