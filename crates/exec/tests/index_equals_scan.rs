//! Whatever plan finds them, a query's documents are the same: every candidate of every random query gives
//! exactly the documents that match, in the order asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value, doc};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_exec::plan::query::{Hint, OneOfEach};
use sheaf_exec::plan::{PlanNode, Query, choose};
use sheaf_exec::run::{Executor, Reads};
use sheaf_expr::{Env, ParseCx};
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{Cx, Limits, Operator, pull};
use sheaf_storage::{Collection, CreateCollection, Engine, Options, Write};

fn german() -> DocBuf {
    doc! { "locale": "de", "strength": 2 }
}

fn caseless() -> DocBuf {
    doc! { "locale": "en", "strength": 1 }
}

/// How a random query compares strings.
fn collation() -> impl Strategy<Value = Option<SharedCollator>> {
    let collator = |spec: DocBuf| Collator::parse(spec.as_raw()).unwrap();
    prop_oneof![2 => Just(None), 1 => Just(collator(german())), 1 => Just(collator(caseless()))]
}

/// Every index that a random query may use.
fn indexes() -> Vec<DocBuf> {
    let index = |name: &str, key: DocBuf| doc! { "v": 2, "key": &key, "name": name };
    vec![
        index("a", doc! { "a": 1 }),
        index("a_desc_b", doc! { "a": -1, "b": 1 }),
        index("b_a_c", doc! { "b": 1, "a": 1, "c.d": -1 }),
        index("a_first", doc! { "a.0": 1 }),
        index("cd", doc! { "c.d": 1 }),
        index("cd_ce", doc! { "c.d": 1, "c.e": 1 }),
        index("id_hashed", doc! { "_id": "hashed" }),
        index("b_sparse", doc! { "b": 1 }).with("sparse", true),
        index("b_ce_sparse", doc! { "b": -1, "c.e": 1 }).with("sparse", true),
        index("a_partial", doc! { "a": 1, "c.e": 1 })
            .with("partialFilterExpression", &doc! { "a": { "$gt": 1 } }),
        index("all", doc! { "$**": 1 }),
        index("a_collated", doc! { "a": 1, "b": 1 }).with("collation", &doc! { "locale": "de" }),
        index("a_b_german", doc! { "a": 1, "b": -1 }).with("collation", &german()),
        index("cd_caseless", doc! { "c.d": -1, "b": 1 }).with("collation", &caseless()),
        index("all_german", doc! { "$**": 1 }).with("collation", &german()),
        index("b_partial_german", doc! { "b": 1 })
            .with("collation", &german())
            .with("partialFilterExpression", &doc! { "b": { "$gte": "x" } }),
    ]
}

fn scalar() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        6 => (0..5i32).prop_map(|n| Value::Int32(n).into()),
        1 => (0..5i64).prop_map(|n| Value::Int64(n).into()),
        1 => prop_oneof![Just(0.5), Just(2.0), Just(f64::NAN), Just(-0.0)].prop_map(|n| Value::Double(n).into()),
        3 => prop_oneof![Just("x"), Just("y"), Just("xy"), Just(""), Just("X"), Just("Xy"), Just("ý"), Just("Ý")]
            .prop_map(|s| Value::String(s).into()),
        1 => prop_oneof![Just("x"), Just("X")].prop_map(|s| Value::Document(doc! { "s": s }.as_raw()).into()),
        1 => Just(Value::Null.into()),
        1 => any::<bool>().prop_map(|b| Value::Bool(b).into()),
        1 => Just(Value::MinKey.into()),
        1 => Just(Value::MaxKey.into()),
    ]
}

fn array_of(items: Vec<OwnedValue>) -> OwnedValue {
    let array = sheaf_bson::ArrayBuf::of(items.iter());
    Value::Array(array.as_raw()).into()
}

/// A value of a field; `None` leaves the field out.
fn field() -> impl Strategy<Value = Option<OwnedValue>> {
    prop_oneof![
        5 => scalar().prop_map(Some),
        2 => prop::collection::vec(scalar(), 0..3).prop_map(|items| Some(array_of(items))),
        1 => Just(None),
        1 => prop::collection::vec(scalar(), 1..3).prop_map(|items| Some(array_of(vec![array_of(items)]))),
    ]
}

