//! Shard keys: users name fields of measurements, shards own ranges of buckets.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Result, bail};

use crate::bucket::{Measurement, normalized_meta};
use crate::fields::meta_path;
use crate::options::TimeseriesOptions;

/// The shard key of the buckets that stands for one of measurements: the time is that of a bucket's begin.
///
/// Errors: 5914000, 5914001, 880031.
pub fn shard_key_for_buckets(key: RawDoc<'_>, options: &TimeseriesOptions) -> Result<DocBuf> {
    let mut out = DocBuf::new();
    let mut fields = key.iter().peekable();
    while let Some(field) = fields.next() {
        let (path, value) = (field.key(), field.value());
        if path == options.time_field {
            if fields.peek().is_some() {
                bail!(5914000, "the time field '{path}' can be only at the end of the shard key pattern");
            }
            if value.as_f64().is_none() {
                bail!(
                    880031,
                    "Invalid shard key for time-series collection: {}. Shard keys on the time field must be ascending or descending (numbers only).",
                    sheaf_bson::document_text(key)
                );
            }
            out.append(&format!("control.min.{path}"), value);
            continue;
        }
        let Some(path) = meta_path(path, options.meta_field.as_deref()) else {
            bail!(5914001, "only the time field or meta field can be part of shard key pattern");
        };
        out.append(&path, value);
    }
    Ok(out)
}

/// The index of buckets that serves a shard key of theirs: one on the time has both its ends, as those that users make.
pub fn shard_key_index(key: RawDoc<'_>, options: &TimeseriesOptions) -> DocBuf {
    DocBuf::build(|out| {
        for field in key.iter() {
            out.append_element(field);
            if field.key().strip_prefix("control.min.") == Some(&options.time_field) {
                out.append(&format!("control.max.{}", options.time_field), field.value());
            }
        }
    })
}

/// What a shard key reads of a bucket that would begin with this measurement.
pub fn bucket_of(measurement: &Measurement<'_>, options: &TimeseriesOptions) -> DocBuf {
    let mut out = normalized_meta(measurement.meta);
    out.edit(|out| {
        let begin = Value::DateTime(options.bucket_begin(measurement.time));
        out.document("control").document("min").append(&options.time_field, begin);
    });
    out
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn options() -> TimeseriesOptions {
        let spec = doc! { "timeField": "t", "metaField": "m" };
        TimeseriesOptions::parse(spec.as_raw(), "x").unwrap().resolve().unwrap()
    }

    #[test]
    fn keys() {
        let on_buckets = |key: DocBuf| shard_key_for_buckets(key.as_raw(), &options());
        for (key, expected, index) in [
            (doc! { "m": 1 }, doc! { "meta": 1 }, doc! { "meta": 1 }),
            (doc! { "m.a": 1 }, doc! { "meta.a": 1 }, doc! { "meta.a": 1 }),
            (
                doc! { "m": "hashed", "t": 1 },
                doc! { "meta": "hashed", "control.min.t": 1 },
                doc! { "meta": "hashed", "control.min.t": 1, "control.max.t": 1 },
            ),
            (doc! { "t": 1 }, doc! { "control.min.t": 1 }, doc! { "control.min.t": 1, "control.max.t": 1 }),
        ] {
            let found = on_buckets(key).unwrap();
            assert_eq!(found, expected);
            assert_eq!(shard_key_index(found.as_raw(), &options()), index);
        }
        for (key, code) in [
            (doc! { "t": 1, "m": 1 }, 5914000),
            (doc! { "t": "hashed" }, 880031),
            (doc! { "_id": 1 }, 5914001),
            (doc! { "mm": 1 }, 5914001),
        ] {
            assert_eq!(on_buckets(key).unwrap_err().code().0, code);
        }
    }

    #[test]
    fn measurements_belong_where_their_bucket_would_begin() {
        let document = doc! { "t": Value::DateTime(61_001), "m": { "b": 1, "a": 2 }, "v": 1 };
        let measurement = Measurement::of(document.as_raw(), &options()).unwrap();
        let expected = doc! {
            "meta": { "a": 2, "b": 1 }, "control": { "min": { "t": Value::DateTime(60_000) } }
        };
        assert_eq!(bucket_of(&measurement, &options()), expected);
    }
}
