//! Comparing the version that a request came with to what this shard has.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf_bson::{DocBuf, Timestamp, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::run::{Ownership, Reads};
use sheaf_front::generic::ShardVersion;
use sheaf_shard::ClusterTime;
use sheaf_shard::placement::{Belief, CLOSED, Ranges, Version};
use sheaf_storage::{Collection, View};

use super::ShardServer;
use super::placements::{Placed, Placements};
use super::statistics::Statistics;
use crate::op::Operation;

/// Commands that compare the version with the very state that they read or write. All others do it before they begin.
const AT_THEIR_STATE: &[&str] = &[
    "find",
    "aggregate",
    "count",
    "distinct",
    "explain",
    "insert",
    "update",
    "delete",
    "findAndModify",
    "bulkWrite",
];

impl<'a> Operation<'a> {
    /// The shard that this server is, if it matters to the operation what that owns: its request says by which version it was sent, or
    /// some collection is sharded.
    pub(crate) fn shard(&self) -> Option<&'a ShardServer> {
        let sharding = self.node.sharding()?;
        let matters = self.generic.shard_version.is_some()
            || !self.shard_versions.borrow().is_empty()
            || Placements::home(&self.catalog()).is_some();
        matters.then_some(&**sharding)
    }

    /// Which documents the operation may see; `None`: all that are there.
    pub(crate) fn ownership(&self) -> Option<Arc<dyn Ownership>> {
        self.shard().map(|shard| shard.placements().clone() as Arc<dyn Ownership>)
    }

    /// Reads a state, and of it what this shard owns.
    pub(crate) fn reads(&self, view: View) -> Reads {
        let refuses = self.front.parameters.no_table_scan.load(Ordering::Relaxed);
        Reads::under(view, self.ownership(), self.settings.borrow().clone()).refusing_scans(refuses)
    }

    /// The version that the request came with for this namespace; `None`: a client speaks to the shard directly.
    pub(crate) fn version_for(&self, namespace: &str) -> Option<ShardVersion> {
        match self.generic.shard_version {
            Some(version) => self.is_about(namespace).then_some(version),
            None => {
                let several = self.shard_versions.borrow();
                several.iter().find(|(known, _)| known == namespace).map(|(_, version)| *version)
            }
        }
    }

    /// The collection that the command names, without its database.
    fn named(&self) -> Option<&str> {
        let first = self.body.iter().next()?.value();
        let first = match (self.command.name, first) {
            ("explain", Value::Document(explained)) => explained.iter().next()?.value(),
            (_, first) => first,
        };
        match (self.command.name, first) {
            // It names all of the namespace.
            ("dataSize", Value::String(name)) => name.strip_prefix(self.db)?.strip_prefix('.'),
            (_, Value::String(name)) => Some(name),
            _ => None,
        }
    }

    /// The namespace that the command names.
    pub(crate) fn named_namespace(&self) -> Option<String> {
        self.named().map(|name| self.namespace(name))
    }

    fn is_about(&self, namespace: &str) -> bool {
        let name = namespace.strip_prefix(self.db).and_then(|rest| rest.strip_prefix('.'));
        name.is_some() && name == self.named()
    }

    /// Compares the request's version before a command that does not do it itself.
    ///
    /// Errors: `StaleConfig`.
    pub(crate) fn check_version_first(&self) -> Result<()> {
        if self.generic.shard_version.is_none() || AT_THEIR_STATE.contains(&self.command.name) {
            return Ok(());
        }
        self.view().map(|_| ())
    }

    /// Compares the request's version with a state that is about to be read.
    ///
    /// Errors: `StaleConfig`.
    pub(crate) fn check_version_of(&self, view: &View) -> Result<()> {
        let (Some(sharding), Some(version)) = (self.node.sharding(), self.generic.shard_version) else {
            return Ok(());
        };
        let named = self.named();
        if version.uuid.is_none() {
            // Some commands name a whole namespace.
            let of_named = named.filter(|_| self.db == "admin").and_then(|name| name.split_once('.'));
            self.check_home(view, of_named.map_or(self.db, |(db, _)| db))?;
        }
        let Some(name) = named else { return Ok(()) };
        let namespace = self.namespace(name);
        let collection = view.collection(&namespace);
        let placed = match collection {
            Some(collection) => sharding.placements().in_view(view, &collection.uuid)?,
            None => None,
        };
        self.check_version(&namespace, collection.map(|collection| &**collection), placed.as_deref())
    }

    /// Compares the request's version for a namespace with what there is.
    ///
    /// Errors: `StaleConfig`.
    pub(crate) fn check_version(
        &self,
        namespace: &str,
        collection: Option<&Collection>,
        placed: Option<&Placed>,
    ) -> Result<()> {
        let Some(received) = self.version_for(namespace) else { return Ok(()) };
        let why = match (received.uuid, placed) {
            (None, None) => return Ok(()),
            (None, Some(_)) => "the collection is sharded, and the router does not know it",
            (Some(uuid), Some(placed)) => {
                let belief = match received.owned {
                    Some(fingerprint) => Belief::Owned { uuid, fingerprint },
                    None => Belief::Version(Version { uuid, lastmod: received.version }),
                };
                match placed.placement.check_belief(belief, ClusterTime::default()) {
                    Ok(()) => return Ok(()),
                    Err(_) => "what the shard owns has changed",
                }
            }
            // Nothing was owned of it then.
            (Some(_), None) if received.owned == Some(Ranges::default().fingerprint()) => return Ok(()),
            // Nothing is owned of what is not here.
            (Some(_), None) if collection.is_none() && received.version.0 == 0 => return Ok(()),
            (Some(_), None) => "the collection is not sharded here",
        };
        Err(self.stale(namespace, received, placed, why))
    }

    /// A version that the request came with, for whatever namespace; `None`: a client speaks to the shard directly.
    fn any_version(&self) -> Option<ShardVersion> {
        let several = || self.shard_versions.borrow().first().map(|(_, version)| *version);
        self.generic.shard_version.or_else(several)
    }

    /// Whether the request is a router's, which says what it believes.
    pub(crate) fn has_version(&self) -> bool {
        self.any_version().is_some()
    }

    /// Checks, when nothing can change any more, that a collection which a router takes for one that is not sharded has not become one, and
    /// that the collection is open.
    ///
    /// Errors: `StaleConfig`; those of [`Operation::check_open`].
    pub(crate) fn check_plain(&self, collection: &Collection) -> Result<()> {
        self.check_open(collection)?;
        let Some(received) = self.any_version() else { return Ok(()) };
        match self.placed(collection)? {
            Some(placed) => {
                Err(self.stale(&collection.namespace, received, Some(&placed), "it is being sharded"))
            }
            None => Ok(()),
        }
    }

    /// The error for a document that is to be written and belongs to another shard.
    pub(crate) fn not_owned(&self, namespace: &str, placed: &Placed) -> Error {
        match self.version_for(namespace) {
            Some(received) => {
                self.stale(namespace, received, Some(placed), "a document belongs to another shard")
            }
            None => Error::new(
                Code::STALE_CONFIG,
                format!(
                    "this shard does not own the document's shard key in {namespace}: write through a router (mongos)"
                ),
            ),
        }
    }

    /// Checks, when nothing can change any more, that a collection is open to changes of what it is: while it is being sharded, moved,
    /// renamed or dropped over the cluster, only the conductor of that may change it. A router comes again; a client that is connected to
    /// the shard itself is told.
    ///
    /// Errors: `StaleConfig`, `StaleDbVersion`; `ConflictingOperationInProgress` for clients.
    pub(crate) fn check_open(&self, collection: &Collection) -> Result<()> {
        if self.node.sharding().is_none() || matches!(collection.db(), "admin" | "config" | "local") {
            return Ok(());
        }
        let namespace = &collection.namespace;
        let placed = self.placed(collection)?;
        self.check_version(namespace, Some(collection), placed.as_deref())?;
        match (placed, self.any_version()) {
            // Whether it was dropped was asked before: nobody is asked while the collection's writers wait.
            (None, Some(_)) => self.check_not_away(collection.db()),
            (None, None) => self.check_home_for_client(collection.db()),
            (Some(placed), _) if placed.placement.version.lastmod != CLOSED => Ok(()),
            (Some(placed), Some(received)) => {
                Err(self.stale(namespace, received, Some(&placed), "it is closed"))
            }
            (Some(_), None) => bail!(
                Code::CONFLICTING_OPERATION_IN_PROGRESS,
                "{namespace} is closed while it is changed on all shards: try again, through a router (mongos)"
            ),
        }
    }

    /// [`check_open`](Operation::check_open), of a collection that the command may name by another name.
    ///
    /// Errors: those of it and of [`Operation::check_behind`].
    pub(crate) fn check_changed(&self, collection: &Collection) -> Result<()> {
        self.check_open(collection)?;
        self.check_behind(collection)
    }

    /// Checks of the buckets behind the measurements that a command names that these are not sharded: its router would know them for what
    /// they are, and would have named them.
    ///
    /// Errors: `StaleConfig`.
    pub(crate) fn check_behind(&self, buckets: &Collection) -> Result<()> {
        let Some(received) = self.any_version().filter(|_| !self.is_about(&buckets.namespace)) else {
            return Ok(());
        };
        match self.placed(buckets)? {
            Some(placed) => {
                let why = "the buckets are sharded, and the router does not know it";
                Err(self.stale(&buckets.namespace, received, Some(&placed), why))
            }
            None => Ok(()),
        }
    }

    /// The error for a request whose router has to look again where documents belong.
    pub(crate) fn stale(
        &self,
        namespace: &str,
        received: ShardVersion,
        placed: Option<&Placed>,
        why: &str,
    ) -> Error {
        let wanted = placed.map_or(Timestamp(0), |placed| placed.placement.version.lastmod);
        if let Some(sharding) = self.node.sharding() {
            Statistics::count(&sharding.statistics.stale_config);
        }
        let shard = self.node.sharding().and_then(|sharding| sharding.shard_name());
        let extra = DocBuf::build(|out| {
            out.append("ns", namespace);
            out.append("vReceived", received.version);
            out.append("vWanted", wanted);
            out.append("shardId", shard.unwrap_or_default());
        });
        let text = format!("stale version of {namespace}: {why}");
        Error::new(Code::STALE_CONFIG, text).with_extra(extra.into_bytes())
    }
}
