//! Read and write concerns as clients send them, and the rules of a server that is not replicated.

pub mod counters;
pub(crate) mod preference;

use std::time::Duration;

use sheaf_bson::{RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::refuse_twice;

/// `readConcern`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadConcern {
    /// The level, if one was named.
    pub level: Option<ReadLevel>,
    /// `afterClusterTime`.
    pub after_cluster_time: Option<Timestamp>,
    /// `atClusterTime`.
    pub at_cluster_time: Option<Timestamp>,
}

/// Levels of `readConcern`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReadLevel {
    Local,
    Available,
    Majority,
    Linearizable,
    Snapshot,
}

impl ReadLevel {
    /// The level's name.
    pub fn name(self) -> &'static str {
        match self {
            ReadLevel::Local => "local",
            ReadLevel::Available => "available",
            ReadLevel::Majority => "majority",
            ReadLevel::Linearizable => "linearizable",
            ReadLevel::Snapshot => "snapshot",
        }
    }
}

impl ReadConcern {
    /// Parses `readConcern`.
    ///
    /// Errors: `FailedToParse` for an unknown level, 40415 for an unknown field, `TypeMismatch`.
    pub fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let mut concern = ReadConcern::default();
        for field in doc {
            let value = field.value();
            match (field.key(), value) {
                ("level", Value::String(name)) => {
                    concern.level = Some(match name {
                        "local" => ReadLevel::Local,
                        "available" => ReadLevel::Available,
                        "majority" => ReadLevel::Majority,
                        "linearizable" => ReadLevel::Linearizable,
                        "snapshot" => ReadLevel::Snapshot,
                        _ => bail!(
                            Code::BAD_VALUE,
                            "Enumeration value '{name}' for field 'readConcern.level' is not a valid value."
                        ),
                    });
                }
                ("level", Value::Null | Value::Undefined) => {}
                ("level", other) => wrong("readConcern.level", other, "string")?,
                ("afterClusterTime", Value::Timestamp(t)) => concern.after_cluster_time = Some(t),
                ("atClusterTime", Value::Timestamp(t)) => concern.at_cluster_time = Some(t),
                (name @ ("afterClusterTime" | "atClusterTime"), other) => {
                    wrong(&format!("readConcern.{name}"), other, "timestamp")?;
                }
                ("provenance", value) => check_provenance("readConcern.provenance", value)?,
                ("afterOpTime" | "$allowTransactionTableSnapshot" | "waitLastStableRecoveryTimestamp", _) => {
                }
                (name, _) => bail!(40415, "BSON field 'readConcern.{name}' is an unknown field."),
            }
        }
        refuse_twice(doc, "readConcern")?;
        concern.check_times()?;
        Ok(concern)
    }

    /// Errors: `InvalidOptions` for times that do not go with each other or with the level.
    fn check_times(&self) -> Result<()> {
        if self.after_cluster_time.is_some() && self.at_cluster_time.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "Specifying a timestamp for readConcern snapshot in a causally consistent session is not allowed."
            );
        }
        let Some(at) = self.at_cluster_time else { return Ok(()) };
        if self.level != Some(ReadLevel::Snapshot) {
            bail!(Code::INVALID_OPTIONS, "atClusterTime field can be set only if level is equal to snapshot");
        }
        if at.0 >> 32 == 0 {
            bail!(Code::INVALID_OPTIONS, "readConcern.atClusterTime cannot be a null timestamp");
        }
        Ok(())
    }
}

/// Who has decided on a concern: the words that servers tell each other.
fn check_provenance(field: &str, value: Value<'_>) -> Result<()> {
    const KNOWN: [&str; 5] = [
        "clientSupplied",
        "implicitDefault",
        "customDefault",
        "getLastErrorDefaults",
        "internalWriteDefault",
    ];
    match value {
        Value::String(name) if KNOWN.contains(&name) => Ok(()),
        Value::Null | Value::Undefined => Ok(()),
        Value::String(name) => {
            bail!(Code::BAD_VALUE, "Enumeration value '{name}' for field '{field}' is not a valid value.")
        }
        other => wrong(field, other, "string"),
    }
}

fn wrong(field: &str, value: Value<'_>, expected: &str) -> Result<()> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field '{field}' is the wrong type '{}', expected type '{expected}'",
        value.type_name()
    )
}

/// How many nodes a write waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum W<'a> {
    /// `w: n`.
    Nodes(u32),
    /// `w: "majority"`.
    Majority,
    /// `w: "name"`: a mode defined in the replica set's settings.
    Mode(&'a str),
    /// `w: {dc: 2}`: tags.
    Tags(RawDoc<'a>),
}

/// `writeConcern`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteConcern<'a> {
    /// `w`; `None` when it was not given (then 1 on this node).
    pub w: Option<W<'a>>,
    /// `j`.
    pub journal: Option<bool>,
    /// `fsync`, the old spelling of `j`.
    pub fsync: bool,
    /// `wtimeout`; zero waits without end.
    pub timeout: Duration,
}