fn inner() -> impl Strategy<Value = OwnedValue> {
    (field(), field()).prop_map(|(d, e)| {
        let doc = DocBuf::build(|out| {
            for (name, value) in [("d", &d), ("e", &e)] {
                if let Some(value) = value {
                    out.append(name, value.as_value());
                }
            }
        });
        Value::Document(doc.as_raw()).into()
    })
}

/// A document with its fields; compound indexes refuse several arrays, so only one field may be one.
fn document() -> impl Strategy<Value = (Option<OwnedValue>, Option<OwnedValue>, Option<OwnedValue>)> {
    let nested = prop_oneof![
        4 => inner().prop_map(Some),
        2 => prop::collection::vec(inner(), 0..3).prop_map(|items| Some(array_of(items))),
        1 => scalar().prop_map(Some),
        1 => Just(None),
    ];
    (field(), field(), nested).prop_map(|(mut a, mut b, mut c)| {
        let is_array =
            |v: &Option<OwnedValue>| matches!(v.as_ref().map(OwnedValue::as_value), Some(Value::Array(_)));
        if is_array(&a) {
            if is_array(&b) {
                b = None;
            }
            c = None;
        } else if is_array(&b) {
            c = None;
        }
        // Both parts of `c` are indexed together, so that only one of them may be an array.
        if let Some(Value::Document(doc)) = c.as_ref().map(OwnedValue::as_value)
            && doc.values().filter(|v| matches!(v, Value::Array(_))).count() > 1
        {
            c = None;
        }
        if let Some(Value::Array(items)) = c.as_ref().map(OwnedValue::as_value)
            && items
                .values()
                .any(|item| item.as_doc().is_some_and(|doc| doc.values().any(|v| v.as_array().is_some())))
        {
            a = None;
            c = None;
        }
        (a, b, c)
    })
}

fn operator() -> impl Strategy<Value = DocBuf> {
    let compare = prop_oneof![Just("$eq"), Just("$gt"), Just("$gte"), Just("$lt"), Just("$lte"), Just("$ne")];
    prop_oneof![
        6 => (compare, scalar()).prop_map(|(name, value)| DocBuf::new().with(name, &value)),
        1 => (scalar(), scalar()).prop_map(|(x, y)| DocBuf::new().with("$gte", &x).with("$lt", &y)),
        2 => (prop::collection::vec(scalar(), 0..4), prop_oneof![Just("$in"), Just("$nin")]).prop_map(|(list, name)| {
            DocBuf::new().with(name, &sheaf_bson::ArrayBuf::of(list.iter()))
        }),
        1 => any::<bool>().prop_map(|on| doc! { "$exists": on }),
        1 => prop_oneof![Just("number"), Just("string"), Just("null"), Just("array"), Just("bool")]
            .prop_map(|name| doc! { "$type": name }),
        1 => (1..4i32, 0..3i32).prop_map(|(d, r)| doc! { "$mod": [d, r] }),
        1 => prop_oneof![Just("^x"), Just("y"), Just("^xy?")].prop_map(|p| doc! { "$regex": p }),
        1 => (scalar(), scalar()).prop_map(|(x, y)| doc! { "$elemMatch": { "$gte": &x, "$lte": &y } }),
        1 => scalar().prop_map(|x| doc! { "$not": { "$gt": &x } }),
        1 => prop::collection::vec(scalar(), 0..3)
            .prop_map(|items| DocBuf::new().with("$eq", &sheaf_bson::ArrayBuf::of(items.iter()))),
    ]
}

fn clause() -> impl Strategy<Value = DocBuf> {
    let path = prop_oneof![3 => Just("a"), 2 => Just("b"), 2 => Just("c.d"), 1 => Just("c.e"), 1 => Just("_id"), 1 => Just("a.0")];
    prop_oneof![
        1 => operator().prop_map(|first| doc! { "a": { "$elemMatch": { "0": &first } } }),
        1 => scalar().prop_map(|x| doc! { "a": { "$elemMatch": { "$elemMatch": { "$gte": &x } } } }),
        8 => (path, operator()).prop_map(|(path, test)| DocBuf::new().with(path, &test)),
        1 => (operator(), operator()).prop_map(|(d, e)| doc! { "c": { "$elemMatch": { "d": &d, "e": &e } } }),
    ]
}

