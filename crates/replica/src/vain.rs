//! Links that come about and serve for nothing: the member listens, and one of the two does not believe the other. Who is dialled knows
//! no more than a port of who dials, so it is who dials that names the member.

use std::io;
use std::time::{Duration, Instant};

/// For so long no link may have served before it is told: a member that ends or begins drops some, too.
const PATIENCE: Duration = Duration::from_secs(5);

/// It is told again after this.
const TOLD: Duration = Duration::from_secs(60);

/// A link that has lasted for so long has served.
const SERVED: Duration = Duration::from_secs(1);

/// How far a link has come.
#[derive(Clone, Copy, Debug, Default)]
pub enum Stage {
    /// To the member's port.
    #[default]
    Dialling,
    /// To TLS.
    Encrypting,
    /// To the proof of both sides.
    Proving,
    /// All the way, at this time.
    Linked(Instant),
}

/// What has become of the links to one member.
#[derive(Default)]
pub struct Vain {
    since: Option<Instant>,
    told: Option<Instant>,
}

impl Vain {
    /// A link has ended; gives why it was in vain, if that is to be told now.
    pub fn ended(&mut self, stage: &Stage, error: &io::Error, now: Instant) -> Option<String> {
        // Who is silent has refused nothing.
        let refuses = error.kind() != io::ErrorKind::TimedOut;
        let why = match stage {
            Stage::Encrypting if refuses => format!("there is no TLS with it: {error}"),
            Stage::Proving if error.kind() == io::ErrorKind::PermissionDenied => error.to_string(),
            Stage::Proving if refuses => format!("it does not answer as one that has a key: {error}"),
            Stage::Linked(at) if refuses && now.saturating_duration_since(*at) < SERVED => {
                "it ends each link at once: it asks for another proof (key, certificate), or is of another set".to_owned()
            }
            _ => {
                self.since = None;
                return None;
            }
        };
        let since = *self.since.get_or_insert(now);
        let lately = self.told.is_some_and(|told| now.saturating_duration_since(told) < TOLD);
        if lately || now.saturating_duration_since(since) < PATIENCE {
            return None;
        }
        self.told = Some(now);
        Some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_been_in_vain_for_some_time_is_told_once_a_minute() {
        let (mut vain, begin) = (Vain::default(), Instant::now());
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let mut told = |stage: Stage, seconds: u64| {
            vain.ended(&stage, &reset, begin + Duration::from_secs(seconds)).is_some()
        };
        let linked = |seconds: u64| Stage::Linked(begin + Duration::from_secs(seconds));
        assert!(!told(Stage::Proving, 0) && !told(linked(4), 4));
        // Nobody listens any more: it was about to end.
        assert!(!told(Stage::Dialling, 5) && !told(Stage::Encrypting, 6) && !told(Stage::Encrypting, 10));
        assert!(told(linked(11), 11));
        assert!(!told(Stage::Proving, 70));
        assert!(told(Stage::Proving, 71));
        // It has served for a while.
        assert!(!told(linked(100), 140) && !told(Stage::Proving, 141));
    }

    #[test]
    fn silence_is_no_refusal() {
        let (mut vain, begin) = (Vain::default(), Instant::now());
        let silence = io::Error::from(io::ErrorKind::TimedOut);
        for seconds in [0, 10, 20] {
            assert_eq!(vain.ended(&Stage::Encrypting, &silence, begin + Duration::from_secs(seconds)), None);
        }
    }
}