impl Default for WriteConcern<'_> {
    fn default() -> Self {
        WriteConcern { w: None, journal: None, fsync: false, timeout: Duration::ZERO }
    }
}

/// The most voting members that a set has; `w` may not be larger.
const MAX_NODES: i64 = 50;

impl<'a> WriteConcern<'a> {
    /// Parses `writeConcern`.
    ///
    /// Errors: `FailedToParse` (9).
    pub fn parse(doc: RawDoc<'a>) -> Result<Self> {
        let mut concern = WriteConcern::default();
        for field in doc {
            let value = field.value();
            match field.key() {
                "j" | "fsync" => {
                    let flag = match value {
                        Value::Bool(b) => b,
                        v if v.is_number() => v.truthy(),
                        Value::Null | Value::Undefined => continue,
                        other => {
                            let name = field.key();
                            bail!(
                                Code::TYPE_MISMATCH,
                                "BSON field 'writeConcern.{name}' is the wrong type '{}', expected types '[bool, long, int, decimal, double]'",
                                other.type_name()
                            )
                        }
                    };
                    if field.key() == "j" { concern.journal = Some(flag) } else { concern.fsync = flag }
                }
                "w" => concern.w = parse_w(value)?,
                "wtimeout" => {
                    let Some(ms) = crate::args::safe_i64(value) else { continue };
                    // The least number there is stands for what cannot be counted, and waits without end.
                    if ms > i64::from(i32::MAX) || (ms < i64::from(i32::MIN) && ms != i64::MIN) {
                        bail!(Code::FAILED_TO_PARSE, "wtimeout must be a 32-bit integer");
                    }
                    concern.timeout = Duration::from_millis(ms.max(0) as u64);
                }
                "provenance" => check_provenance("writeConcern.provenance", value)?,
                "wElectionId" | "wOpTime" | "getLastError" => {}
                name => bail!(40415, "BSON field 'writeConcern.{name}' is an unknown field."),
            }
        }
        refuse_twice(doc, "writeConcern")?;
        if concern.journal == Some(true) && concern.fsync {
            bail!(Code::FAILED_TO_PARSE, "fsync and j options cannot be used together");
        }
        Ok(concern)
    }

    /// Whether the writer wants no answer about this write: `w: 0`.
    pub fn unacknowledged(&self) -> bool {
        self.w == Some(W::Nodes(0))
    }

    /// What a single node can promise, checked before a command runs.
    ///
    /// Errors: `BadValue` for `w` > 1 and for named modes other than `majority`.
    pub fn check_standalone(&self) -> Result<()> {
        match self.w {
            Some(W::Nodes(n)) if n > 1 => {
                bail!(Code::BAD_VALUE, "cannot use 'w' > 1 when a host is not replicated")
            }
            Some(W::Mode(mode)) => bail!(
                Code::BAD_VALUE,
                "cannot use non-majority 'w' mode {mode} when a host is not a member of a replica set"
            ),
            // MongoDB asks a single node for no tags.
            _ => Ok(()),
        }
    }
}

fn parse_w(value: Value<'_>) -> Result<Option<W<'_>>> {
    match value {
        Value::String("majority") => Ok(Some(W::Majority)),
        Value::String(name) => Ok(Some(W::Mode(name))),
        Value::Document(tags) => {
            if tags.is_empty() {
                bail!(Code::FAILED_TO_PARSE, "tagged write concern requires tags");
            }
            for tag in tags {
                if !tag.value().is_number() {
                    bail!(
                        Code::FAILED_TO_PARSE,
                        "tags must be a single level document with only number values; found: {}",
                        tag.kind().name()
                    );
                }
            }
            Ok(Some(W::Tags(tags)))
        }
        // MongoDB takes them for a mode without a name, which no set has.
        Value::Null | Value::Undefined => Ok(Some(W::Mode(""))),
        number if number.as_f64().is_some_and(f64::is_nan) => bail!(
            Code::FAILED_TO_PARSE,
            "w has to be a non-negative number and not greater than {MAX_NODES}; found: NaN"
        ),
        number => match crate::args::safe_i64(number) {
            Some(n @ 0..=MAX_NODES) => Ok(Some(W::Nodes(n as u32))),
            Some(n) => bail!(
                Code::FAILED_TO_PARSE,
                "w has to be a non-negative number and not greater than {MAX_NODES}; found: {n}"
            ),
            None => bail!(
                Code::FAILED_TO_PARSE,
                "w has to be a number, string, or object; found: {}",
                number.type_name()
            ),
        },
    }
}
