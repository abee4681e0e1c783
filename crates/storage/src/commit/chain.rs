//! Transactions that are larger than an entry of the log: a chain of entries that takes effect with its last one.
//!
//! Each entry has one oplog document, `{op: "c", o: {applyOps: [...]}}`. All but the last say `partialTxn: true`, each
//! names the time of the one before it in `prevOpTime`, and they follow each other in the log, all of one term. The pipeline
//! is held from the first to the last, so nothing comes between them while this member leads. What does come between (the
//! first entry of a new primary, which has only the beginning of the chain) ends the chain: it has had no effect, and never
//! will have.
//!
//! Who applies entries of others keeps those of a chain that is not yet whole ([`Commits::keep_chain`]). They count as applied, but
//! nothing is flushed meanwhile: recovery must meet the first of them again.

use bytes::Bytes;
use sheaf_errors::{Code, Error, Result};

use super::Commits;
use crate::commit::majority::Span;
use crate::commit::prepared::Prepared;
use crate::core::Core;
use crate::critical::{impossible, must};
use crate::hooks::HookPoint;
use crate::oplog::{self, LogEntry, Stamps};
use crate::options::OpTime;
use crate::sequencer::Sequencer;

/// What entries at the front of a list are to each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// The first one stands for itself.
    Single,
    /// So many are a transaction, whole.
    Whole(usize),
    /// So many are the beginning of a transaction that never came to its end.
    Dead(usize),
    /// All are the beginning of a transaction; the rest may follow.
    Open,
}

/// How the first of these entries (there is one) is to be applied, with how many of those behind it.
///
/// Errors: it continues what is not there.
pub(crate) fn run(entries: &[&LogEntry]) -> Result<Run> {
    let mut last = entries[0];
    let Some(mut link) = oplog::link(&last.payload) else { return Ok(Run::Single) };
    if link.previous.is_some() {
        let text =
            format!("entry {} of the log continues a transaction whose beginning is not there", last.index);
        return Err(Error::new(Code::INTERNAL_ERROR, text));
    }
    let mut count = 1;
    while link.partial {
        let Some(next) = entries.get(count) else { return Ok(Run::Open) };
        match oplog::link(&next.payload) {
            Some(found) if found.previous == Some(last.time) && next.term == last.term => link = found,
            _ => return Ok(Run::Dead(count)),
        }
        last = next;
        count += 1;
    }
    Ok(Run::Whole(count))
}

/// Takes the first document off a payload.
fn split_first(payload: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
    let len = i32::from_le_bytes(*payload.first_chunk::<4>()?) as usize;
    payload.split_at_mut_checked(len)
}

/// Where a chain under construction has come to.
struct Progress {
    stamps: Stamps,
    /// Term and cluster time of the entry before.
    previous: Option<(u64, u64)>,
}

impl Progress {
    fn new(core: &Core) -> Self {
        Progress { stamps: Stamps::at((core.base.options.clock_micros)()), previous: None }
    }

    /// Stamps the next document of the chain, and gives its time.
    fn stamp(&mut self, doc: &mut [u8], term: u64, after: u64) -> u64 {
        let mut time = after;
        oplog::stamp_link(doc, self.previous);
        self.stamps.stamp(doc, term, &mut time);
        self.previous = Some((term, time));
        time
    }
}

impl Core {
    /// Commits a unit whose payload is a chain, one entry after the other. The pipeline is held.
    pub fn commit_chain(&self, mut unit: Prepared) -> Result<OpTime> {
        let payload = std::mem::take(&mut unit.payload);
        match self.base.sequencer() {
            Some(sequencer) => self.propose_chain(&**sequencer, payload, unit),
            None => self.log_chain(payload, unit),
        }
    }

    fn log_chain(&self, mut payload: Vec<u8>, unit: Prepared) -> Result<OpTime> {
        self.durability.check_writable()?;
        self.base.check_alone()?;
        let mut at = self.published.last();
        let mut progress = Progress::new(self);
        let mut rest = &mut payload[..];
        while let Some((doc, after)) = split_first(rest) {
            let time = progress.stamp(doc, at.term, at.time);
            if let Err(error) = self.log_part(doc, at, time) {
                // What is in the log of it is passed over.
                self.advance(at);
                return Err(error);
            }
            at = OpTime { term: at.term, index: at.index + 1, time };
            rest = after;
        }
        drop(payload);
        self.apply(unit, at)
    }

    fn log_part(&self, doc: &[u8], before: OpTime, time: u64) -> Result<()> {
        let Some(log) = self.durability.log() else { return Ok(()) };
        self.base.hooks.call(HookPoint::Append)?;
        let at = log.append(before.term, time, &[doc]).map_err(|e| self.durability.log_error(e))?;
        self.flushes.note_logged(doc.len() as u64);
        must!(
            at.index == before.index + 1,
            "the log has given {at:?} to what the pipeline orders after {before:?}"
        );
        self.durability.appended();
        Ok(())
    }

