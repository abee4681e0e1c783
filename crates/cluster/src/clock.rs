//! The newest cluster time that this process has heard of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sheaf_bson::{DocWriter, RawDoc, Timestamp, Value};

/// The newest cluster time that this process has heard of. It makes no times, it hands them on.
#[derive(Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Takes in the `$clusterTime` of a reply of the cluster.
    pub fn see(&self, reply: RawDoc<'_>) {
        let Some(time) = time_of(reply) else { return };
        // Most replies tell nothing new.
        if time.0 > self.0.load(Ordering::Relaxed) && is_plausible(time) {
            self.0.fetch_max(time.0, Ordering::Relaxed);
        }
    }

    /// This time has come: what goes out from now on says so.
    pub fn reach(&self, time: Timestamp) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }

    /// The newest time; `None` before anybody was heard.
    pub fn now(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            time => Some(Timestamp(time)),
        }
    }

    /// Adds `$clusterTime`, with the signature of a server that has no keys: the newest time, or a client's, if that is newer. Whether
    /// a client may be believed is decided by whoever gets the message.
    pub fn append(&self, body: &mut DocWriter<'_, Vec<u8>>, client: Option<Timestamp>) {
        if let Some(time) = self.now().max(client) {
            sheaf_wire::append_cluster_time(body, time);
        }
    }
}

/// How far ahead of this machine's clock a time may be (`maxAcceptableLogicalClockDriftSecs`): a year.
const DRIFT_SECS_MAX: u64 = 365 * 24 * 60 * 60;

/// Whether a time can be one of this cluster's: a made-up one would have every shard refuse what it comes with.
#[expect(clippy::disallowed_methods, reason = "what is compared with is the time of day")]
fn is_plausible(time: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    time.0 >> 32 <= now + DRIFT_SECS_MAX
}

/// The time in a `$clusterTime`.
fn time_of(reply: RawDoc<'_>) -> Option<Timestamp> {
    match reply.get("$clusterTime")?.as_doc()?.get("clusterTime")? {
        Value::Timestamp(time) => Some(time),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};

    use super::*;

    fn told(clock: &Clock, client: Option<Timestamp>) -> Option<Timestamp> {
        time_of(DocBuf::build(|body| clock.append(body, client)).as_raw())
    }

    #[test]
    fn the_newest_time_is_handed_on() {
        let clock = Clock::default();
        assert_eq!(told(&clock, None), None);
        let reply =
            |time| doc! { "ok": 1.0, "$clusterTime": { "clusterTime": Value::Timestamp(Timestamp(time)) } };
        clock.see(reply(7).as_raw());
        clock.see(reply(5).as_raw());
        assert_eq!(told(&clock, None), Some(Timestamp(7)));
        assert_eq!(told(&clock, Some(Timestamp(9))), Some(Timestamp(9)));
        clock.see(reply(u64::from(u32::MAX) << 32).as_raw());
        assert_eq!(
            clock.now(),
            Some(Timestamp(7)),
            "a client's time is not believed before a member has believed it"
        );
    }
}
