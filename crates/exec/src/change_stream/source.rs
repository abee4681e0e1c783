//! Pulling events out of the log.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use sheaf_aggregate::Namespace;
use sheaf_aggregate::stages::change_stream::{
    ChangeStream, Event, Operation, Origin, ResumeToken, Start, Watched, events,
};
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_meter::Held;
use sheaf_rows::{Cx, Operator, Row, Step};
use sheaf_storage::{Collection, Engine, Oplog, OplogCursor, TransactionRow, Uuid, View};

use super::doubt::{Doubts, Meaning, commit_times, key_of, may_see, meaning_of};
use super::{SharedPosition, StreamPosition, lookup};
use crate::database::Db;
use crate::oplog::{builds_anew, is_of_view};

/// More entries than this to pass over are worth a search in the log.
const WORTH_SEEKING: u64 = 1000;

/// So many entries are one piece of work.
const ENTRIES_AT_ONCE: usize = 64;

/// The events of one stream.
pub struct ChangeStreamSource {
    stream: Arc<ChangeStream>,
    cursor: OplogCursor,
    db: Db,
    /// The state that the present command reads.
    view: Option<View>,
    /// How long documents before changes are shown, once the present command has asked for it.
    image_seconds: Option<Option<i64>>,
    /// The event being given.
    current: Option<DocBuf>,
    /// What has happened before this time is passed over.
    from: u64,
    /// Entries before this time were read, or need not be.
    entries_from: u64,
    /// Transactions in doubt where the cursor stands, and events that are told when these are decided.
    doubts: Doubts,
    behind_doubts: BTreeMap<ResumeToken, Ready>,
    /// The position that has to be met before events are given.
    resume: Option<Resume>,
    /// Events of the operation that was read last.
    ready: VecDeque<Ready>,
    /// Entries of a transaction that goes on in the next one, as far as they were met on the way.
    partial: Vec<DocBuf>,
    /// The memory of large transactions' entries and events.
    held: Held,
    /// Up to where everything is known, and whether the cursor has come that far.
    known: Known,
    position: SharedPosition,
}

/// What a stream on one collection need not read: nothing has been committed to the collection since.
#[derive(Default)]
struct Known {
    collection: Option<Uuid>,
    until: u64,
    skipped: bool,
}

struct Resume {
    token: ResumeToken,
    met: bool,
}

/// An event, and when its entry was written.
struct Ready {
    event: Event,
    wall_millis: i64,
}

impl ChangeStreamSource {
    /// Opens a stream where it is to begin.
    ///
    /// Errors: `ChangeStreamHistoryLost`, `CommandNotSupportedOnView`.
    pub fn open(db: &Db, namespace: &Namespace, stream: Arc<ChangeStream>) -> Result<Self> {
        let view = db.view();
        if view.collection(&namespace.to_string()).is_some_and(|collection| collection.is_view()) {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Namespace {namespace} is a view, not a collection");
        }
        let Some(oplog) = view.oplog() else {
            bail!(40573, "The $changeStream stage is only supported with a journal");
        };
        let (from, token, resume) = match &stream.start {
            Start::Now => {
                let from = view.time().0 + 1;
                (from, ResumeToken::high_water_mark(from), None)
            }
            Start::At(time) => (*time, ResumeToken::high_water_mark(*time), None),
            Start::After(token) if token.is_high_water_mark() => (token.time, token.clone(), None),
            Start::After(token) => {
                let resume = Resume { token: token.clone(), met: false };
                (token.time, token.clone(), Some(resume))
            }
        };
        check_history(&oplog, &view, from)?;
        let doubts = doubts_at(db.engine(), &stream.watched, &oplog, &view, from)?;
        let cursor = oplog.from_time(Timestamp(from)).map_err(lost)?.whole_entries();
        let position = Arc::new(Mutex::new(StreamPosition::at(token)));
        Ok(ChangeStreamSource {
            stream,
            cursor,
            db: db.clone(),
            view: None,
            image_seconds: None,
            current: None,
            from,
            entries_from: 0,
            doubts,
            behind_doubts: BTreeMap::new(),
            resume,
            ready: VecDeque::new(),
            partial: Vec::new(),
            held: Held::default(),
            known: Known::default(),
            position,
        })
    }

    /// How far the stream has come.
    pub fn position(&self) -> SharedPosition {
        self.position.clone()
    }

