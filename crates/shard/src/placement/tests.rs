//! Placement against the plain way to say the same.

use std::cmp::Ordering;

use proptest::prelude::*;
use sheaf_bson::{DocBuf, Timestamp, Value, compare, doc, hashed_index_value};
use sheaf_errors::Code;

use crate::time::ClusterTime;
use crate::types::ShardId;

use super::*;

fn pattern(document: DocBuf) -> KeyPattern {
    KeyPattern::parse(document.as_raw()).expect("a shard key")
}

fn code(result: sheaf_errors::Result<impl Sized>) -> Code {
    result.err().expect("refused").code()
}

fn shard(number: usize) -> ShardId {
    ShardId::new(format!("shard{number}"))
}

#[test]
fn patterns_are_ascending_or_hashed() {
    for good in [doc! {"a": 1}, doc! {"a.b": 1.0, "c": "hashed"}, doc! {"_id": "hashed"}] {
        assert_eq!(pattern(good.clone()).document().as_bytes(), good.as_bytes());
    }
    let bad = [
        doc! {},
        doc! {"a": -1},
        doc! {"a": "2d"},
        doc! {"a": "hashed", "b": "hashed"},
        doc! {"a": 1, "a.b": 1},
        doc! {"a": 1, "a": 1},
        doc! {"a..b": 1},
        doc! {"$a": 1},
    ];
    for bad in bad {
        assert_eq!(code(KeyPattern::parse(bad.as_raw())), Code::BAD_VALUE, "{bad:?}");
    }
}

#[test]
fn keys_are_taken_through_embedded_documents() {
    let of = pattern(doc! {"a.b": 1, "c": 1});
    let key = |document: DocBuf| of.key_of(document.as_raw());
    let shown = |document| key(document).expect("a key").to_string();
    assert_eq!(
        shown(doc! {"c": 2, "a": {"b": "x", "z": 1}}),
        of.key(doc! {"a.b": "x", "c": 2}.as_raw()).unwrap().to_string()
    );
    assert_eq!(
        key(doc! {"a": {}}).unwrap(),
        of.key(doc! {"a.b": Value::Null, "c": Value::Null}.as_raw()).unwrap()
    );
    assert_eq!(key(doc! {"a": 5, "c": 1}).unwrap(), key(doc! {"c": 1.0}).unwrap());
    for bad in [doc! {"a": [{"b": 1}]}, doc! {"a": {"b": [1]}}, doc! {"c": []}] {
        assert_eq!(code(key(bad)), Code::SHARD_KEY_NOT_FOUND);
    }
}

#[test]
fn hashed_fields_have_the_hash() {
    let of = pattern(doc! {"a": 1, "b": "hashed"});
    let hash = hashed_index_value(Value::String("x"));
    let key = of.key_of(doc! {"b": "x", "a": 1}.as_raw()).unwrap();
    assert_eq!(key, of.key(doc! {"a": 1, "b": hash}.as_raw()).unwrap());
}

#[test]
fn ends_of_ranges_have_the_patterns_fields() {
    let of = pattern(doc! {"a": 1, "b": 1});
    assert_eq!(of.key(doc! {"a": Value::MinKey, "b": Value::MinKey}.as_raw()).unwrap(), of.min());
    assert_eq!(
        of.key_of_prefix(doc! {"a": 3}.as_raw()).unwrap(),
        of.key(doc! {"a": 3, "b": Value::MinKey}.as_raw()).unwrap()
    );
    for bad in [doc! {"a": 1}, doc! {"b": 1, "a": 1}, doc! {"a": 1, "b": 1, "c": 1}] {
        assert_eq!(code(of.key(bad.as_raw())), Code::BAD_VALUE);
    }
    assert!(
        of.min() < of.key_of(doc! {}.as_raw()).unwrap() && of.key_of(doc! {}.as_raw()).unwrap() < of.max()
    );
}

#[test]
fn order_bytes_are_those_of_the_key() {
    let of = pattern(doc! {"a.b": 1, "c": "hashed"});
    let mut order = Vec::new();
    for document in [doc! {"a": {"b": 1}, "c": "x"}, doc! {}, doc! {"a": 1, "c": 2.5}] {
        order.clear();
        of.put_order(document.as_raw(), &mut order).unwrap();
        assert_eq!(order, of.key_of(document.as_raw()).unwrap().order());
    }
    assert_eq!(code(of.put_order(doc! {"c": [1]}.as_raw(), &mut order)), Code::SHARD_KEY_NOT_FOUND);
}