fn filter() -> impl Strategy<Value = DocBuf> {
    let list = |name: &'static str| {
        prop::collection::vec(clause(), 1..3)
            .prop_map(move |parts| DocBuf::new().with(name, &sheaf_bson::ArrayBuf::of(parts.iter())))
    };
    prop_oneof![
        4 => clause(),
        3 => list("$and"),
        2 => list("$or"),
        1 => (clause(), prop::collection::vec(clause(), 2..3)).prop_map(|(one, many)| {
            let or = DocBuf::new().with("$or", &sheaf_bson::ArrayBuf::of(many.iter()));
            DocBuf::new().with("$and", &sheaf_bson::ArrayBuf::of([&one, &or]))
        }),
    ]
}

fn sort() -> impl Strategy<Value = Option<DocBuf>> {
    let direction = || prop_oneof![Just(1), Just(-1)];
    prop_oneof![
        2 => Just(None),
        1 => direction().prop_map(|d| Some(doc! { "a": d })),
        1 => (direction(), direction()).prop_map(|(x, y)| Some(doc! { "a": x, "b": y })),
        1 => direction().prop_map(|d| Some(doc! { "a.0": d })),
        1 => direction().prop_map(|d| Some(doc! { "c.d": d })),
        1 => direction().prop_map(|d| Some(doc! { "_id": d })),
        1 => direction().prop_map(|d| Some(doc! { "b": d })),
    ]
}

fn fill(
    engine: &Engine,
    namespace: &str,
    docs: &[(Option<OwnedValue>, Option<OwnedValue>, Option<OwnedValue>)],
) {
    let go_on = || Ok(());
    engine.create_collection(namespace, &CreateCollection::default(), &go_on).unwrap();
    let specs = indexes();
    let specs: Vec<RawDoc<'_>> = specs.iter().map(DocBuf::as_raw).collect();
    engine.create_indexes(namespace, &specs, &go_on).unwrap();
    let mut unit = engine.write(&go_on);
    let collection = unit.collection(namespace).unwrap().unwrap();
    for (id, (a, b, c)) in docs.iter().enumerate() {
        let doc = DocBuf::build(|out| {
            out.append("_id", id as i32);
            for (name, value) in [("a", a), ("b", b), ("c", c)] {
                if let Some(value) = value {
                    out.append(name, value.as_value());
                }
            }
        });
        // Documents with parallel arrays, which a compound index refuses, are left out.
        let _ = unit.insert(&collection, doc.as_raw());
    }
    unit.commit().unwrap();
}

fn stored(collection: &Arc<Collection>, reads: &Reads, cx: &mut Cx<'_>) -> Vec<DocBuf> {
    let plan = PlanNode::CollScan { filter: None, backward: false, range: None };
    let mut run = Executor::new(Arc::new(plan), collection.clone(), reads, false).unwrap();
    let mut docs = Vec::new();
    while pull(&mut run, cx).unwrap() {
        docs.push(DocBuf::from(run.row().document()));
    }
    docs
}

fn check_plan(
    plan: PlanNode,
    query: &Query,
    collection: &Arc<Collection>,
    reads: &Reads,
    cx: &mut Cx<'_>,
    expected: &BTreeSet<i64>,
) {
    let summary = plan.summary();
    let mut run = Executor::new(Arc::new(plan), collection.clone(), reads, false).unwrap();
    let mut found = Vec::new();
    let mut keys: Vec<Vec<u8>> = Vec::new();
    while pull(&mut run, cx).unwrap() {
        let doc = run.row().document();
        found.push(doc.get("_id").unwrap().as_exact_i64().unwrap());
        if let Some(pattern) = &query.sort {
            let mut key = Vec::new();
            pattern.put_key_bytes(doc, RawDoc::EMPTY, &mut key).unwrap();
            keys.push(key);
        }
        // A run may stop and go on anywhere.
        run.suspend();
    }
    let unique: BTreeSet<i64> = found.iter().copied().collect();
    let filter = query.matcher();
    assert_eq!(unique.len(), found.len(), "{summary} gives a document twice for {:?}", filter.filter());
    assert_eq!(&unique, expected, "{summary} for {:?}", filter.filter());
    assert!(
        keys.is_sorted(),
        "{summary} is not in the order {:?} for {:?}",
        query.sort_spec,
        filter.filter()
    );
}

