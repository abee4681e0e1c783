//! A bucket while measurements come into it.

use sheaf_bson::{DocBuf, DocWriter, ObjectId, RawDoc, Sink, Value};
use sheaf_errors::{Code, Result, bail};

use crate::bounds::Bounds;
use crate::options::TimeseriesOptions;

/// Most measurements of a bucket.
const MAX_MEASUREMENTS: usize = 1000;
/// Most bytes of a bucket's columns, unless one measurement alone has more.
const MAX_BYTES: usize = 125 * 1024;

/// One measurement on its way into a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'d> {
    /// The whole document.
    pub document: RawDoc<'d>,
    /// Its time, in milliseconds.
    pub time: i64,
    /// Its `metaField`; missing if it has none.
    pub meta: Value<'d>,
}

impl<'d> Measurement<'d> {
    /// Looks at a document that is to be inserted.
    ///
    /// Errors: `BadValue` without a date in the time field.
    pub fn of(document: RawDoc<'d>, options: &TimeseriesOptions) -> Result<Self> {
        let Some(Value::DateTime(time)) = document.get(&options.time_field) else {
            bail!(
                Code::BAD_VALUE,
                "'{}' must be present and contain a valid BSON UTC datetime value",
                options.time_field
            );
        };
        let meta = options.meta_field.as_deref().map_or(Value::Missing, |name| document.get_or_missing(name));
        Ok(Measurement { document, time, meta })
    }
}

/// A meta value as buckets have it: the fields of documents in order of their names. Empty without one.
pub fn normalized_meta(meta: Value<'_>) -> DocBuf {
    DocBuf::build(|out| {
        if !meta.is_missing() {
            put_normalized("meta", meta, out);
        }
    })
}

fn put_normalized<S: Sink>(key: &str, value: Value<'_>, out: &mut DocWriter<'_, S>) {
    match value {
        Value::Document(document) => {
            let mut fields: Vec<_> = document.iter().collect();
            fields.sort_by_key(|field| field.key_bytes());
            let mut inner = out.document(key);
            for field in fields {
                put_normalized(field.key(), field.value(), &mut inner);
            }
        }
        Value::Array(array) => {
            let elements = DocBuf::build(|inner| {
                for element in array.iter() {
                    put_normalized(element.key(), element.value(), inner);
                }
            });
            out.append(key, Value::Array(elements.as_raw()));
        }
        other => _ = out.append(key, other),
    }
}

/// A column: its name, and its elements `"index": value`.
#[derive(Debug)]
struct Column {
    name: String,
    elements: Vec<u8>,
}

/// A bucket in parts.
#[derive(Debug)]
pub struct Bucket {
    id: ObjectId,
    /// Milliseconds.
    begin: i64,
    /// `{meta: value}`, or empty.
    meta: DocBuf,
    min: Bounds,
    max: Bounds,
    columns: Vec<Column>,
    count: usize,
    bytes: usize,
}

impl Bucket {
    /// A new bucket that begins with a measurement of this time. The id's first bytes become those of its begin.
    pub fn new(id: ObjectId, time: i64, meta: &DocBuf, options: &TimeseriesOptions) -> Self {
        let begin = options.bucket_begin(time);
        let mut id = id;
        // Times beyond what 32 bits hold wrap, as MongoDB's do.
        id.0[..4].copy_from_slice(&(begin.div_euclid(1000) as u32).to_be_bytes());
        let mut min = Bounds::least();
        min.add(0, &options.time_field, Value::DateTime(begin));
        Bucket {
            id,
            begin,
            meta: meta.clone(),
            min,
            max: Bounds::greatest(),
            columns: Vec::new(),
            count: 0,
            bytes: 0,
        }
    }