/// A table over `{k: 1}` with these inner ends, owned in turn as given.
fn table(ends: &[i32], owners: &[usize]) -> RoutingTable {
    let of = pattern(doc! {"k": 1});
    let mut keys = vec![of.min()];
    keys.extend(ends.iter().map(|end| of.key(doc! {"k": *end}.as_raw()).unwrap()));
    keys.push(of.max());
    let chunks = keys.windows(2).zip(owners.iter().cycle()).zip(1..).map(|((ends, owner), minor)| Chunk {
        min: ends[0].clone(),
        max: ends[1].clone(),
        lastmod: Timestamp::new(1, minor),
        history: vec![Owned { since: ClusterTime::from_bits(10), shard: shard(*owner) }],
    });
    RoutingTable::new(of, [7; 16], chunks.collect()).expect("no gaps")
}

fn key_of(table: &RoutingTable, k: i32) -> Key {
    table.pattern().key_of(doc! {"k": k}.as_raw()).unwrap()
}

#[test]
fn a_table_has_no_gaps() {
    let whole = table(&[0, 10], &[0, 1]);
    for left_out in 0..3 {
        let mut chunks = whole.chunks().to_vec();
        chunks.remove(left_out);
        let torn = RoutingTable::new(whole.pattern().clone(), [7; 16], chunks);
        assert_eq!(code(torn), Code::CONFLICTING_OPERATION_IN_PROGRESS);
    }
    let last = whole.pattern().key_of(doc! {"k": Value::MaxKey}.as_raw()).unwrap();
    assert_eq!(*whole.owner(&last), shard(0));
    assert!(whole.ranges_of(&shard(0)).contains(&last));
}

#[test]
fn a_move_changes_owner_history_and_versions() {
    let before = table(&[0, 10], &[0, 1, 0]);
    assert_eq!(before.version_of(&shard(0)).lastmod, Timestamp::new(1, 3));
    assert_eq!(before.version_of(&shard(5)), Version::none([7; 16]));
    let mut moved = before.chunks()[1].clone();
    moved.lastmod = before.version().next_major().lastmod;
    moved.history.insert(0, Owned { since: ClusterTime::from_bits(20), shard: shard(2) });
    let after = before.changed(vec![moved]).expect("it fits");
    let key = key_of(&after, 5);
    assert_eq!((after.owner(&key), before.owner(&key)), (&shard(2), &shard(1)));
    assert_eq!(after.version_of(&shard(2)).lastmod, Timestamp::new(2, 0));
    assert_eq!(after.version_of(&shard(0)), before.version_of(&shard(0)));
    let point = Ranges::new([KeyRange::point(&key)]);
    let at = |time| after.owners(&point, Some(ClusterTime::from_bits(time)));
    assert_eq!(at(19).unwrap().into_iter().collect::<Vec<_>>(), [&shard(1)]);
    assert_eq!(at(20).unwrap().into_iter().collect::<Vec<_>>(), [&shard(2)]);
    assert_eq!(code(at(9)), Code::STALE_CHUNK_HISTORY);
}

#[test]
fn a_split_is_taken_in_for_what_it_splits() {
    let before = table(&[0, 10], &[0, 1, 2]);
    let whole = &before.chunks()[1];
    let middle = key_of(&before, 4);
    let halves = vec![
        Chunk { max: middle.clone(), lastmod: Timestamp::new(1, 4), ..whole.clone() },
        Chunk { min: middle, lastmod: Timestamp::new(1, 5), ..whole.clone() },
    ];
    let after = before.changed(halves).expect("it fits");
    assert_eq!(after.chunks().len(), 4);
    assert_eq!(after.ranges_of(&shard(1)), before.ranges_of(&shard(1)));
    assert_eq!(after.version().lastmod, Timestamp::new(1, 5));
}

