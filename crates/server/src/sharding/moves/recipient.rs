//! The recipient: one thread of each received range asks the donor, another writes what it has told.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_replica::spawn;
use sheaf_shard::ShardId;
use sheaf_shard::moves::{Misfit, Move, MoveAnswer, MoveId, MoveRequest, PlacementChange, RecipientEffect};
use sheaf_storage::{Collection, Interrupt, Statement, Uuid, Write};

use super::{Moves, State, batch};
use crate::sharding::marks::{PLACEMENTS, uuid_value};
use crate::sharding::rows;
use crate::sharding::statistics::Statistics;

/// How often the donor is asked whether to go on waiting for it.
const PAUSE: Duration = Duration::from_millis(20);

/// So many documents that something is in the way of may wait, and so many bytes of them.
const WAITING_MAX: usize = 1000;
const WAITING_BYTES_MAX: usize = 32 << 20;

/// What is written, one after another.
enum Work {
    Place { uuid: [u8; 16], change: PlacementChange },
    Write(DocBuf),
}

/// The threads of a move to this shard. They end when this is dropped.
pub(super) struct Worker {
    calls: mpsc::Sender<(ShardId, u64, MoveRequest)>,
    work: mpsc::Sender<Work>,
}

impl Worker {
    fn start(moves: &Arc<Moves>, id: MoveId) -> Result<Worker> {
        #[expect(clippy::disallowed_methods, reason = "the machine has few batches under way")]
        let ((calls, asked), (work, wanted)) = (mpsc::channel(), mpsc::channel());
        let of = Arc::downgrade(moves);
        spawn("sheaf-move-ask", move || ask(&of, id, &asked))?;
        let of = Arc::downgrade(moves);
        spawn("sheaf-move-write", move || write(&of, id, &wanted))?;
        Ok(Worker { calls, work })
    }
}

