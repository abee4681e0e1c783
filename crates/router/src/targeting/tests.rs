use sheaf_bson::{Value, doc, hashed_index_value};
use sheaf_shard::placement::{Key, KeyPattern, RoutingTable};

use super::*;

/// `key` cut at these documents, ranges owned by s0, s1, s2 and so on in turn.
fn sharded(key: DocBuf, cuts: &[DocBuf], collation: Option<DocBuf>) -> Sharded {
    let pattern = KeyPattern::parse(key.as_raw()).unwrap();
    let cuts: Vec<Key> = cuts.iter().map(|cut| pattern.key_of_prefix(cut.as_raw()).unwrap()).collect();
    let shards: Vec<ShardId> = (0..=cuts.len()).map(|at| ShardId::new(format!("s{at}"))).collect();
    let table = RoutingTable::create(pattern, [1; 16], &cuts, &shards, ClusterTime::ZERO).unwrap();
    Sharded {
        ns: "garden.plants".into(),
        uuid: [1; 16],
        timestamp: Timestamp(1),
        unique: false,
        unsplittable: false,
        default_collation: collation,
        timeseries: None,
        table,
    }
}

/// `a` cut at 10, 20 and "m".
fn plants() -> Sharded {
    sharded(doc! { "a": 1 }, &[doc! { "a": 10 }, doc! { "a": 20 }, doc! { "a": "m" }], None)
}

fn shards(of: &Sharded, filter: DocBuf, collation: Option<DocBuf>) -> String {
    let collation = collation.as_ref().map(|collation| collation.as_raw());
    let ranges = ranges_for_filter(of, filter.as_raw(), collation);
    owners(of, &ranges).into_iter().map(|shard| shard.as_str()).collect::<Vec<_>>().join(" ")
}

#[test]
fn filters_select_shards() {
    let plants = plants();
    let selected = |filter| shards(&plants, filter, None);
    assert_eq!(selected(doc! {}), "s0 s1 s2 s3");
    assert_eq!(selected(doc! { "a": 5 }), "s0");
    assert_eq!(selected(doc! { "a": 10.0 }), "s1");
    assert_eq!(selected(doc! { "b": 3, "a": "z" }), "s3");
    assert_eq!(selected(doc! { "a": { "$gte": 10, "$lt": 20 } }), "s1");
    assert_eq!(selected(doc! { "a": { "$gt": 9, "$lte": 20 } }), "s0 s1 s2");
    assert_eq!(selected(doc! { "a": { "$in": [1, 2, 25] } }), "s0 s2");
    assert_eq!(selected(doc! { "a": Value::Null }), "s0");
    assert_eq!(selected(doc! { "a": { "$exists": false } }), "s0");
    assert_eq!(selected(doc! { "a": { "$ne": 5 } }), "s0 s1 s2 s3");
    assert_eq!(selected(doc! { "$or": [{ "a": 5 }, { "a": 15 }] }), "s0 s1");
    assert_eq!(selected(doc! { "$or": [{ "a": 5 }, { "b": 15 }] }), "s0 s1 s2 s3");
    assert_eq!(selected(doc! { "b": 1, "$or": [{ "a": 5 }, { "a": 15, "c": 1 }] }), "s0 s1");
    assert_eq!(selected(doc! { "$and": [{ "a": { "$gt": 12 } }, { "a": { "$lt": 15 } }] }), "s1");
    // A contradiction is answered by any one of them.
    assert_eq!(selected(doc! { "a": { "$gt": 12, "$lt": 5 } }), "s0");
    // So is what a shard refuses; all see the same in it.
    assert_eq!(selected(doc! { "a": { "$unknown": 1 } }), "s0 s1 s2 s3");
    assert_eq!(selected(doc! { "a": Value::MinKey }), "s0");
    assert_eq!(selected(doc! { "a": { "$gte": Value::MaxKey } }), "s3");
}

#[test]
fn strings_select_nothing_where_they_compare_otherwise() {
    let english = || doc! { "locale": "en", "strength": 1 };
    let plants = plants();
    assert_eq!(shards(&plants, doc! { "a": "A" }, None), "s2");
    assert_eq!(shards(&plants, doc! { "a": "A" }, Some(english())), "s0 s1 s2 s3");
    assert_eq!(shards(&plants, doc! { "a": 5 }, Some(english())), "s0");
    assert_eq!(shards(&plants, doc! { "a": { "$in": [5, "A"] } }, Some(english())), "s0 s1 s2 s3");
    assert_eq!(shards(&plants, doc! { "a": { "$lt": 15 } }, Some(english())), "s0 s1");
    let collated = sharded(doc! { "a": 1 }, &[doc! { "a": "m" }], Some(english()));
    assert_eq!(shards(&collated, doc! { "a": "A" }, None), "s0 s1");
    assert_eq!(shards(&collated, doc! { "a": "A" }, Some(doc! { "locale": "simple" })), "s0");
}

#[test]
fn compound_and_hashed_keys() {
    let compound = sharded(doc! { "a": 1, "b.c": 1 }, &[doc! { "a": 5 }, doc! { "a": 5, "b.c": 10 }], None);
    let selected = |filter| shards(&compound, filter, None);
    assert_eq!(selected(doc! { "a": 5 }), "s1 s2");
    assert_eq!(selected(doc! { "a": 5, "b.c": 3 }), "s1");
    assert_eq!(selected(doc! { "a": 5, "b.c": { "$gte": 10 } }), "s2");
    assert_eq!(selected(doc! { "b.c": 3 }), "s0 s1 s2");
    let pattern = KeyPattern::parse(doc! { "a": "hashed" }.as_raw()).unwrap();
    let hash = |number: i32| doc! { "a": Value::Int64(hashed_index_value(number.into())) };
    let mut cuts = vec![hash(1), hash(2), hash(3)];
    cuts.sort_by_key(|cut| pattern.key(cut.as_raw()).unwrap());
    let hashed = sharded(doc! { "a": "hashed" }, &cuts, None);
    for number in 1..=3 {
        let key = pattern.key_of(doc! { "a": number }.as_raw()).unwrap();
        let owner = hashed.table.owner(&key).as_str();
        assert_eq!(shards(&hashed, doc! { "a": number }, None), owner);
        assert_eq!(shards(&hashed, doc! { "a": { "$in": [f64::from(number)] } }, None), owner);
    }
    assert_eq!(shards(&hashed, doc! { "a": { "$gt": 1 } }, None), "s0 s1 s2 s3");
    assert_eq!(shards(&hashed, doc! { "a": { "$in": [Value::Null] } }, None), "s0 s1 s2 s3");
}