#[test]
fn a_shard_takes_requests_of_its_own_version_only() {
    let table = table(&[0], &[0, 1]);
    let placement = ShardPlacement::new(table.version_of(&shard(0)), table.ranges_of(&shard(0)));
    let at = ClusterTime::from_bits(30);
    assert_eq!(placement.check(Some(table.version_of(&shard(0))), at), Ok(()));
    for other in
        [None, Some(table.version().next_major()), Some(Version { uuid: [8; 16], ..placement.version })]
    {
        assert_eq!(placement.check(other, at), Err(Stale { received: other, wanted: placement.version, at }));
    }
    // A split disturbs nobody; a move is new to those who do not know of it.
    let split = table.changed(table.split(&[key_of(&table, -5), key_of(&table, 5)])).unwrap();
    assert_eq!(placement.check(Some(split.version_of(&shard(0))), at), Ok(()));
    let to = split.move_range(&key_of(&table, -5), &key_of(&table, 0), &shard(1), at).unwrap();
    let moved = split.changed(to).unwrap();
    let after = ShardPlacement::new(moved.version_of(&shard(0)), moved.ranges_of(&shard(0)));
    assert!(after.check(Some(split.version_of(&shard(0))), at).is_err());
    // Who reads at an earlier time says by the history what the shard owned then.
    let belief = |table: &RoutingTable, bits| {
        table.belief(&shard(0), Some(ClusterTime::from_bits(bits))).expect("the history reaches back")
    };
    assert_eq!(placement.check_belief(belief(&moved, 29), at), Ok(()));
    assert!(placement.check_belief(belief(&moved, 30), at).is_err());
    assert!(after.check_belief(belief(&moved, 29), at).is_err());
    assert_eq!(after.check_belief(belief(&moved, 30), at), Ok(()));
    assert_eq!(placement.check_belief(belief(&split, 30), at), Ok(()));
    assert!(moved.belief(&shard(0), Some(ClusterTime::ZERO)).is_err(), "nobody knows who owned it then");
    assert!(
        placement.owns(&key_of(&table, -1)) && !placement.owns(&key_of(&table, 0)) && !placement.filters()
    );
}

/// A scalar as shard keys have them, few enough to meet again.
fn scalar() -> BoxedStrategy<sheaf_bson::OwnedValue> {
    prop_oneof![
        (-3..4i32).prop_map(|n| Value::Int32(n).into()),
        (-3..4i32).prop_map(|n| Value::Double(f64::from(n) / 2.0).into()),
        "[ab]{0,2}".prop_map(|text| Value::String(&text).into()),
        any::<bool>().prop_map(|truth| Value::Bool(truth).into()),
        Just(Value::Null.into()),
        Just(Value::MinKey.into()),
        Just(Value::MaxKey.into()),
    ]
    .boxed()
}

fn interval() -> BoxedStrategy<Interval> {
    let ends = (scalar(), scalar(), any::<bool>(), any::<bool>());
    let wide = ends.prop_map(|(low, high, low_in, high_in)| Interval { low, high, low_in, high_in });
    prop_oneof![scalar().prop_map(|value| Interval::point(value.as_value())), wide, Just(Interval::all())]
        .boxed()
}

fn holds(interval: &Interval, value: Value<'_>) -> bool {
    let above = match compare(interval.low.as_value(), value) {
        Ordering::Less => true,
        Ordering::Equal => interval.low_in,
        Ordering::Greater => false,
    };
    above
        && match compare(value, interval.high.as_value()) {
            Ordering::Less => true,
            Ordering::Equal => interval.high_in,
            Ordering::Greater => false,
        }
}

