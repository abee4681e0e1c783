//! What reads and writes get that name no concern.
//!
//! The defaults are a document of `config.settings`, so every member has them. What was read of it is kept until the
//! collection or the set's configuration changes.

use std::sync::Arc;

use parking_lot::RwLock;
use sheaf_bson::{DocBuf, DocWriter, Value};
use sheaf_repl::write_concern::W;
use sheaf_storage::Engine;

use crate::concern::{Effective, Provenance, ReadConcern, ReadLevel, WriteConcern};
use crate::replication::Replica;

/// Where the defaults are kept.
pub(crate) const SETTINGS: &str = "config.settings";
/// The `_id` of their document.
pub(crate) const ID: &str = "ReadWriteConcernDefaults";

/// The defaults in force.
pub struct Current {
    /// The document, if somebody has set any.
    document: Option<DocBuf>,
    read: Option<ReadLevel>,
    write: Effective,
}

impl Current {
    /// The level that was set.
    pub fn read_level(&self) -> Option<ReadLevel> {
        self.read
    }

    /// What a write without a write concern waits for.
    pub fn write(&self) -> &Effective {
        &self.write
    }

    /// Whether somebody has set the default of writes.
    pub fn is_custom_write(&self) -> bool {
        self.write.provenance == Provenance::CustomDefault
    }

    /// Appends both concerns and where they come from.
    pub fn append(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        out.document("defaultReadConcern").append("level", self.read.unwrap_or(ReadLevel::Local).name());
        self.write.write(&mut out.document("defaultWriteConcern"));
        if let Some(document) = &self.document {
            for name in ["updateOpTime", "updateWallClockTime"] {
                if let Some(value) = document.as_raw().get(name) {
                    out.append(name, value);
                }
            }
        }
        let source = |custom: bool| if custom { "global" } else { "implicit" };
        out.append("defaultWriteConcernSource", source(self.is_custom_write()));
        out.append("defaultReadConcernSource", source(self.read.is_some()));
    }
}

/// What the kept defaults were made from.
#[derive(Clone, PartialEq, Eq)]
struct Source {
    settings: Option<(sheaf_storage::Uuid, u64)>,
    topology: Option<u64>,
}

/// The defaults, as they were read last.
#[derive(Default)]
pub struct Defaults(RwLock<Option<(Source, Arc<Current>)>>);

impl Defaults {
    /// The defaults in force now.
    pub fn current(&self, engine: &Engine, replica: Option<&Arc<Replica>>) -> Arc<Current> {
        let catalog = engine.catalog();
        let settings = catalog.collection(SETTINGS).map(|collection| (collection.uuid, collection.version()));
        let topology = replica.map(|replica| replica.role().topology_version);
        let source = Source { settings, topology };
        if let Some((of, current)) = &*self.0.read()
            && *of == source
        {
            return current.clone();
        }
        let current = Arc::new(read(engine, replica));
        *self.0.write() = Some((source, current.clone()));
        current
    }
}

fn read(engine: &Engine, replica: Option<&Arc<Replica>>) -> Current {
    let implicit_w = match replica {
        None => W::Nodes(1),
        Some(replica) => replica.with(|core| match core.config() {
            Some(config) if !config.implicit_default_is_majority() => W::Nodes(1),
            _ => W::Majority,
        }),
    };
    let implicit = Effective { w: implicit_w, ..Effective::alone() };
    let document = stored(engine);
    let part = |name: &str| document.as_ref().and_then(|doc| doc.as_raw().get(name)?.as_doc());
    let read = part("defaultReadConcern").and_then(|doc| ReadConcern::parse(doc).ok()?.level);
    let write = part("defaultWriteConcern").and_then(|doc| WriteConcern::parse(doc).ok());
    let write = match write.filter(|write| write.w.is_some()) {
        Some(write) => {
            let provenance = Provenance::CustomDefault;
            Effective { provenance, ..Effective::of(Some(&write), &implicit) }
        }
        None => implicit,
    };
    Current { document, read, write }
}

/// The document; a member that cannot read it goes by the rule.
fn stored(engine: &Engine) -> Option<DocBuf> {
    let view = engine.view().ok()?;
    let collection = view.collection(SETTINGS)?;
    let key = collection.record_key(Value::String(ID)).ok()?;
    let found = view.get(collection, &key).ok()??;
    Some(DocBuf::from(found.as_raw()))
}