/// A scan of distinct keys gives each value that the documents have at the path, no value twice for the same fields before it, and
/// nothing else.
fn check_distinct(
    query: &Query,
    key: &str,
    collection: &Arc<Collection>,
    reads: &Reads,
    cx: &mut Cx<'_>,
    matching: &[&DocBuf],
) {
    let query = Query { distinct: Some(key.to_owned()), unwinds: true, ..query.clone() };
    for plan in choose::candidates(&query, collection).unwrap() {
        if !plan.gives_keys() {
            continue;
        }
        let (summary, elements) = (plan.summary(), plan.gives_elements());
        let mut run = Executor::new(Arc::new(plan), collection.clone(), reads, false).unwrap();
        let mut found = BTreeSet::new();
        while pull(&mut run, cx).unwrap() {
            let doc = run.row().document();
            let value = doc.get_or_missing(key);
            // Null stands for what is missing, undefined for an empty array.
            if !value.is_nullish() {
                assert!(found.insert(bytes_of(value)), "{summary} gives {value:?} twice");
            }
            run.suspend();
        }
        let mut expected = BTreeSet::new();
        for doc in matching {
            match doc.as_raw().get_or_missing(key) {
                Value::Array(items) if elements => {
                    expected.extend(items.values().filter(|item| !item.is_nullish()).map(bytes_of));
                }
                value if value.is_nullish() => {}
                value => _ = expected.insert(bytes_of(value)),
            }
        }
        assert_eq!(found, expected, "{summary} for {:?}", query.matcher().filter());
    }
}

/// A scan that is to give the first, or last, document of each group gives one of each that is as good as any.
fn check_one_of_each(
    query: &Query,
    key: &str,
    collection: &Arc<Collection>,
    reads: &Reads,
    cx: &mut Cx<'_>,
    matching: &[&DocBuf],
) {
    let (Some(pattern), last) = (&query.sort, matching.len() % 2 == 1) else { return };
    let one_of_each = Some(OneOfEach { path: key.to_owned(), last });
    let query = Query { one_of_each, ..query.clone() };
    let plans = choose::candidates(&query, collection).unwrap();
    let [plan] = &plans[..] else { return };
    if !plan.summary().starts_with("DISTINCT_SCAN") {
        return;
    }
    let place = |doc: RawDoc<'_>| {
        let mut place = Vec::new();
        pattern.put_key_bytes(doc, RawDoc::EMPTY, &mut place).unwrap();
        place
    };
    // What is missing is of the group of null.
    let group = |doc: RawDoc<'_>| match doc.get_or_missing(key) {
        Value::Missing => bytes_of(Value::Null),
        value => bytes_of(value),
    };
    let summary = plan.summary();
    let mut run = Executor::new(Arc::new(plan.clone()), collection.clone(), reads, false).unwrap();
    let mut found = BTreeMap::new();
    while pull(&mut run, cx).unwrap() {
        let doc = run.row().document();
        assert!(found.insert(group(doc), place(doc)).is_none(), "{summary} gives {doc:?} and another one");
        run.suspend();
    }
    let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for doc in matching {
        let place = place(doc.as_raw());
        let best = expected.entry(group(doc.as_raw())).or_insert_with(|| place.clone());
        if if last { place > *best } else { place < *best } {
            *best = place;
        }
    }
    assert_eq!(
        found,
        expected,
        "{summary} by {key} for {:?}, {:?}",
        query.matcher().filter(),
        query.sort_spec
    );
}

/// A value's place in the order of values.
fn bytes_of(value: Value<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    sheaf_bson::key::encode_bound(value, false, &mut bytes);
    bytes
}