proptest! {
    /// Keys compare as their values do, one after another.
    #[test]
    fn keys_compare_as_their_values(a in (scalar(), scalar()), b in (scalar(), scalar())) {
        let of = pattern(doc! {"x": 1, "y": 1});
        let key = |v: &(sheaf_bson::OwnedValue, sheaf_bson::OwnedValue)| {
            of.key_of(doc! {"x": v.0.as_value(), "y": v.1.as_value()}.as_raw()).unwrap()
        };
        let plain = compare(a.0.as_value(), b.0.as_value()).then(compare(a.1.as_value(), b.1.as_value()));
        prop_assert_eq!(key(&a).cmp(&key(&b)), plain);
    }

    /// A document whose fields lie in the intervals has its key in the ranges; where no field is hashed and all bounds could be used, no
    /// other has.
    #[test]
    fn ranges_hold_what_the_bounds_hold(
        hashed in 0..3usize,
        bounds in prop::collection::vec(prop::collection::vec(interval(), 0..3), 2),
        values in (scalar(), scalar()),
    ) {
        let of = match hashed {
            0 => pattern(doc! {"x": 1, "y": 1}),
            1 => pattern(doc! {"x": "hashed", "y": 1}),
            _ => pattern(doc! {"x": 1, "y": "hashed"}),
        };
        let (x, y) = (values.0.as_value(), values.1.as_value());
        let key = of.key_of(doc! {"x": x, "y": y}.as_raw()).unwrap();
        let matches = bounds[0].iter().any(|of| holds(of, x)) && bounds[1].iter().any(|of| holds(of, y));
        let ranges = of.ranges_of(&bounds);
        if matches {
            prop_assert!(ranges.contains(&key));
        }
        let points = bounds[0].iter().all(|of| compare(of.low.as_value(), of.high.as_value()).is_eq());
        if hashed == 0 && points && !matches {
            prop_assert!(!ranges.contains(&key));
        }
        for pair in ranges.as_slice().windows(2) {
            prop_assert!(pair[0].high().is_some_and(|high| high < pair[1].low()));
        }
    }

    /// Owners, targets and merged ranges agree with a walk over all chunks.
    #[test]
    fn tables_agree_with_a_walk(
        ends in prop::collection::btree_set(-20..20i32, 0..8),
        owners in prop::collection::vec(0..3usize, 1..6),
        low in -25..25i32,
        length in 0..12i32,
    ) {
        let ends: Vec<i32> = ends.into_iter().collect();
        let table = table(&ends, &owners);
        let owner = |k: i32| shard(owners[ends.iter().filter(|end| **end <= k).count() % owners.len()]);
        let mut wanted = std::collections::BTreeSet::new();
        for k in low..=low + length {
            let key = key_of(&table, k);
            prop_assert_eq!(table.owner(&key), &owner(k));
            for number in 0..3 {
                prop_assert_eq!(table.ranges_of(&shard(number)).contains(&key), owner(k) == shard(number));
            }
            wanted.insert(owner(k));
        }
        let bounds = Interval { low: Value::Int32(low).into(), high: Value::Int32(low + length).into(), low_in: true, high_in: true };
        let ranges = table.pattern().ranges_of(&[vec![bounds]]);
        let found = table.owners(&ranges, None).unwrap();
        prop_assert_eq!(found.into_iter().cloned().collect::<std::collections::BTreeSet<_>>(), wanted);
    }

    /// Sets of ranges with one more, and without it again.
    #[test]
    fn ranges_add_and_take_away(
        parts in prop::collection::vec((-20..20i32, 1..8i32), 0..5),
        one in (-20..20i32, 1..8i32),
        k in -30..30i32,
    ) {
        let of = pattern(doc! {"k": 1});
        let end = |k: i32| of.key(doc! {"k": k}.as_raw()).unwrap();
        let range = |(from, length): (i32, i32)| KeyRange::new(&end(from), &end(from + length), false);
        let within = |(from, length): (i32, i32)| from <= k && k < from + length;
        let set = Ranges::new(parts.iter().copied().map(range));
        let inside = parts.iter().copied().any(within);
        let key = end(k);
        prop_assert_eq!(set.contains(&key), inside);
        prop_assert_eq!(set.with(range(one)).contains(&key), inside || within(one));
        prop_assert_eq!(set.without(&range(one)).contains(&key), inside && !within(one));
        prop_assert!(set.with(range(one)).covers(&range(one)));
        prop_assert_eq!(set.covers(&range(one)), set.with(range(one)) == set);
    }
}

#[test]
fn a_new_collection_is_cut_and_dealt_out() {
    let of = pattern(doc! {"h": "hashed", "z": 1});
    let cuts = of.hash_cuts(4);
    let shown: Vec<String> =
        cuts.iter().map(|cut| cut.document().get("h").unwrap().as_exact_i64().unwrap().to_string()).collect();
    assert_eq!(shown, ["-4611686018427387904", "0", "4611686018427387904"]);
    let shards = [shard(0), shard(1)];
    let table = RoutingTable::create(of, [7; 16], &cuts, &shards, ClusterTime::from_bits(10)).unwrap();
    let owners: Vec<&ShardId> = table.chunks().iter().map(Chunk::shard).collect();
    assert_eq!(owners, [&shards[0], &shards[1], &shards[0], &shards[1]]);
    let reversed: Vec<Key> = cuts.into_iter().rev().collect();
    let none = pattern(doc! {"h": 1}).hash_cuts(4);
    assert!(none.is_empty());
    let of = table.pattern().clone();
    assert_eq!(
        code(RoutingTable::create(of, [7; 16], &reversed, &shards, ClusterTime::ZERO)),
        Code::BAD_VALUE
    );
}

