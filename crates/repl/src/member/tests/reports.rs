//! What members tell their primary of how far they are, and when.

use raft::eraftpb::MessageType;

use super::*;

/// What a member wants sent, of these effects, and the unit that it wants written.
fn split(effects: Vec<Effect>) -> (Vec<(Arc<str>, Envelope)>, Option<u64>) {
    let (mut sent, mut unit) = (Vec::new(), None);
    for effect in effects {
        match effect {
            Effect::Send { host, envelope } => sent.push((host, envelope)),
            Effect::Persist(persist) => unit = Some(persist.seq),
            _ => {}
        }
    }
    (sent, unit)
}

fn kind(envelope: &Envelope) -> Option<MessageType> {
    match &envelope.body {
        Body::Raft(message) => Some(message.get_msg_type()),
        _ => None,
    }
}

/// The primary writes, and the first secondary hears of it. Gives what the primary wrote and the secondary's unit.
fn write_to_one(set: &mut Set) -> (LogPosition, u64) {
    let at = set.propose(0);
    let (sent, own) = split(set.member(0).poll());
    let own = own.unwrap();
    set.member(0).written(own);
    set.member(0).applied(own);
    set.member(0).durable(own);
    for (to, envelope) in sent {
        if to == host(1) {
            set.member(1).step(&host(0), envelope);
        }
    }
    let unit = split(set.member(1).poll()).1.unwrap();
    set.member(1).written(unit);
    set.member(1).applied(unit);
    (at, unit)
}

/// What the secondary says when it has applied a write, and when it has it on disk.
fn said(set: &mut Set) -> [Vec<Option<MessageType>>; 2] {
    let unit = write_to_one(set).1;
    let kinds = |set: &mut Set| {
        let sent = split(set.member(1).poll()).0;
        sent.iter().map(|(_, envelope)| kind(envelope)).collect()
    };
    let applied = kinds(set);
    set.member(1).durable(unit);
    [applied, kinds(set)]
}

#[test]
fn reports_come_at_once_where_somebody_waits_for_them() {
    let acknowledged = Some(MessageType::MsgAppendResponse);
    let mut set = three();
    assert_eq!(said(&mut set), [vec![], vec![acknowledged]]);
    // The disk may take long: who is not waited for tells it with the next tick.
    write_to_one(&mut set);
    assert_eq!(split(set.member(1).poll()).0, []);
    set.run(50);
    // Who is learns it at once, with a word for which no entry has to come.
    let (at, _) = write_to_one(&mut set);
    assert_eq!(split(set.member(1).poll()).0, []);
    let waiter = set.member(0).wait(at, WriteConcern::nodes(2)).unwrap();
    for (to, envelope) in split(set.member(0).poll()).0 {
        if to == host(1) {
            set.member(1).step(&host(0), envelope);
        }
    }
    for (_, envelope) in split(set.member(1).poll()).0 {
        set.member(0).step(&host(1), envelope);
    }
    let resolved = set.member(0).poll().into_iter().any(
        |effect| matches!(effect, Effect::Resolved { waiter: of, outcome: WaitOutcome::Satisfied } if of == waiter),
    );
    assert!(resolved);
    // From now on at once, for a while.
    assert_eq!(said(&mut set)[0], [None]);
    let unit = set.member(1).positions().written;
    assert_eq!(set.member(1).positions().applied, unit);
    set.run(10_000);
    assert_eq!(said(&mut set)[0], []);
}

/// Who waits for a majority needs no reports.
#[test]
fn a_majority_needs_acknowledgements_only() {
    let mut set = three();
    let (at, unit) = write_to_one(&mut set);
    let waiter = set.member(0).wait(at, WriteConcern::majority()).unwrap();
    set.member(1).durable(unit);
    set.settle();
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
    assert_eq!(said(&mut set)[0], []);
}

/// What the primary shows of a member follows from its acknowledgements.
#[test]
fn an_acknowledgement_says_how_far_a_member_is() {
    let mut set = three();
    let waiter = set.write(0, WriteConcern::majority());
    assert_eq!(set.outcome(0, waiter), Some(WaitOutcome::Satisfied));
    let own = set.member(0).positions();
    let peers = set.member(0).status().peers;
    assert!(peers.iter().all(|peer| peer.positions == own), "{peers:?} and {own:?}");
}

#[test]
fn word_of_the_commit_point_alone_is_not_answered() {
    let mut set = three();
    set.write(0, WriteConcern::majority());
    set.propose(0);
    let (mut told, mut answers) = (None, 0);
    // As it goes in `Set::settle`, but for what is sent to the second secondary.
    for _ in 0..5 {
        for number in 0..2 {
            let (sent, unit) = split(set.member(number).poll());
            if let Some(unit) = unit {
                set.member(number).written(unit);
                set.member(number).applied(unit);
                set.member(number).durable(unit);
            }
            for (to, envelope) in sent {
                let appends = kind(&envelope) == Some(MessageType::MsgAppend);
                if appends && !envelope.brings_entries() && to == host(1) {
                    told = Some(envelope.clone());
                }
                answers += u32::from(kind(&envelope) == Some(MessageType::MsgAppendResponse));
                if to != host(2) {
                    let to = usize::from(to == host(1));
                    set.member(to).step(&host(number), envelope);
                }
            }
        }
    }
    assert_eq!(answers, 1, "of the entry, and not of the word that it is committed");
    // Said again it moves nothing, so it asks how far the member is.
    let told = told.expect("the primary has told of its commit point");
    assert!(!told.brings_entries());
    set.member(1).step(&host(0), told);
    let (sent, _) = split(set.member(1).poll());
    assert_eq!(
        sent.iter().map(|(_, envelope)| kind(envelope)).collect::<Vec<_>>(),
        [Some(MessageType::MsgAppendResponse)]
    );
}
