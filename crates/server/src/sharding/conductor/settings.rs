//! The balancer's settings: `balancerStart`, `balancerStop`, `balancerStatus`, `configureCollectionBalancing`, `balancerCollectionStatus`.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;

use super::chunks::{COLLECTIONS, Entry};
use super::ddl::with;
use super::plan::ZoneRange;
use super::ranges::{Chunks, namespace_of};
use super::settings_rules::{BalancerSettings, SETTINGS, chunk_megabytes};
use super::{Conductor, db_of};
use crate::args::{Args, Loose};

pub(super) const BALANCER: &str = "balancer";

/// The field of a collection's entry by which its ranges stay where they are.
const PERMIT_MIGRATIONS: &str = "permitMigrations";

/// Whether a collection's entry lets ranges of it be moved.
pub(super) fn permits_migrations(entry: RawDoc<'_>) -> bool {
    entry.get(PERMIT_MIGRATIONS).is_none_or(|permits| permits.truthy())
}

/// What a chunk weighs at most where nobody has said anything else, in megabytes.
const CHUNK_MEGABYTES: i64 = 128;

impl Conductor {
    /// `{balancerStart: 1}`.
    pub fn balancer_start(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.switch_balancer(args, "full", go_on)
    }

    /// `{balancerStop: 1}`.
    pub fn balancer_stop(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.switch_balancer(args, "off", go_on)
    }

