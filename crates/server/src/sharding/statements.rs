//! Records of retryable statements that go with a database to another shard: what is sent again there is answered, and not executed again.
//!
//! They are told while the database is closed on the shard that it leaves, so all that it has executed is among them.

use std::sync::Arc;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Interrupt;

use super::moves::batch::{self, Batch};
use super::moves::{Moves, not_primary};
use super::participants::{Asked, name};
use super::rows;
use crate::node::Node;

/// So many sessions are looked at in one go.
const SESSIONS: usize = 1000;

fn moves_of(node: &Node) -> Result<&Arc<Moves>> {
    match node.moves() {
        Some(moves) => Ok(moves),
        None => {
            bail!(Code::NO_SHARDING_ENABLED, "Cannot accept sharding commands if not started with --shardsvr")
        }
    }
}

/// The namespaces that a request lists.
fn namespaces(body: RawDoc<'_>) -> Result<Vec<&str>> {
    let list = body.get("namespaces").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY);
    match list.values().map(|namespace| namespace.as_str()).collect() {
        Some(all) => Ok(all),
        None => bail!(Code::TYPE_MISMATCH, "a namespace is no string"),
    }
}

/// [`name::STATEMENTS`]: what is on record about collections of a database, of the sessions behind `after`; `last` where there may be more.
pub fn tell(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let (moves, engine) = (moves_of(node)?, node.engine());
    moves.take_office()?;
    let namespaces = namespaces(body)?;
    let mut last = body.get("after").and_then(|after| after.as_doc()).map(DocBuf::from);
    let (mut batch, mut any, mut more) = (Batch::default(), false, true);
    'batch: while more {
        let sessions = engine.recorded_sessions(last.as_ref().map(DocBuf::as_raw), SESSIONS)?;
        more = !sessions.is_empty();
        for lsid in sessions {
            go_on()?;
            let statements = engine.statements_about(lsid.as_raw(), &namespaces)?;
            if !batch.take_statements_about(&statements) {
                break 'batch;
            }
            any |= !statements.is_empty();
            last = Some(lsid);
        }
    }
    if any && let Some(replica) = node.replica() {
        // They stay where they go, whatever comes of the move, and must not be of what this shard may lose.
        let Some(term) = moves.term() else { return Err(not_primary()) };
        rows::until_majority(replica, engine.last_applied(), term, go_on)?;
    }
    let mut told = batch.fields();
    if let Some(last) = last.filter(|_| more) {
        told.append("last", last.as_raw());
    }
    Ok(told)
}

/// [`name::TAKE_STATEMENTS`]: takes what another shard has on record about collections of a database, in one pass over its sessions.
pub fn take(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    Asked::with(node, body, go_on, |asked| {
        let (moves, Some(sharding)) = (moves_of(node)?, node.sharding()) else { return Ok(doc! {}) };
        let (list, namespaces) = (body.get_or_missing("namespaces"), namespaces(body)?);
        let mut after: Option<DocBuf> = None;
        loop {
            let mut ask = doc! { (name::STATEMENTS): asked.namespace, "namespaces": list };
            if let Some(after) = &after {
                ask.append("after", after.as_raw());
            }
            let told = sharding.ask_shard(asked.text("from"), &ask, asked.go_on)?;
            let Some(about) = batch::statements_about(told.as_raw(), namespaces.len()) else {
                bail!(Code::PROTOCOL_ERROR, "a shard has sent a statement that is none");
            };
            for (namespace, statements) in namespaces.iter().zip(&about) {
                moves.take_in_statements(namespace, statements, asked.go_on)?;
            }
            after = told.as_raw().get("last").and_then(|last| last.as_doc()).map(DocBuf::from);
            if after.is_none() {
                return Ok(doc! {});
            }
        }
    })
}
