//! An index whose definition compares strings otherwise than queries do serves other values only.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_exec::plan::{Query, choose};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::SortPattern;
use sheaf_storage::{Collection, CreateCollection, Engine, Options};

const GO_ON: &(dyn Fn() -> sheaf_errors::Result<()> + Sync) = &|| Ok(());

fn german() -> DocBuf {
    doc! { "locale": "de", "strength": 2 }
}

/// A collection with an index on `a` (its collation is the first argument) and a hashed one on `h`.
fn collection(
    engine: &Engine,
    name: &str,
    index: Option<DocBuf>,
    default: Option<DocBuf>,
) -> Arc<Collection> {
    let options = default.map_or_else(DocBuf::new, |collation| doc! { "collation": &collation });
    let spec = CreateCollection { options, ..CreateCollection::default() };
    engine.create_collection(name, &spec, GO_ON).unwrap();
    let collated = |spec: DocBuf| match &index {
        Some(collation) => spec.with("collation", collation),
        None => spec,
    };
    let specs = [
        collated(doc! { "v": 2, "key": { "a": 1 }, "name": "a_1" }),
        collated(doc! { "v": 2, "key": { "h": "hashed" }, "name": "h_hashed" }),
    ];
    engine.create_indexes(name, &specs.each_ref().map(|spec| spec.as_raw()), GO_ON).unwrap();
    engine.catalog().collection(name).unwrap().clone()
}

/// The plans of a filter and a sort, in words.
fn plans(collection: &Arc<Collection>, filter: DocBuf, sort: Option<DocBuf>) -> Vec<String> {
    let mut query = Query::filtered(Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap());
    if let Some(sort) = sort {
        query.sort = Some(Arc::new(SortPattern::parse(sort.as_raw()).unwrap()));
        query.sort_spec = sort;
    }
    choose::candidates(&query, collection).unwrap().iter().map(|plan| plan.summary()).collect()
}

#[test]
fn bounds_of_strings_need_the_collation_of_the_query() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let scan = vec!["COLLSCAN".to_owned()];
    let index = vec!["IXSCAN { a: 1 }".to_owned()];
    let plain = collection(&engine, "db.plain", None, None);
    let foreign = collection(&engine, "db.foreign", Some(german()), None);
    let own = collection(&engine, "db.own", Some(german()), Some(german()));
    for (filter, with_strings) in [
        (doc! { "a": "x" }, true),
        (doc! { "a": { "$gt": "x" } }, true),
        (doc! { "a": { "$in": [1, "x"] } }, true),
        (doc! { "a": { "s": "x" } }, true),
        (doc! { "a": { "$exists": true } }, true),
        (doc! { "a": { "$ne": 3 } }, true),
        (doc! { "a": 3 }, false),
        (doc! { "a": { "$gte": 1, "$lt": 5 } }, false),
    ] {
        assert_eq!(plans(&plain, filter.clone(), None), index, "{filter:?}");
        assert_eq!(plans(&own, filter.clone(), None), index, "{filter:?}");
        let expected = if with_strings { &scan } else { &index };
        assert_eq!(plans(&foreign, filter.clone(), None), *expected, "{filter:?}");
    }
    // Of a hash nobody can tell what it is of.
    let hashed = vec!["IXSCAN { h: \"hashed\" }".to_owned()];
    assert_eq!(plans(&plain, doc! { "h": "x" }, None), hashed);
    assert_eq!(plans(&foreign, doc! { "h": "x" }, None), scan);
    // The collection's own order is what it is.
    assert_eq!(plans(&own, doc! { "_id": "x" }, None).len(), 1);
    assert_ne!(plans(&own, doc! { "_id": "x" }, None), scan);
}

#[test]
fn the_order_of_strings_needs_it_too() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let foreign = collection(&engine, "db.foreign", Some(german()), None);
    let own = collection(&engine, "db.own", Some(german()), Some(german()));
    let sort = Some(doc! { "a": 1 });
    assert_eq!(plans(&own, DocBuf::new(), sort.clone()), ["IXSCAN { a: 1 }"]);
    assert_eq!(plans(&foreign, DocBuf::new(), sort.clone()), ["COLLSCAN"]);
    assert_eq!(plans(&foreign, doc! { "a": { "$gt": 3 } }, sort), ["IXSCAN { a: 1 }"]);
}
