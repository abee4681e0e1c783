//! Background compaction: what `autoCompact` switches on. Collections whose files hold much more than their data are
//! compacted one after the other; one that gave nothing back is left alone for a day.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_exec::ddl::stats;
use sheaf_storage::{Collection, Engine, Uuid};

use crate::compaction::Wish;
use crate::node::Node;

/// How often it looks whether there is something to do.
const TICK: Duration = Duration::from_millis(500);

/// From one pass to the next.
const BETWEEN_PASSES: Duration = Duration::from_secs(600);

/// For how long a collection that gave nothing back is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(24 * 3600);

/// Less than this is what files need for themselves.
pub const LEAST_BYTES: i64 = 1 << 20;

/// The bytes of a collection's records and indexes on disk.
pub fn stored_bytes(engine: &Engine, collection: &Collection) -> u64 {
    engine.storage_bytes(collection) + stats::index_bytes(engine, collection)
}

/// What compaction could give back at most: what would be freed is known only once it has run, the excess over plain data
/// is a bound.
pub fn excess_bytes(engine: &Engine, collection: &Collection) -> i64 {
    let excess = stored_bytes(engine, collection).saturating_sub(collection.data_bytes()) as i64;
    if excess < LEAST_BYTES { 0 } else { excess }
}

/// Runs until shutdown.
pub async fn run(node: Arc<Node>) {
    let mut fruitless = HashMap::new();
    let mut last: Option<(Wish, Instant)> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = node.until_shutdown() => return,
        }
        let Some(wish) = node.auto_compact.wish() else {
            last = None;
            continue;
        };
        if last.is_some_and(|(before, at)| before == wish && at.elapsed() < BETWEEN_PASSES) {
            continue;
        }
        tokio::task::block_in_place(|| pass(&node, wish, &mut fruitless));
        node.auto_compact.passed(wish);
        last = Some((wish, Instant::now()));
    }
}

/// One pass over all collections.
fn pass(node: &Node, wish: Wish, fruitless: &mut HashMap<Uuid, Instant>) {
    fruitless.retain(|_, since| since.elapsed() < LEFT_ALONE);
    let engine = node.engine();
    let catalog = engine.catalog();
    for collection in catalog.all().filter(|collection| !collection.is_view()) {
        if node.unless_locked().is_err() || node.auto_compact.wish() != Some(wish) {
            return;
        }
        let before = excess_bytes(engine, collection);
        if before < wish.target_bytes || fruitless.contains_key(&collection.uuid) {
            continue;
        }
        // It may have been dropped since, or the set may not have what this member has: then another pass comes.
        if engine.compact(collection).is_ok() && excess_bytes(engine, collection) >= before {
            fruitless.insert(collection.uuid, Instant::now());
        }
    }
}
