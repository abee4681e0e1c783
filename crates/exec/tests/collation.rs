//! An index whose keys are in another order than a query's strings serves other values only.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_exec::plan::{Query, choose};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_storage::{Collection, CreateCollection, Engine, Options, Write};

const GO_ON: &(dyn Fn() -> sheaf_errors::Result<()> + Sync) = &|| Ok(());

fn german() -> Option<SharedCollator> {
    Collator::parse(doc! { "locale": "de", "strength": 2 }.as_raw()).unwrap()
}

/// A collection with an index on `a` and a hashed one on `h`.
fn collection(engine: &Engine, name: &str) -> Arc<Collection> {
    engine.create_collection(name, &CreateCollection::default(), GO_ON).unwrap();
    let specs = [
        doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" },
        doc! { "v": 2, "key": { "h": "hashed" }, "name": "h_hashed" },
    ];
    engine.create_indexes(name, &specs.each_ref().map(|spec| spec.as_raw()), GO_ON).unwrap();
    engine.catalog().collection(name).unwrap().clone()
}

/// The plans of a filter and a sort, in words.
fn plans(
    collection: &Arc<Collection>,
    collator: Option<SharedCollator>,
    filter: DocBuf,
    sort: Option<DocBuf>,
) -> Vec<String> {
    let mut cx = ParseCx::new().with_collator(collator.clone());
    let mut query = Query::filtered(Matcher::parse(filter.as_raw(), &mut cx).unwrap());
    if let Some(sort) = sort {
        let pattern = SortPattern::parse(sort.as_raw()).unwrap().with_collator(collator.as_ref());
        query.sort = Some(Arc::new(pattern));
        query.sort_spec = sort;
    }
    query.collator = collator;
    choose::candidates(&query, collection).unwrap().iter().map(|plan| plan.summary()).collect()
}

#[test]
fn bounds_of_strings_need_the_collation_of_the_query() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let scan = vec!["COLLSCAN".to_owned()];
    let index = vec!["IXSCAN { a: 1 }".to_owned()];
    let plain = collection(&engine, "db.plain");
    for (filter, with_strings) in [
        (doc! { "a": "x" }, true),
        (doc! { "a": { "$gt": "x" } }, true),
        (doc! { "a": { "$in": [1, "x"] } }, true),
        (doc! { "a": { "s": "x" } }, true),
        (doc! { "a": { "$ne": "x" } }, true),
        (doc! { "a": { "$exists": true } }, false),
        (doc! { "a": { "$ne": 3 } }, false),
        (doc! { "a": 3 }, false),
        (doc! { "a": { "$gte": 1, "$lt": 5 } }, false),
    ] {
        assert_eq!(plans(&plain, None, filter.clone(), None), index, "{filter:?}");
        let expected = if with_strings { &scan } else { &index };
        assert_eq!(plans(&plain, german(), filter.clone(), None), *expected, "{filter:?}");
    }
    // Of a hash nobody can tell what it is of.
    let hashed = vec!["IXSCAN { h: \"hashed\" }".to_owned()];
    assert_eq!(plans(&plain, None, doc! { "h": "x" }, None), hashed);
    assert_eq!(plans(&plain, german(), doc! { "h": "x" }, None), scan);
    // The records are in the order of bytes.
    assert_ne!(plans(&plain, None, doc! { "_id": "x" }, None), scan);
    assert_eq!(plans(&plain, german(), doc! { "_id": "x" }, None), scan);
}

#[test]
fn an_index_of_the_same_collation_serves_strings() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let collation = german().unwrap().to_doc();
    let options = doc! { "collation": &collation };
    let id = doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "collation": &collation };
    let spec = CreateCollection { options, id_index: Some(id), ..CreateCollection::default() };
    engine.create_collection("db.german", &spec, GO_ON).unwrap();
    let index = doc! { "v": 2, "key": { "a": 1 }, "name": "a_1", "collation": &collation };
    engine.create_indexes("db.german", &[index.as_raw()], GO_ON).unwrap();
    let collection = engine.catalog().collection("db.german").unwrap().clone();
    for (filter, plan) in [
        (doc! { "a": "x" }, "IXSCAN { a: 1 }"),
        (doc! { "a": { "$gt": { "s": "x" } } }, "IXSCAN { a: 1 }"),
        (doc! { "a": { "$regex": "^x" } }, "IXSCAN { a: 1 }"),
        (doc! { "_id": "x" }, "IXSCAN { _id: 1 }"),
    ] {
        assert_eq!(plans(&collection, german(), filter.clone(), None), [plan], "{filter:?}");
        let text =
            filter.as_raw().get("a").is_some_and(|v| v.as_doc().is_some_and(|d| d.get("$regex").is_some()));
        assert_eq!(plans(&collection, None, filter.clone(), None) == [plan], text, "{filter:?}");
    }
    assert_eq!(plans(&collection, german(), DocBuf::new(), Some(doc! { "a": -1 })), ["IXSCAN { a: 1 }"]);
    assert_eq!(plans(&collection, None, DocBuf::new(), Some(doc! { "a": -1 })), ["COLLSCAN"]);
    // `_id` is unique by the collation.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection("db.german").unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": "x", "a": "y" }.as_raw()).unwrap();
    let error = unit.insert(&collection, doc! { "_id": "X" }.as_raw()).unwrap_err();
    assert_eq!(error.code(), sheaf_errors::Code::DUPLICATE_KEY);
    assert!(error.message().contains("index: _id_ collation: { locale: \"de\","), "{error}");
    assert!(error.message().contains("dup key: { _id: \"0x"), "{error}");
}

#[test]
fn the_order_of_strings_needs_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let plain = collection(&engine, "db.plain");
    let sort = Some(doc! { "a": 1 });
    assert_eq!(plans(&plain, None, DocBuf::new(), sort.clone()), ["IXSCAN { a: 1 }"]);
    assert_eq!(plans(&plain, german(), DocBuf::new(), sort.clone()), ["COLLSCAN"]);
    assert_eq!(plans(&plain, german(), doc! { "a": { "$gt": 3 } }, sort), ["IXSCAN { a: 1 }"]);
}
