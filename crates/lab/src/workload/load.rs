//! Filling collections before a run, by several clients.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::RawDoc;

use super::placing::Places;
use crate::context::Context;
use crate::error::{Error, Result};

/// Clients that load.
const CLIENTS: u64 = 4;
/// Bytes of documents after which a batch is sent.
const BATCH_BYTES: usize = 4 << 20;
/// Documents after which a batch is sent.
const BATCH_DOCUMENTS: usize = 1000;

/// Inserts a document for every key, with acknowledgement. `make` appends the document of a key to the bytes.
pub(super) fn fill<M: FnMut(&mut Vec<u8>, i64)>(
    context: &Context,
    into: &Places,
    keys: Range<i64>,
    make: impl Fn() -> M + Sync,
) -> Result<()> {
    let next = AtomicU64::new(0);
    let total = (keys.end - keys.start).max(0) as u64;
    // Small parts, so that all clients end at about the same time.
    let part = (total / (CLIENTS * 8)).clamp(1, BATCH_DOCUMENTS as u64);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS.min(total.max(1)))
            .map(|_| {
                scope.spawn(|| {
                    let mut client = context.connect()?;
                    let mut make = make();
                    let mut bytes = Vec::new();
                    loop {
                        let first = next.fetch_add(part, Ordering::Relaxed);
                        if first >= total || context.stop.is_set() {
                            return Ok(());
                        }
                        let last = (first + part).min(total);
                        let part = keys.start + first as i64..keys.start + last as i64;
                        for place in into.each() {
                            let mut own =
                                part.clone().filter(|key| std::ptr::eq(into.of(*key), place)).peekable();
                            while own.peek().is_some() {
                                let mut insert = client.insert(place);
                                while let Some(key) = own.next_if(|_| insert.size() < BATCH_BYTES) {
                                    bytes.clear();
                                    make(&mut bytes, key);
                                    insert.push_raw(RawDoc::new(&bytes));
                                }
                                insert.send().map_err(|error| error.context("loading"))?;
                            }
                        }
                    }
                })
            })
            .collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended: Result<()> =
                thread.join().unwrap_or_else(|_| Err(Error::failed("a loading thread panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    })
}
