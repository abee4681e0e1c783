//! What is wrong with a stored bucket.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Error, Result};

use crate::bounds::Bounds;
use crate::bucket::{Bucket, PACKED};
use crate::{TimeseriesOptions, Unpacker};

/// What is wrong with a bucket, in words: columns that cannot be read, times that its id or its version contradict, bounds that do
/// not hold all its values, so that readers pass it by. `None`: nothing is.
pub fn fault(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<String> {
    let Some(bucket) = Bucket::read(stored, options) else {
        return Some("its control, its times or its columns are not those of a bucket".to_owned());
    };
    let control = stored.get("control")?.as_doc()?;
    let (min, max) = (control.get("min")?.as_doc()?, control.get("max")?.as_doc()?);
    let Value::DateTime(begin) = min.get(&options.time_field)? else { return None };
    let id = bucket.id();
    if id.0[..4] != (begin.div_euclid(1000) as u32).to_be_bytes() {
        return Some(format!("its _id is of another time than its 'control.min.{}'", options.time_field));
    }
    match values_fault(stored, options, (min, max)) {
        Ok(None)
            if control.get("version").and_then(|version| version.as_exact_i64())
                == Some(i64::from(PACKED)) =>
        {
            (!bucket.is_ordered()).then(|| "its times are not in their order".to_owned())
        }
        Ok(found) => found,
        Err(error) => Some(error.message().to_owned()),
    }
}

fn values_fault(
    stored: RawDoc<'_>,
    options: &TimeseriesOptions,
    (min, max): (RawDoc<'_>, RawDoc<'_>),
) -> Result<Option<String>> {
    let (mut least, mut greatest) = (Bounds::least(), Bounds::greatest());
    least.take(min);
    greatest.take(max);
    let mut unpacker = Unpacker::new(&options.time_field, None);
    unpacker.begin(stored)?;
    let mut row = Vec::new();
    while unpacker.next_into(&mut row)? {
        sheaf_bson::validate(&row, sheaf_bson::MAX_DEPTH).map_err(|fault| {
            Error::new(sheaf_errors::Code::INVALID_BSON, format!("a measurement: {fault}"))
        })?;
        for (at, field) in RawDoc::new(&row).iter().enumerate() {
            least.add(at, &field);
            greatest.add(at, &field);
        }
    }
    for (name, held, bounds) in [("min", min, least), ("max", max, greatest)] {
        let real = DocBuf::build(|out| bounds.write(out));
        let outside = real
            .as_raw()
            .iter()
            .find(|field| held.element(field.key()).is_none_or(|held| held.as_bytes() != field.as_bytes()));
        if let Some(field) = outside {
            return Ok(Some(format!("its 'control.{name}.{}' does not hold all its values", field.key())));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, ObjectId, doc};

    use super::*;

    fn options() -> TimeseriesOptions {
        TimeseriesOptions::parse(doc! { "timeField": "t" }.as_raw(), "x").unwrap().resolve().unwrap()
    }

    fn bucket(options: &TimeseriesOptions) -> DocBuf {
        let begin = 1_700_000_040_000;
        let mut bucket = Bucket::new(ObjectId([7; 12]), begin, &DocBuf::new(), options);
        for at in 0..4 {
            let row = doc! { "t": Value::DateTime(begin + at), "v": at, "d": { "x": 5 - at, "l": [at, 1] } };
            bucket.add(row.as_raw(), options);
        }
        bucket.to_doc()
    }

    /// The bucket with another value at this path.
    fn with(bucket: RawDoc<'_>, path: &[&str], value: Value<'_>) -> DocBuf {
        DocBuf::build(|out| {
            for field in bucket.iter() {
                match (field.key() == path[0], field.value()) {
                    (true, Value::Document(inner)) if path.len() > 1 => {
                        let inner = with(inner, &path[1..], value);
                        out.append(field.key(), &inner);
                    }
                    (true, _) => _ = out.append(field.key(), value),
                    (false, _) => _ = out.append_element(field),
                }
            }
        })
    }

    #[test]
    fn what_is_whole_has_no_fault() {
        let options = options();
        assert_eq!(fault(bucket(&options).as_raw(), &options), None);
    }

    #[test]
    fn each_damage_is_named() {
        let options = options();
        let whole = bucket(&options);
        let said = |path: &[&str], value: Value<'_>| {
            fault(with(whole.as_raw(), path, value).as_raw(), &options).unwrap_or_default()
        };
        assert!(said(&["_id"], Value::ObjectId(ObjectId([9; 12]))).contains("_id is of another time"));
        assert!(said(&["control", "count"], Value::Int32(3)).contains("not those of a bucket"));
        assert!(said(&["control", "min", "v"], Value::Int64(1)).contains("control.min.v"));
        assert!(said(&["control", "max", "v"], Value::Int64(2)).contains("control.max.v"));
        assert!(said(&["control", "max", "d", "x"], Value::Int64(1)).contains("control.max.d"));
        let text = sheaf_bson::Binary { subtype: 7, bytes: b"\x91no column" };
        assert!(said(&["data", "v"], Value::Binary(text)).contains("not those of a bucket"));
        let times = doc! { "0": Value::DateTime(1_700_000_040_003), "1": Value::DateTime(1_700_000_040_000),
        "2": Value::DateTime(1_700_000_040_001), "3": Value::DateTime(1_700_000_040_002) };
        assert!(said(&["data", "t"], Value::Document(times.as_raw())).contains("not in their order"));
    }
}
