//! What `timeseries` says of a collection: in `create`, in `$out`, in the catalog.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};

/// Where an entry of `config.collections` has them.
pub const ENTRY_FIELD: &str = "timeseriesFields";

/// The longest span of a bucket, in seconds.
const MAX_SPAN: i64 = 31_536_000;

/// How close measurements follow each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Granularity {
    /// Buckets of an hour.
    Seconds,
    /// Buckets of a day.
    Minutes,
    /// Buckets of thirty days.
    Hours,
}

impl Granularity {
    /// Reads the word.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "seconds" => Some(Granularity::Seconds),
            "minutes" => Some(Granularity::Minutes),
            "hours" => Some(Granularity::Hours),
            _ => None,
        }
    }

    /// The word.
    pub fn name(self) -> &'static str {
        match self {
            Granularity::Seconds => "seconds",
            Granularity::Minutes => "minutes",
            Granularity::Hours => "hours",
        }
    }

    /// Seconds that a bucket spans.
    pub fn max_span(self) -> i64 {
        match self {
            Granularity::Seconds => 3600,
            Granularity::Minutes => 86_400,
            Granularity::Hours => 2_592_000,
        }
    }

    /// Seconds to multiples of which a bucket's begin is rounded down.
    pub fn rounding(self) -> i64 {
        match self {
            Granularity::Seconds => 60,
            Granularity::Minutes => 3600,
            Granularity::Hours => 86_400,
        }
    }
}

/// The options of a time-series collection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimeseriesOptions {
    /// The field that holds the time.
    pub time_field: String,
    /// The field that names the source.
    pub meta_field: Option<String>,
    /// `granularity`.
    pub granularity: Option<Granularity>,
    /// `bucketMaxSpanSeconds`.
    pub max_span: Option<i64>,
    /// `bucketRoundingSeconds`.
    pub rounding: Option<i64>,
}

impl TimeseriesOptions {
    /// Reads them as they were given; `place` is the field's name in errors. What goes together is not looked at yet.
    ///
    /// Errors: `TypeMismatch`, 40413 to 40415, `BadValue`.
    pub fn parse(spec: RawDoc<'_>, place: &str) -> Result<Self> {
        let options = Self::read(spec, place, false)?;
        if options.time_field.is_none() {
            bail!(40414, "BSON field '{place}.timeField' is missing but a required field");
        }
        Ok(TimeseriesOptions {
            time_field: options.time_field.unwrap_or_default().to_owned(),
            meta_field: options.meta_field.map(str::to_owned),
            granularity: options.granularity,
            max_span: options.max_span,
            rounding: options.rounding,
        })
    }

    /// The options as `collMod` changes them.
    ///
    /// Errors: as [`parse`](Self::parse); `InvalidOptions` for spans that would become shorter.
    pub fn changed(&self, spec: RawDoc<'_>, place: &str) -> Result<Self> {
        let wish = Self::read(spec, place, true)?;
        if wish.granularity.is_none() && wish.max_span.is_none() && wish.rounding.is_none() {
            return Ok(self.clone());
        }
        let next = TimeseriesOptions {
            granularity: wish.granularity,
            max_span: wish.max_span,
            rounding: wish.rounding,
            ..self.clone()
        };
        let next = next.resolve()?;
        let rounding = |options: &TimeseriesOptions| {
            options.rounding.or(options.granularity.map(Granularity::rounding)).unwrap_or_default()
        };
        if next.max_span < self.max_span || rounding(&next) < rounding(self) {
            bail!(
                Code::INVALID_OPTIONS,
                "Invalid transition for timeseries.granularity. Can only transition from 'seconds' to 'minutes' or 'minutes' to 'hours', and to longer spans."
            );
        }
        Ok(next)
    }

    /// Checks names and types of what `collMod` is to change.
    ///
    /// Errors: as [`parse`](Self::parse).
    pub fn check_change(spec: RawDoc<'_>, place: &str) -> Result<()> {
        Self::read(spec, place, true).map(|_| ())
    }

