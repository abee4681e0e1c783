//! Filters, updates, projections, sorts and schemas: parsing anything, and applying what parses to any
//! document. What comes out is valid BSON, and what one part says of it agrees with the others.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{Bump, DocBuf, MAX_DEPTH, ObjectId, RawDoc, Timestamp, Value, validate};
use sheaf_collation::Collation;
use sheaf_expr::{Deps, Env, ParseCx};
use sheaf_fuzz::generate::{Choices, DEPTH};
use sheaf_fuzz::language::Kind;
use sheaf_query::diff::{apply_diff, diff};
use sheaf_query::matcher::{MatchDetails, Matcher};
use sheaf_query::projection::{Mode, Projection};
use sheaf_query::schema::Schema;
use sheaf_query::sort::{FindSort, SortPattern};
use sheaf_query::update::{ApplyCx, Update};
use sheaf_query::validation::validation_error_details;

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let (one, other) = (choices.stored(DEPTH), choices.stored(DEPTH));
    let (Value::Document(doc), Value::Document(other)) = (one.as_value(), other.as_value()) else { return };
    differences(doc, other);
    while !choices.is_over() {
        choices.refill();
        match choices.below(6) {
            0 | 1 => _ = filter(choices.filter(DEPTH).as_raw(), doc),
            2 | 3 => update(&mut choices, doc),
            4 => projection(&mut choices, doc),
            _ => others(&mut choices, doc, other),
        }
    }
});

fn cx() -> ParseCx {
    ParseCx::new().with_now(0).with_seed(1)
}

fn valid(doc: RawDoc<'_>) {
    assert_eq!(validate(doc.as_bytes(), 1000), Ok(doc.len()));
}

/// Gives the details of the match, if there is one.
fn filter(filter: RawDoc<'_>, doc: RawDoc<'_>) -> Option<MatchDetails> {
    let mut cx = cx();
    let matcher = Matcher::parse(filter, &mut cx).ok()?;
    cx.finish_as("").ok()?;
    let arena = Bump::new();
    let env = Env::new(&arena);
    let matches = matcher.matches(doc, &env);
    let details = matcher.matches_with_details(doc, &env);
    matcher.dependencies(&mut Deps::new());
    let _ = matcher.shape();
    valid(matcher.to_doc().as_raw());
    // Chance decides anew each time.
    let text = format!("{filter:?}");
    if text.contains("$sampleRate") || text.contains("$rand") {
        return None;
    }
    if let (Ok(matches), Ok(details)) = (&matches, &details) {
        assert_eq!(*matches, details.is_some(), "{filter:?} on {doc:?}");
        if !matches {
            valid(validation_error_details(&matcher, doc).as_raw());
        }
    }
    details.ok()?
}

fn update(choices: &mut Choices<'_>, doc: RawDoc<'_>) {
    let spec = choices.update(DEPTH);
    let filters = choices.of(Kind::ArrayFilters, 3);
    let filters: Vec<RawDoc<'_>> = match filters.as_value() {
        Value::Array(filters) => filters.values().filter_map(|filter| filter.as_doc()).collect(),
        _ => Vec::new(),
    };
    let query = choices.filter(3);
    // Without array filters where none are used, or most updates would be refused.
    let named = format!("{:?}", spec.as_value()).contains("$[e]");
    let filters = if named { &filters[..] } else { &[] };
    let mut cx = cx();
    let Ok(update) = Update::parse(spec.as_value(), filters, &mut cx) else { return };
    let _ = (update.touched(), update.is_replacement(), update.is_pipeline());
    let index = choices.chance(128).then_some("0");
    let cx = ApplyCx { matched_index: index, now_millis: 1, timestamp: Timestamp(1) };
    if let Ok(Some(new)) = update.apply(doc, &cx) {
        valid(new.as_raw());
        differences(doc, new.as_raw());
    }
    if let Ok(new) = update.upsert(query.as_raw(), || ObjectId([1; 12]), &cx) {
        valid(new.as_raw());
        assert!(new.as_raw().get("_id").is_some(), "{new:?}");
    }
}

/// A difference, applied to the old document, makes the new one.
fn differences(old: RawDoc<'_>, new: RawDoc<'_>) {
    if let Some(delta) = diff(old, new) {
        valid(delta.as_raw());
        assert_eq!(
            apply_diff(old, delta.as_raw()).as_bytes(),
            new.as_bytes(),
            "{old:?} to {new:?}: {delta:?}"
        );
    }
}

fn projection(choices: &mut Choices<'_>, doc: RawDoc<'_>) {
    let spec = choices.projection(DEPTH);
    let details = filter(choices.filter(2).as_raw(), doc);
    let arena = Bump::new();
    for mode in [Mode::Find, Mode::Aggregate] {
        let Ok(projection) = Projection::parse(spec.as_raw(), mode, &mut cx()) else { continue };
        let env = Env::new(&arena);
        if let Ok(projected) = projection.apply_in(doc, &env, details) {
            valid(projected);
            if projection.is_identity() {
                assert_eq!(projected.as_bytes(), doc.as_bytes(), "{spec:?}");
            }
        }
        valid(projection.to_doc().as_raw());
        let _ = projection.included_paths();
        projection.dependencies(&mut Deps::new());
    }
    if let Ok(projection) = Projection::parse_add_fields(spec.as_raw(), &mut cx()) {
        let env = Env::new(&arena);
        if let Ok(projected) = projection.apply_in(doc, &env, None) {
            valid(projected);
        }
    }
}

fn others(choices: &mut Choices<'_>, doc: RawDoc<'_>, other: RawDoc<'_>) {
    let pattern = choices.sort();
    let _ = FindSort::parse(pattern.as_raw());
    if let Ok(sort) = SortPattern::parse_stage(Value::from(&pattern)) {
        if let (Ok(left), Ok(right)) = (sort.compare_docs(doc, other), sort.compare_docs(other, doc)) {
            assert_eq!(left, right.reverse(), "{pattern:?}: {doc:?} and {other:?}");
            let mut keys = (Vec::new(), Vec::new());
            let bytes = sort
                .put_key_bytes(doc, RawDoc::EMPTY, &mut keys.0)
                .and_then(|()| sort.put_key_bytes(other, RawDoc::EMPTY, &mut keys.1));
            if bytes.is_ok() {
                assert_eq!(keys.0.cmp(&keys.1), left, "{pattern:?}: {doc:?} and {other:?}");
            }
        }
        valid(sort.to_doc().as_raw());
    }
    let schema = choices.schema(DEPTH);
    if let Ok(parsed) = Schema::parse(schema.as_raw()) {
        _ = parsed.matches(doc);
    }
    // Why a document is none is told by the filter.
    _ = filter(DocBuf::new().with("$jsonSchema", &schema).as_raw(), doc);
    let collation = choices.of(Kind::Collation, 2);
    if let Value::Document(spec) = collation.as_value() {
        if let Ok(collation) = Collation::parse(spec) {
            valid(collation.to_doc().as_raw());
        }
    }
    let deep = DocBuf::from(other);
    assert!(validate(deep.as_bytes(), MAX_DEPTH).is_ok());
}
