//! What a time-series collection is made of in the catalog: a view, and a collection of buckets.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::Result;

use crate::fields::{BUCKETS_PREFIX, index_for_buckets, index_for_user, unpack_stage};
use crate::options::TimeseriesOptions;

/// The options of the view on the buckets of the collection `name`.
pub fn view_options(name: &str, collation: Value<'_>, options: &TimeseriesOptions) -> DocBuf {
    DocBuf::build(|out| {
        out.append("collation", collation);
        out.append("viewOn", format!("{BUCKETS_PREFIX}{name}").as_str());
        out.append("pipeline", Value::Array(unpack_stage(options).as_raw()));
        out.append("timeseries", &options.to_doc());
    })
}

/// The options of the buckets; `plain` are those that any collection may have.
pub fn bucket_options(plain: RawDoc<'_>, expire: Option<i64>, options: &TimeseriesOptions) -> DocBuf {
    let mut out = DocBuf::from(plain);
    if let Some(seconds) = expire {
        out.append("expireAfterSeconds", seconds);
    }
    out.append("clusteredIndex", true);
    out.with("timeseries", &options.to_doc())
}

/// The specification of the buckets' `_id` index: they lie in its order.
pub fn bucket_id_index() -> DocBuf {
    doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true, "clustered": true }
}

/// The index on meta value and time that a collection with a meta field begins with.
///
/// Errors: none that a meta field can cause.
pub fn default_index(options: &TimeseriesOptions) -> Result<Option<DocBuf>> {
    let Some(meta) = &options.meta_field else { return Ok(None) };
    let mut key = DocBuf::new();
    key.append(meta, 1);
    if *meta != options.time_field {
        key.append(&options.time_field, 1);
    }
    let name = format!("{meta}_1_{}_1", options.time_field);
    let key = index_for_buckets(key.as_raw(), options)?;
    Ok(Some(doc! { "v": 2, "key": &key, "name": &name }))
}

/// An index of buckets as users see it; `None` for those that are the server's own.
pub fn listed_index(spec: RawDoc<'_>, options: &TimeseriesOptions) -> Option<DocBuf> {
    let mut out = DocBuf::new();
    if let Some(Value::Document(original)) = spec.get("originalSpec") {
        // What collMod has changed since stands beside it.
        const CHANGEABLE: [&str; 2] = ["hidden", "expireAfterSeconds"];
        out.edit(|out| {
            for field in original.iter().filter(|field| !CHANGEABLE.contains(&field.key())) {
                out.append_element(field);
            }
            spec.iter().filter(|field| CHANGEABLE.contains(&field.key())).for_each(|field| {
                out.append_element(field);
            });
        });
        return Some(out);
    }
    let key = index_for_user(spec.get("key")?.as_doc()?, options)?;
    out.edit(|out| {
        for field in spec.iter() {
            match field.key() {
                "key" => out.append("key", &key),
                _ => out.append_element(field),
            };
        }
    });
    Some(out)
}
