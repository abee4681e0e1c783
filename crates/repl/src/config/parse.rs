//! Reading the document.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Type, Value};
use sheaf_errors::{Code, Error, Result};

use super::{MemberConfig, ReplSetConfig, Settings};

fn invalid(text: impl Into<String>) -> Error {
    Error::new(Code::INVALID_REPLICA_SET_CONFIG, text)
}

fn wrong_type(owner: &str, name: &str, value: Value<'_>, expected: &str) -> Error {
    invalid(format!(
        "BSON field '{owner}.{name}' is the wrong type '{}', expected type '{expected}'",
        value.type_name()
    ))
}

fn unknown(owner: &str, name: &str) -> Error {
    invalid(format!("BSON field '{owner}.{name}' is an unknown field."))
}

fn missing(owner: &str, name: &str) -> Error {
    invalid(format!("BSON field '{owner}.{name}' is missing but a required field"))
}

fn integer(owner: &str, name: &str, value: Value<'_>) -> Result<i64> {
    let number = "[long, int, decimal, double']";
    if !value.is_number() {
        let expected = number;
        return Err(invalid(format!(
            "BSON field '{owner}.{name}' is the wrong type '{}', expected types '{expected}",
            value.type_name()
        )));
    }
    // Like mongod's, numbers with a fraction lose it.
    Ok(value.as_exact_i64().or_else(|| value.as_f64().map(|number| number as i64)).unwrap_or(0))
}

fn boolean(owner: &str, name: &str, value: Value<'_>) -> Result<bool> {
    match value {
        Value::Bool(value) => Ok(value),
        value if value.is_number() => Ok(value.truthy()),
        value => Err(invalid(format!(
            "BSON field '{owner}.{name}' is the wrong type '{}', expected types '[bool, long, int, decimal, double']",
            value.type_name()
        ))),
    }
}

fn text<'a>(owner: &str, name: &str, value: Value<'a>) -> Result<&'a str> {
    value.as_str().ok_or_else(|| wrong_type(owner, name, value, "string"))
}

fn document<'a>(owner: &str, name: &str, value: Value<'a>) -> Result<RawDoc<'a>> {
    value.as_doc().ok_or_else(|| wrong_type(owner, name, value, "object"))
}

impl ReplSetConfig {
    /// Reads a configuration. What must hold between its fields is for [`ReplSetConfig::validate`].
    pub fn parse(doc: RawDoc<'_>) -> Result<ReplSetConfig> {
        const OWNER: &str = "ReplSetConfig";
        let mut config = ReplSetConfig::new("", Vec::new());
        let (mut id, mut version, mut members) = (false, false, false);
        for element in doc.iter() {
            let (name, value) = (element.key(), element.value());
            match name {
                "_id" => (config.set_name, id) = (text(OWNER, name, value)?.to_owned(), true),
                "version" => (config.version, version) = (integer(OWNER, name, value)?, true),
                "term" => config.term = integer(OWNER, name, value)?,
                "configsvr" => config.configsvr = boolean(OWNER, name, value)?,
                "protocolVersion" => config.protocol_version = integer(OWNER, name, value)?,
                "writeConcernMajorityJournalDefault" => {
                    config.write_concern_majority_journal_default = boolean(OWNER, name, value)?;
                }
                "members" => {
                    let array = value.as_array().ok_or_else(|| wrong_type(OWNER, name, value, "array"))?;
                    for value in array.values() {
                        let member =
                            value.as_doc().ok_or_else(|| wrong_type(OWNER, name, value, "object"))?;
                        config.members.push(MemberConfig::parse(member)?);
                    }
                    members = true;
                }
                "settings" => config.settings = Settings::parse(document(OWNER, name, value)?)?,
                _ => return Err(unknown(OWNER, name)),
            }
        }
        for (there, name) in [(id, "_id"), (version, "version"), (members, "members")] {
            if !there {
                return Err(missing(OWNER, name));
            }
        }
        Ok(config)
    }
}