    /// Whether the watched collection says that there is nothing to read.
    fn is_quiet(&self, view: &View) -> bool {
        let Watched::Collection(namespace) = &self.stream.watched else { return false };
        // What is told of a collection besides its changes is noted with it on primaries only.
        if self.stream.expanded {
            return false;
        }
        let known = |collection: &Arc<Collection>| {
            Some(collection.uuid) == self.known.collection && collection.last_commit() <= self.known.until
        };
        view.collection(namespace).is_some_and(known)
    }

    /// All is read up to the view's time.
    fn note_end(&mut self, view: &View, skipped: bool) -> Result<Step> {
        let Some(undecided) = self.db.engine().undecided_at(view.time()) else {
            // So much has happened since that it is told with the next state.
            return Ok(Step::Eof);
        };
        let collection = match &self.stream.watched {
            Watched::Collection(namespace) => view.collection(namespace).map(|collection| collection.uuid),
            Watched::Database(_) | Watched::Cluster => None,
        };
        self.known = Known { collection, until: view.time().0, skipped };
        self.doubts.are(&undecided, |collections| may_see(&self.stream.watched, view, collections));
        self.release()?;
        if !self.ready.is_empty() {
            return Ok(Step::Row);
        }
        let mut position = self.position.lock();
        position.quiet = self.is_quiet(view) && self.doubts.oldest().is_none();
        position.read_up_to(view.time().0, self.doubts.oldest());
        Ok(Step::Eof)
    }

    /// Goes on behind what was skipped, if that was much.
    fn catch_up(&mut self, view: &View) -> Result<()> {
        if std::mem::take(&mut self.known.skipped) && self.cursor.behind() > WORTH_SEEKING {
            let oplog = view.oplog().expect("a stream was opened on a log");
            self.entries_from = self.entries_from.max(self.known.until + 1);
            self.cursor = oplog.from_time(Timestamp(self.entries_from)).map_err(lost)?.whole_entries();
        }
        Ok(())
    }

    /// Reads on to the next operation that gives events, for one piece of work.
    fn read(&mut self, cx: &mut Cx<'_>, view: &View) -> Result<Step> {
        for _ in 0..ENTRIES_AT_ONCE {
            cx.check_interrupt()?;
            let Some(doc) = self.cursor.next(view.time()).map_err(lost)? else { return Ok(Step::Eof) };
            // Most entries concern others; only what is taken in is copied.
            let entry = match names(doc) {
                _ if self.entries_from > 0 && times(doc).0 < self.entries_from => continue,
                ("c", _) => DocBuf::from(doc),
                ("n", namespace) if self.stream.expanded && self.stream.watched.sees(namespace) => {
                    DocBuf::from(doc)
                }
                ("i" | "u" | "d", namespace) if self.stream.watched.sees(namespace) => DocBuf::from(doc),
                _ => continue,
            };
            match names(entry.as_raw()).0 {
                "c" if is_transaction(entry.as_raw()) => self.transaction(entry, view)?,
                "c" if is_commit(entry.as_raw()) => self.prepared(&entry, view)?,
                "c" if is_abort(entry.as_raw()) => self.doubts.aborted(entry.as_raw()),
                "c" => self.command(entry.as_raw())?,
                _ => self.single(entry.as_raw())?,
            }
            self.release()?;
            if !self.ready.is_empty() {
                return Ok(Step::Row);
            }
        }
        Ok(Step::More)
    }

    /// An operation on one document.
    fn single(&mut self, doc: RawDoc<'_>) -> Result<()> {
        let (time, wall) = times(doc);
        if time < self.from {
            return Ok(());
        }
        let origin = Origin { time, wall, transaction: None };
        let found = Operation::read(doc).and_then(|operation| events(&self.stream, origin, operation));
        let wall_millis = millis(wall);
        self.offer(found, wall_millis)
    }

    /// Whether no event tells of a command. Streams of single collections are never of views, and only expanded events are of views' definitions.
    fn is_untold(&self, entry: RawDoc<'_>) -> bool {
        let o = entry.get("o").and_then(|o| o.as_doc()).unwrap_or(RawDoc::EMPTY);
        let views = self.stream.expanded && !matches!(self.stream.watched, Watched::Collection(_));
        builds_anew(o) || (is_of_view(o) && !views)
    }

