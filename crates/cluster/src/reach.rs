//! Several sets that are asked together, of which some may be out of reach: they are waited for together.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_client::Message;
use sheaf_errors::{Code, Error, Result, bail};

use crate::call::{Answer, Asker, Call};
use crate::clock::Clock;
use crate::failure::error_in;
use crate::preference::Preference;
use crate::set::{GoOn, ReplicaSet, SELECTION};

/// How long a set may have nobody who can answer before it is done without, where others are asked beside it: elections are over by then.
pub const ELECTION: Duration = Duration::from_secs(5);

/// The patience with a set that has nobody who can answer. Those that are asked one after another lose theirs at the same moment, if it is
/// since the same one.
pub struct Patience {
    missing_since: Cell<Option<Instant>>,
    most: Duration,
}

impl Patience {
    /// It lasts for so long, and a set that cannot answer now could not since `began`.
    pub fn since(began: Instant, most: Duration) -> Self {
        Patience { missing_since: Cell::new(Some(began)), most }
    }

    /// Whether to go on waiting for a member of this set.
    ///
    /// Errors: `FailedToSatisfyReadPreference`, if it has not had one for too long.
    pub fn check(&self, set: &ReplicaSet, preference: &Preference<'_>) -> Result<()> {
        if set.can_answer(preference) {
            self.missing_since.set(None);
            return Ok(());
        }
        let since = self.missing_since.get().unwrap_or_else(Instant::now);
        self.missing_since.set(Some(since));
        if since.elapsed() >= self.most {
            bail!(
                Code::FAILED_TO_SATISFY_READ_PREFERENCE,
                "Could not find host matching read preference {{ mode: \"{}\" }} for set {}",
                preference.mode.name(),
                set.name()
            );
        }
        Ok(())
    }
}

/// Sends each of these sets a message at once, and gives what each has answered, in the same order. Those that can answer are asked first;
/// nobody has longer than `most` to come to have a member that can.
pub fn ask_together(
    mut messages: Vec<(&Arc<ReplicaSet>, Message)>,
    asker: &Asker<'_>,
    most: Duration,
) -> Vec<Result<Answer>> {
    let began = Instant::now();
    let patience: Vec<Patience> = messages.iter().map(|_| Patience::since(began, most)).collect();
    let mut order: Vec<usize> = (0..messages.len()).collect();
    order.sort_by_cached_key(|at| !messages[*at].0.can_answer(&asker.preference));
    let mut calls: Vec<Option<Result<Call>>> = messages.iter().map(|_| None).collect();
    for at in order {
        let (set, message) = &mut messages[at];
        let go_on = || (asker.go_on)().and_then(|()| patience[at].check(set, &asker.preference));
        calls[at] = Some(Call::send(set, message, &Asker { go_on: &go_on, ..*asker }));
    }
    let mut answers = Vec::with_capacity(messages.len());
    for ((call, (set, message)), patience) in calls.into_iter().zip(&mut messages).zip(&patience) {
        let go_on = || (asker.go_on)().and_then(|()| patience.check(set, &asker.preference));
        let call = call.expect("each was asked");
        answers.push(call.and_then(|call| call.finish(message, &Asker { go_on: &go_on, ..*asker })));
    }
    answers
}

/// Has the primaries of these sets run a command at once, and gives what became of it at each, in the same order: one that is out of reach
/// keeps the others from nothing, and all of them together take no longer than one.
pub fn run_on_each(
    sets: &[&Arc<ReplicaSet>],
    clock: &Clock,
    (db, command): (&str, &DocBuf),
    again: bool,
    go_on: GoOn<'_>,
) -> Vec<Result<DocBuf>> {
    let began = Instant::now();
    let in_time = || match began.elapsed() < SELECTION {
        true => go_on(),
        false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
    };
    let message = |set| {
        let mut message = Message::new();
        message.begin(0, |body| {
            body.append_all(command.as_raw());
            clock.append(body, None);
            body.append("$db", db);
        });
        (set, message)
    };
    let messages = sets.iter().copied().map(message).collect();
    let asker = Asker { preference: Preference::default(), again, go_on: &in_time };
    let answers = ask_together(messages, &asker, ELECTION).into_iter();
    let reply = |answer: Result<Answer>| {
        let answer = answer?;
        clock.see(answer.reply());
        match error_in(answer.reply()) {
            Some(error) => Err(error),
            None => Ok(answer.into_reply()),
        }
    };
    answers.map(reply).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::SetAddress;

    /// Sets whose members refuse.
    fn nowhere(name: &str) -> Arc<ReplicaSet> {
        ReplicaSet::new(&format!("{name}/127.0.0.1:1").parse::<SetAddress>().unwrap(), &Default::default())
    }

    fn code<T>(result: Result<T>) -> Option<Code> {
        result.err().map(|error| error.code())
    }

    #[test]
    fn sets_that_are_missing_since_the_same_moment_are_given_up_at_the_same() {
        let (first, second) = (nowhere("a"), nowhere("b"));
        let preference = Preference::default();
        let began = Instant::now();
        let long = Duration::from_secs(3600);
        let (patient, over) = (Patience::since(began, long), Patience::since(began, Duration::ZERO));
        assert!(patient.check(&first, &preference).is_ok());
        for set in [&first, &second] {
            assert_eq!(code(over.check(set, &preference)), Some(Code::FAILED_TO_SATISFY_READ_PREFERENCE));
        }
    }

    #[test]
    fn all_that_cannot_be_reached_are_told_so_in_their_order() {
        let sets = [nowhere("a"), nowhere("b"), nowhere("c")];
        let messages = || sets.iter().map(|set| (set, Message::new())).collect();
        let asker = Asker { preference: Preference::default(), again: true, go_on: &|| Ok(()) };
        let answers = ask_together(messages(), &asker, Duration::ZERO);
        let missing = |(at, answer): (usize, Result<Answer>)| {
            let error = answer.err().expect("nobody is there");
            error.message().ends_with(&format!("for set {}", ["a", "b", "c"][at]))
        };
        assert!(answers.into_iter().enumerate().all(missing));
        // Whoever asks may stop before.
        let asker = Asker { go_on: &|| Err(Error::new(Code::INTERRUPTED, "enough")), ..asker };
        let answers = ask_together(messages(), &asker, Duration::from_secs(3600));
        assert!(answers.into_iter().all(|answer| code(answer) == Some(Code::INTERRUPTED)));
    }
}