impl MemberConfig {
    fn parse(doc: RawDoc<'_>) -> Result<MemberConfig> {
        const OWNER: &str = "MemberConfig";
        let mut member = MemberConfig::default();
        let (mut id, mut host) = (None, false);
        let mut priority = None;
        for element in doc.iter() {
            let (name, value) = (element.key(), element.value());
            match name {
                "_id" => id = Some(integer(OWNER, name, value)?),
                "host" => (member.host, host) = (parse_host(text(OWNER, name, value)?)?, true),
                "arbiterOnly" => member.arbiter_only = boolean(OWNER, name, value)?,
                "buildIndexes" => member.build_indexes = boolean(OWNER, name, value)?,
                "hidden" => member.hidden = boolean(OWNER, name, value)?,
                "newlyAdded" => member.newly_added = boolean(OWNER, name, value)?,
                "priority" => {
                    let number = value.as_f64().ok_or_else(|| wrong_type(OWNER, name, value, "double"))?;
                    priority = Some(number);
                }
                "votes" => member.votes = integer(OWNER, name, value)?,
                "secondaryDelaySecs" => member.secondary_delay_secs = integer(OWNER, name, value)?,
                "tags" => member.tags = parse_tags(document(OWNER, name, value)?)?,
                "horizons" => check_horizons(document(OWNER, name, value)?)?,
                _ => return Err(unknown(OWNER, name)),
            }
        }
        let id = id.ok_or_else(|| missing(OWNER, "_id"))?;
        if !host {
            return Err(missing(OWNER, "host"));
        }
        member.id = u64::try_from(id)
            .ok()
            .filter(|id| *id <= i32::MAX as u64)
            .ok_or_else(|| invalid(format!("BSON field '_id' value must be >= 0, actual value '{id}'")))?;
        // An arbiter's default priority is 0, and the old default of 1 means the same.
        member.priority = match priority {
            Some(priority) if !(member.arbiter_only && priority == 1.0) => priority,
            _ if member.arbiter_only => 0.0,
            _ => 1.0,
        };
        Ok(member)
    }
}

/// Other addresses for clients that ask for them by TLS's server name. They are not served, and addresses that
/// clients cannot reach would be worse than none.
fn check_horizons(doc: RawDoc<'_>) -> Result<()> {
    match doc.iter().next() {
        None => Ok(()),
        Some(_) => Err(Error::new(Code::NOT_IMPLEMENTED, "MemberConfig.horizons are not supported")),
    }
}

/// `host[:port]`, with MongoDB's port where there is none.
fn parse_host(text: &str) -> Result<Arc<str>> {
    let (host, port) = match text.rfind(':') {
        // The last colon may belong to an IPv6 address in brackets.
        Some(at) if !text[at..].contains(']') => (&text[..at], Some(&text[at + 1..])),
        _ => (text, None),
    };
    if host.is_empty() {
        return Err(invalid(format!("Empty host component parsing HostAndPort from \"{text}\"")));
    }
    match port {
        None => Ok(Arc::from(format!("{host}:27017"))),
        Some(port) => match port.parse::<u32>() {
            Ok(1..=65535) => Ok(Arc::from(text)),
            Ok(number) => {
                Err(invalid(format!("Port number {number} out of range parsing HostAndPort from \"{text}\"")))
            }
            Err(_) => Err(invalid(format!(
                "Port number \"{port}\" not parseable parsing HostAndPort from \"{text}\""
            ))),
        },
    }
}

fn parse_tags(doc: RawDoc<'_>) -> Result<Vec<(String, String)>> {
    let mut tags = Vec::new();
    for element in doc.iter() {
        let (name, value) = (element.key(), element.value());
        let value = value.as_str().ok_or_else(|| {
            invalid(format!("tags.{name} field has non-string value of type {}", value.type_name()))
        })?;
        tags.push((name.to_owned(), value.to_owned()));
    }
    Ok(tags)
}