    fn command(&mut self, raw: RawDoc<'_>) -> Result<()> {
        if self.is_untold(raw) {
            return Ok(());
        }
        let shown = crate::oplog::shown(raw).unwrap_or_else(|| raw.into());
        let (time, wall) = times(shown.as_raw());
        if time < self.from {
            return Ok(());
        }
        let origin = Origin { time, wall, transaction: None };
        let operation = Operation::read(shown.as_raw());
        let found = operation.and_then(|operation| events(&self.stream, origin, operation));
        self.offer(found, millis(wall))
    }

    /// A transaction: its operations, all at the time of its last entry.
    fn transaction(&mut self, last: DocBuf, view: &View) -> Result<()> {
        if !follows(self.partial.last(), &last) {
            // Those were of a transaction that never came to its end.
            self.partial.clear();
        }
        let partial = last.as_raw().get("o").and_then(|o| o.as_doc()?.get("partialTxn"));
        if partial.is_some_and(|partial| partial.truthy()) {
            self.partial.push(last);
            self.held = reserve_for(&self.partial)?;
            return Ok(());
        }
        let mut entries = std::mem::take(&mut self.partial);
        let prepare = last.as_raw().get("o").and_then(|o| o.as_doc()?.get("prepare"));
        if prepare.is_some_and(|prepare| prepare.truthy()) {
            // Nothing of it has happened yet, and perhaps never will.
            let key = key_of(last.as_raw()).map(|(lsid, number)| (DocBuf::from(lsid), number));
            let time = times(last.as_raw()).0;
            entries.push(last);
            let meaning = match previous(entries[0].as_raw()) {
                0 => meaning_of(&self.stream.watched, entries),
                // The stream began within it.
                _ => Meaning::InLog,
            };
            self.doubts.begun(time, key, meaning);
            return Ok(());
        }
        if times(last.as_raw()).0 < self.from {
            return Ok(());
        }
        let first = entries.first().unwrap_or(&last).as_raw();
        if previous(first) != 0 {
            // The stream began within it.
            let oplog = view.oplog().expect("a stream was opened on a log");
            entries.splice(0..0, oplog.transaction_before(first).map_err(lost)?);
        }
        entries.push(last);
        let last = entries.last().expect("the last entry was added just now");
        self.operations(&entries, last.as_raw(), times(last.as_raw()).0)
    }

    /// The commit of a prepared transaction: its operations, at the time of the commit, which is the same on all shards.
    fn prepared(&mut self, commit: &DocBuf, view: &View) -> Result<()> {
        let Some((at, prepared)) = commit_times(commit.as_raw()) else { return Ok(()) };
        let meaning = self.doubts.committed(prepared);
        if at < self.from {
            return Ok(());
        }
        let entries = match meaning {
            Some(Meaning::None) => return Ok(()),
            Some(Meaning::Entries(entries)) => entries,
            Some(Meaning::InLog) | None => {
                let oplog = view.oplog().expect("a stream was opened on a log");
                let Some(entries) = oplog.prepared(commit.as_raw()).map_err(lost)? else { return Ok(()) };
                entries
            }
        };
        self.operations(&entries, commit.as_raw(), at)
    }

    /// The operations of a transaction that takes effect with the entry `last`, as of this time.
    fn operations(&mut self, entries: &[DocBuf], last: RawDoc<'_>, time: u64) -> Result<()> {
        // Its events are as large until they are given.
        self.held = reserve_for(entries)?;
        let (_, wall) = times(last);
        let mut index = 0;
        for entry in entries {
            let operations = Operation::read(entry.as_raw()).and_then(|entry| entry.applied());
            for doc in operations.unwrap_or(RawDoc::EMPTY).values().filter_map(|v| v.as_doc()) {
                let origin = Origin { time, wall, transaction: Some((last, index)) };
                index += 1;
                let is_command = Operation::read(doc).is_some_and(|operation| operation.is_command());
                let shown = if is_command { crate::oplog::shown(doc) } else { None };
                let doc = shown.as_ref().map_or(doc, DocBuf::as_raw);
                let found =
                    Operation::read(doc).and_then(|operation| events(&self.stream, origin, operation));
                self.offer(found, millis(wall))?;
            }
        }
        Ok(())
    }