impl Moves {
    /// Gives a thread of the move something to do. The machines are locked, so all of it is done in their order.
    pub(super) fn work(self: &Arc<Self>, state: &mut State, effect: RecipientEffect<DocBuf>) {
        let id = match &effect {
            RecipientEffect::Send { request, .. } => request.id(),
            RecipientEffect::Place { id, .. } | RecipientEffect::Write { id, .. } => *id,
            RecipientEffect::Reply { .. }
            | RecipientEffect::NotPrimary { .. }
            | RecipientEffect::Abandon(_) => {
                unreachable!("nothing of the donor or of a log is needed for it")
            }
        };
        let worker = match state.workers.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match Worker::start(self, id) {
                Ok(worker) => new.insert(worker),
                Err(error) => return state.recipients.write_failed(id, error.message().to_owned()),
            },
        };
        // A thread that is gone has seen that this member does not lead any more.
        let _ = match effect {
            RecipientEffect::Send { to, call, request } => worker.calls.send((to, call, request)).is_ok(),
            RecipientEffect::Place { uuid, change, .. } => {
                worker.work.send(Work::Place { uuid, change }).is_ok()
            }
            RecipientEffect::Write { batch, .. } => worker.work.send(Work::Write(batch)).is_ok(),
            _ => true,
        };
    }

    fn is_receiving(&self, id: MoveId) -> bool {
        self.state.lock().recipients.moves().any(|(running, _)| running == id)
    }

    fn place(&self, uuid: [u8; 16], change: &PlacementChange) -> Result<()> {
        let go_on = || self.until_end();
        rows::ensure(&self.engine, PLACEMENTS, &go_on)?;
        if matches!(change, PlacementChange::Receive { .. })
            && self.engine.catalog().by_uuid(&Uuid::from_bytes(uuid)).is_none()
        {
            return Err(Misfit("the recipient has no such collection".to_owned()).into());
        }
        rows::change(&self.engine, &go_on, |documents| {
            let known = documents.get(PLACEMENTS, uuid_value(&uuid))?;
            match change.apply(known.as_ref().map(DocBuf::as_raw))? {
                Some(changed) => documents.put(PLACEMENTS, changed.as_raw()),
                None => Ok(()),
            }
        })?;
        Ok(())
    }

    /// Makes of the range what the donor has told of it. What something is in the way of waits.
    ///
    /// Errors: `DuplicateKey`, where too much waits.
    fn take_in(&self, the_move: &Move, told: RawDoc<'_>, waiting: &mut Waiting) -> Result<()> {
        let go_on = || self.until_end();
        let mut unit = self.engine.write(&go_on);
        unit.set_from_migrate();
        let found = unit.collection(&the_move.ns)?;
        let Some(collection) = found.filter(|found| *found.uuid.as_bytes() == the_move.uuid) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "{} was dropped while a range of it was received", the_move.ns);
        };
        let range = the_move.range();
        let has = |document: &[u8]| {
            let key = the_move.pattern.key_of(RawDoc::new(document));
            key.is_ok_and(|key| range.contains(&key))
        };
        for key in batch::gone(told) {
            again(|| remove_record(&mut unit, &collection, key, &has))?;
            waiting.forget(key);
        }
        unit.reserve(told.len() + waiting.bytes);
        let of = &self.sharding.statistics;
        let (documents, bytes) = match MoveAnswer::parse(told) {
            Some(MoveAnswer::Changed { .. }) => (&of.caught_up_here, &of.caught_up_bytes_here),
            _ => (&of.cloned_here, &of.cloned_bytes_here),
        };
        let mut put = |document: RawDoc<'_>| again(|| put_record(&mut unit, &collection, document, &has));
        for document in batch::documents(told) {
            waiting.unless(&collection, document, &mut put)?;
            Statistics::cloned(documents, bytes, document.len());
        }
        waiting.again(&collection, &mut put)?;
        unit.commit()?;
        let Some(statements) = batch::statements(told) else {
            bail!(Code::PROTOCOL_ERROR, "the donor of a range has sent a statement that is none");
        };
        self.take_in_statements(&the_move.ns, &statements, &go_on)
    }

    /// Puts another shard's retryable statements about a namespace on record, so that they are answered here and not executed again.
    pub(in crate::sharding) fn take_in_statements(
        &self,
        namespace: &str,
        statements: &[Statement],
        go_on: Interrupt<'_>,
    ) -> Result<()> {
        let Some(sessions) = self.sessions.upgrade() else {
            return Err(sheaf_front::front::shutting_down_error());
        };
        let (mut unused, mut left) = (Vec::new(), statements);
        while let Some(first) = left.first() {
            let (own, rest) = left.split_at(left.partition_point(|next| next.lsid == first.lsid));
            left = rest;
            let put = &mut || self.engine.put_statements(namespace, own, go_on).map(|_| ());
            if !sessions.at_rest(first.lsid.as_raw(), first.txn_number, put)? {
                unused.extend_from_slice(own);
            }
        }
        if !unused.is_empty() {
            self.engine.put_statements(namespace, &unused, go_on)?;
        }
        Ok(())
    }
}

/// Received documents that another document is in the way of, by their records' keys. One that another client's statement has given a key of this
/// shard's is there already when the donor tells of what it was before; the note that it is gone comes then. What is in the
/// way for good ends the move.
#[derive(Default)]
struct Waiting {
    documents: BTreeMap<Vec<u8>, DocBuf>,
    /// Of all these.
    bytes: usize,
    /// What was said of the last one.
    why: Option<String>,
}

impl Waiting {
    /// What is there of the record is not to be written any more.
    fn forget(&mut self, key: &[u8]) {
        if let Some(document) = self.documents.remove(key) {
            self.bytes -= document.as_bytes().len();
        }
    }

