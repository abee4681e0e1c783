//! `getDefaultRWConcern` and `setDefaultRWConcern`: what reads and writes get that say nothing.
//!
//! The defaults are a document of `config.settings`, so every member has them. What was read of it is kept until the
//! collection or the set's configuration changes.

use std::sync::Arc;

use parking_lot::RwLock;
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_repl::write_concern::W;

use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::concern::{Effective, Provenance, ReadConcern, ReadLevel, WriteConcern};
use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;

const SETTINGS: &str = "config.settings";
const ID: &str = "ReadWriteConcernDefaults";

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
    pub fn current(&self, node: &Node) -> Arc<Current> {
        let catalog = node.engine().catalog();
        let settings = catalog.collection(SETTINGS).map(|collection| (collection.uuid, collection.version()));
        let topology = node.replica().map(|replica| replica.role().topology_version);
        let source = Source { settings, topology };
        if let Some((of, current)) = &*self.0.read()
            && *of == source
        {
            return current.clone();
        }
        let current = Arc::new(read(node));
        *self.0.write() = Some((source, current.clone()));
        current
    }
}

fn read(node: &Node) -> Current {
    let implicit_w = match node.replica() {
        None => W::Nodes(1),
        Some(replica) => replica.with(|core| match core.config() {
            Some(config) if !config.implicit_default_is_majority() => W::Nodes(1),
            _ => W::Majority,
        }),
    };
    let implicit = Effective { w: implicit_w, ..Effective::alone() };
    let document = stored(node);
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
fn stored(node: &Node) -> Option<DocBuf> {
    let view = node.engine().view().ok()?;
    let collection = view.collection(SETTINGS)?;
    let key = collection.record_key(Value::String(ID)).ok()?;
    let found = view.get(collection, &key).ok()??;
    Some(DocBuf::from(found.as_raw()))
}

/// `{getDefaultRWConcern: 1, inMemory: false}`.
pub struct GetDefaultRwConcern {
    in_memory: bool,
}

impl<'a> Command<'a, Operation<'a>> for GetDefaultRwConcern {
    const NAME: &'static str = "getDefaultRWConcern";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "default read and write concerns",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetDefaultRwConcern])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let in_memory = args.optional::<Loose>("inMemory")?.is_some_and(|flag| flag.0);
        Ok(GetDefaultRwConcern { in_memory })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_set(op, Self::NAME)?;
        Ok(answer(op, self.in_memory))
    }
}

fn check_set(op: &Operation<'_>, name: &str) -> Result<()> {
    if op.node().replica().is_none() {
        bail!(51300, "'{name}' is not supported on standalone nodes.");
    }
    Ok(())
}

fn answer(op: &Operation<'_>, in_memory: bool) -> Reply {
    let current = op.node().defaults.current(op.node());
    Reply::ok().with_fields(|doc| {
        current.append(doc);
        doc.append("localUpdateWallClockTime", Value::DateTime(op.now_millis()));
        if in_memory {
            doc.append("inMemory", true);
        }
    })
}

/// `{setDefaultRWConcern: 1, defaultReadConcern: {...}, defaultWriteConcern: {...}}`.
pub struct SetDefaultRwConcern<'a> {
    read: Option<RawDoc<'a>>,
    write: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for SetDefaultRwConcern<'a> {
    const NAME: &'static str = "setDefaultRWConcern";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "sets default read and write concerns",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetDefaultRwConcern])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let read: Option<RawDoc<'a>> = args.optional("defaultReadConcern")?;
        let write: Option<RawDoc<'a>> = args.optional("defaultWriteConcern")?;
        Ok(SetDefaultRwConcern { read, write })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_set(op, Self::NAME)?;
        self.check(op)?;
        let time = Timestamp(op.engine().last_applied().time + 1);
        with_writer(op, true, |w| {
            let collection = collection_for_write(w, SETTINGS)?;
            let key = collection.record_key(Value::String(ID))?;
            let old = w.read_for_update(&collection, &key)?;
            let known = old.as_ref().map_or(RawDoc::EMPTY, |old| RawDoc::new(old));
            let document = DocBuf::build(|out| {
                out.append("_id", ID);
                for (name, given) in [("defaultReadConcern", self.read), ("defaultWriteConcern", self.write)]
                {
                    // An empty document takes back what was set.
                    let part = given.or_else(|| known.get(name)?.as_doc()).filter(|part| !part.is_empty());
                    if let Some(part) = part {
                        out.append(name, part);
                    }
                }
                out.append("updateOpTime", time);
                out.append("updateWallClockTime", Value::DateTime(op.now_millis()));
            });
            match &old {
                Some(old) => w.update(&collection, &key, RawDoc::new(old), document.as_raw(), None),
                None => w.insert(&collection, document.as_raw()),
            }
        })?;
        Ok(answer(op, false))
    }
}

impl SetDefaultRwConcern<'_> {
    fn check(&self, op: &Operation<'_>) -> Result<()> {
        if self.read.is_none() && self.write.is_none() {
            bail!(
                Code::BAD_VALUE,
                "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be present"
            );
        }
        if let Some(read) = self.read.filter(|read| !read.is_empty()) {
            let concern = ReadConcern::parse(read)?;
            let level = concern.level.unwrap_or(ReadLevel::Local);
            if !matches!(level, ReadLevel::Local | ReadLevel::Available | ReadLevel::Majority) {
                bail!(
                    Code::BAD_VALUE,
                    "level: '{}' is not suitable for the default read concern",
                    level.name()
                );
            }
            let times = [
                ("afterClusterTime", concern.after_cluster_time),
                ("atClusterTime", concern.at_cluster_time),
            ];
            if let Some((name, _)) = times.iter().find(|(_, time)| time.is_some()) {
                bail!(Code::BAD_VALUE, "'{name}' is not suitable for the default read concern");
            }
        }
        let Some(write) = self.write else { return Ok(()) };
        let custom = op.node().defaults.current(op.node()).is_custom_write();
        if write.is_empty() {
            if custom {
                bail!(
                    Code::ILLEGAL_OPERATION,
                    "The global default write concern cannot be unset once it is set."
                );
            }
            return Ok(());
        }
        let concern = WriteConcern::parse(write)?;
        if concern.w.is_none() {
            bail!(Code::BAD_VALUE, "Default write concern must have 'w' field.");
        }
        if concern.unacknowledged() {
            bail!(
                Code::BAD_VALUE,
                "Unacknowledged write concern is not suitable for the default write concern"
            );
        }
        check_satisfiable(op, &Effective::of(Some(&concern), &Effective::alone()))
    }
}

fn check_satisfiable(op: &Operation<'_>, concern: &Effective) -> Result<()> {
    let Some(replica) = op.node().replica() else { return Ok(()) };
    let Some(config) = replica.with(|core| core.config().cloned()) else { return Ok(()) };
    sheaf_repl::write_concern::check_satisfiable(&config, &concern.for_set())
}
