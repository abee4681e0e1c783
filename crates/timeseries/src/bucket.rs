//! A bucket while measurements come into it.

use sheaf_bson::{Binary, DocBuf, DocWriter, Element, ObjectId, RawDoc, Sink, Value};
use sheaf_errors::{Code, Result, bail};

use crate::bounds::Bounds;
use crate::column::{ColumnReader, ColumnWriter};
use crate::options::TimeseriesOptions;

/// Most measurements of a bucket.
const MAX_MEASUREMENTS: u32 = 1000;
/// Most bytes of a bucket's columns, unless one measurement alone has more.
const MAX_BYTES: usize = 125 * 1024;
/// So many measurements are in a bucket though they have more.
const MIN_MEASUREMENTS: u32 = 10;
/// Most bytes that measurements have which are one bucket, however small their columns become: they are all in memory at times.
const MAX_PLAIN_BYTES: usize = 5 * 1024 * 1024;
/// What has more is taken for no bucket: a column of a few bytes can stand for a thousand times as much as a document may have.
const MAX_READ_BYTES: usize = 64 * 1024 * 1024;
/// `control.version` of buckets with columns as documents, with those of subtype 7, and with those when times are not in order.
const PLAIN: i64 = 1;
pub(crate) const PACKED: i32 = 2;
const PACKED_UNORDERED: i32 = 3;
/// The subtype of columns.
pub(crate) const COLUMN: u8 = 7;

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

/// A column with its name.
#[derive(Debug)]
struct Column {
    name: String,
    values: ColumnWriter,
}

/// Why a measurement may not come into a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It has as many as it may.
    Count,
    /// It is large enough.
    Size,
    /// The measurement is later than what the bucket spans.
    TimeForward,
    /// It is earlier.
    TimeBackward,
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
    count: u32,
    /// The latest time, and whether all came in their order.
    latest: i64,
    ordered: bool,
    /// Bytes of the columns when they were last looked at, and of the measurements that came since.
    packed_bytes: usize,
    new_bytes: usize,
    /// Bytes of all measurements.
    plain_bytes: usize,
}

impl Bucket {
    /// A new bucket that begins with a measurement of this time. The id's first bytes become those of its begin.
    pub fn new(id: ObjectId, time: i64, meta: &DocBuf, options: &TimeseriesOptions) -> Self {
        let begin = options.bucket_begin(time);
        let mut id = id;
        // Times beyond what 32 bits hold wrap, as MongoDB's do.
        id.0[..4].copy_from_slice(&(begin.div_euclid(1000) as u32).to_be_bytes());
        Bucket::again(id, begin, meta, options)
    }

    /// A bucket that is written anew, without measurements yet. It begins in milliseconds when it began, whatever options may have changed
    /// since.
    pub fn again(id: ObjectId, begin: i64, meta: &DocBuf, options: &TimeseriesOptions) -> Self {
        let mut min = Bounds::least();
        min.begin(&options.time_field, begin);
        Bucket {
            id,
            begin,
            meta: meta.clone(),
            min,
            max: Bounds::greatest(),
            columns: Vec::new(),
            count: 0,
            latest: i64::MIN,
            ordered: true,
            packed_bytes: 0,
            new_bytes: 0,
            plain_bytes: 0,
        }
    }

    /// The parts of a stored bucket; `None` if it is closed or no bucket that could be added to.
    pub fn open(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<Self> {
        let control = stored.get("control")?.as_doc()?;
        if control.get("closed").is_some_and(|closed| closed.truthy()) {
            return None;
        }
        Bucket::read(stored, options)
    }

    /// The parts of a bucket, also of one that is closed; `None` for what is none.
    pub fn read(stored: RawDoc<'_>, options: &TimeseriesOptions) -> Option<Self> {
        let control = stored.get("control")?.as_doc()?;
        if !(PLAIN..=i64::from(PACKED_UNORDERED)).contains(&control.get("version")?.as_exact_i64()?) {
            return None;
        }
        let (Value::ObjectId(id), data) = (stored.get("_id")?, stored.get("data")?.as_doc()?) else {
            return None;
        };
        let min_doc = control.get("min")?.as_doc()?;
        let Value::DateTime(begin) = min_doc.get(&options.time_field)? else { return None };
        let meta = DocBuf::build(|out| {
            if let Some(meta) = stored.element("meta") {
                out.append_element(meta);
            }
        });
        let mut bucket = Bucket::again(id, begin, &meta, options);
        bucket.min.take(min_doc);
        bucket.max.take(control.get("max")?.as_doc()?);
        bucket.take_columns(data, &options.time_field)?;
        bucket.packed_bytes = data.len();
        let given = control.get("count").and_then(|count| count.as_exact_i64());
        let is_whole = bucket.count > 0 && given.is_none_or(|given| given == i64::from(bucket.count));
        is_whole.then_some(bucket)
    }

    /// Takes over the columns of a stored bucket; `None` if they are none.
    fn take_columns(&mut self, data: RawDoc<'_>, time_field: &str) -> Option<()> {
        for field in data.iter() {
            let mut values = ColumnWriter::new();
            let is_time = field.key() == time_field;
            let (mut plain, mut times) = (0, Vec::new());
            let room = MAX_READ_BYTES - self.plain_bytes;
            let mut take = |values: &mut ColumnWriter, kind: u8, bytes: &[u8]| {
                plain += bytes.len();
                if plain > room {
                    return None;
                }
                values.append(kind, bytes);
                if is_time {
                    times.push(i64::from_le_bytes(bytes.try_into().unwrap_or_default()));
                }
                Some(())
            };
            match field.value() {
                Value::Document(elements) => {
                    for element in elements.iter() {
                        let at = element.key().parse::<u32>().ok().filter(|at| *at < MAX_MEASUREMENTS)?;
                        values.skip_to(at);
                        take(&mut values, element.as_bytes()[0], element.data())?;
                    }
                }
                Value::Binary(binary) if binary.subtype == COLUMN => {
                    let mut reader = ColumnReader::new(0, binary.bytes.len());
                    while reader.advance(binary.bytes).ok()? {
                        if values.count() == MAX_MEASUREMENTS {
                            return None;
                        }
                        match reader.value(binary.bytes) {
                            Some((kind, bytes)) => take(&mut values, kind, bytes)?,
                            None => values.skip(),
                        }
                    }
                }
                _ => return None,
            }
            self.plain_bytes += plain;
            if is_time {
                self.count = values.count();
                self.ordered = times.is_sorted();
                self.latest = times.iter().copied().max()?;
            }
            self.columns.push(Column { name: field.key().to_owned(), values });
        }
        self.columns.iter().all(|column| column.values.count() <= self.count).then_some(())
    }

    /// Whether its times are in their order.
    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered
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
        self.count as usize
    }