    /// Writes a document, unless something is in its way.
    ///
    /// Errors: those of writing; `DuplicateKey`, where too much waits.
    fn unless(
        &mut self,
        collection: &Collection,
        document: RawDoc<'_>,
        put: &mut dyn FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<()> {
        let done = put(document);
        let in_the_way = done.as_ref().err().filter(|error| error.code() == Code::DUPLICATE_KEY);
        if self.documents.is_empty() && in_the_way.is_none() {
            return done;
        }
        let key = collection.record_key(document.get_or_missing("_id"))?;
        self.forget(&key);
        let Some(error) = in_the_way else { return done };
        if self.documents.len() >= WAITING_MAX || self.bytes + document.len() > WAITING_BYTES_MAX {
            return done;
        }
        self.why = Some(error.message().to_owned());
        self.bytes += document.len();
        self.documents.insert(key, document.into());
        Ok(())
    }

    /// Writes those of which nothing is in the way any more.
    ///
    /// Errors: those of writing.
    fn again(
        &mut self,
        collection: &Collection,
        put: &mut dyn FnMut(RawDoc<'_>) -> Result<()>,
    ) -> Result<()> {
        let documents = std::mem::take(&mut self.documents);
        self.bytes = 0;
        documents.values().try_for_each(|document| self.unless(collection, document.as_raw(), put))
    }

    /// What is in the way, if anything is.
    fn in_the_way(&self) -> Option<String> {
        self.why.clone().filter(|_| !self.documents.is_empty())
    }
}

/// Does it again where a lock had to be given up.
fn again(mut work: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        match work() {
            Err(error) if error.code() == Code::WRITE_CONFLICT => {}
            done => return done,
        }
    }
}

/// Takes away a record that is the range's.
pub(super) fn remove_record(
    unit: &mut dyn Write,
    collection: &Arc<Collection>,
    key: &[u8],
    has: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    match unit.read_for_update(collection, key)? {
        Some(old) if has(&old) => unit.delete(collection, key, RawDoc::new(&old)),
        _ => Ok(()),
    }
}

/// Writes a document; in the place of what has its `_id`, if that is the range's.
fn put_record(
    unit: &mut dyn Write,
    collection: &Arc<Collection>,
    document: RawDoc<'_>,
    has: &dyn Fn(&[u8]) -> bool,
) -> Result<()> {
    // Most are new here.
    let inserted = unit.insert(collection, document);
    let Err(in_the_way) = inserted.as_ref() else { return Ok(()) };
    if in_the_way.code() != Code::DUPLICATE_KEY {
        return inserted;
    }
    let key = collection.record_key(document.get_or_missing("_id"))?;
    match unit.read_for_update(collection, &key)? {
        Some(old) if *old == *document.as_bytes() => Ok(()),
        Some(old) if has(&old) => unit.update(collection, &key, RawDoc::new(&old), document, None),
        _ => inserted,
    }
}

/// Asks the donor. What is asked again because an answer took long is not asked again when that has come.
fn ask(of: &Weak<Moves>, id: MoveId, asked: &mpsc::Receiver<(ShardId, u64, MoveRequest)>) {
    let mut answered = None;
    while let Ok((to, call, request)) = asked.recv() {
        let Some(moves) = of.upgrade() else { return };
        if answered == Some(call) || !moves.is_receiving(id) {
            continue;
        }
        let go_on = || {
            moves.until_end()?;
            if moves.is_receiving(id) {
                Ok(())
            } else {
                Err(Error::new(Code::INTERRUPTED, "the move is given up"))
            }
        };
        let reply = moves.sharding.ask_shard(to.as_str(), &request.command(), &go_on);
        let answer = reply.and_then(|reply| match MoveAnswer::parse(reply.as_raw()) {
            Some(answer) => Ok((answer, reply)),
            None => bail!(Code::PROTOCOL_ERROR, "the donor of a range has given an answer that is none"),
        });
        match answer {
            Ok((answer, reply)) => {
                answered = Some(call);
                moves.now(|state| state.recipients.answered(id, call, answer, Some(reply)));
            }
            Err(error) => {
                tracing::debug!(%error, ?id, "the donor of a range has not answered");
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Writes what is received, and marks.
fn write(of: &Weak<Moves>, id: MoveId, wanted: &mpsc::Receiver<Work>) {
    let mut the_move: Option<Arc<Move>> = None;
    let mut waiting = Waiting::default();
    while let Ok(work) = wanted.recv() {
        let Some(moves) = of.upgrade() else { return };
        match work {
            Work::Place { uuid, change } => {
                if let PlacementChange::Receive { the_move: received } = &change {
                    the_move = Some(received.clone());
                }
                let placed = moves.place(uuid, &change).map_err(|error| Misfit(error.message().to_owned()));
                moves.now(|state| state.recipients.placed(id, placed));
            }
            Work::Write(told) => {
                let Some(the_move) = &the_move else { continue };
                let written = moves.take_in(the_move, told.as_raw(), &mut waiting);
                moves.now(|state| match written {
                    Ok(()) => state.recipients.written(id, waiting.in_the_way()),
                    Err(error) => state.recipients.write_failed(id, error.message().to_owned()),
                });
            }
        }
    }
}