    /// The parts of a stored bucket; `None` if it is closed or no bucket that could be added to.
    pub fn open(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<Self> {
        let control = stored.get("control")?.as_doc()?;
        if control.get("closed").is_some_and(|closed| closed.truthy())
            || control.get("version")?.as_exact_i64()? != 1
        {
            return None;
        }
        let (Value::ObjectId(id), data) = (stored.get("_id")?, stored.get("data")?.as_doc()?) else {
            return None;
        };
        let min_doc = control.get("min")?.as_doc()?;
        let Value::DateTime(begin) = min_doc.get(&options.time_field)? else { return None };
        let (mut min, mut max) = (Bounds::least(), Bounds::greatest());
        min.take(min_doc);
        max.take(control.get("max")?.as_doc()?);
        let mut columns = Vec::new();
        for column in data.iter() {
            let elements = column.value().as_doc()?.iter().rest().to_vec();
            columns.push(Column { name: column.key().to_owned(), elements });
        }
        let times = columns.iter().find(|column| column.name == options.time_field)?;
        let count = sheaf_bson::Iter::over(&times.elements).last()?.key().parse::<usize>().ok()? + 1;
        let bytes = columns.iter().map(|column| column.elements.len()).sum();
        let meta = DocBuf::build(|out| {
            if let Some(meta) = stored.element("meta") {
                out.append_element(meta);
            }
        });
        Some(Bucket { id, begin, meta, min, max, columns, count, bytes })
    }

    /// The bucket's `_id`.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// `{meta: value}`, or empty.
    pub fn meta(&self) -> &DocBuf {
        &self.meta
    }

    /// How many measurements are in it.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether another measurement may come in.
    pub fn has_room(&self, measurement: &Measurement<'_>, options: &TimeseriesOptions) -> bool {
        self.count == 0
            || (self.count < MAX_MEASUREMENTS
                && self.bytes + measurement.document.len() <= MAX_BYTES
                && measurement.time >= self.begin
                && measurement.time - self.begin < options.span_millis())
    }

    /// Takes a measurement in.
    pub fn add(&mut self, document: RawDoc<'_>, options: &TimeseriesOptions) {
        let mut number = [0; 10];
        let number = sheaf_bson::decimal_digits(self.count as u32, &mut number);
        let meta = options.meta_field.as_deref();
        let mut at = 0;
        for field in document.iter() {
            if meta.is_some_and(|meta| meta.as_bytes() == field.key_bytes()) {
                continue;
            }
            let key = field.key();
            let column = self.column(at, key);
            let elements = &mut self.columns[column].elements;
            let before = elements.len();
            elements.push(field.as_bytes()[0]);
            elements.extend_from_slice(number);
            elements.push(0);
            elements.extend_from_slice(field.data());
            self.bytes += elements.len() - before;
            self.min.add(at, key, field.value());
            self.max.add(at, key, field.value());
            at += 1;
        }
        self.count += 1;
    }

    /// The column of this name; `hint` is where it probably stands.
    fn column(&mut self, hint: usize, name: &str) -> usize {
        if self.columns.get(hint).is_some_and(|column| column.name == name) {
            return hint;
        }
        match self.columns.iter().position(|column| column.name == name) {
            Some(at) => at,
            None => {
                self.columns.push(Column { name: name.to_owned(), elements: Vec::new() });
                self.columns.len() - 1
            }
        }
    }

    /// The document to store.
    pub fn to_doc(&self) -> DocBuf {
        let mut bytes = Vec::with_capacity(self.bytes + 512);
        {
            let mut out = DocWriter::new(&mut bytes);
            out.append("_id", Value::ObjectId(self.id));
            {
                let mut control = out.document("control");
                control.append("version", 1);
                self.min.write(&mut control.document("min"));
                self.max.write(&mut control.document("max"));
            }
            out.append_all(self.meta.as_raw());
            let mut data = out.document("data");
            for column in &self.columns {
                data.document(&column.name).append_raw_elements(&column.elements);
            }
        }
        DocBuf::from_bytes(bytes)
    }
}
