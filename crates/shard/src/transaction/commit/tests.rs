//! A router; what shards say comes from the test.

use super::*;

fn id() -> TransactionId {
    TransactionId::new(&b"s"[..], 1)
}

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

fn at(time: u64) -> ClusterTime {
    ClusterTime::from_bits(time)
}

fn part(name: &str, wrote: bool) -> Part {
    Part { shard: shard(name), executed: Executed::default(), wrote, confirmed: false }
}

fn committing(parts: &[Part]) -> Committer {
    let mut committer = Committer::new();
    committer.commit(id(), parts.to_vec(), at(10));
    committer
}

/// What is to be done, in words.
fn done(committer: &mut Committer) -> Vec<String> {
    let word = |effect| match effect {
        CommitterEffect::Send { to, request } => match request {
            Request::Prepare { participants, .. } => format!("{to}: prepare {participants:?}"),
            Request::CommitAlone { .. } => format!("{to}: commit alone"),
            Request::Confirm { .. } => format!("{to}: confirm"),
            Request::Commit { at, .. } => format!("{to}: commit {}", at.bits()),
            Request::Abort { .. } => format!("{to}: abort"),
            Request::Abandon { .. } => format!("{to}: abandon"),
            Request::Settled { ids } => format!("{to}: settled {}", ids.len()),
            Request::Ask { .. } => format!("{to}: ask"),
            Request::Recover { .. } => format!("{to}: recover"),
        },
        CommitterEffect::Ended { outcome: Outcome::Committed(at), .. } => format!("committed {}", at.bits()),
        CommitterEffect::Ended { outcome: Outcome::Aborted, .. } => "aborted".to_owned(),
        CommitterEffect::Forgotten { .. } => "forgotten".to_owned(),
        CommitterEffect::Contradiction { what, .. } => what,
    };
    committer.poll().into_iter().map(word).collect()
}

#[test]
fn writers_prepare_in_parallel_and_the_client_is_answered_before_they_commit() {
    let mut router = committing(&[part("a", true), part("b", true)]);
    assert_eq!(done(&mut router), ["a: prepare [a, b]", "b: prepare [a, b]"]);
    router.answered(&shard("b"), &id(), Answer::Prepared(at(21)));
    assert_eq!(done(&mut router), [""; 0]);
    router.answered(&shard("a"), &id(), Answer::Prepared(at(20)));
    assert_eq!(done(&mut router), ["committed 21", "a: commit 21", "b: commit 21"]);
    router.answered(&shard("a"), &id(), Answer::Committed(at(21)));
    router.answered(&shard("b"), &id(), Answer::Committed(at(21)));
    assert_eq!(router.running(), 0);
    router.tick(SETTLED_EVERY_MILLIS);
    assert_eq!(done(&mut router), ["a: settled 1", "b: settled 1"]);
}

#[test]
fn who_was_only_read_is_asked_before_anything_is_prepared() {
    let mut router = committing(&[part("a", true), part("b", true), part("c", false)]);
    assert_eq!(done(&mut router), ["c: confirm"]);
    router.answered(&shard("c"), &id(), Answer::Confirmed);
    assert_eq!(done(&mut router), ["a: prepare [a, b]", "b: prepare [a, b]"]);

    let mut router = committing(&[part("a", true), part("c", false)]);
    done(&mut router);
    router.answered(&shard("c"), &id(), Answer::Aborted);
    assert_eq!(done(&mut router), ["a: abandon", "c: abandon", "aborted"]);
}

#[test]
fn one_writer_commits_alone_and_readers_need_no_commit() {
    let mut router = committing(&[part("a", true), Part { confirmed: true, ..part("b", false) }]);
    assert_eq!(done(&mut router), ["a: commit alone"]);
    router.answered(&shard("b"), &id(), Answer::Aborted);
    router.answered(&shard("a"), &id(), Answer::Committed(at(30)));
    assert_eq!(done(&mut router), ["committed 30"]);

    let mut router = committing(&[part("a", false)]);
    assert_eq!(done(&mut router), ["a: confirm"]);
    router.answered(&shard("a"), &id(), Answer::Confirmed);
    assert_eq!(done(&mut router), ["committed 10"]);
}

#[test]
fn one_refusal_aborts_all() {
    let mut router = committing(&[part("a", true), part("b", true)]);
    done(&mut router);
    router.answered(&shard("a"), &id(), Answer::Prepared(at(20)));
    router.answered(&shard("b"), &id(), Answer::Aborted);
    assert_eq!(done(&mut router), ["aborted", "a: abort"]);
    assert_eq!(router.running(), 0);
}

#[test]
fn silence_decides_nothing() {
    let mut router = committing(&[part("a", true), part("b", true)]);
    router.answered(&shard("a"), &id(), Answer::Prepared(at(20)));
    done(&mut router);
    router.tick(AGAIN_MILLIS);
    assert_eq!(done(&mut router), ["b: prepare [a, b]"]);
    router.answered(&shard("b"), &id(), Answer::Prepared(at(19)));
    assert_eq!(done(&mut router), ["committed 20", "a: commit 20", "b: commit 20"]);
    router.answered(&shard("b"), &id(), Answer::Committed(at(20)));
    router.tick(2 * AGAIN_MILLIS);
    assert_eq!(done(&mut router), ["a: commit 20"]);
}

#[test]
fn what_was_given_up_is_not_settled() {
    let mut router = committing(&[part("a", true), part("b", true)]);
    for name in ["a", "b"] {
        router.answered(&shard(name), &id(), Answer::Prepared(at(20)));
    }
    router.answered(&shard("a"), &id(), Answer::Committed(at(20)));
    // The other one is away: it is prepared still, and will ask the first one.
    router.tick(GIVE_UP_MILLIS);
    assert_eq!((router.running(), router.take_settled().len()), (0, 0));

    let mut router = committing(&[part("a", true), part("b", true)]);
    for name in ["a", "b"] {
        router.answered(&shard(name), &id(), Answer::Prepared(at(20)));
    }
    for name in ["a", "b"] {
        router.answered(&shard(name), &id(), Answer::Committed(at(20)));
    }
    assert_eq!((router.running(), router.take_settled().len()), (0, 2));
}

#[test]
fn a_settler_that_was_faster_is_believed() {
    let mut router = committing(&[part("a", true), part("b", true)]);
    done(&mut router);
    router.answered(&shard("a"), &id(), Answer::Committed(at(33)));
    assert_eq!(done(&mut router), ["committed 33", "b: commit 33"]);
}

#[test]
fn a_recovery_token_finds_the_outcome() {
    for (answer, found) in [
        (Answer::Committed(at(5)), "committed 5"),
        (Answer::Aborted, "aborted"),
        (Answer::TooOld, "forgotten"),
    ] {
        let mut router = Committer::new();
        router.recover(id(), shard("a"));
        assert_eq!(done(&mut router), ["a: recover"]);
        router.answered(&shard("a"), &id(), answer);
        assert_eq!((done(&mut router), router.running()), (vec![found.to_owned()], 0));
    }
}