#[test]
fn a_move_is_of_one_chunk_and_to_another_shard() {
    let table = table(&[0, 10], &[0, 1]);
    let (zero, five, ten) = (key_of(&table, 0), key_of(&table, 5), key_of(&table, 10));
    let at = ClusterTime::from_bits(20);
    assert_eq!(code(table.move_range(&five, &key_of(&table, 11), &shard(0), at)), Code::BAD_VALUE);
    assert_eq!(code(table.move_range(&zero, &ten, &shard(1), at)), Code::BAD_VALUE);
    assert_eq!(code(table.merge(&zero, &table.pattern().max())), Code::BAD_VALUE);
    assert_eq!(code(table.merge(&five, &ten)), Code::BAD_VALUE);
    // The last that a shard had: it has none, and no version.
    let after = table.changed(table.move_range(&zero, &ten, &shard(0), at).unwrap()).unwrap();
    assert!(!after.version_of(&shard(1)).is_set());
    // Closed is not the same as owning nothing.
    let closed = Version { lastmod: Timestamp::new(0, 1), ..Version::none([7; 16]) };
    assert!(!closed.is_same_ownership(after.version_of(&shard(1))));
    let whole = after.merge(&after.pattern().min(), &after.pattern().max()).unwrap();
    assert_eq!(after.changed(vec![whole]).unwrap().chunks().len(), 1);
}

#[test]
fn the_history_ends_with_who_owned_a_chunk_ten_minutes_ago() {
    let mut table = table(&[], &[0]);
    let (min, max) = (table.pattern().min(), table.pattern().max());
    let mut owners = Vec::new();
    for (secs, to) in [(100, 1), (400, 0), (900, 1), (1010, 0)] {
        let at = ClusterTime::from_bits(secs << 32);
        table = table.changed(table.move_range(&min, &max, &shard(to), at).unwrap()).unwrap();
        owners = table.chunks()[0].history.iter().map(|owned| owned.since.seconds()).collect();
    }
    // At 410 it was the one who had it since 400.
    assert_eq!(owners, [1010, 900, 400]);
}

#[derive(Clone, Debug)]
enum Change {
    Split(i32),
    Move(i32, i32, usize),
    Merge(usize, usize),
}

fn change() -> BoxedStrategy<Change> {
    prop_oneof![
        (-20..20i32).prop_map(Change::Split),
        (-20..20i32, 1..10i32, 0..3usize).prop_map(|(from, length, to)| Change::Move(from, length, to)),
        (0..6usize, 1..4usize).prop_map(|(first, count)| Change::Merge(first, count)),
    ]
    .boxed()
}

proptest! {
    /// A table that is changed again and again knows who owns what, and who did; a move, and nothing else, makes old requests stale on
    /// both of its shards, and on no other.
    #[test]
    fn changes_move_what_they_say(changes in prop::collection::vec(change(), 0..20)) {
        let mut table = table(&[], &[0]);
        let mut owners = vec![vec![0_usize; 60]];
        for (time, change) in (20..).zip(changes) {
            let mut now = owners.last().unwrap().clone();
            let before = table.clone();
            let mut moved = None;
            match change {
                Change::Split(k) => table = table.changed(table.split(&[key_of(&table, k)])).unwrap(),
                Change::Move(from, length, to) => {
                    let (min, max) = (key_of(&table, from), key_of(&table, from + length));
                    if let Ok(changed) = table.move_range(&min, &max, &shard(to), ClusterTime::from_bits(time)) {
                        moved = Some((table.owner(&min).clone(), shard(to)));
                        table = table.changed(changed).unwrap();
                        (from..from + length).for_each(|k| now[(k + 30) as usize] = to);
                    }
                }
                Change::Merge(first, count) => {
                    let chunks = table.chunks();
                    let (first, last) = (chunks.get(first), chunks.get(first + count));
                    if let (Some(first), Some(last)) = (first, last)
                        && let Ok(merged) = table.merge(&first.min, &last.max)
                    {
                        table = table.changed(vec![merged]).unwrap();
                    }
                }
            }
            for number in 0..3 {
                let (old, new) = (before.version_of(&shard(number)), table.version_of(&shard(number)));
                let part = moved.as_ref().is_some_and(|(from, to)| *from == shard(number) || *to == shard(number));
                prop_assert_eq!(old.is_same_ownership(new), !part);
            }
            owners.push(now);
            for k in -30..30 {
                let key = key_of(&table, k);
                let index = (k + 30) as usize;
                prop_assert_eq!(table.owner(&key), &shard(owners.last().unwrap()[index]));
                // Where history reaches back, it is right.
                for (past, of) in (19..).zip(&owners) {
                    if let Some(owner) = table.chunk_of(&key).shard_at(ClusterTime::from_bits(past)) {
                        prop_assert_eq!(owner, &shard(of[index]), "{} at {}", k, past);
                    }
                }
            }
        }
    }
}
