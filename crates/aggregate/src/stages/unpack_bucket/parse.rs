//! The argument of `$_internalUnpackBucket`.

use std::sync::Arc;

use sheaf_bson::Value;
use sheaf_errors::{Result, bail};
use sheaf_timeseries::Fields;

use super::UnpackBucket;
use crate::stage::{SharedStage, StageCx};

/// Flags that tell what buckets are like, which ours are whatever they say.
const FLAGS: [&str; 3] = ["assumeNoMixedSchemaData", "usesExtendedRange", "fixedBuckets"];

pub(super) fn parse(argument: Value<'_>, _cx: &mut StageCx<'_>) -> Result<Vec<SharedStage>> {
    let Value::Document(spec) = argument else {
        bail!(
            5346500,
            "$_internalUnpackBucket specification must be an object, got: {}",
            argument.type_name()
        );
    };
    let (mut time_field, mut meta_field, mut span_seconds) = (None, None, None);
    let (mut include, mut exclude) = (None, None);
    for field in spec.iter() {
        match (field.key(), field.value()) {
            ("timeField", Value::String(name)) => time_field = Some(name),
            ("timeField", other) => {
                bail!(5346504, "timeField field must be a string, got: {}", other.type_name())
            }
            ("metaField", Value::String(name)) => meta_field = Some(name),
            ("metaField", other) => {
                bail!(5346505, "metaField field must be a string, got: {}", other.type_name())
            }
            ("bucketMaxSpanSeconds", value) => match value.as_exact_i64() {
                Some(seconds) if seconds > 0 => span_seconds = Some(seconds),
                _ => bail!(5510600, "bucketMaxSpanSeconds field must be an integer greater than 0"),
            },
            (name @ ("include" | "exclude"), value) => {
                let list = if name == "include" { &mut include } else { &mut exclude };
                *list = Some(names(value)?);
                if include.is_some() && exclude.is_some() {
                    bail!(
                        5408000,
                        "The $_internalUnpackBucket stage expects at most one of include/exclude parameters to be specified"
                    );
                }
            }
            (name, value) if FLAGS.contains(&name) => {
                if !matches!(value, Value::Bool(_)) {
                    bail!(6067202, "{name} field must be a bool, got: {}", value.type_name());
                }
            }
            (other, _) => {
                bail!(5346506, "unrecognized parameter to $_internalUnpackBucket: {other}")
            }
        }
    }
    let Some(time_field) = time_field else {
        bail!(5346508, "The $_internalUnpackBucket stage requires a timeField parameter");
    };
    let Some(span_seconds) = span_seconds else {
        bail!(5346509, "The $_internalUnpackBucket stage requires a bucketMaxSpanSeconds parameter");
    };
    let fields = match (include, exclude) {
        (Some(names), _) => Fields::Only(names),
        (None, Some(names)) if !names.is_empty() => Fields::Without(names),
        (None, _) => Fields::All,
    };
    Ok(vec![Arc::new(UnpackBucket {
        time_field: time_field.to_owned(),
        meta_field: meta_field.map(str::to_owned),
        span_seconds,
        fields,
        conditions: None,
        latest: false,
    })])
}

/// The names of fields.
fn names(value: Value<'_>) -> Result<Vec<String>> {
    let Value::Array(list) = value else {
        bail!(5346501, "include or exclude field must be an array, got: {}", value.type_name());
    };
    let mut names = Vec::new();
    for name in list.values() {
        let Value::String(name) = name else {
            bail!(5346502, "include or exclude field element must be a string, got: {}", name.type_name());
        };
        if name.contains('.') {
            bail!(5346503, "include or exclude field element must be a single-element field path");
        }
        names.push(name.to_owned());
    }
    Ok(names)
}
