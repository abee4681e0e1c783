//! Which shard of which cluster a set is, as `addShard` has told it.

use sheaf_bson::{DocBuf, Value, doc};
use sheaf_cluster::{CONFIG_SHARD, SetAddress};
use sheaf_errors::{Code, Result, bail};
use sheaf_replica::Replica;
use sheaf_shard::ShardId;
use sheaf_storage::Engine;

use crate::log;
use crate::options::ClusterRole;

const NAMESPACE: &str = "admin.system.version";
const ID: &str = "shardIdentity";

/// Which shard a set is, and where its cluster's directory is.
pub struct Identity {
    /// `_id` in `config.shards`.
    pub shard: ShardId,
    /// The config servers.
    pub config: SetAddress,
}

impl Identity {
    /// The config servers'; `None` before they are initiated.
    pub fn of_config_servers(replica: &Replica) -> Option<Identity> {
        let config = replica.with(|core| core.config().cloned())?;
        let hosts = config.members.iter().map(|member| member.host.to_string()).collect();
        let config = SetAddress { name: config.set_name.to_string(), hosts };
        Some(Identity { shard: ShardId::new(CONFIG_SHARD), config })
    }

    /// What `admin.system.version` says; `None` before the set was added to a cluster.
    ///
    /// Errors: `BadValue`, where it cannot be read.
    pub fn read(engine: &Engine) -> Result<Option<Identity>> {
        let Some(doc) = document(engine)? else { return Ok(None) };
        let doc = doc.as_raw();
        let text = |name: &str| doc.get(name).and_then(|value| value.as_str());
        match (text("shardName"), text("configsvrConnectionString")) {
            (Some(shard), Some(config)) => {
                Ok(Some(Identity { shard: ShardId::new(shard), config: config.parse()? }))
            }
            _ => bail!(
                Code::BAD_VALUE,
                "the document '{ID}' of {NAMESPACE} names no shard or no config servers"
            ),
        }
    }
}

/// The document that says it, if there is one.
fn document(engine: &Engine) -> Result<Option<DocBuf>> {
    let catalog = engine.catalog();
    let Some(collection) = catalog.collection(NAMESPACE) else { return Ok(None) };
    let key = collection.record_key(Value::String(ID))?;
    Ok(engine.get(collection, &key)?.map(|found| sheaf_bson::RawDoc::new(&found).into()))
}

/// Tells in the log that a shard's data are served as no shard's: requests of the cluster are refused then, and nobody sees to it that each
/// shard has only what is its own.
pub fn warn_of_role(engine: &Engine, role: Option<ClusterRole>) {
    if role.is_some() {
        return;
    }
    let Ok(Some(found)) = document(engine) else { return };
    let attributes = doc! { "namespace": NAMESPACE, "shardIdentityDocument": found.as_raw() };
    let text = "Not started with --shardsvr, but a shardIdentity document was found on disk: requests of the cluster are refused";
    log::warning("SHARDING", log::ids::NOT_A_SHARD_SERVER, "initandlisten", text, Some(attributes));
}
