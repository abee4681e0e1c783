//! How evenly the documents of a sharded collection lie on the shards, and how long it takes until they do.

use std::time::{Duration, Instant};

use sheaf_bson::{RawDoc, doc};

use super::Figure;
use super::figure::UNTIL_EVEN;
use crate::client::Collection;
use crate::context::Context;
use crate::error::Result;

/// What was seen after a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Evenness {
    /// Per cent of the documents on the fullest shard when the load ended.
    fullest: f64,
    /// Seconds from then on until the shards were even; `None` when that was not waited for any longer.
    seconds: Option<f64>,
}

/// Shards are even when the fullest has not more than so many times the mean.
const EVEN: f64 = 1.2;
/// Who is not even by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(500);

impl Evenness {
    /// The columns of the table. How long it takes is left open where it has not come to an end: any number would be taken for that.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = vec![Figure::lower("on the fullest shard", "%", self.fullest)];
        figures.extend(self.seconds.map(|seconds| Figure::lower(UNTIL_EVEN, "us", seconds * 1e6)));
        figures
    }
}

/// Looks at the shards until they are even.
pub(super) fn wait(context: &Context, collection: &Collection) -> Result<Evenness> {
    let mut client = context.connect()?;
    let shards = super::placing::shard_names(&mut client)?.len();
    let began = Instant::now();
    let mut fullest = None;
    loop {
        let counts = counts(client.command(&collection.db, &doc! { "collStats": collection.name.as_str() })?);
        let part = fullest_part(&counts);
        let at_end = *fullest.get_or_insert(part * 100.0);
        let even = part * shards as f64 <= EVEN;
        if even || began.elapsed() > PATIENCE || context.stop.is_set() {
            if !even {
                context.warn(format!("the shards were not even after {} s", PATIENCE.as_secs()));
            }
            let seconds = even.then(|| began.elapsed().as_secs_f64());
            return Ok(Evenness { fullest: at_end, seconds });
        }
        std::thread::sleep(LOOK);
    }
}

/// Documents on each shard that has some.
fn counts(stats: RawDoc<'_>) -> Vec<i64> {
    let shards = stats.get("shards").and_then(|shards| shards.as_doc());
    let shards = shards.iter().flat_map(|shards| shards.iter());
    shards.filter_map(|shard| shard.value().as_doc()?.get("count")?.as_exact_i64()).collect()
}

/// The part of all documents that is on the fullest shard.
fn fullest_part(counts: &[i64]) -> f64 {
    let all: i64 = counts.iter().sum();
    counts.iter().max().map_or(0.0, |most| *most as f64 / all.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_shard_is_found() {
        let stats =
            doc! { "count": 400, "shards": { "shard0": { "count": 100 }, "shard1": { "count": 300i64 } } };
        let counts = counts(stats.as_raw());
        assert_eq!(counts, [100, 300]);
        assert!((fullest_part(&counts) - 0.75).abs() < 1e-9);
        assert!(fullest_part(&[]) < 0.1);
    }

    #[test]
    fn what_was_never_even_has_no_time() {
        let names = |seconds| -> Vec<_> {
            let figures = Evenness { fullest: 75.0, seconds }.figures();
            figures.into_iter().map(|figure| (figure.name, figure.value)).collect()
        };
        assert_eq!(names(None).len(), 1);
        assert_eq!(names(Some(2.0))[1].1, 2e6);
    }
}
