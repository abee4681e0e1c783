//! `hello` and `isMaster`: how drivers learn whom they talk to.

use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Result, bail};
use sheaf_front::handshake::Handshake;

use crate::args::Args;
use crate::command::*;
use crate::node::shutting_down_error;
use crate::op::Operation;
use crate::options::ClusterRole;
use crate::parked::Waits;
use crate::reply::Reply;

/// Arguments of either spelling.
pub struct Hello<'a> {
    handshake: Handshake<'a>,
    topology_version: Option<RawDoc<'a>>,
    max_await: Option<i64>,
}

/// `isMaster`, the older spelling.
pub struct IsMaster<'a>(Hello<'a>);

impl<'a> Command<'a, Operation<'a>> for Hello<'a> {
    const NAME: &'static str = "hello";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "reports how this node takes part in its topology",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        parse(args, false)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        run(&self, op)
    }
}

impl<'a> Command<'a, Operation<'a>> for IsMaster<'a> {
    const NAME: &'static str = "isMaster";
    const SPEC: Spec = Spec {
        aliases: &["ismaster"],
        help: "reports how this node takes part in its topology",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(IsMaster(parse(args, true)?))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        run(&self.0, op)
    }
}

fn parse<'a>(args: &mut Args<'a>, legacy: bool) -> Result<Hello<'a>> {
    let hello = Hello {
        handshake: Handshake::parse(args, legacy)?,
        topology_version: args.optional("topologyVersion")?,
        max_await: args.optional("maxAwaitTimeMS")?,
    };
    match (hello.topology_version, hello.max_await) {
        (Some(_), None) => bail!(31368, "A request with 'topologyVersion' must include 'maxAwaitTimeMS'"),
        (None, Some(_)) => bail!(31368, "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"),
        (_, Some(ms)) if ms < 0 => bail!(31373, "maxAwaitTimeMS must be a non-negative integer"),
        _ => {}
    }
    // Older drivers and other members send more (speculative authentication, hosts); none matters here.
    args.ignore_rest();
    Ok(hello)
}

fn run(hello: &Hello<'_>, op: &Operation<'_>) -> Result<Reply> {
    if let Some(error) = op.node().quiesce.error() {
        return Err(error);
    }
    if op.node().is_shutting_down() && op.node().replica().is_some() {
        return Err(shutting_down_error());
    }
    if !await_change(hello, op)? {
        return Ok(Reply::ok());
    }
    let agreed = hello.handshake.settle(op)?;
    let node = op.node();
    let mut reply = Reply::with_capacity(1024);
    reply.fill(|doc| {
        hello.handshake.begin(doc);
        match node.replica() {
            Some(replica) => {
                let told = replica.with(|core| core.hello());
                if op.exhaust_allowed() {
                    *op.client().told_topology.lock() = Some(told.topology_counter);
                }
                told.write(doc, node.process_id, hello.handshake.legacy);
            }
            None => {
                doc.append(if hello.handshake.legacy { "ismaster" } else { "isWritablePrimary" }, true);
                let mut topology = doc.document("topologyVersion");
                topology.append("processId", node.process_id).append("counter", 0i64);
            }
        }
        if node.options.cluster_role == Some(ClusterRole::Config) {
            // The version of the protocol between routers and config servers.
            doc.append("configsvr", 2);
        }
        hello.handshake.end(op, &agreed, doc);
    });
    Ok(reply)
}

/// An awaitable hello answers when the topology changes, or when the client's patience is over. False: it waits.
fn await_change(hello: &Hello<'_>, op: &Operation<'_>) -> Result<bool> {
    let (Some(version), Some(max_await)) = (hello.topology_version, hello.max_await) else { return Ok(true) };
    let Some(Value::ObjectId(process)) = version.get("processId") else {
        bail!(40414, "BSON field 'TopologyVersion.processId' is missing but a required field");
    };
    let Some(counter) = version.get("counter").and_then(|v| v.as_exact_i64()) else {
        bail!(40414, "BSON field 'TopologyVersion.counter' is missing but a required field");
    };
    let node = op.node();
    let waiting = op.client().await_until.lock().take();
    let own = node.replica().map_or(0, |replica| replica.role().topology_version);
    if process == node.process_id {
        if counter < 0 {
            bail!(31372, "topologyVersion must have a non-negative counter");
        }
        if counter as u64 > own {
            bail!(
                31382,
                "Received a topology version with counter: {counter} which is greater than the server topology version counter: {own}"
            );
        }
        let told = *op.client().told_topology.lock();
        let counter = told.unwrap_or(counter as u64);
        let until = waiting.unwrap_or_else(|| Instant::now() + Duration::from_millis(max_await as u64));
        if counter == own && Instant::now() < until {
            *op.client().await_until.lock() = Some(until);
            op.park(until, Waits::Topology(own));
            return Ok(false);
        }
    }
    op.set_exhaust_reply();
    Ok(true)
}
