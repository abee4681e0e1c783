//! A shard that asks; what the others say comes from the test.

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

fn settling() -> Settler {
    let mut settler = Settler::new();
    settler.settle(&id(), &[shard("a"), shard("b")].into(), None);
    settler
}

fn sent(settler: &mut Settler) -> Vec<(ShardId, Request)> {
    let send = |effect| match effect {
        SettlerEffect::Send { to, request } => Some((to, request)),
        SettlerEffect::Contradiction { .. } => None,
    };
    settler.poll().into_iter().filter_map(send).collect()
}

#[test]
fn all_prepared_is_committed_and_told_to_all() {
    let mut settler = settling();
    let ask = Request::Ask { id: id() };
    assert_eq!(sent(&mut settler), [(shard("a"), ask.clone()), (shard("b"), ask)]);
    settler.answered(&shard("a"), &id(), Answer::Prepared(at(4)));
    settler.answered(&shard("b"), &id(), Answer::Prepared(at(6)));
    let commit = Request::Commit { id: id(), at: at(6) };
    assert_eq!(sent(&mut settler), [(shard("a"), commit.clone()), (shard("b"), commit)]);
    settler.answered(&shard("a"), &id(), Answer::Committed(at(6)));
    assert_eq!(sent(&mut settler), []);
    settler.answered(&shard("b"), &id(), Answer::Committed(at(6)));
    let settled = Request::Settled { ids: vec![id()] };
    assert_eq!(sent(&mut settler), [(shard("a"), settled.clone()), (shard("b"), settled)]);
}

#[test]
fn one_who_has_not_prepared_aborts_it() {
    let mut settler = settling();
    sent(&mut settler);
    settler.answered(&shard("a"), &id(), Answer::Prepared(at(4)));
    settler.answered(&shard("b"), &id(), Answer::TooOld);
    let abort = Request::Abort { id: id() };
    assert_eq!(sent(&mut settler), [(shard("a"), abort.clone()), (shard("b"), abort)]);
}

#[test]
fn silence_is_asked_again_until_the_office_ends() {
    let mut settler = settling();
    sent(&mut settler);
    settler.answered(&shard("a"), &id(), Answer::Prepared(at(4)));
    settler.tick(AGAIN_MILLIS);
    assert_eq!(sent(&mut settler), [(shard("b"), Request::Ask { id: id() })]);
    settler.stop();
    settler.tick(2 * AGAIN_MILLIS);
    assert_eq!(sent(&mut settler), []);
}

/// A shard that was told so and has forgotten says that the number is too old; that is no abort.
#[test]
fn what_has_committed_is_not_asked_about() {
    let mut settler = Settler::new();
    settler.settle(&id(), &[shard("a"), shard("b")].into(), Some(at(6)));
    let commit = Request::Commit { id: id(), at: at(6) };
    assert_eq!(sent(&mut settler), [(shard("a"), commit.clone()), (shard("b"), commit)]);
    settler.answered(&shard("b"), &id(), Answer::TooOld);
    settler.answered(&shard("b"), &id(), Answer::Committed(at(6)));
    settler.answered(&shard("a"), &id(), Answer::Committed(at(6)));
    assert_eq!(sent(&mut settler).len(), 2);
}

/// The commit came from the router while the others were being asked, who have settled and forgotten it since.
#[test]
fn a_commit_that_comes_meanwhile_is_the_outcome() {
    let mut settler = settling();
    sent(&mut settler);
    settler.committed(&id(), at(6));
    let commit = Request::Commit { id: id(), at: at(6) };
    assert_eq!(sent(&mut settler), [(shard("a"), commit.clone()), (shard("b"), commit)]);
    settler.answered(&shard("b"), &id(), Answer::TooOld);
    settler.committed(&id(), at(6));
    assert_eq!(sent(&mut settler), []);
    settler.answered(&shard("a"), &id(), Answer::Committed(at(6)));
    settler.answered(&shard("b"), &id(), Answer::Committed(at(6)));
    assert_eq!(sent(&mut settler).len(), 2);
}
