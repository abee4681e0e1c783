//! What a find's projection computes is nested no deeper than what any other read gives.

use std::sync::Arc;

use sheaf_bson::{DocBuf, doc};
use sheaf_errors::{Code, Result};
use sheaf_exec::find;
use sheaf_exec::plan::Query;
use sheaf_exec::run::Reads;
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::{Mode, Projection};
use sheaf_rows::{Cx, Limits, pull};
use sheaf_storage::{CreateCollection, Engine, Options, Write};

#[test]
fn a_projection_gives_200_levels_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(Options::new(folder.path())).unwrap();
    let go_on = || Ok(());
    engine.create_collection("test.c", &CreateCollection::default(), &go_on).unwrap();
    let nested = (0..150).fold(DocBuf::new(), |inner, _| doc! { "a": &inner });
    let mut unit = engine.write(&go_on);
    let collection = unit.collection("test.c").unwrap().unwrap();
    unit.insert(&collection, DocBuf::new().with("_id", 1).with("a", &nested).as_raw()).unwrap();
    unit.commit().unwrap();
    let view = engine.view().unwrap();
    let collection = view.collection("test.c").unwrap();
    let read = |levels: usize| -> Result<bool> {
        let path = vec!["p"; levels].join(".");
        let projection =
            Projection::parse(DocBuf::new().with(&path, "$$ROOT").as_raw(), Mode::Find, &mut ParseCx::new())?;
        let mut query = Query::filtered(Matcher::parse(doc! {}.as_raw(), &mut ParseCx::new())?);
        query.projection = Some(Arc::new(projection));
        let mut cx = Cx::new(Limits::default(), &go_on);
        pull(&mut find::open(&query, collection, &Reads::at(view.clone()), &mut cx)?, &mut cx)
    };
    // The document has 152 levels itself.
    assert!(read(40).unwrap());
    for levels in [60, 190] {
        let error = read(levels).unwrap_err();
        assert_eq!(error.code(), Code::OVERFLOW, "{levels}: {error}");
    }
}
