//! `serverStatus.readConcernCounters`: which read concerns reads have had.

use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::{DocWriter, Value};

use super::{ReadConcern, ReadLevel};

/// Reads by the read concern that they named, or had for want of one.
#[derive(Default)]
pub struct ReadConcernCounters {
    outside: Counts,
    in_transactions: Counts,
}

/// Those outside of transactions, or those within.
#[derive(Default)]
struct Counts {
    /// Named none, and had `local` because nobody has set a default.
    implicit: AtomicU64,
    /// Named none, and had what somebody has set as the default, by level.
    custom: [AtomicU64; LEVELS],
    named: [AtomicU64; LEVELS],
    /// Of snapshots those that named a time.
    at_time: AtomicU64,
}

/// How many levels there are.
const LEVELS: usize = 5;

impl ReadConcernCounters {
    /// Counts a command that has ended, if it reads: the concern that it named, and the one that it had.
    pub fn count(&self, command: &str, in_transaction: bool, named: Option<ReadConcern>, had: ReadConcern) {
        if matches!(command, "find" | "aggregate" | "count" | "distinct" | "mapReduce") {
            let counts = if in_transaction { &self.in_transactions } else { &self.outside };
            counts.count(named, had);
        }
    }

    /// Writes the section.
    pub fn write(&self, out: &mut DocWriter<'_, Vec<u8>>) {
        self.outside.write(&mut out.document("nonTransactionOps"), true);
        self.in_transactions.write(&mut out.document("transactionOps"), false);
    }
}

impl Counts {
    fn count(&self, named: Option<ReadConcern>, had: ReadConcern) {
        let count = match (named.and_then(|named| named.level), had.level) {
            (Some(level), _) => {
                if level == ReadLevel::Snapshot && had.at_cluster_time.is_some() {
                    self.at_time.fetch_add(1, Ordering::Relaxed);
                }
                &self.named[level as usize]
            }
            (None, Some(level)) => &self.custom[level as usize],
            (None, None) => &self.implicit,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn write(&self, out: &mut DocWriter<'_, Vec<u8>>, outside: bool) {
        let figure = |count: &AtomicU64| count.load(Ordering::Relaxed) as i64;
        let named = |level: ReadLevel| figure(&self.named[level as usize]);
        let custom = |level: ReadLevel| figure(&self.custom[level as usize]);
        let (implicit, at_time) = (figure(&self.implicit), figure(&self.at_time));
        out.append("none", implicit + self.custom.iter().map(figure).sum::<i64>());
        let mut info = out.document("noneInfo");
        info.document("CWRC")
            .append("local", custom(ReadLevel::Local))
            .append("available", custom(ReadLevel::Available))
            .append("majority", custom(ReadLevel::Majority));
        // The default that nobody has set is never `available` here.
        info.document("implicitDefault").append("local", implicit).append("available", Value::Int64(0));
        drop(info);
        out.append("local", named(ReadLevel::Local));
        if outside {
            out.append("available", named(ReadLevel::Available));
        }
        out.append("majority", named(ReadLevel::Majority));
        out.document("snapshot")
            .append("withClusterTime", at_time)
            .append("withoutClusterTime", named(ReadLevel::Snapshot) - at_time);
        if outside {
            out.append("linearizable", named(ReadLevel::Linearizable));
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, Timestamp};

    use super::*;

    #[test]
    fn each_read_is_counted_once() {
        let counters = ReadConcernCounters::default();
        let none = ReadConcern::default();
        let of = |level| ReadConcern { level: Some(level), ..none };
        counters.count("insert", false, None, none);
        counters.count("find", false, None, none);
        counters.count("find", false, Some(none), of(ReadLevel::Majority));
        counters.count("count", false, Some(of(ReadLevel::Local)), of(ReadLevel::Local));
        let at = ReadConcern { at_cluster_time: Some(Timestamp(1)), ..of(ReadLevel::Snapshot) };
        counters.count("aggregate", false, Some(at), at);
        counters.count("find", true, Some(of(ReadLevel::Snapshot)), of(ReadLevel::Snapshot));
        let shown = DocBuf::build(|out| counters.write(out));
        let figures = |part: &str| {
            let part = shown.as_raw().get_or_missing(part).as_doc().expect("a part");
            let number = |document: sheaf_bson::RawDoc<'_>, name: &str| {
                document.get_or_missing(name).as_exact_i64().expect("a figure")
            };
            let snapshot = part.get_or_missing("snapshot").as_doc().expect("snapshots");
            [
                number(part, "none"),
                number(part, "local"),
                number(part, "majority"),
                number(snapshot, "withClusterTime"),
                number(snapshot, "withoutClusterTime"),
            ]
        };
        assert_eq!(figures("nonTransactionOps"), [2, 1, 0, 1, 0]);
        assert_eq!(figures("transactionOps"), [0, 0, 0, 0, 1]);
    }
}
