//! `configureQueryAnalyzer`: its arguments, the document that they make of the one before, and its answer.

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, check_collection_name, check_db_name};
use crate::reply::Reply;

/// More samples a second are refused, as in MongoDB.
const MOST_PER_SECOND: f64 = 50.0;

/// `{configureQueryAnalyzer: "garden.plants", mode: "full", samplesPerSecond: 5}`.
pub struct Configure<'a> {
    /// The whole name.
    pub namespace: &'a str,
    /// Its database.
    pub db: &'a str,
    /// Its collection.
    pub collection: &'a str,
    /// Samples a second; `None`: the mode is "off".
    samples_per_second: Option<f64>,
}

/// Database and collection of a namespace in which queries can be analyzed.
///
/// Errors: `InvalidNamespace`; `IllegalOperation` for the server's own collections.
pub fn namespace_parts(namespace: &str) -> Result<(&str, &str)> {
    let (db, collection) = namespace.split_once('.').unwrap_or((namespace, ""));
    if check_db_name(db).is_err() || check_collection_name(collection).is_err() {
        bail!(Code::INVALID_NAMESPACE, "Invalid namespace specified '{namespace}'");
    }
    if matches!(db, "admin" | "config" | "local") || collection.starts_with("enxcol_.") {
        bail!(Code::ILLEGAL_OPERATION, "Cannot run against an internal collection");
    }
    if collection.starts_with("system.") {
        bail!(Code::ILLEGAL_OPERATION, "Cannot run against a system collection");
    }
    Ok((db, collection))
}

impl<'a> Configure<'a> {
    /// Reads the arguments.
    ///
    /// Errors: `InvalidNamespace`, `IllegalOperation`, `InvalidOptions`, `BadValue`.
    pub fn parse(args: &mut Args<'a>) -> Result<Configure<'a>> {
        let Value::String(namespace) = args.own_value() else {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'configureQueryAnalyzer.configureQueryAnalyzer' is the wrong type '{}', expected type 'string'",
                args.own_value().type_name()
            );
        };
        let mode: &str = args.required("mode")?;
        let rate: Option<f64> = args.optional("samplesPerSecond")?;
        if !matches!(mode, "off" | "full") {
            bail!(
                Code::BAD_VALUE,
                "Enumeration value '{mode}' for field 'configureQueryAnalyzer.mode' is not a valid value."
            );
        }
        let (db, collection) = namespace_parts(namespace)?;
        match rate {
            Some(_) if mode == "off" => {
                bail!(Code::INVALID_OPTIONS, "Cannot specify 'samplesPerSecond' when 'mode' is \"off\"")
            }
            None if mode == "full" => bail!(
                Code::INVALID_OPTIONS,
                "'samplesPerSecond' must be specified when 'mode' is not \"off\""
            ),
            Some(rate) if rate.is_nan() || rate <= 0.0 => {
                bail!(Code::INVALID_OPTIONS, "'samplesPerSecond' must be greater than 0")
            }
            Some(rate) if rate > MOST_PER_SECOND => bail!(
                Code::INVALID_OPTIONS,
                "'samplesPerSecond' must be less than or equal to {MOST_PER_SECOND}"
            ),
            _ => {}
        }
        Ok(Configure { namespace, db, collection, samples_per_second: rate })
    }

    /// What stays of the document that was there: it may have been about another collection of this name.
    pub fn of_collection<'d>(old: Option<RawDoc<'d>>, uuid: &[u8; 16]) -> Option<RawDoc<'d>> {
        let of =
            |old: &RawDoc<'_>| matches!(old.get("collUuid"), Some(Value::Binary(of)) if of.bytes == uuid);
        old.filter(of)
    }

    /// The document of `config.queryAnalyzers`; `None` where there is nothing to write. `old` is the collection's own.
    pub fn document(&self, old: Option<RawDoc<'_>>, uuid: &[u8; 16], now: i64) -> Option<DocBuf> {
        let was_on = old.is_some_and(|old| mode_of(old) == Some("full"));
        let kept = |name: &str| old.and_then(|old| old.get(name));
        let rate = match self.samples_per_second {
            Some(rate) => Value::Double(rate),
            None if was_on => kept("samplesPerSecond")?,
            None => return None,
        };
        let start = kept("startTime").filter(|_| was_on).unwrap_or(Value::DateTime(now));
        Some(DocBuf::build(|out| {
            out.append("_id", self.namespace);
            out.append("collUuid", Value::Binary(Binary { subtype: 4, bytes: uuid }));
            out.append("mode", self.mode());
            out.append("samplesPerSecond", rate);
            out.append("startTime", start);
            if self.samples_per_second.is_none() {
                out.append("stopTime", Value::DateTime(now));
            }
        }))
    }

    fn mode(&self) -> &'static str {
        if self.samples_per_second.is_some() { "full" } else { "off" }
    }

    /// The answer; `old` is the collection's own document of before.
    pub fn reply(&self, old: Option<RawDoc<'_>>) -> Reply {
        let rate = self.samples_per_second.map(Value::Double);
        Reply::ok().with_fields(|out| {
            write(out, "newConfiguration", self.mode(), rate);
            if let Some(old) = old {
                let mode = mode_of(old).unwrap_or_default();
                write(out, "oldConfiguration", mode, old.get("samplesPerSecond"));
            }
        })
    }
}

fn mode_of(document: RawDoc<'_>) -> Option<&str> {
    document.get("mode").and_then(|mode| mode.as_str())
}

fn write(out: &mut DocWriter<'_, Vec<u8>>, name: &str, mode: &str, rate: Option<Value<'_>>) {
    let mut part = out.document(name);
    part.append("mode", mode);
    if let Some(rate) = rate {
        part.append("samplesPerSecond", rate);
    }
}