    fn switch_balancer(&self, args: &mut Args<'_>, mode: &str, go_on: Interrupt<'_>) -> Result<DocBuf> {
        args.own_value();
        args.finish()?;
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let known =
                change.get(SETTINGS, Value::String(BALANCER))?.unwrap_or_else(|| doc! { "_id": BALANCER });
            let changes = [("stopped", Value::Bool(mode == "off")), ("mode", mode.into())];
            change.put(SETTINGS, with(known.as_raw(), &changes).as_raw())
        })?;
        if mode == "off" {
            self.balancer.await_round(go_on)?;
        }
        Ok(doc! {})
    }

    /// `{balancerStatus: 1}`.
    pub fn balancer_status(&self, args: &mut Args<'_>, _: Interrupt<'_>) -> Result<DocBuf> {
        args.own_value();
        args.finish()?;
        let is_on = match self.balancer_settings() {
            Ok(settings) => settings.on,
            // By what cannot be read nothing is moved.
            Err(error) if matches!(error.code(), Code::BAD_VALUE | Code::TYPE_MISMATCH) => false,
            Err(error) => return Err(error),
        };
        let mode = if is_on { "full" } else { "off" };
        let (is_in_round, rounds) = self.balancer.status();
        Ok(doc! {
            "mode": mode, "inBalancerRound": is_in_round, "numBalancerRounds": rounds, "term": self.replica.role().term as i64
        })
    }

    /// Whether and when chunks may be moved without anybody asking for it.
    ///
    /// Errors: `BadValue`, `TypeMismatch`, if what is set cannot be read: none may.
    pub(super) fn balancer_settings(&self) -> Result<BalancerSettings> {
        self.default_chunk_bytes()?;
        let known = self.get(SETTINGS, Value::String(BALANCER))?;
        BalancerSettings::parse(known.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw))
    }

    /// What a chunk of a collection weighs at most, in bytes.
    pub(super) fn chunk_bytes(&self, entry: &Entry) -> Result<i64> {
        let own = entry.document.as_raw().get("maxChunkSizeBytes").and_then(|size| size.as_exact_i64());
        if let Some(own) = own {
            return Ok(own);
        }
        self.default_chunk_bytes()
    }

    /// `{configureCollectionBalancing: "garden.plants", chunkSize: 256, enableBalancing: false}`.
    ///
    /// Errors: `NamespaceNotSharded`, `InvalidOptions`.
    pub fn configure_balancing(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let size: Option<f64> = args.optional("chunkSize")?;
        let balances = args.optional::<Loose>("enableBalancing")?.map(|flag| flag.0);
        let merges = args.optional::<Loose>("enableAutoMerger")?.map(|flag| flag.0);
        let defragments = args.optional::<Loose>("defragmentCollection")?.is_some_and(|flag| flag.0);
        args.finish()?;
        if size.is_some_and(|size| size != 0.0 && !(1.0..=1024.0).contains(&size)) {
            bail!(Code::INVALID_OPTIONS, "Chunk size '{}' out of range [1MB, 1024MB]", size.unwrap_or(0.0));
        }
        self.prepare(go_on)?;
        self.change(go_on, |change| {
            let chunks = Chunks::read(change, &namespace)?;
            let mut changes = Vec::new();
            match size {
                Some(size) if size > 0.0 => {
                    changes.push(("maxChunkSizeBytes", Value::Int64((size * 1048576.0) as i64)))
                }
                Some(_) => changes.push(("maxChunkSizeBytes", Value::Int64(self.default_chunk_bytes()?))),
                None => {}
            }
            changes.extend(balances.map(|on| ("noBalance", Value::Bool(!on))));
            changes.extend(merges.map(|on| ("enableAutoMerge", Value::Bool(on))));
            let changed = with(chunks.entry.document.as_raw(), &changes);
            change.put(COLLECTIONS, changed.as_raw())?;
            if defragments {
                self.merge_everything(change, &namespace)?;
            }
            Ok(())
        })?;
        Ok(doc! {})
    }

    /// `{setAllowMigrations: "garden.plants", allowMigrations: false}`: waits for a move that is under way.
    ///
    /// Errors: `NamespaceNotSharded`.
    pub fn set_allow_migrations(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        let allowed: bool = args.required("allowMigrations")?;
        args.finish()?;
        self.prepare(go_on)?;
        let _turn = self.turn(db_of(&namespace), go_on)?;
        self.change(go_on, |change| {
            let known = change.get(COLLECTIONS, Value::String(&namespace))?.map(Entry::parse).transpose()?;
            let Some(entry) = known.filter(|entry| !entry.unsplittable()) else {
                bail!(Code::NAMESPACE_NOT_SHARDED, "Collection must be sharded so migrations can be blocked");
            };
            let changed = DocBuf::build(|out| {
                for field in entry.document.as_raw().iter().filter(|field| field.key() != PERMIT_MIGRATIONS) {
                    out.append_element(field);
                }
                if !allowed {
                    out.append(PERMIT_MIGRATIONS, false);
                }
            });
            change.put(COLLECTIONS, changed.as_raw())
        })?;
        Ok(doc! {})
    }

    fn default_chunk_bytes(&self) -> Result<i64> {
        let setting = self.get(SETTINGS, Value::String("chunksize"))?;
        let value = chunk_megabytes(setting.as_ref().map(DocBuf::as_raw))?;
        Ok(value.unwrap_or(CHUNK_MEGABYTES) << 20)
    }

    /// `{balancerCollectionStatus: "garden.plants"}`.
    ///
    /// Errors: `NamespaceNotSharded`.
    pub fn collection_status(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        args.finish()?;
        self.prepare(go_on)?;
        let chunks = self.change(go_on, |change| Chunks::read(change, &namespace))?;
        let zones = self.zones_of(&namespace, &chunks.entry.pattern)?;
        let shards = self.shards()?;
        let why = chunks.table.chunks().iter().find_map(|chunk| {
            let known = shards.iter().find(|shard| shard.name == chunk.shard().as_str())?;
            let misplaced = zones.iter().any(|zone: &ZoneRange| {
                zone.min < chunk.max && chunk.min < zone.max && !known.zones.contains(&zone.zone)
            });
            if known.draining {
                Some("draining")
            } else if misplaced {
                Some("zoneViolation")
            } else {
                None
            }
        });
        let why = match why {
            None if self.is_uneven(&chunks.entry, &shards, go_on)? => Some("chunksImbalance"),
            why => why,
        };
        let megabytes = (self.chunk_bytes(&chunks.entry)? >> 20) as i32;
        let mut status = doc! { "chunkSize": megabytes, "balancerCompliant": why.is_none() };
        if let Some(why) = why {
            status.append("firstComplianceViolation", why);
        }
        Ok(status)
    }
}
