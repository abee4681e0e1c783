//! What a recipient needs before a range can be marked: the collection with its indexes, a placement, and no remains of the range.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_shard::moves::Move;
use sheaf_shard::placement::KeyRange;
use sheaf_storage::{Interrupt, Uuid};

use super::marks::{PLACEMENTS, ranges_of, uuid_value, with_leaving};
use super::participants::Asked;
use super::rows::{self, Change};
use crate::node::Node;

/// How long the end of a removal is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is looked for.
const PAUSE: Duration = Duration::from_millis(50);

/// [`name::MAKE_ROOM`](super::participants::name::MAKE_ROOM).
///
/// Errors: `ChunkRangeCleanupPending`, while what was here before is not removed.
pub fn make_room(node: &Arc<Node>, body: RawDoc<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
    let began = Instant::now();
    Asked::with(node, body, go_on, |asked| {
        let the_move = Move::parse(asked.document("move"))?;
        asked.make(Uuid::from_bytes(the_move.uuid))?;
        let range = the_move.range();
        let is_there = |change: &mut Change| {
            let Some(known) = change.get(PLACEMENTS, uuid_value(&the_move.uuid))? else {
                return change.put(PLACEMENTS, asked.document("placement")).map(|()| true);
            };
            let mut known = known;
            if is_behind(&known, &the_move) {
                known = with_leaving(&DocBuf::from(asked.document("placement")), &known)?;
                change.put(PLACEMENTS, known.as_raw())?;
            }
            for mark in ranges_of(&known, "leaving") {
                let end = |name: &str| {
                    let end = mark.get(name).and_then(|end| end.as_doc());
                    the_move.pattern.key(end.unwrap_or(RawDoc::EMPTY))
                };
                let (min, max) = (end("min")?, end("max")?);
                if KeyRange::new(&min, &max, max == the_move.pattern.max()).overlaps(&range) {
                    // What nobody could read is being removed now.
                    if mark.get("since").is_none() && began.elapsed() < PATIENCE {
                        return Ok(false);
                    }
                    bail!(
                        Code::CHUNK_RANGE_CLEANUP_PENDING,
                        "the range [{}, {}) of {} was this shard's before, and its documents are not removed yet: that happens orphanCleanupDelaySecs after they have left; cleanupOrphaned on this shard waits for it",
                        sheaf_bson::document_text(
                            mark.get("min").and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY)
                        ),
                        sheaf_bson::document_text(
                            mark.get("max").and_then(|end| end.as_doc()).unwrap_or(RawDoc::EMPTY)
                        ),
                        the_move.ns
                    );
                }
            }
            Ok(true)
        };
        while !rows::change(asked.engine, go_on, is_there)?.0 {
            go_on()?;
            std::thread::sleep(PAUSE);
        }
        Ok(doc! {})
    })
}

/// Whether the shard key became longer while this shard owned nothing: then nobody has told it.
fn is_behind(known: &DocBuf, the_move: &Move) -> bool {
    let key = known.as_raw().get("key").and_then(|key| key.as_doc());
    key.is_some_and(|key| key.iter().count() != the_move.pattern.fields().len())
        && ranges_of(known, "owned").next().is_none()
}
