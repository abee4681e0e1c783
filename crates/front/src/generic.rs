//! The arguments that every command takes, parsed once.

use sheaf_bson::{Binary, DocWriter, Element, RawDoc, Sink, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};
use uuid::Uuid;

pub use crate::args::is_generic;
use crate::args::{At, Flag, FromValue, safe_i64, wrong_type};
use crate::concern::{ReadConcern, WriteConcern};
use crate::session::LogicalSessionId;

/// Arguments that no handler has to know.
#[derive(Default)]
pub struct GenericArgs<'a> {
    /// `$db`.
    pub db: Option<&'a str>,
    /// `lsid`.
    pub lsid: Option<LogicalSessionId>,
    /// `txnNumber`.
    pub txn_number: Option<i64>,
    /// `autocommit`.
    pub autocommit: Option<bool>,
    /// `startTransaction`.
    pub start_transaction: Option<bool>,
    /// `readConcern`.
    pub read_concern: Option<ReadConcern>,
    /// `writeConcern`.
    pub write_concern: Option<WriteConcern<'a>>,
    /// `maxTimeMS`.
    pub max_time_ms: Option<u64>,
    /// `maxTimeMSOpOnly`: the time that this command has, and not what its cursor keeps.
    pub max_time_ms_op_only: Option<u64>,
    /// `txnRetryCounter`: how often a router has begun the transaction anew.
    pub txn_retry_counter: Option<i32>,
    /// `apiVersion`.
    pub api_version: Option<&'a str>,
    /// `apiStrict`.
    pub api_strict: Option<bool>,
    /// `apiDeprecationErrors`.
    pub api_deprecation_errors: Option<bool>,
    /// `comment`: any value.
    pub comment: Option<Value<'a>>,
    /// `$readPreference`: whether a member that is not primary may answer; which one, drivers choose.
    pub read_preference: Option<RawDoc<'a>>,
    /// The time in `$clusterTime`.
    pub cluster_time: Option<Timestamp>,
    /// `retryOf`, within a router's own transaction.
    pub retry_of: Option<RetryOf<'a>>,
    /// `routersOwn`: the transaction that the request begins is a router's own, which does not rest between its statements.
    pub routers_own: bool,
    /// `retryAttempt`, of a router's request.
    pub attempt: Option<Attempt>,
    /// `$audit`, of a router's request: for whom it asks. Only what members say of it counts.
    pub asked_for: Option<RawDoc<'a>>,
    /// `shardVersion`, of a router's request.
    pub shard_version: Option<ShardVersion>,
}

/// The retryable write of a client that a router's own transaction stands for: statements are looked up and recorded as its.
#[derive(Clone, Copy)]
pub struct RetryOf<'a> {
    /// The client's session.
    pub lsid: LogicalSessionId,
    /// The number of its write.
    pub txn_number: i64,
    /// What a retry is answered with, if that is not what the statement itself would say.
    pub result: Option<RawDoc<'a>>,
    /// The router's attempt at the statement, where more than one shard may execute it.
    pub attempt: Option<u128>,
}

impl<'a> RetryOf<'a> {
    fn parse(doc: RawDoc<'a>) -> Result<Self> {
        let lsid = doc.get("lsid").and_then(|lsid| lsid.as_doc()).unwrap_or(RawDoc::EMPTY);
        let Some(Value::Int64(txn_number)) = doc.get("txnNumber") else {
            bail!(Code::TYPE_MISMATCH, "retryOf.txnNumber is no long");
        };
        let result = doc.get("result").and_then(|result| result.as_doc());
        let attempt = doc.get("attempt").map(attempt_number).transpose()?;
        Ok(RetryOf { lsid: LogicalSessionId::parse(lsid)?, txn_number, result, attempt })
    }
}

/// A router's attempt at a retryable statement that more than one shard may execute, because nobody knows beforehand which one has its
/// document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Attempts are put in order by this.
    pub number: u128,
    /// Whether the shard is asked if it has executed the statement. It executes nothing then, and no earlier attempt any more.
    pub asks: bool,
}

impl Attempt {
    /// Adds `retryAttempt: {n: <16 bytes>, asks: true}`.
    pub fn append<S: Sink>(self, out: &mut DocWriter<'_, S>) {
        let mut attempt = out.document("retryAttempt");
        append_attempt(self.number, &mut attempt, "n");
        if self.asks {
            attempt.append("asks", true);
        }
    }

    fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let number = attempt_number(doc.get_or_missing("n"))?;
        Ok(Attempt { number, asks: doc.get("asks").is_some_and(|asks| asks.truthy()) })
    }
}

/// Adds an attempt's number under this name.
pub fn append_attempt<S: Sink>(number: u128, out: &mut DocWriter<'_, S>, name: &str) {
    out.append(name, Value::Binary(Binary { subtype: 0, bytes: &number.to_be_bytes() }));
}

