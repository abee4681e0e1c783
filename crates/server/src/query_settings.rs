//! Settings that administrators make for queries of a shape: kept like a parameter of the cluster, so that they are replicated and
//! outlive the process, and held in memory by each member.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::settings::Settings;
use sheaf_exec::plan::shape::{Constants, QueryShape};
use sheaf_front::front::Front;

/// The parameter of the cluster that holds all settings.
pub const PARAMETER: &str = "querySettings";
/// The field with a document for each shape.
pub const ENTRIES: &str = "settingsArray";
/// The field by which a router tells shards what was set for the query that it was asked.
pub const FIELD: &str = "querySettings";

/// What was set for one shape.
#[derive(Debug)]
struct Known {
    settings: Arc<Settings>,
    /// A query of the shape, if it was set by one.
    representative: Option<DocBuf>,
}

/// All settings as they were read last.
#[derive(Debug, Default)]
pub struct KnownSettings {
    /// Whether there are any: then shapes of queries have to be known.
    any: AtomicBool,
    known: RwLock<Read>,
}

/// A state of the kept document.
#[derive(Debug, Default)]
struct Read {
    kept: DocBuf,
    by_hash: BTreeMap<String, Known>,
}

impl KnownSettings {
    /// Reads the kept document, and takes it over; says whether it was another one. Nobody else does meanwhile, so that what was read
    /// before never comes after.
    ///
    /// Errors: those of `read`.
    pub fn refresh(&self, read: impl FnOnce() -> Result<DocBuf>) -> Result<bool> {
        let mut known = self.known.write();
        let kept = read()?;
        let changed = known.kept != kept;
        if changed {
            known.by_hash = Self::parsed(&kept);
            known.kept = kept;
            self.any.store(!known.by_hash.is_empty(), Ordering::Release);
        }
        Ok(changed)
    }

    fn parsed(kept: &DocBuf) -> BTreeMap<String, Known> {
        let entries = kept.as_raw().get(ENTRIES).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
        entries
            .values()
            .filter_map(|entry| {
                let entry = entry.as_doc()?;
                let settings = Arc::new(Settings::read(entry.get("settings")?.as_doc()?));
                let query = entry.get("representativeQuery").and_then(|query| query.as_doc());
                let known = Known { settings, representative: query.map(DocBuf::from) };
                Some((entry.get("queryShapeHash")?.as_str()?.to_owned(), known))
            })
            .collect()
    }

    /// Whether anything was set.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// What was set for the shape with this hash.
    pub fn of(&self, hash: &str) -> Option<Arc<Settings>> {
        self.known.read().by_hash.get(hash).map(|known| known.settings.clone())
    }

    /// What was set for queries of a command's shape, of a database that clients fill; `explains`: it is only explained.
    ///
    /// Errors: `QueryRejectedBySettings`.
    pub fn obeyed(
        &self,
        front: &Front,
        db: &str,
        command: RawDoc<'_>,
        explains: bool,
    ) -> Result<Option<Arc<Settings>>> {
        if !self.any() || matches!(db, "admin" | "config" | "local") {
            return Ok(None);
        }
        let Some(shape) = QueryShape::of(db, command) else { return Ok(None) };
        let Some(settings) = self.of(&shape.hash()?) else { return Ok(None) };
        let explained = explains || command.get("explain").is_some_and(|flag| flag.truthy());
        if settings.rejects() && !explained && !is_exempt(command) {
            if let Some(count) = front.command_counts.get(shape.command_name()) {
                count.rejected.add(1);
            }
            bail!(Code::QUERY_REJECTED_BY_SETTINGS, "Query rejected by admin query settings");
        }
        Ok(Some(settings))
    }

    /// The documents of `$querySettings`.
    ///
    /// Errors: the operation has to stop.
    pub fn list(&self, with_shape: bool) -> Result<Vec<DocBuf>> {
        let known = self.known.read();
        let mut list = Vec::with_capacity(known.by_hash.len());
        for (hash, known) in &known.by_hash {
            let mut shown = doc! { "queryShapeHash": hash.as_str(), "settings": known.settings.shown() };
            if let Some(query) = known.representative.as_ref().map(DocBuf::as_raw) {
                shown.append("representativeQuery", query);
                let db = query.get("$db").and_then(|db| db.as_str()).unwrap_or("");
                if let Some(shape) = QueryShape::of(db, query).filter(|_| with_shape) {
                    shown.append("debugQueryShape", &shape.to_doc(Constants::TypeNames)?);
                }
            }
            list.push(shown);
        }
        Ok(list)
    }
}

/// Whether the pipeline shows what the server does, which is never refused.
fn is_exempt(command: RawDoc<'_>) -> bool {
    let first =
        command.get("pipeline").and_then(|list| list.as_array()?.values().next()?.as_doc()?.iter().next());
    first.is_some_and(|stage| {
        matches!(
            stage.key(),
            "$currentOp"
                | "$listLocalSessions"
                | "$listSessions"
                | "$querySettings"
                | "$queryStats"
                | "$planCacheStats"
        )
    })
}

/// The entries of the kept document but for that of this shape.
pub fn others<'k>(kept: RawDoc<'k>, hash: &str) -> Vec<Value<'k>> {
    let entries = kept.get(ENTRIES).and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    entries.values().filter(|entry| hash_of(*entry) != Some(hash)).collect()
}

/// The entry of this shape.
pub fn entry<'k>(kept: RawDoc<'k>, hash: &str) -> Option<RawDoc<'k>> {
    let entries = kept.get(ENTRIES)?.as_array()?;
    entries.values().find(|entry| hash_of(*entry) == Some(hash))?.as_doc()
}

fn hash_of(entry: Value<'_>) -> Option<&str> {
    entry.as_doc()?.get("queryShapeHash")?.as_str()
}