    fn propose_chain(
        &self,
        sequencer: &dyn Sequencer,
        mut payload: Vec<u8>,
        unit: Prepared,
    ) -> Result<OpTime> {
        unit.since.map_or(Ok(()), |since| self.commits.check_no_others(since))?;
        let mut progress = Progress::new(self);
        let mut rest = &mut payload[..];
        loop {
            let Some((doc, after)) = split_first(rest) else {
                impossible!("a chain of entries has no last one")
            };
            let seq = self.propose_part(sequencer, doc, &mut progress)?;
            let own = self.apply_units_before(sequencer, seq)?;
            if !after.is_empty() {
                // As an entry of others would be: it is kept until the chain is whole.
                self.apply_unit(sequencer, own, &|| !sequencer.takes_writes())?;
                rest = after;
                continue;
            }
            let own = self.append_own(sequencer, own)?;
            let Some(last) = own.entries.last() else {
                impossible!("unit {} of a chain has no entry", own.seq)
            };
            self.check_whole(last);
            let at = OpTime { term: last.term, index: last.index, time: last.time };
            let at = self.apply_own(unit, at)?;
            self.acknowledge(sequencer, own.seq, Span::of(&own.entries));
            return Ok(at);
        }
    }

    /// Proposes the next entry of a chain, and gives its unit's number.
    ///
    /// Errors: `NotWritablePrimary`; `InterruptedDueToReplStateChange` if the term is another one than the chain's.
    fn propose_part(
        &self,
        sequencer: &dyn Sequencer,
        doc: &mut [u8],
        progress: &mut Progress,
    ) -> Result<u64> {
        self.reserve_alone(sequencer, doc.len(), false)?;
        let mut broken = false;
        let seq = sequencer.propose(&mut |term, after| {
            broken = progress.previous.is_some_and(|(before, _)| before != term);
            if !broken {
                let time = progress.stamp(doc, term, after);
                return (time, Bytes::copy_from_slice(doc));
            }
            // The entry has to be something; this ends the chain.
            let mut time = after;
            let mut noop = Vec::new();
            oplog::write(&mut noop, "n", "", None, None, |doc| {
                doc.append("o", &sheaf_bson::doc! { "msg": "a transaction has ended without effect" });
            });
            progress.stamps.stamp(&mut noop, term, &mut time);
            (time, Bytes::from(noop))
        })?;
        if !broken {
            return Ok(seq);
        }
        let own = self.apply_units_before(sequencer, seq)?;
        self.apply_unit(sequencer, own, &|| !sequencer.takes_writes())?;
        Err(Error::new(
            Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            "operation was interrupted: the member's state changed while it ran",
        ))
    }

    /// The last entry of an own chain is in the log: it must take effect together with all before it, here and elsewhere.
    fn check_whole(&self, last: &LogEntry) {
        let chain = self.commits.take_chain();
        let all: Vec<&LogEntry> = chain.iter().chain([last]).collect();
        let follow = all.windows(2).all(|pair| pair[0].index + 1 == pair[1].index);
        let found = run(&all);
        must!(
            follow && found.as_ref().is_ok_and(|run| *run == Run::Whole(all.len())),
            "a transaction of {} entries, the last of which is {}, is not whole in the log: {found:?}",
            all.len(),
            last.index
        );
    }

    /// Another entry follows, or none ever will: what began there has no effect.
    pub fn end_chain(&self) {
        let chain = self.commits.take_chain();
        if let (Some(first), Some(last)) = (chain.first(), chain.last()) {
            tracing::info!(
                first = first.index,
                last = last.index,
                "a transaction in the log has no end; it is passed over"
            );
        }
    }
}

impl Commits {
    /// Whether the log ends within a transaction whose other entries may follow: nothing may be flushed then.
    pub fn is_within_chain(&self) -> bool {
        !self.chain.lock().is_empty()
    }

    /// Takes the beginning of a transaction at the log's end; whoever takes it applies it, or puts it back.
    pub fn take_chain(&self) -> Vec<LogEntry> {
        std::mem::take(&mut *self.chain.lock())
    }

    /// Keeps the beginning of a transaction at the log's end.
    pub fn keep_chain(&self, entries: Vec<LogEntry>) {
        let follow = entries.windows(2).all(|pair| {
            pair[0].index + 1 == pair[1].index && pair[0].term == pair[1].term && pair[0].time < pair[1].time
        });
        must!(follow, "the entries of an open transaction do not follow each other");
        let before = std::mem::replace(&mut *self.chain.lock(), entries);
        must!(before.is_empty(), "{} entries of an open transaction would be forgotten", before.len());
    }
}
