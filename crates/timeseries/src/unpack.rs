//! A bucket's measurements, one after the other.

use sheaf_bson::{DocWriter, Iter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_meter::Held;

use crate::bucket::COLUMN;
use crate::column::ColumnReader;

/// Which fields of measurements are wanted.
#[derive(Clone, Debug, Default)]
pub enum Fields {
    /// All.
    #[default]
    All,
    /// These.
    Only(Vec<String>),
    /// All but these.
    Without(Vec<String>),
}

impl Fields {
    /// Whether a field is.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Fields::All => true,
            Fields::Only(names) => names.iter().any(|one| one == name),
            Fields::Without(names) => names.iter().all(|one| one != name),
        }
    }
}

/// Takes a bucket apart. It keeps the bucket's bytes, and where it stands in each column.
#[derive(Debug)]
pub struct Unpacker {
    time_field: String,
    /// The field of the meta value, if that is wanted.
    meta_field: Option<String>,
    fields: Fields,
    has_time: bool,
    bucket: Vec<u8>,
    times: Column,
    /// The other columns.
    columns: Vec<(String, Column)>,
    /// The number of the next measurement, from 0.
    number: u32,
    /// The memory of what is larger than buckets are.
    held: Held,
}

/// Buckets of so many bytes and fewer are not worth an account.
const SMALL: usize = 256 * 1024;

/// A column, and where it stands.
#[derive(Debug)]
enum Column {
    /// Elements `"number": value` between these places.
    Plain(usize, usize),
    /// A binary.
    Packed(ColumnReader),
}

impl Column {
    /// The column that a field of `data` is; `base` is where the bucket's bytes lie.
    fn of(value: Value<'_>, base: usize) -> Option<Column> {
        match value {
            Value::Document(elements) => {
                let rest = elements.iter();
                let rest = rest.rest();
                let at = rest.as_ptr() as usize - base;
                Some(Column::Plain(at, at + rest.len()))
            }
            Value::Binary(binary) if binary.subtype == COLUMN => {
                let at = binary.bytes.as_ptr() as usize - base;
                Some(Column::Packed(ColumnReader::new(at, at + binary.bytes.len())))
            }
            _ => None,
        }
    }

    /// The value of the measurement with this number, if it has one: its type byte and bytes.
    ///
    /// Errors: `InvalidBSON`.
    #[inline]
    fn next<'v>(&'v mut self, bytes: &'v [u8], number: &[u8]) -> Result<Option<(u8, &'v [u8])>> {
        match self {
            Column::Plain(at, end) => {
                let next = Iter::over(&bytes[*at..*end]).next();
                Ok(next.filter(|element| element.key_bytes() == number).map(|element| {
                    *at += element.as_bytes().len();
                    (element.as_bytes()[0], element.data())
                }))
            }
            Column::Packed(reader) => Ok(if reader.advance(bytes)? { reader.value(bytes) } else { None }),
        }
    }
}

impl Unpacker {
    /// An unpacker without a bucket.
    pub fn new(time_field: &str, meta_field: Option<&str>) -> Self {
        Unpacker {
            time_field: time_field.to_owned(),
            meta_field: meta_field.map(str::to_owned),
            fields: Fields::All,
            has_time: true,
            bucket: Vec::new(),
            times: Column::Plain(0, 0),
            columns: Vec::new(),
            number: 0,
            held: Held::default(),
        }
    }

    /// The same, giving only some fields.
    pub fn giving(mut self, fields: Fields) -> Self {
        self.has_time = fields.has(&self.time_field);
        self.meta_field = self.meta_field.filter(|meta| fields.has(meta));
        self.fields = fields;
        self
    }

