//! What is spilled comes out as it does in memory.
#![allow(missing_docs)]

mod nowhere;

use nowhere::{go_on, nowhere};
use proptest::prelude::*;
use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_bson::{DocBuf, OwnedValue, Value, json};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_query::sort::Spills;
use sheaf_rows::{Cx, Documents, Limits, Operator, pull, report};

const STAGES: &[&str] = &[
    r#"[{"$group": {"_id": "$k", "n": {"$sum": "$v"}, "mean": {"$avg": "$v"}, "most": {"$max": "$v"}, "one": {"$first": "$w"}}},
        {"$sort": {"_id": 1}}]"#,
    r#"[{"$group": {"_id": {"k": "$k", "w": "$w"}, "all": {"$push": "$v"}, "set": {"$addToSet": "$w"}, "last": {"$last": "$v"}}},
        {"$set": {"set": {"$sortArray": {"input": "$set", "sortBy": 1}}}}, {"$sort": {"_id": 1}}]"#,
    r#"[{"$group": {"_id": "$k", "top": {"$topN": {"n": 2, "sortBy": {"v": 1}, "output": "$v"}}, "n": {"$count": {}},
        "two": {"$firstN": {"n": 2, "input": "$w"}}, "merged": {"$mergeObjects": {"a": "$v"}}, "dev": {"$stdDevPop": "$v"}}},
        {"$sort": {"_id": 1}}]"#,
    r#"[{"$bucketAuto": {"groupBy": "$v", "buckets": 3, "output": {"n": {"$sum": 1}, "all": {"$push": "$w"}}}}]"#,
    r#"[{"$sort": {"k": -1, "v": 1}}]"#,
    r#"[{"$sortByCount": "$k"}, {"$sort": {"count": 1, "_id": 1}}]"#,
    // Parts of groups, as of shards, and the groups that they are merged to.
    r#"[{"$group": {"_id": {"k": "$k", "w": "$w"}, "n": {"$sum": "$v"}, "mean": {"$avg": "$v"}, "all": {"$push": "$v"},
        "least": {"$minN": {"n": 2, "input": "$v"}}, "$willBeMerged": true}}, {"$sort": {"_id": 1}},
        {"$group": {"_id": "$_id.k", "n": {"$sum": "$v"}, "mean": {"$avg": "$v"}, "all": {"$push": "$v"},
        "least": {"$minN": {"n": 2, "input": "$v"}}, "$doingMerge": true}}, {"$sort": {"_id": 1}}]"#,
];

fn run(stages: &str, documents: &[DocBuf], limits: Limits) -> Result<(Vec<DocBuf>, Spills)> {
    let stages = json::parse_array(stages).expect("JSON");
    let pipeline =
        Pipeline::parse(stages.as_raw(), &Namespace::new("test", "c"), &mut ParseCx::new().with_now(0))?;
    let mut run = pipeline.open(Box::new(Documents::new(documents.to_vec())), &nowhere());
    let mut cx = Cx::new(limits, &go_on);
    let mut output = Vec::new();
    while pull(&mut run, &mut cx)? {
        output.push(DocBuf::from(run.row().document()));
    }
    let mut spills = Spills::default();
    report(&mut run, &mut |figures| {
        spills.count += figures.spilled.count;
        spills.records += figures.spilled.records;
        spills.bytes += figures.spilled.bytes;
    });
    Ok((output, spills))
}

fn number() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        (-3i32..4).prop_map(|n| OwnedValue::from(Value::Int32(n))),
        (-3i64..4).prop_map(|n| OwnedValue::from(Value::Int64(n))),
        (-3i8..4).prop_map(|n| OwnedValue::from(Value::Double(f64::from(n) / 2.0))),
        Just(OwnedValue::from(Value::Null)),
        Just(OwnedValue::from(Value::Missing)),
    ]
}

fn documents() -> impl Strategy<Value = Vec<DocBuf>> {
    let document = (number(), number(), "[ab]{0,2}").prop_map(|(k, v, w)| {
        DocBuf::build(|out| {
            for (name, value) in [("k", &k), ("v", &v)] {
                if !value.as_value().is_missing() {
                    out.append(name, value);
                }
            }
            out.append("w", &w);
        })
    });
    prop::collection::vec(document, 0..60)
}

proptest! {
    #[test]
    fn spilled_is_as_in_memory(documents in documents(), memory in 1usize..6000) {
        for stages in STAGES {
            let expected = run(stages, &documents, Limits::default()).unwrap();
            prop_assert_eq!(expected.1.count, 0);
            let little = Limits { memory_bytes: memory, ..Limits::default() };
            prop_assert_eq!(run(stages, &documents, little).unwrap().0, expected.0);
        }
    }
}

#[test]
fn little_memory_is_an_error_without_the_disk_and_is_counted_with_it() {
    let documents: Vec<DocBuf> = (0..100).map(|n| sheaf_bson::doc! { "k": n, "v": n }).collect();
    let little = Limits { memory_bytes: 1000, ..Limits::default() };
    for stages in STAGES {
        let refused = run(stages, &documents, Limits { allow_disk_use: false, ..little });
        assert_eq!(refused.unwrap_err().code().0, 292, "{stages}");
        let spills = run(stages, &documents, little).unwrap().1;
        assert!(spills.count > 0 && spills.records > 0 && spills.bytes > 0, "{stages}");
    }
}
