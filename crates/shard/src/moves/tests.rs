//! Documents, changes of placements, and the machines hand in hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_bson::{DocBuf, Timestamp, doc};

use super::*;
use crate::placement::{CollectionPlacement, RoutingTable};
use crate::time::ClusterTime;
use crate::transaction::{Executed, Outcome, ReplyId};
use crate::types::TransactionId;

const UUID: [u8; 16] = [9; 16];

fn pattern() -> KeyPattern {
    KeyPattern::parse(doc! {"k": 1}.as_raw()).unwrap()
}

fn key(k: i32) -> Key {
    pattern().key(doc! {"k": k}.as_raw()).unwrap()
}

fn shard(name: &str) -> ShardId {
    ShardId::new(name)
}

/// From 10 on and below 20, from "a" to "b".
fn the_move(number: u8) -> Arc<Move> {
    Arc::new(Move {
        id: MoveId([number; 16]),
        ns: "db.c".into(),
        uuid: UUID,
        pattern: pattern(),
        min: key(10),
        max: key(20),
        from: shard("a"),
        to: shard("b"),
    })
}

fn token(number: u64) -> Token {
    Token { term: 3, number }
}

#[test]
fn requests_are_commands() {
    let (the_move, id) = (the_move(1), the_move(1).id);
    for request in [
        MoveRequest::Receive { the_move: the_move.clone() },
        MoveRequest::Finish { id },
        MoveRequest::GiveUp { id },
        MoveRequest::Donate { the_move: the_move.clone(), attempt: token(1) },
        MoveRequest::Copy { id, donation: token(2), after: None },
        MoveRequest::Copy { id, donation: token(2), after: Some(vec![1, 2]) },
        MoveRequest::Changes { id, donation: token(2), received: 7, close: true },
    ] {
        let command = request.command();
        let parsed = MoveRequest::parse(request.name(), command.as_raw()).unwrap();
        assert_eq!(parsed, request, "{command:?}");
        if let MoveRequest::Receive { the_move: parsed } = parsed {
            assert_eq!(parsed.document().as_bytes(), the_move.document().as_bytes());
        }
        assert!(MoveRequest::parse(request.name(), doc! {}.as_raw()).is_err());
    }
}

#[test]
fn statements_are_commands() {
    let lastmod = Timestamp::new(4, 1);
    for statement in [
        MoveStatement::Leave { the_move: the_move(1), closing: token(2), lastmod },
        MoveStatement::Own { the_move: the_move(1), closing: token(2), lastmod },
    ] {
        let command = statement.command().unwrap();
        let name = command.as_raw().iter().next().unwrap().key().to_owned();
        assert_eq!(MoveStatement::parse(&name, command.as_raw()).unwrap(), statement);
    }
}

#[test]
fn answers_are_replies() {
    for answer in [
        MoveAnswer::Receiving(Progress { batches: 3, caught_up: true }),
        MoveAnswer::Ready { closing: token(1) },
        MoveAnswer::Busy,
        MoveAnswer::GivenUp { why: "so".into() },
        MoveAnswer::Donating { donation: token(1) },
        MoveAnswer::Copied { last: None },
        MoveAnswer::Copied { last: Some(vec![7]) },
        MoveAnswer::Changed { upto: 5, count: 2, left: 0, closing: None },
        MoveAnswer::Changed { upto: 5, count: 2, left: 1, closing: Some(token(4)) },
        MoveAnswer::Refused { why: "so".into() },
    ] {
        let reply = DocBuf::build(|out| answer.append(out));
        assert_eq!(MoveAnswer::parse(reply.as_raw()), Some(answer));
    }
}

// Placements.

fn ends(document: &DocBuf, list: &str) -> Vec<(i32, i32)> {
    let end = |value: sheaf_bson::Value<'_>, name: &str| {
        let bound = value.as_doc().unwrap().get(name).unwrap().as_doc().unwrap();
        bound.get("k").unwrap().as_exact_i64().unwrap() as i32
    };
    let list = document.as_raw().get(list).unwrap().as_array().unwrap();
    list.values().map(|span| (end(span, "min"), end(span, "max"))).collect()
}

