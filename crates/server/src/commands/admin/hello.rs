//! `hello` and `isMaster`: how drivers learn whom they talk to.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_wire::Compressor;

use crate::args::{Args, Array};
use crate::command::*;
use crate::node::shutting_down_error;
use crate::op::Operation;
use crate::parked::Waits;
use crate::reply::Reply;

/// Arguments of either spelling.
pub struct Hello<'a> {
    legacy: bool,
    client: Option<RawDoc<'a>>,
    compression: Option<RawDoc<'a>>,
    topology_version: Option<RawDoc<'a>>,
    max_await: Option<i64>,
    sasl_supported_mechs: bool,
    /// Whether the request says that the client knows `hello`, if it says anything.
    hello_ok: Option<bool>,
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
        legacy,
        client: args.optional("client")?,
        compression: args.optional::<Array<'a>>("compression")?.map(|array| array.0),
        topology_version: args.optional("topologyVersion")?,
        max_await: args.optional("maxAwaitTimeMS")?,
        sasl_supported_mechs: args.optional::<Value<'a>>("saslSupportedMechs")?.is_some(),
        hello_ok: args.optional::<Value<'a>>("helloOk")?.map(|value| value.truthy()),
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
    let agreed = handshake(hello, op)?;
    let node = op.node();
    let mut reply = Reply::with_capacity(1024);
    reply.fill(|doc| {
        // Told to who asks.
        if hello.hello_ok.is_some() {
            doc.append("helloOk", true);
        }
        match node.replica() {
            Some(replica) => {
                let told = replica.with(|core| core.hello());
                if op.exhaust_allowed() {
                    *op.client().told_topology.lock() = Some(told.topology_counter);
                }
                told.write(doc, node.process_id, hello.legacy);
            }
            None => {
                doc.append(if hello.legacy { "ismaster" } else { "isWritablePrimary" }, true);
                let mut topology = doc.document("topologyVersion");
                topology.append("processId", node.process_id).append("counter", 0i64);
            }
        }
        doc.append("maxBsonObjectSize", sheaf_bson::MAX_DOCUMENT_SIZE as i32);
        doc.append("maxMessageSizeBytes", sheaf_wire::MAX_MESSAGE_SIZE as i32);
        doc.append("maxWriteBatchSize", 100_000);
        doc.append("localTime", Value::DateTime(op.now_millis()));
        doc.append(
            "logicalSessionTimeoutMinutes",
            node.parameters.int("localLogicalSessionTimeoutMinutes") as i32,
        );
        doc.append("connectionId", op.client().id as i32);
        doc.append("minWireVersion", 0);
        doc.append("maxWireVersion", crate::version::MAX_WIRE_VERSION);
        doc.append("readOnly", false);
        if !agreed.is_empty() {
            let mut names = doc.array("compression");
            for compressor in &agreed {
                names.push(compressor.name());
            }
        }
        if hello.sasl_supported_mechs {
            let _ = doc.array("saslSupportedMechs");
        }
    });
    Ok(reply)
}

/// What the first hello of a connection settles: metadata and compressors.
fn handshake(hello: &Hello<'_>, op: &Operation<'_>) -> Result<Vec<Compressor>> {
    let mut shake = op.client().handshake.lock();
    if let Some(metadata) = hello.client {
        if shake.metadata.is_some() {
            bail!(
                Code::CLIENT_METADATA_CANNOT_BE_MUTATED,
                "The client metadata document may only be sent in the first hello"
            );
        }
        check_metadata(metadata)?;
        shake.metadata = Some(DocBuf::from(metadata));
        let attributes = sheaf_bson::doc! {
            "remote": &op.client().remote_text(), "client": &op.client().context(), "doc": metadata,
        };
        crate::log::info(
            "NETWORK",
            crate::log::ids::CLIENT_METADATA,
            &op.client().context(),
            "client metadata",
            Some(attributes),
        );
    }
    shake.done = true;
    if !hello.legacy || hello.hello_ok == Some(true) {
        op.client().hello_ok.store(true, Ordering::Relaxed);
    }
    if let Some(offered) = hello.compression {
        let known = &op.front.options.compressors;
        shake.compressors = offered
            .values()
            .filter_map(|name| name.as_str().and_then(Compressor::from_name))
            .filter(|compressor| known.contains(compressor))
            .collect();
        return Ok(shake.compressors.clone());
    }
    Ok(Vec::new())
}

/// Largest `client` document that is kept.
const MAX_METADATA_BYTES: usize = 1024;
/// Longest `application.name`.
const MAX_APP_NAME_BYTES: usize = 128;

fn check_metadata(metadata: RawDoc<'_>) -> Result<()> {
    if metadata.len() > MAX_METADATA_BYTES {
        bail!(
            Code::CLIENT_METADATA_DOCUMENT_TOO_LARGE,
            "The client metadata document must be less then or equal to {MAX_METADATA_BYTES} bytes"
        );
    }
    let sub = |doc: RawDoc<'_>, name: &str, part: &str| -> Result<()> {
        match doc.get(name).map(|v| v.as_doc()) {
            Some(Some(inner)) if inner.get(part).and_then(|v| v.as_str()).is_some() => Ok(()),
            _ => bail!(
                Code::CLIENT_METADATA_MISSING_FIELD,
                "Missing required field '{name}.{part}' in the client metadata document"
            ),
        }
    };
    if let Some(application) = metadata.get("application") {
        let Some(application) = application.as_doc() else {
            bail!(
                Code::TYPE_MISMATCH,
                "The 'application' field is required to be a BSON document in the client metadata document"
            );
        };
        if application.get("name").and_then(|v| v.as_str()).is_some_and(|n| n.len() > MAX_APP_NAME_BYTES) {
            bail!(
                Code::CLIENT_METADATA_APP_NAME_TOO_LARGE,
                "The 'application.name' field must be less then or equal to {MAX_APP_NAME_BYTES} bytes in the client metadata document"
            );
        }
    }
    sub(metadata, "driver", "name")?;
    sub(metadata, "driver", "version")?;
    sub(metadata, "os", "type")
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