    /// Takes in an operation's events.
    fn offer(&mut self, found: Option<(Event, Option<Event>)>, wall_millis: i64) -> Result<()> {
        let Some((event, end)) = found else { return Ok(()) };
        for event in std::iter::once(event).chain(end) {
            let ready = Ready { event, wall_millis };
            if self.behind_doubts.is_empty() && self.doubts.oldest().is_none() {
                self.ready(ready)?;
            } else {
                self.behind_doubts.insert(ready.event.token.clone(), ready);
            }
        }
        Ok(())
    }

    /// Readies the events that no transaction in doubt can precede any more.
    fn release(&mut self) -> Result<()> {
        let doubt = self.doubts.oldest().unwrap_or(u64::MAX);
        while let Some(first) = self.behind_doubts.first_entry()
            && first.key().time < doubt
        {
            let ready = first.remove();
            self.ready(ready)?;
        }
        Ok(())
    }

    /// Readies an event, unless it lies before the position to resume at.
    fn ready(&mut self, ready: Ready) -> Result<()> {
        if self.is_behind(&ready.event)? {
            self.ready.push_back(ready);
        }
        Ok(())
    }

    /// Whether an event follows the position to resume at.
    fn is_behind(&mut self, event: &Event) -> Result<bool> {
        let Some(resume) = self.resume.as_mut().filter(|resume| !resume.met) else { return Ok(true) };
        let whole = resume.token.without_fragment();
        if event.token < whole {
            return Ok(false);
        }
        if event.token == whole {
            resume.met = true;
            // The rest of a split event is still wanted.
            return Ok(resume.token.fragment.is_some());
        }
        if self.stream.merged {
            // Another shard has the event.
            resume.met = true;
            return Ok(true);
        }
        let id = event.token.to_doc();
        bail!(
            Code::CHANGE_STREAM_FATAL_ERROR,
            "cannot resume stream; the resume token was not found. {}",
            sheaf_aggregate::print_document(id.as_raw())
        )
    }
}

impl ChangeStreamSource {
    /// Sees that an event is ready, if there is one now.
    fn make_ready(&mut self, cx: &mut Cx<'_>, view: &View) -> Result<Step> {
        if !self.ready.is_empty() {
            return Ok(Step::Row);
        }
        if self.partial.is_empty() && self.held.bytes() > 0 {
            self.held = Held::default();
        }
        if self.behind_doubts.is_empty() && self.is_quiet(view) {
            return self.note_end(view, true);
        }
        self.catch_up(view)?;
        let step = self.read(cx, view)?;
        if step == Step::Eof { self.note_end(view, false) } else { Ok(step) }
    }

    /// Whether a document that was kept at this time may be shown no more.
    fn image_is_expired(&mut self, wall_millis: i64, now_millis: i64, view: &View) -> Result<bool> {
        let limit = match self.image_seconds {
            Some(limit) => limit,
            None => *self.image_seconds.insert(super::image_seconds(view)?),
        };
        let age = now_millis.saturating_sub(wall_millis);
        Ok(limit.is_some_and(|seconds| age > seconds.saturating_mul(1000)))
    }
}

impl Operator for ChangeStreamSource {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        if self.position.lock().ended {
            return Ok(Step::Eof);
        }
        let view = self.view.get_or_insert_with(|| self.db.view()).clone();
        self.position.lock().quiet = false;
        let step = self.make_ready(cx, &view)?;
        if step != Step::Row {
            return Ok(step);
        }
        let Ready { event, wall_millis } = self.ready.pop_front().expect("an event is ready");
        self.position.lock().moved(&event.token, event.invalidates);
        let expired =
            event.before.is_some() && self.image_is_expired(wall_millis, cx.limits.now_millis, &view)?;
        self.current = Some(lookup::complete(&self.stream, event, &view, expired, cx)?);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        self.current.as_ref().map_or(Row::default(), |event| Row::of(event.as_raw()))
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}

    fn suspend(&mut self) {
        self.cursor.suspend();
        self.view = None;
        self.image_seconds = None;
    }
}

/// Bytes of a transaction from which on they are counted.
const COUNTED_BYTES: usize = 1 << 20;

/// Counts a transaction's entries, if they are large.
fn reserve_for(entries: &[DocBuf]) -> Result<Held> {
    let bytes: usize = entries.iter().map(|entry| entry.as_bytes().len()).sum();
    if bytes < COUNTED_BYTES { Ok(Held::default()) } else { sheaf_meter::reserve(bytes as u64) }
}

