//! A mongod as the front sees it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sheaf_auth::{Account, Feigned, RoleName, UserDocument, UserName};
use sheaf_bson::{DocBuf, RawDoc, Timestamp};
use sheaf_errors::{Code, Result};
use sheaf_exec::plan::shape::QueryShape;
use sheaf_front::access::{Accounts, State};
use sheaf_front::args::Fields;
use sheaf_front::cursors::OpenCursors;
use sheaf_front::dispatch::is_state_change;
use sheaf_front::front::{Front, Guest};
use sheaf_front::options::FrontOptions;
use sheaf_front::outcome::{Ran, RequestOutcome};
use sheaf_front::request::{PlanNames, Request};
use sheaf_front::role::{Coming, Found, Role};
use sheaf_front::session::SessionRegistry;
use sheaf_storage::Uuid;
use sheaf_tls::Wire;

use crate::command::Run;
use crate::commands;
use crate::commands::crud::change_stream;
use crate::concern::ReadConcern;
use crate::node::Node;
use crate::op::Operation;
use crate::options::MongodOptions;
use crate::query_stats::kind_in;
use crate::replication::{Replica, initial_sync, protocol, receiving};
use crate::reply::Reply;
use crate::session::TxnPart;
use crate::{check, in_session, place, read, wait};

/// The words with which members' connections begin.
const WORDS: &[[u8; 4]] = &[protocol::MAGIC, initial_sync::MAGIC];

/// A mongod as the front sees it.
pub struct Mongod(pub Arc<Node>);

impl Mongod {
    /// A new mongod with all its commands; parameters of the command line are applied.
    ///
    /// Errors: `BadValue` for a bad `--setParameter`.
    pub fn new(front: FrontOptions, options: MongodOptions) -> Result<Self> {
        Ok(Mongod(Node::new(Front::new(front, commands::TABLE.all())?, options)))
    }
}

impl Role for Mongod {
    fn front(&self) -> &Arc<Front> {
        self.0.front()
    }

    fn find(&self, name: &str) -> Option<Found> {
        commands::TABLE.find(name)
    }

    fn is_locked(&self) -> bool {
        self.0.engine().write_lock_count() > 0
    }

    fn check(&self, request: &Request<'_>) -> Result<()> {
        check::cluster_time_seen(&self.0, request)?;
        check::concerns(&self.0, request)
    }

    fn place(&self, request: &Request<'_>) -> Result<()> {
        place::check(&self.0, request)
    }

    fn shape_hash(&self, db: &str, command: RawDoc<'_>) -> Option<String> {
        QueryShape::of(db, command).and_then(|shape| shape.hash().ok())
    }

    fn plan_names(&self, request: &Request<'_>, command: RawDoc<'_>) -> Option<PlanNames> {
        commands::crud::plan_names::of_command(&Operation::new(request, &self.0), command)
    }

    fn namespace_of(&self, uuid: &[u8; 16]) -> Option<Option<String>> {
        let catalog = self.0.engine().catalog();
        Some(catalog.by_uuid(&Uuid::from_bytes(*uuid)).map(|found| found.namespace.clone()))
    }

    fn measure(&self, request: &Request<'_>, outcome: &RequestOutcome, took: Duration) {
        let kind_of = |namespace: &str| Some(kind_in(&self.0.engine().catalog(), namespace));
        self.0.query_stats.note(request, outcome, took, &*self.0.cursors, &kind_of);
    }

