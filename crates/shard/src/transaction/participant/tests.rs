//! One primary and its log; what others say comes from the test.

use super::*;

/// A primary whose log is its own: entries are applied when they are appended, on a majority when the test says so.
struct Primary {
    participant: Participant,
    index: u64,
    /// Answers that were given, and what else there was to do.
    answers: Vec<(u64, Answer)>,
    effects: Vec<ParticipantEffect>,
    log: Vec<Record>,
}

fn id(number: i64) -> TransactionId {
    TransactionId::new(&b"s"[..], number)
}

fn shards() -> Arc<[ShardId]> {
    [ShardId::new("a"), ShardId::new("b")].into()
}

fn time(index: u64) -> ClusterTime {
    ClusterTime::from_bits(index)
}

/// What the first transaction on a primary is after so many statements.
fn executed(statements: u32) -> Executed {
    Executed { term: 1, opening: 1, statements }
}

fn prepare(number: i64, statements: u32) -> Request {
    Request::Prepare { id: id(number), participants: shards(), executed: executed(statements) }
}

fn settle(committed: Option<ClusterTime>) -> ParticipantEffect {
    ParticipantEffect::Settle { id: id(1), participants: shards(), committed }
}

impl Primary {
    fn new() -> Self {
        let mut participant = Participant::new(ShardId::new("a"), Rows::default(), 0);
        participant.became_primary(1);
        Primary { participant, index: 0, answers: Vec::new(), effects: Vec::new(), log: Vec::new() }
    }

    /// With an open transaction of one statement.
    fn open(number: i64) -> Self {
        let mut primary = Primary::new();
        primary.participant.execute(&id(number), None).expect("nothing is in the way");
        primary
    }

    fn perform(&mut self) {
        loop {
            let effects = self.participant.poll();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    ParticipantEffect::Append(record) => {
                        self.index += 1;
                        self.participant.applied(self.index, time(self.index), &record);
                        self.log.push(record);
                    }
                    ParticipantEffect::Reply { to, answer } => self.answers.push((to.0, answer)),
                    other => self.effects.push(other),
                }
            }
        }
    }

    fn ask(&mut self, to: u64, request: Request) -> &mut Self {
        self.participant.handle(ReplyId(to), request);
        self.perform();
        self
    }

    fn majority(&mut self) -> &mut Self {
        self.participant.majority(self.index);
        self.perform();
        self
    }

    fn answers(&mut self) -> Vec<(u64, Answer)> {
        mem::take(&mut self.answers)
    }
}

#[test]
fn a_prepare_is_answered_when_it_is_on_a_majority() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1));
    assert_eq!(a.answers(), []);
    assert_eq!(a.majority().answers(), [(1, Answer::Prepared(time(1)))]);
    // And the same again, however often.
    assert_eq!(a.ask(2, prepare(1, 1)).answers(), [(2, Answer::Prepared(time(1)))]);
    assert_eq!(a.ask(3, Request::Ask { id: id(1) }).answers(), [(3, Answer::Prepared(time(1)))]);
}

#[test]
fn a_commit_is_at_the_time_that_it_is_told() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    a.ask(2, Request::Commit { id: id(1), at: time(77) });
    assert_eq!(a.effects, [ParticipantEffect::Observe(time(77))]);
    a.answers();
    assert_eq!(a.majority().answers(), [(2, Answer::Committed(time(77)))]);
    a.ask(3, Request::Abort { id: id(1) }).ask(4, prepare(1, 1));
    assert_eq!(a.answers(), [(3, Answer::Committed(time(77))), (4, Answer::Committed(time(77)))]);
}

#[test]
fn who_has_not_prepared_makes_the_abort_durable_first() {
    let mut a = Primary::new();
    a.ask(1, Request::Ask { id: id(1) });
    assert_eq!(a.log, [Record::Abort { id: id(1) }]);
    assert_eq!(a.answers(), []);
    assert_eq!(a.majority().answers(), [(1, Answer::Aborted)]);
    assert_eq!(a.participant.execute(&id(1), None), Err(NotRun::NotOpen));
    assert_eq!(a.ask(2, prepare(1, 1)).answers(), [(2, Answer::Aborted)]);
}

#[test]
fn an_open_transaction_that_is_asked_about_is_over() {
    let mut a = Primary::open(1);
    a.ask(1, Request::Ask { id: id(1) }).ask(2, prepare(1, 1)).majority();
    assert_eq!(a.effects, [ParticipantEffect::Discard { id: id(1), opening: 1 }]);
    assert_eq!(a.answers(), [(1, Answer::Aborted), (2, Answer::Aborted)]);
}