fn lastmod(document: &DocBuf) -> Timestamp {
    match document.as_raw().get("lastmod") {
        Some(sheaf_bson::Value::Timestamp(time)) => time,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_placement_receives_owns_leaves_and_forgets() {
    let apply = |change: PlacementChange, document: &DocBuf| change.apply(Some(document.as_raw()));
    let received = PlacementChange::Receive { the_move: the_move(1) }.apply(None).unwrap().unwrap();
    assert_eq!((ends(&received, "receiving"), ends(&received, "owned")), (vec![(10, 20)], vec![]));
    assert_eq!(receiving_in(received.as_raw()).unwrap(), [the_move(1).id]);
    // The same again changes nothing; another move of it is refused.
    assert_eq!(apply(PlacementChange::Receive { the_move: the_move(1) }, &received).unwrap(), None);
    assert!(apply(PlacementChange::Receive { the_move: the_move(2) }, &received).is_err());

    let own = |the_move| PlacementChange::Own { the_move, lastmod: Timestamp::new(4, 0) };
    assert!(apply(own(the_move(2)), &received).is_err());
    let owned = apply(own(the_move(1)), &received).unwrap().unwrap();
    assert_eq!((ends(&owned, "owned"), ends(&owned, "receiving")), (vec![(10, 20)], vec![]));
    assert_eq!(lastmod(&owned), Timestamp::new(4, 0));
    assert_eq!(apply(PlacementChange::GiveUp { id: the_move(1).id }, &owned).unwrap(), None);

    // The neighbour on the right joins it.
    let next = Arc::new(Move { min: key(20), max: key(30), ..(*the_move(3)).clone() });
    let both = apply(PlacementChange::Receive { the_move: next.clone() }, &owned).unwrap().unwrap();
    let both = apply(own(next), &both).unwrap().unwrap();
    assert_eq!(ends(&both, "owned"), [(10, 30)]);

    // A part from the middle leaves, and comes back when it is gone.
    let part = Arc::new(Move { min: key(12), max: key(15), ..(*the_move(4)).clone() });
    let leave = PlacementChange::Leave { the_move: part.clone(), lastmod: Timestamp::new(6, 1), since: 77 };
    let left = apply(leave.clone(), &both).unwrap().unwrap();
    assert_eq!((ends(&left, "owned"), ends(&left, "leaving")), (vec![(10, 12), (15, 30)], vec![(12, 15)]));
    assert_eq!(leaving_in(left.as_raw()).unwrap(), [(key(12), key(15))]);
    let since = |left: &DocBuf| {
        left.as_raw().get("leaving")?.as_array()?.get("0")?.as_doc()?.get("since").map(|at| format!("{at:?}"))
    };
    assert!(since(&left).is_some_and(|at| at.contains("77")), "{left:?}");
    assert!(apply(leave, &left).is_err());
    let back = PlacementChange::Receive { the_move: part };
    assert!(apply(back.clone(), &left).is_err(), "a range returns only when its removal is done");
    let going = apply(PlacementChange::Removing { min: key(12) }, &left).unwrap().unwrap();
    assert_eq!(apply(PlacementChange::Removing { min: key(12) }, &going).unwrap(), None);
    let gone = apply(PlacementChange::Removed { min: key(12) }, &going).unwrap().unwrap();
    let received = apply(back, &gone).unwrap().unwrap();

    // Whoever began to read before it left finds all of it until it goes, and none of what is received again.
    let parsed = |document: &DocBuf| CollectionPlacement::parse(document.as_raw()).unwrap().placement;
    let before = parsed(&both).owned;
    assert!(parsed(&both).keeps(&before) && parsed(&left).keeps(&before));
    for later in [&going, &gone, &received] {
        assert!(!parsed(later).keeps(&before), "{later:?}");
        assert!(parsed(later).keeps(&parsed(&left).owned));
    }
    let given_up = PlacementChange::GiveUp { id: the_move(4).id };
    let in_vain = apply(given_up, &received).unwrap().unwrap();
    assert!(!parsed(&in_vain).keeps(&before), "nobody could read what was received in vain");
}

#[test]
fn a_move_given_up_leaves_what_was_received() {
    let received = PlacementChange::Receive { the_move: the_move(1) }.apply(None).unwrap().unwrap();
    let given_up =
        PlacementChange::GiveUp { id: the_move(1).id }.apply(Some(received.as_raw())).unwrap().unwrap();
    assert_eq!((ends(&given_up, "leaving"), ends(&given_up, "receiving")), (vec![(10, 20)], vec![]));
}

#[test]
fn other_fields_of_a_placement_stay() {
    let placement = doc! {
        "_id": 1, "unique": true, "key": {"k": 1}, "lastmod": Timestamp::new(2, 0), "owned": [{"min": {"k": 0}, "max": {"k": 50}}],
        "receiving": [], "leaving": [], "more": "x"
    };
    let leave = PlacementChange::Leave { the_move: the_move(1), lastmod: Timestamp::new(3, 1), since: 77 };
    let left = leave.apply(Some(placement.as_raw())).unwrap().unwrap();
    assert_eq!(left.as_raw().get("more").and_then(|more| more.as_str()), Some("x"));
    assert_eq!(left.as_raw().get("unique").and_then(|unique| unique.as_bool()), Some(true));
    assert_eq!(ends(&left, "owned"), [(0, 10), (20, 50)]);
}

// The donor.

fn donate(donors: &mut Donors, number: u8, attempt: u64) -> MoveAnswer {
    let request = MoveRequest::Donate { the_move: the_move(number), attempt: token(attempt) };
    donors.handle(ReplyId(1), request, |_| true, |_| vec![Arc::from(*b"s")]);
    match donors.poll().remove(0) {
        DonorEffect::Reply { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

fn donating(donors: &mut Donors, attempt: u64) -> Token {
    match donate(donors, 1, attempt) {
        MoveAnswer::Donating { donation } => donation,
        other => panic!("{other:?}"),
    }
}

fn donors() -> Donors {
    let mut donors = Donors::new();
    donors.became_primary(3);
    donors
}

fn ask(donors: &mut Donors, donation: Token, received: u64, close: bool) -> Vec<DonorEffect> {
    let request = MoveRequest::Changes { id: the_move(1).id, donation, received, close };
    donors.handle(ReplyId(2), request, |_| true, |_| Vec::new());
    donors.poll()
}

fn write(donors: &mut Donors, k: i32) {
    donors.changed(&UUID, &Arc::from(k.to_be_bytes()));
}

fn told(effects: &[DonorEffect]) -> (Vec<u64>, u64, Option<Token>) {
    match effects {
        [DonorEffect::Changes { changes, upto, left: 0, closing, .. }] => {
            (changes.iter().map(|(number, _)| *number).collect(), *upto, *closing)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_donor_tells_each_change_until_it_is_received() {
    let mut donors = donors();
    let donation = donating(&mut donors, 1);
    write(&mut donors, 11);
    write(&mut donors, 12);
    write(&mut donors, 25);
    write(&mut donors, 11);
    // The session, 12, what is not in the range, and 11 by its last change.
    assert_eq!(told(&ask(&mut donors, donation, 0, false)), (vec![1, 3, 4, 5], 5, None));
    assert_eq!(told(&ask(&mut donors, donation, 3, false)), (vec![4, 5], 5, None));
    assert_eq!(told(&ask(&mut donors, donation, 5, false)), (vec![], 5, None));
}

#[test]
fn a_donor_puts_off_sessions_that_are_at_work() {
    let mut donors = donors();
    let donation = donating(&mut donors, 1);
    let session: Arc<[u8]> = Arc::from(*b"t");
    donors.session_changed(&session);
    write(&mut donors, 11);
    assert_eq!(told(&ask(&mut donors, donation, 1, false)), (vec![3], 3, None));
    donors.session_changed(&session);
    assert_eq!(told(&ask(&mut donors, donation, 3, false)), (vec![], 3, None));
    // It has come to rest.
    assert_eq!(told(&ask(&mut donors, donation, 3, false)), (vec![6], 6, None));
    donors.session_changed(&session);
    ask(&mut donors, donation, 6, true);
    donors.drained(the_move(1).id);
    assert_eq!(told(&donors.poll()).0, [7], "when the range is closed it is told in any case");
}

#[test]
fn where_records_tell_the_shard_key_what_is_not_in_the_range_is_not_told() {
    let by_id = KeyPattern::parse(doc! {"_id": 1}.as_raw()).unwrap();
    let key = |k: i32| by_id.key(doc! {"_id": k}.as_raw()).unwrap();
    let the_move = Move { pattern: by_id.clone(), min: key(10), max: key(20), ..(*the_move(1)).clone() };
    let mut donors = donors();
    let request = MoveRequest::Donate { the_move: Arc::new(the_move), attempt: token(1) };
    donors.handle(ReplyId(1), request, |_| true, |_| Vec::new());
    let [DonorEffect::Reply { answer: MoveAnswer::Donating { donation }, .. }] = donors.poll()[..] else {
        panic!("it does not donate")
    };
    for k in [9, 10, 19, 20] {
        donors.changed(&UUID, &Arc::from(key(k).order()));
    }
    assert_eq!(told(&ask(&mut donors, donation, 0, false)), (vec![1, 2], 2, None));
}

#[test]
fn a_recipient_asks_for_more_while_it_writes() {
    let id = the_move(1).id;
    let mut recipients: Recipients<u8> = Recipients::new();
    recipients.became_primary(5, []);
    recipients.handle(ReplyId(1), MoveRequest::Receive { the_move: the_move(1) });
    // Answers what the donor is asked, and gives what is to be done then.
    let answer = |recipients: &mut Recipients<u8>, answer: MoveAnswer| {
        let asked = recipients.poll().into_iter().find_map(|effect| match effect {
            RecipientEffect::Send { call, .. } => Some(call),
            _ => None,
        });
        recipients.answered(id, asked.expect("the donor is asked"), answer, Some(0));
    };
    let changed = |upto, left| MoveAnswer::Changed { upto, count: 4000, left, closing: None };
    answer(&mut recipients, MoveAnswer::Donating { donation: token(1) });
    recipients.placed(id, Ok(()));
    answer(&mut recipients, MoveAnswer::Copied { last: None });
    recipients.written(id, None);
    answer(&mut recipients, changed(4000, 9000));
    answer(&mut recipients, changed(8000, 5000));
    let caught_up = |recipients: &Recipients<u8>| recipients.moves().next().unwrap().1.caught_up;
    recipients.written(id, None);
    answer(&mut recipients, changed(12_000, 0));
    assert!(!caught_up(&recipients), "4,000 is much");
    recipients.written(id, None);
    recipients.written(id, None);
    // With writers who are that fast it is taken for little in the end.
    recipients.handle(ReplyId(2), MoveRequest::Receive { the_move: the_move(1) });
    recipients.tick(3000);
    answer(&mut recipients, changed(16_000, 0));
    assert!(caught_up(&recipients));
}

#[test]
fn what_is_in_the_way_of_received_documents_ends_a_move_when_the_range_is_closed() {
    for gone in [true, false] {
        let id = the_move(1).id;
        let mut recipients: Recipients<u8> = Recipients::new();
        recipients.became_primary(5, []);
        recipients.handle(ReplyId(1), MoveRequest::Receive { the_move: the_move(1) });
        let asked = |recipients: &mut Recipients<u8>| {
            let effects = recipients.poll();
            let call = effects.iter().find_map(|effect| match effect {
                RecipientEffect::Send { call, .. } => Some(*call),
                _ => None,
            });
            let writes = effects.iter().filter(|effect| matches!(effect, RecipientEffect::Write { .. }));
            (call, writes.count(), effects)
        };
        let call = asked(&mut recipients).0.unwrap();
        recipients.answered(id, call, MoveAnswer::Donating { donation: token(1) }, None);
        recipients.placed(id, Ok(()));
        let call = asked(&mut recipients).0.unwrap();
        recipients.answered(id, call, MoveAnswer::Copied { last: None }, Some(0));
        recipients.written(id, Some("another is there".to_owned()));
        let (call, ..) = asked(&mut recipients);
        // Nothing has changed, but what waits is tried again.
        let nothing = |closing| MoveAnswer::Changed { upto: 0, count: 0, left: 0, closing };
        recipients.answered(id, call.unwrap(), nothing(None), Some(0));
        assert_eq!(asked(&mut recipients).1, 1);
        recipients.written(id, Some("another is there".to_owned()));
        recipients.handle(ReplyId(2), MoveRequest::Finish { id });
        recipients.tick(1000);
        let (call, ..) = asked(&mut recipients);
        recipients.answered(id, call.unwrap(), nothing(Some(token(7))), Some(0));
        assert_eq!(asked(&mut recipients).1, 1);
        recipients.written(id, Some("another is there".to_owned()).filter(|_| !gone));
        let (_, _, effects) = asked(&mut recipients);
        let answer = effects.into_iter().find_map(|effect| match effect {
            RecipientEffect::Reply { to: ReplyId(2), answer } => Some(answer),
            _ => None,
        });
        if gone {
            assert_eq!(answer, Some(MoveAnswer::Ready { closing: token(7) }));
            continue;
        }
        let given_up = MoveAnswer::GivenUp { why: "another is there".to_owned() };
        assert_eq!(answer, Some(given_up.clone()));
        // Also when nothing is left of it.
        recipients.placed(id, Ok(()));
        recipients.handle(ReplyId(3), MoveRequest::Finish { id });
        assert!(recipients.poll().contains(&RecipientEffect::Reply { to: ReplyId(3), answer: given_up }));
    }
}

#[test]
fn a_later_recipient_replaces_an_earlier_one() {
    let mut donors = donors();
    let first = donating(&mut donors, 1);
    assert_eq!(donating(&mut donors, 1), first);
    let second = donating(&mut donors, 2);
    assert_ne!(first, second);
    assert!(matches!(
        ask(&mut donors, first, 0, false)[..],
        [DonorEffect::Reply { answer: MoveAnswer::Refused { .. }, .. }]
    ));
    assert!(matches!(donate(&mut donors, 2, 1), MoveAnswer::Refused { .. }), "another move of the same keys");
}

#[test]
fn a_closed_range_is_left_in_the_closing_that_was_told_only() {
    let mut donors = donors();
    let donation = donating(&mut donors, 1);
    let transaction = TransactionId::new(&b"m"[..], 1);
    assert!(matches!(ask(&mut donors, donation, 1, true)[..], [DonorEffect::Close(_)]));
    write(&mut donors, 15);
    donors.drained(the_move(1).id);
    let (changes, _, closing) = told(&donors.poll());
    assert_eq!(changes, [2]);
    let closing = closing.expect("it is closed");
    // Nobody comes: it is opened, and closed again under another name.
    donors.tick(2000);
    assert!(matches!(donors.poll()[..], [DonorEffect::Reopen(_)]));
    assert!(donors.statement(the_move(1).id, closing, &transaction).is_err());
    ask(&mut donors, donation, 2, true);
    donors.drained(the_move(1).id);
    let (_, _, again) = told(&donors.poll());
    assert_ne!(again, Some(closing));
    assert!(donors.statement(the_move(1).id, closing, &transaction).is_err());
    donors.statement(the_move(1).id, again.unwrap(), &transaction).unwrap();
    // What does not go on is to be abandoned, but the range stays closed until that is sure.
    donors.tick(4000);
    assert_eq!(donors.poll(), [DonorEffect::Abandon(transaction.clone())]);
    donors.ended(&transaction, false);
    assert!(matches!(donors.poll()[..], [DonorEffect::Reopen(_)]));
}

#[test]
fn a_range_that_others_write_in_is_opened_again() {
    let mut donors = donors();
    let donation = donating(&mut donors, 1);
    ask(&mut donors, donation, 1, true);
    donors.tick(500);
    let effects = donors.poll();
    assert!(matches!(effects[0], DonorEffect::Reply { answer: MoveAnswer::Busy, .. }), "{effects:?}");
    assert!(matches!(effects[1], DonorEffect::Reopen(_)));
    donors.drained(the_move(1).id);
    assert_eq!(donors.poll(), []);
}

// All three.

/// A donor, a recipient and a conductor whose drivers do everything at once. Documents are keys with numbers.
struct Cluster {
    conductor: Conductor,
    donors: Donors,
    recipients: Recipients<Vec<(i32, Option<u32>)>>,
    given: BTreeMap<i32, u32>,
    taken: BTreeMap<i32, u32>,
    placements: [Option<DocBuf>; 2],
    table: RoutingTable,
    /// Changes to be made between two steps.
    writes: Vec<(i32, Option<u32>)>,
    prepared: BTreeMap<ShardId, MoveStatement>,
    now: u64,
    ending: Option<Ending>,
    gone: bool,
}

impl Cluster {
    fn new() -> Cluster {
        let pattern = pattern();
        let shards = [shard("a")];
        let table = RoutingTable::create(pattern, UUID, &[], &shards, ClusterTime::from_bits(1)).unwrap();
        let owned = doc! {
            "_id": 1, "key": {"k": 1}, "lastmod": Timestamp::new(1, 0),
            "owned": [{"min": {"k": sheaf_bson::Value::MinKey}, "max": {"k": sheaf_bson::Value::MaxKey}}], "receiving": [], "leaving": []
        };
        let mut recipients = Recipients::new();
        recipients.became_primary(5, []);
        Cluster {
            conductor: Conductor::new(the_move(1), shard("config"), 0),
            donors: donors(),
            recipients,
            given: (0..30).map(|k| (k, 0)).collect(),
            taken: BTreeMap::new(),
            placements: [Some(owned), None],
            table,
            writes: Vec::new(),
            prepared: BTreeMap::new(),
            now: 0,
            ending: None,
            gone: false,
        }
    }

    fn step(&mut self) -> bool {
        let mut any = false;
        for effect in self.conductor.poll() {
            any = true;
            self.of_conductor(effect);
        }
        for effect in self.recipients.poll() {
            any = true;
            self.of_recipient(effect);
        }
        if let Some((k, value)) = self.writes.pop() {
            match value {
                Some(value) => self.given.insert(k, value),
                None => self.given.remove(&k),
            };
            write(&mut self.donors, k);
        }
        if !any {
            self.now += 25;
            self.conductor.tick(self.now);
            self.recipients.tick(self.now);
            self.donors.tick(self.now);
        }
        self.ending.is_none() && self.now < 200_000
    }

    fn of_conductor(&mut self, effect: ConductorEffect) {
        match effect {
            ConductorEffect::Begin => self.conductor.begun(Ok(())),
            ConductorEffect::Send(request) => {
                let request = MoveRequest::parse(request.name(), request.command().as_raw()).unwrap();
                self.recipients.handle(ReplyId(7), request);
            }
            ConductorEffect::ReadTable => self.conductor.table(Some(&self.table), ClusterTime::from_bits(50)),
            ConductorEffect::Execute { on, id, statement } => {
                let result = match &statement {
                    MoveStatement::Leave { the_move, closing, .. } => {
                        self.donors.statement(the_move.id, *closing, &id)
                    }
                    MoveStatement::Own { the_move, closing, .. } => {
                        self.recipients.statement(the_move.id, *closing, &id)
                    }
                    MoveStatement::Directory { .. } => Ok(()),
                };
                self.prepared.insert(on.clone(), statement);
                self.conductor.executed(&on, &id, result.map(|()| Executed::default()));
            }
            ConductorEffect::Commit { id, parts } => {
                assert_eq!(parts.len(), 3);
                for statement in std::mem::take(&mut self.prepared).into_values() {
                    match &statement {
                        MoveStatement::Leave { .. } => self.place(0, &statement.change(77).unwrap()),
                        MoveStatement::Own { .. } => self.place(1, &statement.change(77).unwrap()),
                        MoveStatement::Directory { chunks, .. } => {
                            self.table = self.table.changed(chunks.clone()).unwrap();
                        }
                    }
                }
                self.donors.ended(&id, true);
                self.recipients.ended(&id, true);
                self.conductor.ended(&id, Outcome::Committed(ClusterTime::from_bits(60)));
            }
            ConductorEffect::Abandon { id, .. } => {
                self.donors.ended(&id, false);
                self.recipients.ended(&id, false);
            }
            ConductorEffect::Forget => {
                self.gone = true;
                self.conductor.forgotten();
            }
            ConductorEffect::Over(ending) => self.ending = Some(ending),
        }
    }

    fn place(&mut self, on: usize, change: &PlacementChange) {
        let before = self.placements[on].clone();
        if let Some(after) = change.apply(before.as_ref().map(|doc| doc.as_raw())).unwrap() {
            self.placements[on] = Some(after);
        }
    }

    fn of_recipient(&mut self, effect: RecipientEffect<Vec<(i32, Option<u32>)>>) {
        let id = the_move(1).id;
        match effect {
            RecipientEffect::Reply { answer, .. } => self.conductor.answered(answer),
            RecipientEffect::Place { change, .. } => {
                self.place(1, &change);
                self.recipients.placed(id, Ok(()));
            }
            RecipientEffect::Write { batch, .. } => {
                for (k, value) in batch {
                    match value {
                        Some(value) => self.taken.insert(k, value),
                        None => self.taken.remove(&k),
                    };
                }
                self.recipients.written(id, None);
            }
            RecipientEffect::Send { call, request, .. } => {
                self.donors.handle(ReplyId(call), request, |_| true, |_| Vec::new());
                for effect in self.donors.poll() {
                    self.of_donor(call, effect);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn of_donor(&mut self, call: u64, effect: DonorEffect) {
        let id = the_move(1).id;
        match effect {
            DonorEffect::Reply { answer, .. } => self.recipients.answered(id, call, answer, None),
            DonorEffect::Copy { after, .. } => {
                let from = after.map_or(10, |after| i32::from(after[0]) + 1);
                let batch: Vec<_> = (from..20).take(3).collect();
                let last = batch.last().filter(|last| **last < 19).map(|last| vec![*last as u8]);
                let batch = batch.iter().filter_map(|k| Some((*k, Some(*self.given.get(k)?)))).collect();
                self.recipients.answered(id, call, MoveAnswer::Copied { last }, Some(batch));
            }
            DonorEffect::Changes { changes, upto, left, closing, .. } => {
                let documents = changes.iter().map(|(_, change)| match change {
                    ChangeOf::Document(name) => i32::from_be_bytes(name[..].try_into().unwrap()),
                    other => panic!("{other:?}"),
                });
                let batch: Vec<_> = documents.map(|k| (k, self.given.get(&k).copied())).collect();
                let answer = MoveAnswer::Changed { upto, count: batch.len() as u64, left, closing };
                self.recipients.answered(id, call, answer, Some(batch));
            }
            DonorEffect::Close(the_move) => {
                self.writes.clear();
                self.donors.drained(the_move.id);
                for effect in self.donors.poll() {
                    self.of_donor(call, effect);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_move_takes_everything_that_changes_meanwhile() {
    let mut cluster = Cluster::new();
    cluster.writes = (0..60_u32).map(|n| (8 + (n * 7 % 14) as i32, (n % 3 > 0).then_some(n))).collect();
    while cluster.step() {}
    assert_eq!(cluster.ending, Some(Ending::Committed(ClusterTime::from_bits(60))));
    let expected: BTreeMap<i32, u32> = cluster.given.range(10..20).map(|(k, value)| (*k, *value)).collect();
    assert_eq!(cluster.taken, expected);
    assert_eq!(*cluster.table.owner(&key(15)), shard("b"));
    let [Some(donor), Some(recipient)] = &cluster.placements else { panic!() };
    assert_eq!((ends(donor, "leaving"), ends(recipient, "owned")), (vec![(10, 20)], vec![(10, 20)]));
    assert_eq!(lastmod(recipient), cluster.table.version_of(&shard("b")).lastmod);
    assert_eq!(lastmod(donor), cluster.table.version_of(&shard("a")).lastmod);
    assert_eq!(cluster.recipients.moves().count() + cluster.donors.moves().count(), 0);
}

#[test]
fn a_move_that_is_called_off_leaves_a_mark_to_be_removed() {
    let mut cluster = Cluster::new();
    while cluster.placements[1].is_none() {
        cluster.step();
    }
    cluster.conductor.cancel("enough".to_owned());
    while cluster.step() {}
    assert_eq!(cluster.ending, Some(Ending::GivenUp { why: "enough".to_owned() }));
    assert!(cluster.gone);
    let recipient = cluster.placements[1].as_ref().unwrap();
    assert_eq!((ends(recipient, "leaving"), ends(recipient, "receiving")), (vec![(10, 20)], vec![]));
}

#[test]
fn the_next_primary_takes_back_what_was_received() {
    let mut cluster = Cluster::new();
    while cluster.placements[1].is_none() {
        cluster.step();
    }
    let marked = receiving_in(cluster.placements[1].as_ref().unwrap().as_raw()).unwrap();
    cluster.recipients.lost_primary();
    cluster.recipients.became_primary(6, marked.into_iter().map(|id| (UUID, id)));
    while cluster.step() {}
    assert!(matches!(cluster.ending, Some(Ending::GivenUp { .. })), "{:?}", cluster.ending);
    assert_eq!(ends(cluster.placements[1].as_ref().unwrap(), "leaving"), [(10, 20)]);
}

#[test]
fn a_document_that_is_found_is_given_up() {
    let mut conductor = Conductor::resume(the_move(1), shard("config"), 0);
    assert!(matches!(conductor.poll()[..], [ConductorEffect::Send(MoveRequest::GiveUp { .. })]));
    conductor.answered(MoveAnswer::GivenUp { why: String::new() });
    assert_eq!(conductor.poll(), [ConductorEffect::Forget]);
    conductor.forgotten();
    assert!(matches!(conductor.poll()[..], [ConductorEffect::Over(Ending::GivenUp { .. })]));
}

// Removals.

#[test]
fn what_leaves_is_removed_in_pieces_and_then_forgotten() {
    let mut removals = Removals::new();
    removals.became_primary();
    let (min, max) = (key(1), key(5));
    removals.placement(UUID, vec![(min.clone(), max.clone())]);
    assert!(matches!(removals.poll()[..], [RemovalEffect::Await { .. }]));
    removals.unneeded(UUID, &min);
    assert!(matches!(removals.poll()[..], [RemovalEffect::Remove { .. }]));
    removals.removed(UUID, &min, Some(true));
    assert!(matches!(removals.poll()[..], [RemovalEffect::Remove { .. }]));
    removals.removed(UUID, &min, None);
    assert_eq!(removals.poll(), []);
    removals.tick(500);
    assert!(matches!(removals.poll()[..], [RemovalEffect::Remove { .. }]));
    removals.removed(UUID, &min, Some(false));
    let change = PlacementChange::Removed { min: min.clone() };
    assert_eq!(removals.poll(), [RemovalEffect::Place { uuid: UUID, change }]);
    removals.placed(UUID, &min, true);
    assert!(removals.is_idle());
}