/// An attempt's number.
///
/// Errors: `FailedToParse`.
pub fn attempt_number(value: Value<'_>) -> Result<u128> {
    match value {
        Value::Binary(Binary { bytes, .. }) if let Ok(bytes) = <[u8; 16]>::try_from(bytes) => {
            Ok(u128::from_be_bytes(bytes))
        }
        _ => bail!(Code::FAILED_TO_PARSE, "an attempt's number is 16 bytes"),
    }
}

/// By which view of a collection a router has sent its request to a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardVersion {
    /// The sharded collection's; `None`: as far as the router knows it is not sharded.
    pub uuid: Option<[u8; 16]>,
    /// The version that the router's table gives to this shard.
    pub version: Timestamp,
    /// For a read as of an earlier time: the fingerprint of what the shard owned then, by the history in the router's table. The version is
    /// then the table's.
    pub owned: Option<u64>,
}

impl ShardVersion {
    /// Reads `{uuid: <UUID>, v: <Timestamp>, owned: <long>}`.
    ///
    /// Errors: `FailedToParse`.
    pub fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let uuid = match doc.get_or_missing("uuid") {
            Value::Missing => Some(None),
            Value::Binary(uuid) => <[u8; 16]>::try_from(uuid.bytes).ok().map(Some),
            _ => None,
        };
        let owned = match doc.get_or_missing("owned") {
            Value::Int64(owned) => Some(owned.cast_unsigned()),
            _ => None,
        };
        match (uuid, doc.get_or_missing("v")) {
            (Some(uuid), Value::Timestamp(version)) => Ok(ShardVersion { uuid, version, owned }),
            _ => bail!(
                Code::FAILED_TO_PARSE,
                "shardVersion is {{uuid: <UUID>, v: <Timestamp>}}, not {}",
                sheaf_bson::document_text(doc)
            ),
        }
    }
}

impl<'a> GenericArgs<'a> {
    /// Whether the read preference lets a secondary answer.
    pub fn secondary_ok(&self) -> bool {
        let mode = self.read_preference.map(|doc| doc.get_or_missing("mode"));
        matches!(mode, Some(Value::String(mode)) if mode != "primary")
    }

    /// Whether it was there before, of those by which somebody could be told from somebody else.
    fn has(&self, name: &str) -> bool {
        match name {
            "$db" => self.db.is_some(),
            "lsid" => self.lsid.is_some(),
            "txnNumber" => self.txn_number.is_some(),
            "$audit" => self.asked_for.is_some(),
            "retryOf" => self.retry_of.is_some(),
            "shardVersion" => self.shard_version.is_some(),
            _ => false,
        }
    }