#[test]
fn what_lacks_statements_does_not_prepare() {
    let mut a = Primary::open(1);
    assert_eq!(a.ask(1, prepare(1, 2)).majority().answers(), [(1, Answer::Aborted)]);
    let mut b = Primary::open(1);
    assert_eq!(b.participant.execute(&id(1), Some(executed(2))), Err(NotRun::OutOfOrder));
    assert_eq!(b.participant.execute(&id(1), Some(executed(1))), Ok(executed(2)));
    assert_eq!(b.ask(1, prepare(1, 2)).majority().answers(), [(1, Answer::Prepared(time(1)))]);
}

/// A first statement that was sent twice, and executed again after the primary had lost and regained its office.
#[test]
fn what_was_executed_anew_does_not_prepare() {
    let mut a = Primary::open(1);
    a.participant.lost_primary();
    a.participant.became_primary(1);
    let again = a.participant.execute(&id(1), None).expect("nobody has asked about it");
    assert_ne!(again, executed(1));
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::OutOfOrder));
    assert_eq!(a.ask(1, prepare(1, 1)).majority().answers(), [(1, Answer::Aborted)]);
}

#[test]
fn questions_during_a_prepare_wait_for_it() {
    let mut a = Primary::open(1);
    a.participant.handle(ReplyId(1), prepare(1, 1));
    a.participant.handle(ReplyId(2), Request::Ask { id: id(1) });
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::Ending));
    a.perform();
    let prepared = Answer::Prepared(time(1));
    assert_eq!(a.majority().answers(), [(1, prepared), (2, prepared)]);
}

#[test]
fn a_record_that_could_not_be_appended_is_asked_for_again() {
    let mut a = Primary::open(1);
    a.participant.handle(ReplyId(1), prepare(1, 1));
    let [ParticipantEffect::Append(record)] = &a.participant.poll()[..] else { panic!("one record") };
    a.participant.append_failed(record);
    assert_eq!(a.ask(2, prepare(1, 1)).majority().answers(), [(2, Answer::Prepared(time(1)))]);
}

#[test]
fn the_only_writer_commits_at_once() {
    let mut a = Primary::open(1);
    a.ask(1, Request::CommitAlone { id: id(1), executed: executed(1) }).majority();
    assert_eq!(a.answers(), [(1, Answer::Committed(time(1)))]);
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::Committed));
    assert!(matches!(a.participant.rows().get(&id(1)), Some(Row::Committed { settled: true, .. })));
    // What is lost is not committed later.
    let mut b = Primary::new();
    b.ask(1, Request::CommitAlone { id: id(1), executed: executed(1) }).majority();
    assert_eq!(b.answers(), [(1, Answer::Aborted)]);
}

#[test]
fn a_new_primary_has_what_was_prepared_and_asks_about_it() {
    let mut b = Participant::new(ShardId::new("b"), Rows::default(), 0);
    b.applied(1, time(1), &Record::Prepare { id: id(1), participants: shards() });
    b.majority(1);
    b.handle(ReplyId(1), prepare(1, 1));
    assert_eq!(b.poll(), [ParticipantEffect::NotPrimary { to: ReplyId(1) }]);
    b.became_primary(1);
    b.tick(1);
    assert_eq!(b.poll(), [settle(None)]);
    b.tick(2);
    assert_eq!(b.poll(), []);
    b.tick(SETTLE_AFTER_MILLIS + 1);
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn a_primary_that_steps_down_forgets_what_was_open() {
    let mut a = Primary::open(1);
    a.participant.lost_primary();
    a.participant.became_primary(1);
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::NotOpen));
}

#[test]
fn a_doubt_is_settled_after_a_while_and_a_commit_is_followed_up() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    a.participant.tick(SETTLE_AFTER_MILLIS - 1);
    assert_eq!(a.participant.poll(), []);
    a.participant.tick(SETTLE_AFTER_MILLIS);
    assert_eq!(a.participant.poll().len(), 1);
    a.ask(2, Request::Commit { id: id(1), at: time(9) }).majority();
    a.effects.clear();
    a.participant.tick(SETTLE_AFTER_MILLIS + UNSETTLED_MILLIS);
    assert_eq!(a.participant.poll(), [settle(Some(time(9)))]);
    a.ask(3, Request::Settled { ids: vec![id(1), id(7)] });
    assert_eq!(a.log.last(), Some(&Record::Settled { ids: vec![id(1)] }));
    a.participant.tick(10 * UNSETTLED_MILLIS);
    assert_eq!(a.participant.poll(), []);
}