impl Settings {
    fn parse(doc: RawDoc<'_>) -> Result<Settings> {
        const OWNER: &str = "ReplSetConfigSettings";
        let mut settings = Settings::default();
        let at_least = |name: &str, value: i64, least: i64, sign: &str, bound: i64| {
            if value >= least {
                return Ok(value);
            }
            Err(invalid(format!("BSON field '{name}' value must be {sign} {bound}, actual value '{value}'")))
        };
        for element in doc.iter() {
            let (name, value) = (element.key(), element.value());
            let positive = || at_least(name, integer(OWNER, name, value)?, 1, ">", 0);
            match name {
                "chainingAllowed" => settings.chaining_allowed = boolean(OWNER, name, value)?,
                "heartbeatIntervalMillis" => settings.heartbeat_interval_millis = positive()?,
                "heartbeatTimeoutSecs" => settings.heartbeat_timeout_secs = positive()?,
                "electionTimeoutMillis" => settings.election_timeout_millis = positive()?,
                "catchUpTimeoutMillis" => {
                    settings.catch_up_timeout_millis =
                        at_least(name, integer(OWNER, name, value)?, -1, ">=", -1)?;
                }
                "catchUpTakeoverDelayMillis" => {
                    settings.catch_up_takeover_delay_millis =
                        at_least(name, integer(OWNER, name, value)?, -1, ">=", -1)?;
                }
                "getLastErrorModes" => {
                    settings.get_last_error_modes = parse_modes(document(OWNER, name, value)?)?;
                }
                "getLastErrorDefaults" => check_defaults(document(OWNER, name, value)?)?,
                "replicaSetId" => match value {
                    Value::ObjectId(id) => settings.replica_set_id = Some(id),
                    value => return Err(wrong_type(OWNER, name, value, "objectId")),
                },
                // mongod lets other fields pass here.
                _ => {}
            }
        }
        Ok(settings)
    }
}

/// The code of a configuration that sets `getLastErrorDefaults`.
pub const CUSTOM_DEFAULTS: Code = Code(5_624_102);

/// Since 5.0 the default write concern is not the configuration's any more.
fn check_defaults(doc: RawDoc<'_>) -> Result<()> {
    let one = |value: Value<'_>| value.as_exact_i64() == Some(1);
    let fine = doc.iter().all(|element| match element.key() {
        "w" => one(element.value()),
        "wtimeout" => element.value().as_exact_i64() == Some(0),
        "j" | "fsync" => !element.value().truthy(),
        _ => false,
    });
    if fine {
        return Ok(());
    }
    Err(Error::new(
        CUSTOM_DEFAULTS,
        "Failed to reconfig: Replica set config contains customized getLastErrorDefaults, which has been deprecated and is \
         now ignored. Use setDefaultRWConcern instead to set a cluster-wide default writeConcern.",
    ))
}

type Modes = Vec<(String, Vec<(String, i64)>)>;

fn parse_modes(doc: RawDoc<'_>) -> Result<Modes> {
    let mut modes: Modes = Vec::new();
    for element in doc.iter() {
        let mode = element.key();
        if modes.iter().any(|(name, _)| name == mode) {
            return Err(invalid(format!("settings.getLastErrorModes contains multiple fields named {mode}")));
        }
        let Some(constraints) = element.value().as_doc() else {
            return Err(invalid(format!(
                "Expected settings.getLastErrorModes.{mode} to be an object, not {}",
                element.value().type_name()
            )));
        };
        let mut tags = Vec::new();
        for constraint in constraints.iter() {
            let (tag, value) = (constraint.key(), constraint.value());
            if !value.is_number() || value.kind() == Type::Decimal128 {
                return Err(invalid(format!(
                    "Expected settings.getLastErrorModes.{mode}.{tag} to be a number, not {}",
                    value.type_name()
                )));
            }
            let count = value.as_f64().unwrap_or(0.0) as i64;
            if count <= 0 {
                return Err(invalid(format!(
                    "Value of settings.getLastErrorModes.{mode}.{tag} must be positive, but found {count}"
                )));
            }
            tags.push((tag.to_owned(), count));
        }
        modes.push((mode.to_owned(), tags));
    }
    Ok(modes)
}
