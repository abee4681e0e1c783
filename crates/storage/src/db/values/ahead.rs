//! Reading ahead: documents in files that a scan is about to come to, many at a time, by a thread beside it.
//!
//! The iterator goes ahead of its cursor and collects what it finds in runs; the documents of a run that are beside each other in a file are one
//! read. While the cursor gives those of one run, the thread reads the next two. A document that cannot be read so is read again, alone, when the cursor comes to it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rocksdb::DBRawIterator;

use super::{Pin, Reference, Values};
use crate::db::Db;

/// Documents of a run: of the first, and the most, to which they double.
const FIRST_DOCUMENTS: usize = 8;
const MOST_DOCUMENTS: usize = 16;
/// A run ends with the document that makes it so long.
const RUN_BYTES: usize = 256 << 10;
/// A larger document is read alone: runs take memory that is nobody's.
const DOCUMENT_BYTES: u32 = 256 << 10;

/// What is between two documents in a file is read with them if it is not more: the rest of their entries.
const BETWEEN_BYTES: u32 = 4 << 10;

/// Runs that are being read beside the one that is given.
const RUNS_AHEAD: usize = 2;

/// Where an entry of a run is.
struct Entry {
    key: Range<usize>,
    /// In the run's values, or among the documents that were read.
    value: Range<usize>,
    /// To the document. `None`: it is the value.
    reference: Option<Reference>,
    /// Whether it is there.
    is_read: bool,
}

/// Entries that follow each other.
#[derive(Default)]
struct Run {
    entries: Vec<Entry>,
    keys: Vec<u8>,
    values: Vec<u8>,
    documents: Vec<u8>,
}

/// What the cursor does next.
pub(crate) enum Next {
    /// Gives the entry that is next.
    Entry,
    /// Moves the iterator, which stands on the entry that was given last.
    Plain,
    /// Moves the iterator to this key.
    Again(Vec<u8>),
}

/// The entries ahead of a cursor.
pub(crate) struct Ahead {
    db: Arc<Db>,
    /// The run that is given, and where in it the cursor stands.
    run: Run,
    at: usize,
    /// Runs that were given, whose memory is used again.
    given: Vec<Run>,
    /// The iterator has nothing more for runs.
    ended: bool,
    documents: usize,
    beside: Beside,
    _turn: Turn,
}

/// The thread that reads, and how many runs it has.
struct Beside {
    give: Option<SyncSender<Run>>,
    take: Receiver<Run>,
    thread: Option<JoinHandle<()>>,
    has: usize,
    /// Nobody wants what it has any more.
    is_over: Arc<AtomicBool>,
}

/// So many for each processor read ahead at a time, and in the whole process: what each takes is up to 2 MB, which nobody counts.
const TURNS_EACH: usize = 2;
const TURNS_MOST: usize = 16;

/// The right to read ahead.
struct Turn;

static TURNS: AtomicUsize = AtomicUsize::new(0);

