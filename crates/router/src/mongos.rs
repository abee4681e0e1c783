//! A router as the front sees it.

use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::{RawDoc, Timestamp, Value};
use sheaf_cluster::SetAddress;
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::shape::QueryShape;
use sheaf_front::access::Accounts;
use sheaf_front::args::Fields;
use sheaf_front::cursors::OpenCursors;
use sheaf_front::front::Front;
use sheaf_front::options::FrontOptions;
use sheaf_front::outcome::{Ran, RequestOutcome};
use sheaf_front::reply::Reply;
use sheaf_front::request::Request;
use sheaf_front::role::{Found, Role};
use sheaf_front::session::{SessionRegistry, TxnPart};
use sheaf_server::check::levels;

use crate::op::Operation;
use crate::router::Router;
use crate::{commands, transaction};

/// Parameters that only servers with data have, as the manual says.
const NOT_OF_ROUTERS: &[&str] = &["notablescan"];

/// A router as the front sees it.
pub struct Mongos(pub Arc<Router>);

impl Mongos {
    /// A new router for the cluster with these config servers; parameters of the command line are applied.
    ///
    /// Errors: `BadValue` for a bad `--setParameter`.
    pub fn new(front: FrontOptions, config: &SetAddress) -> Result<Self> {
        let set = front.parameters.clone();
        let front = Front::new(front, commands::TABLE.all())?;
        front.parameters.leave_out(NOT_OF_ROUTERS, &set)?;
        Ok(Mongos(Router::new(front, config)))
    }
}

impl Role for Mongos {
    fn front(&self) -> &Arc<Front> {
        self.0.front()
    }

    fn find(&self, name: &str) -> Option<Found> {
        commands::TABLE.find(name)
    }

    fn check(&self, request: &Request<'_>) -> Result<()> {
        if request.generic.write_concern.is_some() && !request.command.spec.concerns.write {
            bail!(Code::INVALID_OPTIONS, "Command does not support writeConcern");
        }
        let level = request.generic.read_concern.and_then(|concern| concern.level);
        level.map_or(Ok(()), |level| levels(request, level))
    }

    fn place(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn shape_hash(&self, db: &str, command: RawDoc<'_>) -> Option<String> {
        QueryShape::of(db, command).and_then(|shape| shape.hash().ok())
    }

    fn measure(&self, request: &Request<'_>, outcome: &RequestOutcome, took: Duration) {
        // What kind of collection it was, only its shards know.
        self.0.query_stats.note(request, outcome, took, &*self.0.cursors, &|_| None);
    }

    fn run<'a>(&'a self, request: &'a Request<'a>, fields: Fields<'a>) -> Ran {
        let session = request.lsid().map(|id| self.0.sessions.touch(id, self.0.uptime_millis()));
        let session = match session.transpose() {
            Ok(session) => session,
            Err(error) => return Ran::at_once(Err(error)),
        };
        let op = Operation::new(request, &self.0);
        let work = |op: &Operation<'a>| {
            let mut args = request.args(fields)?;
            request.handle(|| commands::run(&mut args, op))
        };
        let result = match (&session, request.txn_number()) {
            (Some(session), Some(number)) if request.part.in_transaction() => {
                transaction::run(&op, session, number, work)
            }
            (Some(session), Some(number)) if request.part == TxnPart::RetryableWrite => {
                // Held to the end: an attempt that its client has given up may still be about to write when the next one asks for records.
                op.session_state(session).and_then(|mut state| {
                    state.begin_write(number);
                    work(&op)
                })
            }
            _ => work(&op),
        };
        let operation_time = op.operation_time();
        Ran { parked: op.parked.take(), operation_time, ..Ran::at_once(result) }
    }

    fn sessions(&self) -> &dyn SessionRegistry {
        &*self.0
    }

    fn cursors(&self) -> &dyn OpenCursors {
        &*self.0.cursors
    }

    fn passes_commands_on(&self) -> bool {
        true
    }

    fn accounts(&self) -> Option<&dyn Accounts> {
        Some(&*self.0)
    }

    fn finish(&self, mut reply: Reply, _: [Option<Code>; 2], operation_time: Option<u64>) -> Reply {
        if self.0.clock.now().is_some() {
            reply.fill(|doc| {
                self.0.clock.append(doc, None);
                let time = operation_time.map(Timestamp).or(self.0.clock.now());
                doc.append("operationTime", Value::Timestamp(time.unwrap_or(Timestamp(0))));
            });
        }
        reply
    }
}