/// The time in an entry's `prevOpTime`; 0 where it continues none.
fn previous(entry: RawDoc<'_>) -> u64 {
    match entry.get("prevOpTime").and_then(|previous| previous.as_doc()?.get("ts")) {
        Some(Value::Timestamp(time)) => time.0,
        _ => 0,
    }
}

/// Whether a transaction's entry continues the one before it, if there is one.
fn follows(before: Option<&DocBuf>, entry: &DocBuf) -> bool {
    before.is_none_or(|before| times(before.as_raw()).0 == previous(entry.as_raw()))
}

/// `op` and `ns`, which stand in front.
fn names(entry: RawDoc<'_>) -> (&str, &str) {
    let mut op = "";
    for field in entry.iter() {
        match field.key() {
            "op" => op = field.value().as_str().unwrap_or_default(),
            "ns" => return (op, field.value().as_str().unwrap_or_default()),
            _ => {}
        }
    }
    (op, "")
}

fn is_transaction(entry: RawDoc<'_>) -> bool {
    Operation::read(entry).is_some_and(|operation| operation.applied().is_some())
}

fn is_commit(entry: RawDoc<'_>) -> bool {
    entry.get("o").is_some_and(|o| o.as_doc().is_some_and(|o| o.element("commitTransaction").is_some()))
}

fn is_abort(entry: RawDoc<'_>) -> bool {
    entry.get("o").is_some_and(|o| o.as_doc().is_some_and(|o| o.element("abortTransaction").is_some()))
}

/// The transactions in doubt at the time from which on a stream reads: those that are decided since stand behind it in the log.
fn doubts_at(engine: &Engine, watched: &Watched, oplog: &Oplog, view: &View, from: u64) -> Result<Doubts> {
    let mut doubts = Doubts::default();
    // Of the last moments it is known without looking into the log.
    let before = Timestamp(from.saturating_sub(1)).min(view.time());
    if let Some(undecided) = engine.undecided_at(before) {
        // What has been decided since may have another name by now.
        doubts.are(&undecided, |collections| before < view.time() || may_see(watched, view, collections));
        return Ok(doubts);
    }
    let rows = engine.transaction_rows();
    for (key, row) in &rows {
        if let TransactionRow::Prepared { at, .. } = row
            && at.0 < from
        {
            doubts.begun(at.0, Some((key.lsid.clone(), key.txn_number)), Meaning::InLog);
        }
    }
    // Where no transaction has been over shards, none was decided.
    if rows.is_empty() {
        return Ok(doubts);
    }
    let end = Timestamp(engine.last_applied().time);
    let mut cursor = oplog.from_time(Timestamp(from)).map_err(lost)?.whole_entries();
    while let Some(doc) = cursor.next(end).map_err(lost)? {
        let commit = if names(doc).0 == "c" { commit_times(doc) } else { None };
        if let Some((_, prepared)) = commit.filter(|(at, prepared)| *prepared < from && *at >= from) {
            doubts.begun(prepared, None, Meaning::InLog);
        }
    }
    Ok(doubts)
}

/// `ts` and `wall` of an entry.
fn times(entry: RawDoc<'_>) -> (u64, Value<'_>) {
    let time = if let Some(Value::Timestamp(time)) = entry.get("ts") { time.0 } else { 0 };
    (time, entry.get_or_missing("wall"))
}

fn millis(wall: Value<'_>) -> i64 {
    if let Value::DateTime(millis) = wall { millis } else { 0 }
}

/// Whether the log still has everything from a time on.
fn check_history(oplog: &Oplog, view: &View, from: u64) -> Result<()> {
    match oplog.oldest().map_err(lost)? {
        Some(oldest) if from < oldest.0 && from <= view.time().0 => bail!(
            Code::CHANGE_STREAM_HISTORY_LOST,
            "Resume of change stream was not possible, as the resume point may no longer be in the oplog."
        ),
        _ => Ok(()),
    }
}

/// A place that the log has lost is an error of its own for change streams.
fn lost(error: Error) -> Error {
    if error.code() == Code::CAPPED_POSITION_LOST {
        return Error::new(Code::CHANGE_STREAM_HISTORY_LOST, error.message());
    }
    error
}