    /// Reads one generic field; `field` is one for which [`is_generic`] holds.
    pub(crate) fn take(&mut self, command: &str, field: Element<'a>) -> Result<()> {
        let name = field.key();
        let value = field.value();
        let at = At::new(command, name);
        if self.has(name) {
            bail!(40413, "BSON field '{at}' is a duplicate field");
        }
        match name {
            "$db" => self.db = <&str>::from_value(value, &at)?,
            "lsid" => {
                if let Some(doc) = RawDoc::from_value(value, &at)? {
                    self.lsid = Some(LogicalSessionId::parse(doc)?);
                }
            }
            "txnNumber" => match value {
                Value::Int64(n) => self.txn_number = Some(n),
                Value::Null | Value::Undefined => {}
                other => return Err(crate::args::wrong_type(&other, &at, "long")),
            },
            "autocommit" => self.autocommit = bool::from_value(value, &at)?,
            "startTransaction" => self.start_transaction = bool::from_value(value, &at)?,
            "readConcern" => {
                if let Some(doc) = RawDoc::from_value(value, &at)? {
                    self.read_concern = Some(ReadConcern::parse(doc)?);
                }
            }
            "writeConcern" => {
                if let Some(doc) = RawDoc::from_value(value, &at)? {
                    self.write_concern = Some(WriteConcern::parse(doc)?);
                }
            }
            "maxTimeMS" => self.max_time_ms = max_time_ms(value)?,
            "maxTimeMSOpOnly" => self.max_time_ms_op_only = time_limit(value, name, OP_ONLY_MAX)?,
            "txnRetryCounter" => match value {
                Value::Int32(n) => self.txn_retry_counter = Some(n),
                Value::Null | Value::Undefined => {}
                other => return Err(crate::args::wrong_type(&other, &at, "int")),
            },
            "mayBypassWriteBlocking" | "rawData" => _ = Flag::from_value(value, &at)?,
            "clientOperationKey" => _ = Uuid::from_value(value, &at)?,
            "$client" | "$configServerState" | "$queryOptions" | "databaseVersion" | "tracking_info" => {
                _ = RawDoc::from_value(value, &at)?;
            }
            "apiVersion" => self.api_version = <&str>::from_value(value, &at)?,
            "apiStrict" => self.api_strict = bool::from_value(value, &at)?,
            "apiDeprecationErrors" => self.api_deprecation_errors = bool::from_value(value, &at)?,
            "routersOwn" => self.routers_own = bool::from_value(value, &at)?.unwrap_or(false),
            "coordinator" => drop(bool::from_value(value, &at)?),
            "comment" => self.comment = Some(value),
            "$audit" => self.asked_for = RawDoc::from_value(value, &at)?,
            "$readPreference" => {
                self.read_preference = RawDoc::from_value(value, &at)?;
                self.read_preference.map_or(Ok(()), crate::concern::preference::check)?;
            }
            "shardVersion" => {
                self.shard_version = RawDoc::from_value(value, &at)?.map(ShardVersion::parse).transpose()?;
            }
            "$clusterTime" => {
                self.cluster_time = RawDoc::from_value(value, &at)?.map(cluster_time).transpose()?;
            }
            "retryAttempt" => {
                self.attempt = RawDoc::from_value(value, &at)?.map(Attempt::parse).transpose()?;
            }
            "retryOf" => {
                if let Some(doc) = RawDoc::from_value(value, &at)? {
                    self.retry_of = Some(RetryOf::parse(doc)?);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Routers add a little to what they were given, so that it is they who find that the time is over.
const OP_ONLY_MAX: i64 = i32::MAX as i64 + 100;

/// `maxTimeMS`: a whole number of milliseconds, at most 2^31 - 1; 0 means no limit.
///
/// Errors: `BadValue` for a number out of range, `TypeMismatch`/`FailedToParse` for others.
pub fn max_time_ms(value: Value<'_>) -> Result<Option<u64>> {
    time_limit(value, "maxTimeMS", i64::from(i32::MAX))
}

fn time_limit(value: Value<'_>, name: &str, most: i64) -> Result<Option<u64>> {
    if value.is_nullish() {
        return Ok(None);
    }
    if !value.is_number() {
        bail!(Code::TYPE_MISMATCH, "{name} must be a number, but got a value of type {}", value.type_name());
    }
    if value.as_exact_i64().is_none() {
        let shown = sheaf_bson::value_text(value);
        match value.as_f64().filter(|n| n.abs() < 9.3e18) {
            Some(_) => bail!(Code::FAILED_TO_PARSE, "Expected an integer: {name}: {shown}"),
            None => bail!(Code::FAILED_TO_PARSE, "Cannot represent as a 64-bit integer: {name}: {shown}"),
        }
    }
    match safe_i64(value) {
        Some(n) if (0..=most).contains(&n) => Ok((n > 0).then_some(n as u64)),
        Some(n) => bail!(Code::BAD_VALUE, "{n} value for {name} is out of range [0, {most}]"),
        None => Ok(None),
    }
}
/// The time in a `$clusterTime`. A signature says nothing to a server that has no keys, but it is one.
///
/// Errors: 40414, `TypeMismatch`.
fn cluster_time(document: RawDoc<'_>) -> Result<Timestamp> {
    const PLACE: &str = "$clusterTime";
    let (mut time, mut signature) = (Value::Missing, Value::Missing);
    for field in document {
        match field.key_bytes() {
            b"clusterTime" => time = field.value(),
            b"signature" => signature = field.value(),
            _ => {}
        }
    }
    if let Some(signature) = RawDoc::from_value(signature, &At::new(PLACE, "signature"))? {
        check_signature(signature)?;
    }
    match Timestamp::from_value(time, &At::new(PLACE, "clusterTime"))? {
        Some(time) => Ok(time),
        None => bail!(40414, "BSON field '{PLACE}.clusterTime' is missing but a required field"),
    }
}

fn check_signature(signature: RawDoc<'_>) -> Result<()> {
    const PLACE: &str = "$clusterTime.signature";
    let (mut has_hash, mut has_key) = (false, false);
    for field in signature {
        match (field.key_bytes(), field.value()) {
            (b"hash" | b"keyId", Value::Null | Value::Undefined) => {}
            (b"hash", Value::Binary(_)) => has_hash = true,
            (b"keyId", number) if number.is_number() => has_key = true,
            (b"hash", other) => return Err(wrong_type(&other, &At::new(PLACE, "hash"), "binData")),
            (b"keyId", other) => {
                return Err(wrong_type(&other, &At::new(PLACE, "keyId"), "long"));
            }
            _ => {}
        }
    }
    match (has_hash, has_key) {
        (true, true) => Ok(()),
        (false, _) => bail!(40414, "BSON field '{PLACE}.hash' is missing but a required field"),
        (_, false) => bail!(40414, "BSON field '{PLACE}.keyId' is missing but a required field"),
    }
}
