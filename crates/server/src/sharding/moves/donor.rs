//! The donor: documents of a range as they are now, and its closing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::moves::{ChangeOf, Move, MoveAnswer, Token};
use sheaf_storage::Uuid;

use super::batch::{self, Batch};
use super::scan::Part;
use super::{Moves, Told};
use crate::sharding::rows;
use crate::sharding::statistics::Statistics;

/// How long closing waits for writers. The machine gives up by itself at about that time.
const DRAIN: Duration = Duration::from_millis(500);

/// So many sessions are looked at in one go.
const SESSIONS: usize = 1000;

impl Moves {
    /// Whether this shard owns all of the range.
    pub(super) fn owns(&self, the_move: &Move) -> bool {
        let (uuid, catalog) = (Uuid::from_bytes(the_move.uuid), self.engine.catalog());
        let placed = self.sharding.placements().now(&self.engine, &catalog, &uuid);
        placed
            .is_ok_and(|placed| placed.is_some_and(|placed| placed.placement.owned.covers(&the_move.range())))
    }

    /// The sessions that have retryable statements on record.
    pub(super) fn recorded_sessions(&self) -> Vec<Arc<[u8]>> {
        let (mut found, mut after) = (Vec::new(), None::<DocBuf>);
        // What cannot be read now cannot be read when it is to be told either, and the move is refused then.
        while let Ok(some) = self.engine.recorded_sessions(after.as_ref().map(DocBuf::as_raw), SESSIONS)
            && !some.is_empty()
        {
            found.extend(some.iter().map(|lsid| Arc::from(lsid.as_bytes())));
            after = some.into_iter().next_back();
        }
        found
    }

    /// The next documents of the range.
    pub(super) fn copy(&self, the_move: &Move, after: Option<&[u8]>) -> Result<Told> {
        let part = Part::of(&self.engine, the_move)?;
        let of = &self.sharding.statistics;
        let (last, fields) = batch::copied(|list| {
            part.scan(after, &mut |_, document| {
                let taken = batch::take(list, document);
                if taken {
                    Statistics::cloned(&of.cloned_from_here, &of.cloned_bytes_from_here, document.len());
                }
                Ok(taken)
            })
        })?;
        Ok((MoveAnswer::Copied { last }, fields))
    }

    /// What has changed, as it is now.
    pub(super) fn changes(
        &self,
        the_move: &Move,
        changes: &[(u64, ChangeOf)],
        (upto, left, closing): (u64, u64, Option<Token>),
    ) -> Result<Told> {
        let part = Part::of(&self.engine, the_move)?;
        let mut batch = Batch::default();
        let (mut told, mut count, mut sessions) = (upto, 0, false);
        for (number, change) in changes {
            let fits = match change {
                ChangeOf::Document(key) => match part.get(key)? {
                    Some(document) => batch.take(document.as_raw()),
                    None => batch.take_gone(key),
                },
                ChangeOf::Session(lsid) => {
                    let statements = self.engine.session_statements(RawDoc::new(lsid), &the_move.ns)?;
                    sessions |= !statements.is_empty();
                    batch.take_statements(&statements)
                }
            };
            if !fits {
                break;
            }
            (told, count) = (*number, count + 1);
        }
        let rest = changes.len() as u64 - count;
        if sessions {
            let Some(term) = self.term() else { return Err(super::not_primary()) };
            rows::until_majority(&self.replica, self.engine.last_applied(), term, &|| self.until_end())?;
        }
        Ok((MoveAnswer::Changed { upto: told, count, left: left + rest, closing }, batch.fields()))
    }

    /// Keeps writers out of the collection, if those that are in leave in time.
    pub(super) fn close(self: &Arc<Self>, the_move: &Move) {
        let deadline = Instant::now() + DRAIN;
        let in_time = || {
            self.until_end()?;
            if Instant::now() < deadline {
                return Ok(());
            }
            bail!(Code::LOCK_TIMEOUT, "the writers of {} do not end within {DRAIN:?}", the_move.ns)
        };
        let held = self.engine.hold(&Uuid::from_bytes(the_move.uuid), &in_time);
        // If there is none, the machine opens it when its time is over.
        let Ok(Some(hold)) = held else { return };
        self.now(|state| {
            if state.donors.is_closing(the_move.id) {
                state.holds.insert(the_move.id, hold);
                self.sharding.statistics.closes(the_move.id);
                state.donors.drained(the_move.id);
            }
        });
    }
}