    fn run<'a>(&'a self, request: &'a Request<'a>, fields: Fields<'a>) -> Ran {
        let session = match request.lsid().map(|id| self.0.session(id)).transpose() {
            Ok(session) => session,
            Err(error) => return Ran::at_once(Err(error)),
        };
        request.read_concern.set(read_concern(&self.0, request));
        let mut op = Operation::new(request, &self.0);
        match read::prepare(&op, request.part) {
            Ok(None) => {}
            Ok(Some(parked)) => return Ran { parked: Some(parked), ..Ran::at_once(Ok(Reply::ok())) },
            Err(error) => return ran(&op, Err(error)),
        }
        let work = |op: &Operation<'a>| {
            let mut args = request.args(fields)?;
            op.check_version_first()?;
            request.handle(|| match commands::TABLE.at(request.at) {
                Run::Front(run) => run(&mut args, request),
                Run::Role(run) => run(&mut args, op),
            })
        };
        let result = match (&session, request.txn_number()) {
            (Some(session), Some(txn_number)) if request.part != TxnPart::Plain => {
                in_session::run(&mut op, session, txn_number, work)
            }
            _ => work(&op),
        };
        ran(&op, result)
    }

    fn finish(&self, mut reply: Reply, codes: [Option<Code>; 2], operation_time: Option<u64>) -> Reply {
        let Some(replica) = self.0.replica() else { return reply };
        let ending = self.0.is_ending();
        if codes.into_iter().flatten().any(|code| is_state_change(code, ending)) {
            // That this member goes down is a change, too.
            let counter = replica.role().topology_version as i64 + i64::from(ending);
            reply = reply.with_document("topologyVersion", |version| {
                version.append("processId", self.0.process_id).append("counter", counter);
            });
        }
        reply.fill(|doc| gossip(&self.0, replica, operation_time, doc));
        reply
    }

    fn profile(&self, request: &Request<'_>, db: &str, entries: &[DocBuf]) {
        commands::diag::profile::record(&self.0, request, db, entries);
    }

    fn sessions(&self) -> &dyn SessionRegistry {
        &*self.0
    }

    fn accounts(&self) -> Option<&dyn Accounts> {
        Some(self)
    }

    fn cursors(&self) -> &dyn OpenCursors {
        &*self.0.cursors
    }

    fn operations(&self, _: &Request<'_>) -> Result<Vec<DocBuf>> {
        let mut shown = self.0.idle_transactions();
        shown.extend(self.0.resharding_operations());
        Ok(shown)
    }

    fn step_down(&self, patience: Duration, force: bool) -> Result<()> {
        self.0.hand_over(patience, force)
    }

    fn become_quiet(&self, limit: Duration) -> Coming<'static, ()> {
        let node = self.0.clone();
        Box::pin(async move { node.become_quiet(limit).await })
    }

    fn words(&self) -> &[[u8; 4]] {
        if self.0.replica().is_some() { WORDS } else { &[] }
    }

    fn serve(&self, word: [u8; 4], stream: Wire, guest: Guest) -> Coming<'static, io::Result<()>> {
        let replica = self.0.replica().expect("the words of members are a set's").clone();
        match word {
            initial_sync::MAGIC => Box::pin(initial_sync::serve(stream, replica, guest)),
            _ => Box::pin(receiving::serve(stream, replica, guest)),
        }
    }
}

impl Accounts for Mongod {
    fn state(&self) -> Option<State> {
        Some(self.0.accounts.present(self.0.engine()))
    }

    fn is_still(&self, state: &State) -> bool {
        crate::accounts::is_still(self.0.engine(), state)
    }

    fn account(&self, name: &UserName) -> Result<Option<Arc<Account>>> {
        self.0.accounts.find(self.0.engine(), name)
    }

    fn looked_up(&self, name: &UserName, feigned: &Feigned) -> Result<Option<UserDocument>> {
        self.0.accounts.look_up(self.0.engine(), name, feigned)
    }

    fn feigned(&self) -> Result<Option<Arc<Feigned>>> {
        self.0.accounts.feigned(self.0.engine())
    }

    fn with_roles(&self, name: &UserName, roles: &[RoleName]) -> Result<Arc<Account>> {
        self.0.accounts.with_roles(self.0.engine(), name, roles)
    }

    fn is_empty(&self) -> Result<bool> {
        self.0.accounts.is_empty(self.0.engine())
    }
}

/// What came of an operation, and what its answer waits for.
fn ran(op: &Operation<'_>, result: Result<Reply>) -> Ran {
    let parked = op.parked.take();
    if parked.is_some() {
        return Ran { parked, ..Ran::at_once(result) };
    }
    let (result, wait) = match wait::of(op, &result) {
        Ok(wait) => (result, wait),
        Err(error) => (Err(error), None),
    };
    Ran { result, parked, wait, operation_time: wait::operation_time(op) }
}

/// The client's read concern, with the default level if it names none. Change streams read what a majority has, whatever the default.
fn read_concern(node: &Node, request: &Request<'_>) -> ReadConcern {
    let mut concern = request.read_concern();
    let open = concern.level.is_none() && request.command.spec.concerns.read;
    let is_stream = || request.command.name == "aggregate" && change_stream::is_opened_by(request.body);
    if open
        && node.replica().is_some()
        && matches!(request.part, TxnPart::Plain | TxnPart::Start)
        && !is_stream()
    {
        concern.level = node.default_concerns().read_level();
    }
    concern
}

/// What a member of a set adds to every reply: how far its time has come, with the signature of a
/// server that has no keys, and the time of what the operation wrote or read.
fn gossip(
    node: &Node,
    replica: &Replica,
    operation_time: Option<u64>,
    doc: &mut sheaf_bson::DocWriter<'_, Vec<u8>>,
) {
    let role = replica.role();
    if !role.state.readable() {
        return;
    }
    let operation_time = Timestamp(operation_time.unwrap_or_else(|| node.last_applied().time));
    sheaf_wire::append_cluster_time(doc, replica.cluster_time().max(operation_time));
    doc.append("operationTime", operation_time);
}