    /// The fields as they were given; `change`: those that `collMod` takes.
    fn read<'s>(spec: RawDoc<'s>, place: &str, change: bool) -> Result<Given<'s>> {
        let (mut time_field, mut meta_field, mut granularity) = (None, None, None);
        let (mut max_span, mut rounding) = (None, None);
        let mut seen: Vec<&str> = Vec::new();
        for field in spec.iter() {
            let (key, value) = (field.key(), field.value());
            if seen.contains(&key) {
                bail!(40413, "BSON field '{place}.{key}' is a duplicate field");
            }
            seen.push(key);
            match key {
                "timeField" if !change => time_field = string(value, place, key)?,
                "metaField" if !change => meta_field = string(value, place, key)?,
                "granularity" => {
                    granularity = string(value, place, key)?
                        .map(|word| match Granularity::from_name(word) {
                            Some(granularity) => Ok(granularity),
                            None => bail!(
                                Code::BAD_VALUE,
                                "Enumeration value '{word}' for field '{place}.granularity' is not a valid value."
                            ),
                        })
                        .transpose()?;
                }
                "bucketMaxSpanSeconds" => max_span = span(value, place, key)?,
                "bucketRoundingSeconds" => rounding = span(value, place, key)?,
                _ => bail!(40415, "BSON field '{place}.{key}' is an unknown field."),
            }
        }
        Ok(Given { time_field, meta_field, granularity, max_span, rounding })
    }

    /// The options as the catalog has them.
    pub fn of_catalog(options: RawDoc<'_>) -> Option<Self> {
        let spec = options.get("timeseries")?.as_doc()?;
        TimeseriesOptions::parse(spec, "timeseries").ok()
    }

    /// What an entry of `config.collections` says of measurements; `None`: its documents are no buckets.
    ///
    /// Errors: `BadValue`, where it cannot be read. Whoever took such buckets for plain documents would send measurements anywhere.
    pub fn of_entry(entry: RawDoc<'_>) -> Result<Option<Self>> {
        let Some(said) = entry.get(ENTRY_FIELD) else { return Ok(None) };
        let read = match said {
            Value::Document(said) => Self::parse(said, ENTRY_FIELD),
            other => Err(Error::new(Code::TYPE_MISMATCH, format!("it is of type '{}'", other.type_name()))),
        };
        read.map(Some).map_err(|error| {
            let of = entry.get("_id").and_then(|id| id.as_str()).unwrap_or_default();
            let text = format!(
                "config.collections says in '{ENTRY_FIELD}' of {of} what this version cannot read: {}",
                error.message()
            );
            Error::new(Code::BAD_VALUE, text)
        })
    }

    /// Checks the names of fields, as `create` does.
    ///
    /// Errors: `InvalidOptions`.
    pub fn check_fields(&self) -> Result<()> {
        if self.time_field.contains('.') {
            bail!(
                Code::INVALID_OPTIONS,
                "'timeField' must be a top-level field and not contain a '.': {}",
                self.time_field
            );
        }
        let Some(meta) = &self.meta_field else { return Ok(()) };
        if meta.contains('.') {
            bail!(
                Code::INVALID_OPTIONS,
                "'metaField' must be a top-level field and not contain a '.': {meta}"
            );
        }
        if meta == "_id" {
            bail!(Code::INVALID_OPTIONS, "'metaField' cannot be \"_id\"");
        }
        if *meta == self.time_field {
            bail!(Code::INVALID_OPTIONS, "'metaField' and 'timeField' cannot be the same");
        }
        Ok(())
    }

    /// Checks what buckets span, and fills in what was not given.
    ///
    /// Errors: `InvalidOptions`.
    pub fn resolve(mut self) -> Result<Self> {
        match (self.granularity, self.max_span, self.rounding) {
            (Some(_), _, Some(_)) => bail!(
                Code::INVALID_OPTIONS,
                "'granularity' and 'bucketRoundingSeconds' cannot be specified together"
            ),
            (None, Some(span), Some(rounding)) if span == rounding => {}
            (None, Some(_), Some(_)) => bail!(
                Code::INVALID_OPTIONS,
                "'bucketRoundingSeconds' must be equal to 'bucketMaxSpanSeconds'"
            ),
            (None, Some(_), None) | (None, None, Some(_)) => bail!(
                Code::INVALID_OPTIONS,
                "'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set alongside each other"
            ),
            (granularity, span, None) => {
                let granularity = granularity.unwrap_or(Granularity::Seconds);
                if span.is_some_and(|span| span != granularity.max_span()) {
                    bail!(
                        Code::INVALID_OPTIONS,
                        "'bucketMaxSpanSeconds' can only be set to the default for the granularity '{}', {}",
                        granularity.name(),
                        granularity.max_span()
                    );
                }
                self.granularity = Some(granularity);
                self.max_span = Some(granularity.max_span());
            }
        }
        Ok(self)
    }

    /// Milliseconds that a bucket may span.
    pub fn span_millis(&self) -> i64 {
        self.max_span.unwrap_or(Granularity::Seconds.max_span()) * 1000
    }

    /// The begin of a bucket that starts with a measurement of this time.
    pub fn bucket_begin(&self, millis: i64) -> i64 {
        let seconds =
            self.rounding.unwrap_or_else(|| self.granularity.unwrap_or(Granularity::Seconds).rounding());
        millis.div_euclid(seconds * 1000).saturating_mul(seconds * 1000)
    }

    /// The options in the catalog's form.
    pub fn to_doc(&self) -> DocBuf {
        DocBuf::build(|out| {
            out.append("timeField", self.time_field.as_str());
            if let Some(meta) = &self.meta_field {
                out.append("metaField", meta.as_str());
            }
            if let Some(granularity) = self.granularity {
                out.append("granularity", granularity.name());
            }
            if let Some(rounding) = self.rounding {
                out.append("bucketRoundingSeconds", rounding as i32);
            }
            if let Some(span) = self.max_span {
                out.append("bucketMaxSpanSeconds", span as i32);
            }
        })
    }
}

