//! What has left this shard, or was received in vain, is removed by its primary: the mark in the placement says so, and goes last.

use std::sync::Weak;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_shard::moves::PlacementChange;
use sheaf_shard::placement::{Key, KeyPattern, KeyRange};
use sheaf_storage::{Uuid, Write};

use super::Moves;
use super::recipient::remove_record;
use super::scan::Part;
use crate::sharding::marks::{PLACEMENTS, is_closed, ranges_of, uuid_of, uuid_value};
use crate::sharding::rows;

/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(250);

/// So many documents are removed together.
const TOGETHER: usize = 500;

/// How long what failed is left alone.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) fn run(of: &Weak<Moves>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(moves) = of.upgrade() else { return };
        if moves.sharding.until_end().is_err() {
            return;
        }
        if moves.term().is_some()
            && let Err(error) = moves.clear_ways().and_then(|()| moves.clean())
        {
            tracing::debug!(%error, "what has left this shard is not removed yet");
            std::thread::sleep(PAUSE);
        }
    }
}

/// A range that has left.
struct Mark {
    uuid: [u8; 16],
    pattern: KeyPattern,
    min: Key,
    max: Key,
}

impl Moves {
    /// Removes records that were in the way of inserts and lie in ranges which have left.
    fn clear_ways(&self) -> Result<()> {
        for (uuid, records) in self.sharding.placements().take_met() {
            let is_of = |placement: RawDoc<'_>| uuid_of(placement) == Some(*uuid.as_bytes());
            let found = rows::find(&self.engine.view()?, PLACEMENTS, is_of)?;
            for placement in found.iter().filter(|placement| !is_closed(placement)) {
                for mark in ranges_of(placement, "leaving") {
                    let mark = Mark::parse(placement.as_raw(), mark)?;
                    let part = Part::new(&self.engine, uuid, mark.pattern.clone(), mark.range())?;
                    self.remove_records(&part, &mut records.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Removes what has been leaving for `orphanCleanupDelaySecs` and is not read any more, and at once what nobody could read.
    fn clean(&self) -> Result<()> {
        let has_marks = |placement: RawDoc<'_>| {
            placement.get("leaving").and_then(|list| list.as_array()).is_some_and(|list| !list.is_empty())
        };
        let found = rows::find(&self.engine.view()?, PLACEMENTS, has_marks)?;
        if found.is_empty() {
            return Ok(());
        }
        let until =
            self.front.clock.now_millis() - self.front.parameters.int("orphanCleanupDelaySecs") * 1000;
        for placement in found.iter().filter(|placement| !is_closed(placement)) {
            for mark in ranges_of(placement, "leaving") {
                if !matches!(mark.get("since"), Some(Value::DateTime(since)) if since > until) {
                    self.remove(&Mark::parse(placement.as_raw(), mark)?)?;
                }
            }
        }
        Ok(())
    }

    fn remove(&self, mark: &Mark) -> Result<()> {
        let range = mark.range();
        let uuid = Uuid::from_bytes(mark.uuid);
        if self.sharding.placements().has_readers(&uuid, &range) {
            return Ok(());
        }
        // From here on what began to read earlier, on other members too, fails where it goes on.
        self.change(mark, &PlacementChange::Removing { min: mark.min.clone() })?;
        match Part::new(&self.engine, uuid, mark.pattern.clone(), range) {
            // It was dropped, or never made.
            Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {}
            Err(error) => return Err(error),
            Ok(part) => self.empty(&part)?,
        }
        self.change(mark, &PlacementChange::Removed { min: mark.min.clone() })
    }

    fn change(&self, mark: &Mark, change: &PlacementChange) -> Result<()> {
        let go_on = || self.until_end();
        rows::change(&self.engine, &go_on, |documents| {
            let id = uuid_value(&mark.uuid);
            let known = documents.get(PLACEMENTS, id)?;
            match change.apply(known.as_ref().map(DocBuf::as_raw))? {
                Some(changed) => documents.put(PLACEMENTS, changed.as_raw()),
                None => Ok(()),
            }
        })?;
        Ok(())
    }

    fn empty(&self, part: &Part) -> Result<()> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        part.scan(None, &mut |key, _| {
            keys.push(key.to_vec());
            if keys.len() >= TOGETHER {
                self.remove_records(part, &mut keys)?;
            }
            Ok(true)
        })?;
        self.remove_records(part, &mut keys)
    }

    fn remove_records(&self, part: &Part, keys: &mut Vec<Vec<u8>>) -> Result<()> {
        let began = Instant::now();
        let go_on = || self.until_end();
        let mut unit = self.engine.write(&go_on);
        unit.set_from_migrate();
        let found = unit.collection(&part.collection.namespace)?;
        let Some(collection) = found.filter(|found| found.uuid == part.collection.uuid) else {
            keys.clear();
            return Ok(());
        };
        for key in keys.drain(..) {
            let has = |document: &[u8]| part.has(RawDoc::new(document));
            while let Err(error) = remove_record(&mut unit, &collection, &key, &has) {
                if error.code() != Code::WRITE_CONFLICT {
                    return Err(error);
                }
            }
        }
        unit.commit()?;
        // Clients come first: half of the time is theirs.
        std::thread::sleep(began.elapsed());
        Ok(())
    }
}

impl Mark {
    fn range(&self) -> KeyRange {
        KeyRange::new(&self.min, &self.max, self.max == self.pattern.max())
    }

    fn parse(placement: RawDoc<'_>, mark: RawDoc<'_>) -> Result<Mark> {
        let broken = || Error::bad_value("a placement has a range in 'leaving' that is none");
        let document = |of: RawDoc<'_>, name| of.get(name).and_then(|value| value.as_doc()).map(DocBuf::from);
        let uuid = uuid_of(placement).ok_or_else(broken)?;
        let pattern = KeyPattern::parse(document(placement, "key").ok_or_else(broken)?.as_raw())?;
        let end = |name| pattern.key(document(mark, name).ok_or_else(broken)?.as_raw());
        let (min, max) = (end("min")?, end("max")?);
        Ok(Mark { uuid, min, max, pattern })
    }
}