impl Turn {
    fn take() -> Option<Turn> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let most = (TURNS_EACH * processors).min(TURNS_MOST);
        let taken = TURNS
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| (taken < most).then_some(taken + 1));
        taken.is_ok().then_some(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Ahead {
    /// For a cursor with this pin. `None`: so many others read ahead that this one reads as it has, or there is no thread for it.
    pub fn begin(db: &Arc<Db>, pin: &Pin) -> Option<Box<Ahead>> {
        let turn = Turn::take()?;
        let beside = Beside::start(db.clone(), pin.clone())?;
        Some(Box::new(Ahead {
            db: db.clone(),
            run: Run::default(),
            at: 0,
            given: Vec::new(),
            ended: false,
            documents: FIRST_DOCUMENTS,
            beside,
            _turn: turn,
        }))
    }

    /// The key on which the cursor stands.
    pub fn key(&self) -> &[u8] {
        &self.run.keys[self.run.entries[self.at].key.clone()]
    }

    /// The document there.
    pub fn value(&self) -> &[u8] {
        let entry = &self.run.entries[self.at];
        let bytes = if entry.reference.is_some() { &self.run.documents } else { &self.run.values };
        &bytes[entry.value.clone()]
    }

    /// Goes to the next entry. The iterator is where this left it, or on the entry that was given before.
    pub fn next(&mut self, iter: &mut DBRawIterator<'_>) -> Next {
        self.at += 1;
        if self.at >= self.run.entries.len() {
            let Some(run) = self.next_run(iter) else { return Next::Plain };
            self.given.push(std::mem::replace(&mut self.run, run));
            self.at = 0;
        }
        if self.run.entries[self.at].is_read { Next::Entry } else { Next::Again(self.key().to_vec()) }
    }

    fn next_run(&mut self, iter: &mut DBRawIterator<'_>) -> Option<Run> {
        // The first is not worth waiting for a thread.
        let mut first = None;
        if self.beside.has == 0 {
            let mut run = self.collect(iter)?;
            run.read(&self.db.values);
            first = Some(run);
        }
        while self.beside.has < RUNS_AHEAD
            && let Some(run) = self.collect(iter)
        {
            self.beside.give(run);
        }
        first.or_else(|| self.beside.take())
    }

    /// The run that follows; `None` if there is no more.
    fn collect(&mut self, iter: &mut DBRawIterator<'_>) -> Option<Run> {
        if self.ended {
            return None;
        }
        let mut run = self.given.pop().unwrap_or_default();
        run.clear();
        let (mut bytes, mut inline) = (0, 0);
        while run.entries.len() < self.documents && bytes < RUN_BYTES {
            iter.next();
            let Some((key, value)) = iter.item() else {
                self.ended = true;
                break;
            };
            let reference = Reference::read(value);
            bytes += reference.map_or(value.len(), |reference| reference.length as usize);
            inline += usize::from(reference.is_none());
            run.push(key, value, reference);
            // It is read alone, and with what is behind it it begins anew.
            if reference.is_some_and(|reference| reference.length > DOCUMENT_BYTES) {
                self.ended = true;
                break;
            }
        }
        // Others need not be copied.
        self.ended |= inline * 2 > run.entries.len();
        self.documents = (2 * self.documents).min(MOST_DOCUMENTS);
        (!run.entries.is_empty()).then_some(run)
    }
}

impl Run {
    fn clear(&mut self) {
        self.entries.clear();
        self.keys.clear();
        self.values.clear();
    }

    fn push(&mut self, key: &[u8], value: &[u8], reference: Option<Reference>) {
        let place = |bytes: &mut Vec<u8>, new: &[u8]| {
            let begin = bytes.len();
            bytes.extend_from_slice(new);
            begin..bytes.len()
        };
        let key = place(&mut self.keys, key);
        let value = if reference.is_none() { place(&mut self.values, value) } else { 0..0 };
        self.entries.push(Entry { key, value, reference, is_read: reference.is_none() });
    }

    /// Reads its documents.
    fn read(&mut self, values: &Values) {
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut room = 0;
        for (at, entry) in self.entries.iter_mut().enumerate() {
            let Some(reference) = entry.reference.filter(|reference| reference.length <= DOCUMENT_BYTES)
            else {
                continue;
            };
            if !stretches.last().is_some_and(|stretch| stretch.takes(&reference)) {
                let (from, to) = (reference.offset, reference.offset);
                stretches.push(Stretch { file: reference.file, from, to, room, entries: at..at });
            }
            let stretch = stretches.last_mut().expect("one was put there");
            let begin = stretch.room + (reference.offset - stretch.from) as usize;
            entry.value = begin..begin + reference.length as usize;
            stretch.to = reference.offset.saturating_add(reference.length);
            stretch.entries.end = at + 1;
            room = entry.value.end;
        }
        if self.documents.len() < room {
            self.documents.resize(room, 0);
        }
        for stretch in stretches {
            let bytes =
                &mut self.documents[stretch.room..stretch.room + (stretch.to - stretch.from) as usize];
            let is_read = values.read_stretch(stretch.file, u64::from(stretch.from), bytes).is_ok();
            for entry in &mut self.entries[stretch.entries] {
                if let Some(reference) = entry.reference.filter(|_| is_read) {
                    entry.is_read =
                        self.documents.get(entry.value.clone()).is_some_and(|b| reference.fits(b));
                }
            }
        }
    }
}

/// A part of a file that is read at once.
struct Stretch {
    file: u32,
    from: u32,
    to: u32,
    /// Where it begins among the run's documents.
    room: usize,
    entries: Range<usize>,
}

impl Stretch {
    /// Whether it can go on with this document.
    fn takes(&self, next: &Reference) -> bool {
        self.file == next.file && next.offset.checked_sub(self.to).is_some_and(|gap| gap <= BETWEEN_BYTES)
    }
}

impl Beside {
    fn start(db: Arc<Db>, pin: Pin) -> Option<Beside> {
        let (give, work) = sync_channel::<Run>(RUNS_AHEAD);
        let (done, take) = sync_channel(RUNS_AHEAD);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let read = move || {
            let _pin = pin;
            while let Ok(mut run) = work.recv()
                && !over.load(Ordering::Relaxed)
            {
                run.read(&db.values);
                if done.send(run).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sheaf-ahead".to_owned()).spawn(read).ok()?;
        Some(Beside { give: Some(give), take, thread: Some(thread), has: 0, is_over })
    }

    fn give(&mut self, run: Run) {
        if let Some(give) = &self.give {
            give.send(run).expect("the thread ends when nothing is to come");
            self.has += 1;
        }
    }

    fn take(&mut self) -> Option<Run> {
        if self.has == 0 {
            return None;
        }
        self.has -= 1;
        Some(self.take.recv().expect("the thread gives back what it has"))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // What it reads is what the cursor keeps.
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.give.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
