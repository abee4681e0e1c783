//! Where a measurement's fields are in buckets: names, key patterns, the stage that unpacks.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::options::TimeseriesOptions;

/// How the names of collections of buckets begin.
pub const BUCKETS_PREFIX: &str = "system.buckets.";

/// The namespace of a time-series collection's buckets.
pub fn buckets_namespace(db: &str, name: &str) -> String {
    format!("{db}.{BUCKETS_PREFIX}{name}")
}

/// The database and the name of the time-series collection that has this namespace for its buckets.
pub fn split_buckets(namespace: &str) -> Option<(&str, &str)> {
    let (db, collection) = namespace.split_once('.')?;
    Some((db, collection.strip_prefix(BUCKETS_PREFIX)?))
}

/// The pipeline that makes measurements of buckets.
pub fn unpack_stage(options: &TimeseriesOptions) -> ArrayBuf {
    ArrayBuf::build(|out| {
        let mut stage = out.document();
        let mut spec = stage.document("$_internalUnpackBucket");
        spec.append("timeField", options.time_field.as_str());
        if let Some(meta) = &options.meta_field {
            spec.append("metaField", meta.as_str());
        }
        spec.append("bucketMaxSpanSeconds", options.max_span.unwrap_or(3600) as i32);
    })
}

/// The path in buckets of a path in or below the meta field.
pub fn meta_path(path: &str, meta: Option<&str>) -> Option<String> {
    let below = path.strip_prefix(meta?)?;
    (below.is_empty() || below.starts_with('.')).then(|| format!("meta{below}"))
}

/// A filter with the meta field's name in buckets; `None` if it reads anything else.
pub fn filter_on_meta(clause: RawDoc<'_>, meta: &str) -> Option<DocBuf> {
    let mut out = DocBuf::new();
    for element in clause.iter() {
        match (element.key(), element.value()) {
            (key @ ("$and" | "$or" | "$nor"), Value::Array(inner)) => {
                let inner: Option<Vec<DocBuf>> =
                    inner.values().map(|clause| filter_on_meta(clause.as_doc()?, meta)).collect();
                out.append(key, &ArrayBuf::of(&inner?));
            }
            (key, value) => {
                let below = key.strip_prefix(meta)?;
                if !below.is_empty() && !below.starts_with('.') {
                    return None;
                }
                out.append(&format!("meta{below}"), value);
            }
        }
    }
    Some(out)
}

/// The key pattern on buckets that serves one on measurements.
///
/// Errors: `BadValue`, `CannotCreateIndex` for kinds of indexes that buckets cannot have.
pub fn index_for_buckets(key: RawDoc<'_>, options: &TimeseriesOptions) -> Result<DocBuf> {
    let meta = options.meta_field.as_deref();
    let mut out = DocBuf::new();
    for field in key.iter() {
        let path = field.key();
        if let Some(path) = meta_path(path, meta) {
            out.append(&path, field.value());
            continue;
        }
        if path == "$**" || path.ends_with(".$**") {
            bail!(
                Code::CANNOT_CREATE_INDEX,
                "Wildcard indexes are not supported on time-series measurement fields: {}",
                sheaf_bson::value_text(Value::Document(key))
            );
        }
        let Some(direction) = field.value().as_f64() else {
            bail!(
                Code::BAD_VALUE,
                "Invalid index spec for time-series collection: {}. Indexes on time-series measurement fields must be ascending or descending (numbers only), or be '2dsphere'",
                sheaf_bson::value_text(Value::Document(key))
            );
        };
        let (low, high) = (format!("control.min.{path}"), format!("control.max.{path}"));
        if direction < 0.0 {
            out.append(&high, -1).append(&low, -1);
        } else {
            out.append(&low, 1).append(&high, 1);
        }
    }
    Ok(out)
}

/// The key pattern on measurements that one on buckets serves; `None` if there is none.
pub fn index_for_user(key: RawDoc<'_>, options: &TimeseriesOptions) -> Option<DocBuf> {
    let mut out = DocBuf::new();
    let mut fields = key.iter();
    while let Some(field) = fields.next() {
        let path = field.key();
        if let Some(below) = path.strip_prefix("meta") {
            out.append(&format!("{}{below}", options.meta_field.as_deref()?), field.value());
            continue;
        }
        let path = path.strip_prefix("control.min.").or(path.strip_prefix("control.max."))?;
        fields.next()?;
        out.append(path, if field.value().as_f64()? < 0.0 { -1 } else { 1 });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn key_patterns() {
        let spec = doc! { "timeField": "t", "metaField": "m" };
        let options = TimeseriesOptions::parse(spec.as_raw(), "x").unwrap();
        let key = doc! { "m.a": 1, "t": -1, "v": 1 };
        let buckets = index_for_buckets(key.as_raw(), &options).unwrap();
        assert_eq!(
            buckets,
            doc! { "meta.a": 1, "control.max.t": -1, "control.min.t": -1, "control.min.v": 1, "control.max.v": 1 }
        );
        assert_eq!(index_for_user(buckets.as_raw(), &options).unwrap(), key);
        let code = |key: DocBuf| index_for_buckets(key.as_raw(), &options).map_err(|error| error.code());
        assert_eq!(code(doc! { "m.$**": 1 }).unwrap(), doc! { "meta.$**": 1 });
        for path in ["$**", "_id.$**", "v.$**"] {
            assert_eq!(code(doc! { "m.a": 1, path: 1 }), Err(Code::CANNOT_CREATE_INDEX), "{path}");
        }
    }
}