    /// Bytes of memory beside itself, but for its bounds, which are about what `control` has of them.
    pub fn memory(&self) -> usize {
        let of = |column: &Column| size_of::<Column>() + column.name.capacity() + column.values.memory();
        self.meta.as_bytes().len() + self.columns.iter().map(of).sum::<usize>()
    }

    /// Whether another measurement may come in.
    pub fn has_room(&mut self, measurement: &Measurement<'_>, options: &TimeseriesOptions) -> bool {
        self.refusal(measurement, options).is_none()
    }

    /// Why another measurement may not come in, if so.
    pub fn refusal(&mut self, measurement: &Measurement<'_>, options: &TimeseriesOptions) -> Option<Refusal> {
        if self.count == 0 {
            return None;
        }
        if self.count >= MAX_MEASUREMENTS {
            return Some(Refusal::Count);
        }
        if measurement.time < self.begin {
            return Some(Refusal::TimeBackward);
        }
        if measurement.time - self.begin >= options.span_millis() {
            return Some(Refusal::TimeForward);
        }
        (!self.has_bytes_for(measurement.document.len())).then_some(Refusal::Size)
    }

    fn has_bytes_for(&mut self, bytes: usize) -> bool {
        if self.packed_bytes + self.new_bytes + bytes > MAX_BYTES && self.new_bytes > 0 {
            // What has come since may have become smaller.
            let mut bytes = Vec::new();
            self.columns.iter().for_each(|column| column.values.finish_into(&mut bytes));
            self.packed_bytes = bytes.len();
            self.new_bytes = 0;
        }
        let fits = self.count < MIN_MEASUREMENTS || self.packed_bytes + self.new_bytes + bytes <= MAX_BYTES;
        fits && self.plain_bytes + bytes <= MAX_PLAIN_BYTES
    }

    /// Takes a measurement in.
    pub fn add(&mut self, document: RawDoc<'_>, options: &TimeseriesOptions) {
        let meta = options.meta_field.as_deref();
        let mut at = 0;
        for field in document.iter() {
            if meta.is_some_and(|meta| meta.as_bytes() == field.key_bytes()) {
                continue;
            }
            let column = self.column(at, &field);
            let values = &mut self.columns[column].values;
            // Of fields with one name the first counts.
            if values.count() <= self.count {
                values.skip_to(self.count);
                values.append(field.as_bytes()[0], field.data());
                if field.key_bytes() == options.time_field.as_bytes()
                    && let Value::DateTime(time) = field.value()
                {
                    self.ordered &= time >= self.latest;
                    self.latest = self.latest.max(time);
                }
                self.min.add(at, &field);
                self.max.add(at, &field);
            }
            at += 1;
        }
        self.new_bytes += document.len();
        self.plain_bytes += document.len();
        self.count += 1;
    }

    /// The column of a field; `hint` is where it probably stands.
    fn column(&mut self, hint: usize, field: &Element<'_>) -> usize {
        let is_it = |column: &Column| column.name.as_bytes() == field.key_bytes();
        if self.columns.get(hint).is_some_and(is_it) {
            return hint;
        }
        match self.columns.iter().position(is_it) {
            Some(at) => at,
            None => {
                self.columns.push(Column { name: field.key().to_owned(), values: ColumnWriter::new() });
                self.columns.len() - 1
            }
        }
    }

    /// The document to store.
    pub fn to_doc(&mut self) -> DocBuf {
        let mut bytes = Vec::with_capacity(self.packed_bytes + self.new_bytes / 4 + 512);
        {
            let mut out = DocWriter::new(&mut bytes);
            out.append("_id", Value::ObjectId(self.id));
            {
                let mut control = out.document("control");
                control.append("version", if self.ordered { PACKED } else { PACKED_UNORDERED });
                self.min.write(&mut control.document("min"));
                self.max.write(&mut control.document("max"));
                control.append("count", self.count as i32);
            }
            out.append_all(self.meta.as_raw());
            let mut data = out.document("data");
            (self.packed_bytes, self.new_bytes) = (0, 0);
            let mut bytes = Vec::new();
            for column in &mut self.columns {
                column.values.skip_to(self.count);
                bytes.clear();
                column.values.finish_into(&mut bytes);
                self.packed_bytes += bytes.len();
                data.append(&column.name, Value::Binary(Binary { subtype: COLUMN, bytes: &bytes }));
            }
        }
        DocBuf::from_bytes(bytes)
    }
}