/// Options as they were given.
struct Given<'s> {
    time_field: Option<&'s str>,
    meta_field: Option<&'s str>,
    granularity: Option<Granularity>,
    max_span: Option<i64>,
    rounding: Option<i64>,
}

fn string<'v>(value: Value<'v>, place: &str, key: &str) -> Result<Option<&'v str>> {
    match value {
        Value::Missing | Value::Null | Value::Undefined => Ok(None),
        Value::String(text) if text.contains('\0') => {
            bail!(Code::BAD_VALUE, "BSON field '{place}.{key}' value can't contain null bytes")
        }
        Value::String(text) => Ok(Some(text)),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.{key}' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
}

/// A number of seconds as commands take it: doubles are cut, decimals rounded to the even neighbour, NaN is 0.
pub fn seconds(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Int32(n) => Some(i64::from(n)),
        Value::Int64(n) => Some(n),
        // `as` saturates and makes NaN 0.
        Value::Double(n) => Some(n as i64),
        Value::Decimal128(_) => Some(value.as_f64().unwrap_or(0.0).round_ties_even() as i64),
        _ => None,
    }
}

fn span(value: Value<'_>, place: &str, key: &str) -> Result<Option<i64>> {
    if value.is_nullish() {
        return Ok(None);
    }
    let Some(given) = seconds(value) else {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{place}.{key}' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        );
    };
    if given < 1 {
        bail!(
            Code::BAD_VALUE,
            "BSON field '{place}.{key}' value must be greater than or equal to 1, actual value '{given}'"
        );
    }
    if given > MAX_SPAN {
        bail!(
            Code::BAD_VALUE,
            "BSON field '{place}.{key}' value must be less than or equal to {MAX_SPAN}, actual value '{given}'"
        );
    }
    Ok(Some(given))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn resolved(spec: DocBuf) -> Result<DocBuf> {
        TimeseriesOptions::parse(spec.as_raw(), "create.timeseries")?
            .resolve()
            .map(|options| options.to_doc())
    }

    #[test]
    fn defaults_and_spans() {
        let plain = resolved(doc! { "timeField": "t" }).unwrap();
        assert_eq!(plain, doc! { "timeField": "t", "granularity": "seconds", "bucketMaxSpanSeconds": 3600 });
        let own = doc! { "timeField": "t", "bucketMaxSpanSeconds": 3.9, "bucketRoundingSeconds": 3 };
        assert_eq!(
            resolved(own).unwrap(),
            doc! { "timeField": "t", "bucketRoundingSeconds": 3, "bucketMaxSpanSeconds": 3 }
        );
        let matching = doc! { "timeField": "t", "granularity": "hours", "bucketMaxSpanSeconds": 2_592_000 };
        assert!(resolved(matching).is_ok());
    }

    #[test]
    fn errors() {
        for (spec, code) in [
            (doc! {}, 40414),
            (doc! { "timeField": 1 }, 14),
            (doc! { "timeField": "t", "x": 1 }, 40415),
            (doc! { "timeField": "t", "granularity": "Hours" }, 2),
            (doc! { "timeField": "t", "bucketMaxSpanSeconds": 0 }, 2),
            (doc! { "timeField": "t", "bucketMaxSpanSeconds": f64::NAN }, 2),
            (doc! { "timeField": "t", "bucketMaxSpanSeconds": 5 }, 72),
            (doc! { "timeField": "t", "granularity": "seconds", "bucketRoundingSeconds": 60 }, 72),
        ] {
            assert_eq!(resolved(spec.clone()).unwrap_err().code().0, code, "{spec:?}");
        }
    }

    #[test]
    fn what_an_entry_says_is_read_or_refused() {
        let of = |entry: DocBuf| TimeseriesOptions::of_entry(entry.as_raw());
        assert_eq!(of(doc! { "_id": "a.b" }), Ok(None));
        let options =
            TimeseriesOptions::parse(doc! { "timeField": "t" }.as_raw(), "x").unwrap().resolve().unwrap();
        assert_eq!(of(doc! { "_id": "a.b", "timeseriesFields": &options.to_doc() }), Ok(Some(options)));
        for said in [
            doc! { "v": 5 },
            doc! { "v": { "timeField": "t", "granularity": "weeks" } },
            doc! { "v": Value::Null },
        ] {
            let entry = doc! { "_id": "a.system.buckets.b" }
                .with("timeseriesFields", said.as_raw().get_or_missing("v"));
            let error = of(entry).unwrap_err();
            assert_eq!(error.code(), Code::BAD_VALUE);
            assert!(error.message().contains("a.system.buckets.b"), "{}", error.message());
        }
    }

    #[test]
    fn changes() {
        let given = doc! { "timeField": "t", "granularity": "minutes" };
        let options = TimeseriesOptions::parse(given.as_raw(), "x").unwrap().resolve().unwrap();
        let change = |spec: DocBuf| options.changed(spec.as_raw(), "x").map_err(|error| error.code().0);
        assert_eq!(change(doc! { "granularity": "hours" }).unwrap().max_span, Some(2_592_000));
        assert_eq!(change(doc! { "granularity": "seconds" }), Err(72));
        assert_eq!(change(doc! { "timeField": "t" }), Err(40415));
        let own = doc! { "bucketMaxSpanSeconds": 100_000, "bucketRoundingSeconds": 100_000 };
        assert_eq!(change(own).unwrap().granularity, None);
    }

    #[test]
    fn buckets_begin_at_rounded_times() {
        let options = TimeseriesOptions::parse(doc! { "timeField": "t" }.as_raw(), "x").unwrap();
        let options = options.resolve().unwrap();
        assert_eq!(options.bucket_begin(61_001), 60_000);
        assert_eq!(options.bucket_begin(-1), -60_000);
    }
}