#[test]
fn every_plan_gives_the_same_documents() {
    // Trees of strategies are deep; a test's thread has a small stack.
    std::thread::Builder::new().stack_size(256 << 20).spawn(compare_all).unwrap().join().unwrap();
}

fn compare_all() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let numbers = std::cell::Cell::new(0);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let strategy = (
        prop::collection::vec(document(), 0..25),
        prop::collection::vec((filter(), sort(), collation()), 30),
    );
    let outcome = runner.run(&strategy, |(docs, queries)| {
        numbers.set(numbers.get() + 1);
        let namespace = format!("test.c{}", numbers.get());
        fill(&engine, &namespace, &docs);
        let view = engine.view().unwrap();
        let collection = view.collection(&namespace).unwrap().clone();
        let go_on = || Ok(());
        let (reads, mut cx) = (Reads::at(view.clone()), Cx::new(Limits::default(), &go_on));
        let docs = stored(&collection, &reads, &mut cx);
        for (filter, sort, collator) in queries {
            let mut parse = ParseCx::new().with_collator(collator.clone());
            let matcher = Matcher::parse(filter.as_raw(), &mut parse).unwrap();
            let arena = Bump::new();
            let expected: BTreeSet<i64> = docs
                .iter()
                .filter(|doc| matcher.matches(doc.as_raw(), &Env::new(&arena)).unwrap())
                .map(|doc| doc.as_raw().get("_id").unwrap().as_exact_i64().unwrap())
                .collect();
            let mut query = Query { collator: collator.clone(), ..Query::filtered(matcher) };
            if let Some(sort) = &sort {
                let pattern = SortPattern::parse(sort.as_raw()).unwrap().with_collator(collator.as_ref());
                // Parallel arrays cannot be sorted by, with any plan.
                if docs
                    .iter()
                    .any(|doc| pattern.put_key_bytes(doc.as_raw(), RawDoc::EMPTY, &mut Vec::new()).is_err())
                {
                    continue;
                }
                query.sort = Some(Arc::new(pattern));
                query.sort_spec = sort.clone();
            }
            if sort.is_none() && collator.is_none() {
                let matching: Vec<&DocBuf> = docs
                    .iter()
                    .filter(|doc| {
                        expected.contains(&doc.as_raw().get("_id").unwrap().as_exact_i64().unwrap())
                    })
                    .collect();
                for key in ["a", "b", "_id"] {
                    check_distinct(&query, key, &collection, &reads, &mut cx, &matching);
                    let all = Query::default();
                    let every: Vec<&DocBuf> = docs.iter().collect();
                    check_distinct(&all, key, &collection, &reads, &mut cx, &every);
                }
            }
            if collator.is_none() {
                let is_match = |doc: &&DocBuf| {
                    expected.contains(&doc.as_raw().get("_id").unwrap().as_exact_i64().unwrap())
                };
                let matching: Vec<&DocBuf> = docs.iter().filter(is_match).collect();
                let all = Query { matcher: None, ..query.clone() };
                let every: Vec<&DocBuf> = docs.iter().collect();
                for key in ["a", "b", "_id"] {
                    check_one_of_each(&query, key, &collection, &reads, &mut cx, &matching);
                    check_one_of_each(&all, key, &collection, &reads, &mut cx, &every);
                }
            }
            for plan in choose::candidates(&query, &collection).unwrap() {
                check_plan(plan, &query, &collection, &reads, &mut cx, &expected);
            }
            for index in &collection.indexes {
                // A hint on a sparse or partial index gives what is in it, and may give less.
                if index.sparse || index.partial.is_some() || index.name.starts_with("all") {
                    continue;
                }
                let hinted = Query { hint: Hint::Name(index.name.clone()), ..query.clone() };
                if index.name == "id_hashed" && docs.is_empty() {
                    continue;
                }
                for plan in choose::candidates(&hinted, &collection).unwrap() {
                    check_plan(plan, &hinted, &collection, &reads, &mut cx, &expected);
                }
            }
        }
        let _ = engine.drop_collection(&namespace, &go_on);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