    /// The bucket that is being taken apart.
    pub fn bucket(&self) -> RawDoc<'_> {
        RawDoc::new(&self.bucket)
    }

    /// Begins with a bucket.
    ///
    /// Errors: `ExceededMemoryLimit`.
    pub fn begin(&mut self, bucket: RawDoc<'_>) -> Result<()> {
        if bucket.len() > SMALL && self.held.bytes() < 3 * bucket.len() as u64 {
            // Itself, the documents that its columns build, and the measurement.
            self.held = sheaf_meter::reserve(3 * bucket.len() as u64)?;
        }
        self.bucket.clear();
        self.bucket.extend_from_slice(bucket.as_bytes());
        self.number = 0;
        let (mut times, mut columns) = (Column::Plain(0, 0), std::mem::take(&mut self.columns));
        columns.clear();
        let data = self.bucket().get("data").and_then(|data| data.as_doc()).unwrap_or(RawDoc::EMPTY);
        let base = self.bucket.as_ptr() as usize;
        for field in data.iter() {
            let is_time = field.key() == self.time_field;
            if !is_time && !self.fields.has(field.key()) {
                continue;
            }
            let Some(column) = Column::of(field.value(), base) else { continue };
            if is_time {
                times = column;
            } else {
                columns.push((field.key().to_owned(), column));
            }
        }
        (self.times, self.columns) = (times, columns);
        Ok(())
    }

    /// Writes the next measurement; false if there is none.
    ///
    /// Errors: `InvalidBSON` for columns that are none.
    pub fn next_into(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let bytes = &self.bucket;
        let mut number = [0; 10];
        let number = sheaf_bson::decimal_digits(self.number, &mut number);
        let Some((kind, time)) = self.times.next(bytes, number)? else { return Ok(false) };
        self.number += 1;
        out.clear();
        let mut row = DocWriter::new(out);
        if self.has_time {
            row.append_raw(&self.time_field, kind, time);
        }
        if let Some(meta) = &self.meta_field
            && let Some(value) = RawDoc::new(bytes).element("meta")
        {
            row.append_renamed(meta, value);
        }
        for (name, column) in &mut self.columns {
            if let Some((kind, data)) = column.next(bytes, number)? {
                row.append_raw(name, kind, data);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, ObjectId, doc};

    use super::*;
    use crate::{Bucket, Measurement, TimeseriesOptions, normalized_meta};

    #[test]
    fn what_goes_in_comes_out() {
        let spec = doc! { "timeField": "t", "metaField": "m" };
        let options = TimeseriesOptions::parse(spec.as_raw(), "x").unwrap().resolve().unwrap();
        let at = |millis: i64| Value::DateTime(millis);
        let rows = [
            doc! { "t": at(1_700_000_000_000), "m": { "a": 1, "b": 2 }, "_id": 1, "v": 1.5 },
            doc! { "t": at(1_700_000_001_000), "m": { "a": 1, "b": 2 }, "_id": 2, "w": { "x": [1] } },
            doc! { "t": at(1_700_000_002_000), "m": { "a": 1, "b": 2 }, "_id": 3, "v": Value::Null, "w": 1 },
        ];
        let first = Measurement::of(rows[0].as_raw(), &options).unwrap();
        let meta = normalized_meta(doc! { "b": 2, "a": 1 }.as_raw().into());
        let mut bucket = Bucket::new(ObjectId([7; 12]), first.time, &meta, &options);
        for row in &rows[..2] {
            bucket.add(row.as_raw(), &options);
        }
        let mut bucket = Bucket::open(bucket.to_doc().as_raw(), &options).unwrap();
        bucket.add(rows[2].as_raw(), &options);
        assert_eq!(bucket.count(), 3);
        let mut unpacker = Unpacker::new("t", Some("m"));
        unpacker.begin(bucket.to_doc().as_raw()).unwrap();
        let (mut out, mut found) = (Vec::new(), Vec::new());
        while unpacker.next_into(&mut out).unwrap() {
            found.push(DocBuf::from_bytes(out.clone()));
        }
        assert_eq!(found, rows);
    }

    #[test]
    fn some_fields() {
        let options =
            TimeseriesOptions::parse(doc! { "timeField": "t", "metaField": "m" }.as_raw(), "x").unwrap();
        let options = options.resolve().unwrap();
        let meta = normalized_meta(Value::Int32(7));
        let mut bucket = Bucket::new(ObjectId([7; 12]), 0, &meta, &options);
        bucket.add(doc! { "t": Value::DateTime(5), "v": 1, "w": 2 }.as_raw(), &options);
        let stored = bucket.to_doc();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        for (fields, expected) in [
            (Fields::Only(names(&["w"])), doc! { "w": 2 }),
            (Fields::Only(names(&["m", "t"])), doc! { "t": Value::DateTime(5), "m": 7 }),
            (Fields::Only(Vec::new()), doc! {}),
            (Fields::Without(names(&["m", "v"])), doc! { "t": Value::DateTime(5), "w": 2 }),
        ] {
            let mut unpacker = Unpacker::new("t", Some("m")).giving(fields);
            let mut out = Vec::new();
            unpacker.begin(stored.as_raw()).unwrap();
            assert!(unpacker.next_into(&mut out).unwrap());
            assert_eq!(DocBuf::from_bytes(out.clone()), expected);
            assert!(!unpacker.next_into(&mut out).unwrap());
        }
    }

    #[test]
    fn room() {
        let options = TimeseriesOptions::parse(doc! { "timeField": "t" }.as_raw(), "x").unwrap();
        let options = options.resolve().unwrap();
        let row = |millis| doc! { "t": Value::DateTime(millis) };
        let mut bucket = Bucket::new(ObjectId([7; 12]), 3_661_000, &DocBuf::new(), &options);
        bucket.add(row(3_661_000).as_raw(), &options);
        for (millis, fits) in [(3_660_000, true), (3_659_999, false), (7_259_999, true), (7_260_000, false)] {
            let row = row(millis);
            let measurement = Measurement::of(row.as_raw(), &options).unwrap();
            assert_eq!(bucket.has_room(&measurement, &options), fits, "{millis}");
        }
    }
}