#[test]
fn the_past_of_a_session_is_too_old_or_settled() {
    let mut a = Primary::open(2);
    a.ask(1, Request::CommitAlone { id: id(2), executed: executed(1) }).majority();
    a.answers();
    assert_eq!(a.participant.execute(&id(1), None), Err(NotRun::TooOld));
    a.ask(2, Request::Ask { id: id(1) }).ask(3, Request::Commit { id: id(1), at: time(1) });
    assert_eq!(a.answers(), [(2, Answer::TooOld), (3, Answer::Committed(time(1)))]);
    assert_eq!(a.log.len(), 1);
}

#[test]
fn a_commit_of_what_is_not_on_record_is_answered_by_the_true_primary_only() {
    let mut a = Primary::new();
    a.ask(1, Request::Commit { id: id(1), at: time(5) });
    assert_eq!((a.log.len(), a.answers()), (1, vec![]));
    assert_eq!(a.majority().answers(), [(1, Answer::Committed(time(5)))]);
}

#[test]
fn a_client_with_a_recovery_token_waits_until_the_doubt_is_settled() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    a.answers();
    a.ask(2, Request::Recover { id: id(1) });
    assert_eq!(a.effects, [settle(None)]);
    a.ask(3, Request::Abort { id: id(1) });
    assert_eq!(a.answers(), []);
    a.majority();
    let mut answers = a.answers();
    answers.sort_by_key(|(to, _)| *to);
    assert_eq!(answers, [(2, Answer::Aborted), (3, Answer::Aborted)]);
}

#[test]
fn readers_wait_for_what_is_in_doubt_at_their_time() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    let prepared = time(1);
    assert!(a.participant.is_in_doubt(&id(1), None) && a.participant.is_in_doubt(&id(1), Some(prepared)));
    assert!(!a.participant.is_in_doubt(&id(1), Some(time(0))));
    a.participant.wait(&id(1), WaiterId(5));
    a.ask(2, Request::Commit { id: id(1), at: time(9) });
    let outcome = Outcome::Committed(time(9));
    assert!(a.effects.contains(&ParticipantEffect::Wake { waiter: WaiterId(5), outcome }));
}

/// It may be wrong where this member has been replaced and the transaction was settled since.
#[test]
fn readers_hear_of_an_abort_when_it_is_on_a_majority() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    a.participant.wait(&id(1), WaiterId(5));
    a.ask(2, Request::Abort { id: id(1) });
    assert_eq!(a.effects, []);
    a.majority();
    assert_eq!(a.effects, [ParticipantEffect::Wake { waiter: WaiterId(5), outcome: Outcome::Aborted }]);
}

#[test]
fn what_only_read_is_confirmed_as_often_as_it_is_asked() {
    let mut a = Primary::open(1);
    for _ in 0..2 {
        assert_eq!(a.participant.read_up_to(&id(1), executed(1)), Some(0));
        a.participant.confirmed(&id(1));
    }
    a.perform();
    assert_eq!(a.effects, [ParticipantEffect::Discard { id: id(1), opening: 1 }]);
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::Ending));
    assert_eq!(a.participant.read_up_to(&id(1), executed(2)), None);
}

#[test]
fn a_newer_transaction_ends_the_open_one_of_its_session() {
    let mut a = Primary::open(1);
    a.participant.execute(&id(2), None).expect("newer");
    a.perform();
    assert_eq!(a.effects, [ParticipantEffect::Discard { id: id(1), opening: 1 }]);
    assert_eq!(a.participant.execute(&id(1), Some(executed(1))), Err(NotRun::TooOld));
}

#[test]
fn what_cannot_be_true_is_told() {
    let mut a = Primary::open(1);
    a.ask(1, prepare(1, 1)).majority();
    a.ask(2, Request::Commit { id: id(1), at: time(0) });
    assert!(matches!(a.effects[..], [ParticipantEffect::Contradiction { .. }]));
    // Whoever has told it is not left waiting.
    assert!(matches!(a.answers.last(), Some((2, Answer::Prepared(_)))), "{:?}", a.answers);
}

#[test]
fn what_is_opened_anew_is_not_discarded_with_what_was_given_up() {
    let mut a = Primary::open(1);
    a.participant.abandon(&id(1));
    // The driver has not looked yet.
    let anew = a.participant.execute(&id(1), None).expect("it is open no more");
    a.perform();
    assert_eq!(a.effects, [ParticipantEffect::Discard { id: id(1), opening: 1 }]);
    assert_eq!(anew, Executed { term: 1, opening: 2, statements: 1 });
}
