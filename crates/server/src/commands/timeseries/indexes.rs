//! Indexes of measurements are indexes of their buckets.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_storage::Collection;
use sheaf_timeseries::{TimeseriesOptions, filter_on_meta, index_for_buckets, meta_path};

/// The specification on buckets that serves a checked one on measurements, which it keeps.
///
/// Errors: `InvalidOptions`, `IndexOptionsConflict`, `CannotCreateIndex` for what buckets cannot have.
pub fn on_buckets(spec: RawDoc<'_>, options: &TimeseriesOptions, buckets: &Collection) -> Result<DocBuf> {
    for (name, what) in [("unique", "Unique"), ("sparse", "Sparse"), ("prepareUnique", "Unique")] {
        if spec.get(name).is_some_and(|value| value.truthy()) {
            bail!(Code::INVALID_OPTIONS, "{what} indexes are not supported on time-series collections");
        }
    }
    let key = spec.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
    if key.iter().any(|field| field.value().as_str() == Some("text")) {
        bail!(Code::INVALID_OPTIONS, "Text indexes are not supported on time-series collections");
    }
    let partial = spec.get("partialFilterExpression").and_then(|filter| filter.as_doc());
    if spec.get("expireAfterSeconds").is_some() {
        check_ttl(key, partial, options)?;
    }
    let own = buckets.options.as_raw().get_or_missing("collation");
    if partial.is_some() && sheaf_bson::compare(spec.get_or_missing("collation"), own).is_ne() {
        bail!(
            Code::INDEX_OPTIONS_CONFLICT,
            "Cannot create a partial index on a time-series collection with a collation other than the collection's"
        );
    }
    let given = key;
    let key = index_for_buckets(given, options)?;
    let partial = partial.map(|filter| partial_on_buckets(filter, options)).transpose()?;
    let mut changes = vec![("key", Value::Document(key.as_raw()))];
    if let Some(partial) = &partial {
        changes.push(("partialFilterExpression", Value::Document(partial.as_raw())));
    }
    if partial.is_some() || !is_on_meta_and_time(given, options) {
        changes.push(("originalSpec", Value::Document(spec)));
    }
    Ok(with_changes(spec, &changes))
}

/// Whether an index can be told from its buckets' one, as that which every collection with a meta field has can: these do not keep what
/// they were made of, so that it is the same index again.
fn is_on_meta_and_time(key: RawDoc<'_>, options: &TimeseriesOptions) -> bool {
    key.iter().all(|field| {
        field.key() == options.time_field || meta_path(field.key(), options.meta_field.as_deref()).is_some()
    })
}

/// The paths of measurements, but for their time, on which there are indexes.
pub fn indexed_measurements<'c>(buckets: &'c Collection, options: &TimeseriesOptions) -> Vec<&'c str> {
    let paths = buckets.indexes.iter().flat_map(|index| &index.fields);
    let measured = paths.filter_map(|(path, _)| path.strip_prefix("control.min."));
    measured.filter(|path| *path != options.time_field).collect()
}

/// Errors: 5930501 for a measurement that has an array on one of these paths: its bucket's bounds are no keys then.
pub fn check_no_arrays(measurement: RawDoc<'_>, indexed: &[&str]) -> Result<()> {
    for path in indexed {
        let mut document = measurement;
        for part in path.split('.') {
            match document.get(part) {
                Some(Value::Array(_)) => bail!(5930501, "Indexed measurement field contains an array value"),
                Some(Value::Document(inner)) => document = inner,
                _ => break,
            }
        }
    }
    Ok(())
}

/// A TTL index is one on the time alone, and partial by meta values.
fn check_ttl(key: RawDoc<'_>, partial: Option<RawDoc<'_>>, options: &TimeseriesOptions) -> Result<()> {
    let on_time = key.iter().map(|field| field.key()).eq([options.time_field.as_str()]);
    let by_meta = options.meta_field.as_deref().is_some_and(|meta| {
        partial.is_some_and(|filter| filter_on_meta(filter, meta).is_some_and(|f| !f.as_raw().is_empty()))
    });
    if on_time && by_meta {
        return Ok(());
    }
    bail!(
        Code::INVALID_OPTIONS,
        "TTL indexes on time-series collections are only supported on the time field, and with a partialFilterExpression on the metaField"
    )
}

/// The filter of buckets that may have measurements which match.
fn partial_on_buckets(filter: RawDoc<'_>, options: &TimeseriesOptions) -> Result<DocBuf> {
    let mut clauses: Vec<DocBuf> = Vec::new();
    let mut add = |path: &str, operator: &str, value: Value<'_>| {
        clauses.push(DocBuf::build(|out| _ = out.document(path).append(operator, value)));
    };
    for element in filter.iter() {
        let (path, value) = (element.key(), element.value());
        if path == "$and" {
            let inner = value.as_array().into_iter().flat_map(|list| list.values());
            for clause in inner.filter_map(|clause| clause.as_doc()) {
                clauses.push(partial_on_buckets(clause, options)?);
            }
            return Ok(joined(&clauses));
        }
        if path.starts_with('$') {
            bail!(Code::CANNOT_CREATE_INDEX, "unsupported expression in partial index: {path}");
        }
        if let Some(path) = meta_path(path, options.meta_field.as_deref()) {
            match value {
                Value::Document(operators)
                    if operators.iter().next().is_some_and(|o| o.key().starts_with('$')) =>
                {
                    operators.iter().for_each(|operator| add(&path, operator.key(), operator.value()));
                }
                value => add(&path, "$eq", value),
            }
            continue;
        }
        let (low, high) = (format!("control.min.{path}"), format!("control.max.{path}"));
        let operators = match value {
            Value::Document(operators)
                if operators.iter().next().is_some_and(|o| o.key().starts_with('$')) =>
            {
                DocBuf::from(operators)
            }
            value => DocBuf::new().with("$eq", value),
        };
        for operator in operators.as_raw().iter() {
            match operator.key() {
                name @ ("$gt" | "$gte") => add(&high, name, operator.value()),
                name @ ("$lt" | "$lte") => add(&low, name, operator.value()),
                "$eq" => {
                    add(&high, "$gte", operator.value());
                    add(&low, "$lte", operator.value());
                }
                "$exists" if operator.value().truthy() => add(&high, "$exists", Value::Bool(true)),
                name => bail!(Code::CANNOT_CREATE_INDEX, "unsupported expression in partial index: {name}"),
            }
        }
    }
    Ok(joined(&clauses))
}

fn joined(clauses: &[DocBuf]) -> DocBuf {
    match clauses {
        [] => DocBuf::new(),
        [only] => only.clone(),
        _ => DocBuf::new().with("$and", &ArrayBuf::of(clauses)),
    }
}
