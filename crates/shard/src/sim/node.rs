//! One member of a shard: a process on a machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sheaf_repl::{Member, MemberOptions, Persist, Recovered};

use crate::placement::Belief;
use crate::time::{Clock, ClusterTime};
use crate::transaction::{Executed, ReplyId, Rows, WaiterId};
use crate::types::TransactionId;
use crate::{LogRecord, ReaderId, Shard};

use super::deciding::{Batch, Question};
use super::directory::shard_id;
use super::disk::Disk;
use super::message::{Address, Op};
use super::state::Moves;
use super::store::{Key, Payload, Store, Value};

/// What a reader is about to do when its state can be shown.
#[derive(Clone, Debug)]
pub(super) enum Reading {
    Execute { id: TransactionId, after: Option<Executed>, op: Op, belief: Option<Belief> },
    At { keys: Vec<Key>, belief: Option<Belief> },
}

/// A reader, and whom to answer.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub from: Address,
    pub number: u64,
    pub at: ClusterTime,
    pub reading: Reading,
}

/// The writes of an open transaction, and the time that it reads at.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenWrites {
    pub executed: Executed,
    pub read_at: ClusterTime,
    pub payload: Payload,
}

/// What is gone with the process.
pub(super) struct Process {
    pub member: Member,
    pub shard: Shard,
    pub clock: Clock,
    pub store: Store,
    pub leading: bool,
    /// Index of the last entry that this process has proposed or applied.
    pub last_index: u64,
    pub open: BTreeMap<TransactionId, OpenWrites>,
    /// Documents of plain writes that are proposed and not applied.
    pub writing: BTreeSet<Key>,
    /// Transactions whose prepare or commit is proposed and not applied.
    pub ending: BTreeSet<TransactionId>,
    pub moves: Moves,
    /// Plain writes by the index that must be on a majority: whom to tell, and what was there before.
    pub written: BTreeMap<u64, (Address, u64, Value)>,
    pub replies: BTreeMap<ReplyId, (Address, u64)>,
    /// What routers have told and asked of several commits at once.
    pub batches: Vec<Batch>,
    pub questions: Vec<Question>,
    pub reads: BTreeMap<ReaderId, Reader>,
    pub waits: BTreeMap<WaiterId, Reader>,
    /// What this member has asked other shards, by the number of the call.
    pub calls: BTreeMap<u64, (usize, TransactionId)>,
    pub to_write: VecDeque<Persist>,
    pub to_apply: VecDeque<Persist>,
    pub written_seq: u64,
    pub syncing: bool,
    pub next: u64,
}

/// A machine.
pub(super) struct Node {
    pub shard: usize,
    pub id: u64,
    pub host: Arc<str>,
    pub disk: Disk,
    pub process: Option<Process>,
    /// Counts the starts; events of earlier ones are void.
    pub incarnation: u64,
    pub paused_until: u64,
    /// By how many milliseconds the wall clock is wrong.
    pub wall_wrong: i64,
}

impl Node {
    pub fn new(shard: usize, id: u64, wall_wrong: i64) -> Self {
        let host = Arc::from(format!("s{shard}m{id}:27018"));
        Node {
            shard,
            id,
            host,
            disk: Disk::default(),
            process: None,
            incarnation: 0,
            paused_until: 0,
            wall_wrong,
        }
    }

    /// Starts the process on what the disk has: the data is the log, applied.
    pub fn start(&mut self, seed: u64, first: Store, payloads: &[Payload]) {
        self.incarnation += 1;
        let image = &self.disk.image;
        let me = shard_id(self.shard);
        let (mut store, mut rows, mut ceiling) = (first, Rows::default(), ClusterTime::ZERO);
        for entry in &image.entries {
            let Some(payload) = payload_of(&entry.payload, payloads) else { continue };
            let time = ClusterTime::from_bits(entry.time);
            store.apply(time, payload);
            match &payload.record {
                Some(LogRecord::Transaction(record)) => drop(rows.apply(entry.at.index, time, record, &me)),
                Some(LogRecord::Ceiling(at)) => ceiling = ceiling.max(*at),
                None => {}
            }
        }
        let last = image.last();
        let mut hard_state = image.hard_state;
        hard_state.commit = hard_state.commit.min(last.index);
        let times = image.entries.iter().filter(|entry| entry.at.index >= hard_state.commit);
        let times = times.map(|entry| (entry.at.index, entry.time)).collect();
        let config = image.config.as_ref().map(|(config, me)| ((**config).clone(), *me));
        let options = MemberOptions {
            seed: seed ^ (self.incarnation << 40),
            incarnation: self.incarnation,
            ..MemberOptions::new("rs")
        };
        let member = Member::new(options, Recovered { hard_state, log: image.bounds(), times, config });
        let rows = Rows::new(rows.iter().map(|(id, row)| (id.clone(), row.clone())), last.index);
        let mut shard = Shard::new(me, rows, ceiling, last.index);
        shard.majority(member.commit_point().index);
        self.process = Some(Process {
            clock: Clock::new(ClusterTime::from_bits(image.bounds().last_time)),
            member,
            shard,
            store,
            leading: false,
            last_index: last.index,
            open: BTreeMap::new(),
            writing: BTreeSet::new(),
            ending: BTreeSet::new(),
            moves: Moves::default(),
            written: BTreeMap::new(),
            replies: BTreeMap::new(),
            batches: Vec::new(),
            questions: Vec::new(),
            reads: BTreeMap::new(),
            waits: BTreeMap::new(),
            calls: BTreeMap::new(),
            to_write: VecDeque::new(),
            to_apply: VecDeque::new(),
            written_seq: 0,
            syncing: false,
            next: 0,
        });
    }
}

/// The content of an entry: its payload is a number in the world's list. None for the entry that begins a term.
pub(super) fn payload_of<'a>(bytes: &[u8], payloads: &'a [Payload]) -> Option<&'a Payload> {
    let number = u64::from_le_bytes(bytes.try_into().ok()?);
    payloads.get(number as usize)
}

impl Process {
    /// Whether somebody else has written to the document, or is about to, since `read_at` (`None`: ever committed is no obstacle).
    pub fn conflicts(&self, key: Key, id: Option<&TransactionId>, read_at: Option<ClusterTime>) -> bool {
        let other = |(of, open): (&TransactionId, &OpenWrites)| {
            Some(of) != id && open.payload.writes.contains_key(&key)
        };
        self.writing.contains(&key)
            || self.open.iter().any(other)
            || self.store.prepared.values().any(|payload| payload.writes.contains_key(&key))
            || read_at.is_some_and(|at| self.store.changed(key) > at)
    }

    /// Whether it answers requests.
    pub fn leads(&self) -> bool {
        self.leading && self.shard.is_leading()
    }

    pub fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
