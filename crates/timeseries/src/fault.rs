//! What is wrong with a stored bucket.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Error, Result};

use crate::bounds::Bounds;
use crate::bucket::{Bucket, PACKED};
use crate::{TimeseriesOptions, Unpacker};

/// What is wrong with a bucket, in words: columns that cannot be read, or not wholly, times that its id, its version or the span of buckets
/// contradict, bounds that do not hold all its values, so that readers pass it by. `None`: nothing is.
pub fn fault(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<String> {
    fault_of(stored, options, true)
}

/// The same, but for its bounds: those of a collection with a collation go by that.
pub fn fault_beside_bounds(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<String> {
    fault_of(stored, options, false)
}

fn fault_of(stored: RawDoc<'_>, options: &TimeseriesOptions, with_bounds: bool) -> Option<String> {
    let Some(bucket) = Bucket::read(stored, options) else {
        return Some("its control, its times or its columns are not those of a bucket".to_owned());
    };
    let control = stored.get("control")?.as_doc()?;
    let (min, max) = (control.get("min")?.as_doc()?, control.get("max")?.as_doc()?);
    let Some(Value::DateTime(begin)) = min.get(&options.time_field) else {
        return Some(format!("its 'control.min.{}' is no date", options.time_field));
    };
    let id = bucket.id();
    // Before 1970 earlier versions of MongoDB rounded the other way.
    if begin >= 0 && id.0[..4] != (begin.div_euclid(1000) as u32).to_be_bytes() {
        return Some(format!("its _id is of another time than its 'control.min.{}'", options.time_field));
    }
    if let Some(name) = misread_column(stored) {
        return Some(format!("its column '{name}' is not in the order of its measurements"));
    }
    let bounds = with_bounds.then_some((min, max));
    match values_fault(stored, options, (begin, bucket.count()), bounds) {
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

/// The column as a document whose numbers are not as readers look for them: ascending, in decimal digits.
fn misread_column(stored: RawDoc<'_>) -> Option<String> {
    let is_misread = |column: RawDoc<'_>| {
        let mut next = 0;
        column.iter().any(|element| {
            let number = element.key().parse::<u32>().ok().filter(|n| n.to_string() == element.key());
            let in_order = number.is_some_and(|number| number >= next);
            next = number.map_or(next, |number| number + 1);
            !in_order
        })
    };
    let data = stored.get("data")?.as_doc()?;
    let found = data.iter().find(|field| field.value().as_doc().is_some_and(is_misread))?;
    Some(found.key().to_owned())
}

fn values_fault(
    stored: RawDoc<'_>,
    options: &TimeseriesOptions,
    (begin, count): (i64, usize),
    bounds: Option<(RawDoc<'_>, RawDoc<'_>)>,
) -> Result<Option<String>> {
    let (mut least, mut greatest) = (Bounds::least(), Bounds::greatest());
    let (min, max) = bounds.unwrap_or((RawDoc::EMPTY, RawDoc::EMPTY));
    least.take(min);
    greatest.take(max);
    let mut unpacker = Unpacker::new(&options.time_field, None);
    unpacker.begin(stored)?;
    let mut row = Vec::new();
    let mut rows = 0;
    while unpacker.next_into(&mut row)? {
        rows += 1;
        sheaf_bson::validate(&row, sheaf_bson::MAX_DEPTH).map_err(|fault| {
            Error::new(sheaf_errors::Code::INVALID_BSON, format!("a measurement: {fault}"))
        })?;
        match RawDoc::new(&row).get(&options.time_field) {
            Some(Value::DateTime(time))
                if (0..options.span_millis()).contains(&time.saturating_sub(begin)) => {}
            Some(Value::DateTime(_)) => {
                return Ok(Some(format!("measurement {rows} is outside its span of time")));
            }
            _ => return Ok(Some(format!("measurement {rows} has no date in '{}'", options.time_field))),
        }
        for (at, field) in RawDoc::new(&row).iter().enumerate() {
            least.add(at, &field);
            greatest.add(at, &field);
        }
    }
    if rows != count {
        return Ok(Some(format!("{rows} of its {count} measurements can be read")));
    }
    if bounds.is_none() {
        return Ok(None);
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
        let times = |times: DocBuf| {
            let begin = 1_700_000_040_000;
            let data = doc! { "t": &times, "v": { "0": 1, "1": 2 } };
            let bounds = |time: i64, v: i32| doc! { "t": Value::DateTime(begin + time), "v": v };
            let (min, max) = (bounds(0, 1), bounds(99_999_999_999, 2));
            let control = doc! { "version": 1, "min": &min, "max": &max };
            let id = Bucket::new(ObjectId([7; 12]), begin, &DocBuf::new(), &options).id();
            let bucket = doc! { "_id": Value::ObjectId(id), "control": &control, "data": &data };
            fault(bucket.as_raw(), &options).unwrap_or_default()
        };
        let at = |millis: i64| Value::DateTime(1_700_000_040_000 + millis);
        assert_eq!(times(doc! { "0": at(0), "1": at(1) }), "");
        assert!(times(doc! { "0": at(0), "2": at(1) }).contains("1 of its 3 measurements"));
        assert!(times(doc! { "1": at(0), "0": at(1) }).contains("'t' is not in the order"));
        assert!(times(doc! { "0": at(0), "01": at(1) }).contains("'t' is not in the order"));
        assert!(times(doc! { "0": at(0), "1": "x" }).contains("measurement 2 has no date"));
        assert!(times(doc! { "0": at(0), "1": at(3_600_000) }).contains("outside its span"));
        assert!(times(doc! { "0": at(0), "1": at(-1) }).contains("outside its span"));
        assert!(said(&["control", "max", "d", "x"], Value::Int64(1)).contains("control.max.d"));
        let text = sheaf_bson::Binary { subtype: 7, bytes: b"\x91no column" };
        assert!(said(&["data", "v"], Value::Binary(text)).contains("not those of a bucket"));
        let times = doc! { "0": Value::DateTime(1_700_000_040_003), "1": Value::DateTime(1_700_000_040_000),
        "2": Value::DateTime(1_700_000_040_001), "3": Value::DateTime(1_700_000_040_002) };
        assert!(said(&["data", "t"], Value::Document(times.as_raw())).contains("not in their order"));
    }
}
