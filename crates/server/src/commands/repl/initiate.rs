//! `replSetInitiate`.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_front::audit::noted::{note, room_of};
use sheaf_repl::config::{CUSTOM_DEFAULTS, MemberConfig, ReplSetConfig};

use crate::args::Args;
use crate::command::*;
use crate::forward;
use crate::node::Node;
use crate::op::Operation;
use crate::reply::Reply;

/// `{replSetInitiate: config}`; without a configuration it makes a set of this node alone.
pub struct ReplSetInitiate<'a> {
    config: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for ReplSetInitiate<'a> {
    const NAME: &'static str = "replSetInitiate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "begins a replica set",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::ReplSetConfigure])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let config = match args.own_value() {
            Value::Document(config) if !config.is_empty() => Some(config),
            _ => None,
        };
        args.ignore_rest();
        Ok(ReplSetInitiate { config })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let (Some(replica), Some(set)) = (op.node().replica(), &op.node().options.set_name) else {
            bail!(Code::NO_REPLICATION_ENABLED, "This node was not started with replication enabled.");
        };
        if replica.with(|core| core.config().is_some()) {
            bail!(Code::ALREADY_INITIALIZED, "already initialized");
        }
        let own = op.node().member_address();
        let mut config = match self.config {
            Some(given) => ReplSetConfig::parse(with_version(given).as_raw()).map_err(for_initiate)?,
            None => ReplSetConfig::new(set.clone(), vec![MemberConfig::new(0, own.as_str())]),
        };
        if config.settings.replica_set_id.is_some() {
            bail!(
                Code::INVALID_REPLICA_SET_CONFIG,
                "replica set configuration cannot contain 'replicaSetId' field when calling replSetInitiate"
            );
        }
        config.settings.replica_set_id = Some(crate::node::new_object_id());
        let Some(me) = replica.find_me(&config) else {
            bail!(
                Code::INVALID_REPLICA_SET_CONFIG,
                "No host described in new configuration with {{version: {}, term: 0}} for replica set {} maps to this node",
                config.version,
                config.set_name
            );
        };
        for member in config.members.iter().filter(|member| member.id != me) {
            check_member(op.node(), &member.host, &replica.dialled(&member.host))?;
        }
        // What is kept has more fields than what was given.
        room_of(op, config.to_document().as_raw())?;
        replica.initiate(config, me)?;
        note(op, "replSetReconfig", Code::OK, || {
            let new = replica.with(|core| core.config().map(|config| config.to_document()));
            doc! { "new": new.unwrap_or_default().as_raw() }
        });
        Ok(Reply::ok().with_fields(|doc| {
            if self.config.is_none() {
                let text = "no configuration specified. Using a default configuration for the set";
                doc.append("info2", text).append("me", &own);
            }
        }))
    }
}

/// mongod refuses to start with such a configuration, in other words than at a reconfiguration.
fn for_initiate(error: Error) -> Error {
    if error.code() != CUSTOM_DEFAULTS {
        return error;
    }
    let text = error.message().replace("Failed to reconfig", "Failed to initiate");
    Error::new(Code::ILLEGAL_OPERATION, text)
}

fn with_version(config: RawDoc<'_>) -> DocBuf {
    let config = DocBuf::from(config);
    if config.as_raw().get("version").is_some() { config } else { config.with("version", 1) }
}

/// How long a member of the set to be may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Whether a member can be part of the new set: it answers, and is in no set and empty.
fn check_member(node: &Node, host: &str, address: &str) -> Result<()> {
    let failed = |code: Code, why: &str| {
        let text = "replSetInitiate quorum check failed because not all proposed set members responded affirmatively";
        Error::new(code, format!("{text}: {host} failed with {why}"))
    };
    let ask = |command: DocBuf| {
        forward::ask(node, address, "admin", &command, ANSWER_PATIENCE)
            .map_err(|error| failed(Code::NODE_NOT_FOUND, error.message()))
    };
    let hello = ask(doc! { "hello": 1 })?;
    let hello = hello.as_raw();
    if hello.get("setName").is_some() {
        let text = format!("'{host}' is already a member of a replica set");
        return Err(failed(Code::INVALID_REPLICA_SET_CONFIG, &text));
    }
    if hello.get("isreplicaset").is_none_or(|is| !is.truthy()) {
        return Err(failed(Code::NODE_NOT_FOUND, "not running with --replSet"));
    }
    let list = doc! { "listDatabases": 1, "nameOnly": true, "$readPreference": { "mode": "nearest" } };
    let found = ask(list)?;
    let databases = found.as_raw().get("databases").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    let name = |database: Value<'_>| database.as_doc()?.get("name")?.as_str().map(str::to_owned);
    if databases.values().filter_map(name).any(|name| name != "local") {
        return Err(Error::new(
            Code::CANNOT_INITIALIZE_NODE_WITH_DATA,
            format!(
                "'{host}' has data already, cannot initiate set. All members except initiator must be empty."
            ),
        ));
    }
    Ok(())
}
