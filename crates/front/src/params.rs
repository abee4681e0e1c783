//! Server parameters: `getParameter`, `setParameter`, `--setParameter`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sheaf_auth::Mechanism;
use sheaf_auth::oidc::Providers;
use sheaf_bson::json::{Style, value_to_json};
use sheaf_bson::{DocBuf, DocWriter, Value};
use sheaf_errors::{Code, Error, Result, bail};

use crate::log::components::{self, Levels};

/// The parameter of components' levels, which is the log's own.
const COMPONENTS: &str = "logComponentVerbosity";

/// The parameter with identity providers. It is kept as the JSON that the command line has.
pub(crate) const PROVIDERS: &str = "oidcIdentityProviders";

/// The parameter that is a size of memory.
const QUERY_STATS_SIZE: &str = "internalQueryStatsCacheSize";

/// A parameter's default; it also decides its type.
#[derive(Clone, Copy, Debug)]
enum Default_ {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(&'static str),
}

/// When a parameter may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Startup,
    Runtime,
    Both,
    Never,
}

struct Parameter {
    name: &'static str,
    default: Default_,
    when: When,
    /// Bounds of a number.
    range: (f64, f64),
}

const ANY: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);
const POSITIVE: (f64, f64) = (1.0, f64::INFINITY);

const fn parameter(name: &'static str, default: Default_, when: When, range: (f64, f64)) -> Parameter {
    Parameter { name, default, when, range }
}

use Default_::{Bool, Double, Int, Text};
use When::{Both, Never, Runtime, Startup};

/// The parameters that have an effect here. Sorted by name.
const PARAMETERS: &[Parameter] = &[
    parameter("allowDiskUseByDefault", Bool(true), Both, ANY),
    parameter("allowMultipleArbiters", Bool(false), Startup, ANY),
    parameter("analyzeShardKeyMonotonicityCorrelationCoefficientThreshold", Double(0.7), Both, (0.0, 1.0)),
    parameter("analyzeShardKeyNumRanges", Int(100), Both, POSITIVE),
    parameter("auditAuthorizationSuccess", Bool(false), Both, ANY),
    // By it the tools see in which form users are kept.
    parameter("authSchemaVersion", Int(5), Never, ANY),
    parameter("automationServiceDescriptor", Text(""), Both, (0.0, 64.0)),
    parameter("authenticationMechanisms", Text("MONGODB-X509,SCRAM-SHA-1,SCRAM-SHA-256"), Startup, ANY),
    parameter("clusterAuthMode", Text("keyFile"), Runtime, ANY),
    parameter("clientCursorMonitorFrequencySecs", Int(4), Both, POSITIVE),
    parameter("cursorTimeoutMillis", Int(600_000), Both, ANY),
    parameter("enableLocalhostAuthBypass", Bool(true), Startup, ANY),
    parameter("enableTestCommands", Bool(false), Startup, ANY),
    parameter("enableTimeoutOfInactiveSessionCursors", Bool(false), Both, ANY),
    parameter("enforceUserClusterSeparation", Bool(true), Startup, ANY),
    parameter(QUERY_STATS_SIZE, Text("1%"), Both, ANY),
    parameter("honorSystemUmask", Bool(false), Startup, ANY),
    // Limits and ways of queries, which are what they are: explain tells them.
    parameter("internalDocumentSourceGroupMaxMemoryBytes", Int(100 << 20), Never, ANY),
    parameter("internalDocumentSourceSetWindowFieldsMaxMemoryBytes", Int(100 << 20), Never, ANY),
    parameter("internalLookupStageIntermediateDocumentMaxSizeBytes", Int(100 << 20), Never, ANY),
    parameter("internalQueryFacetBufferSizeBytes", Int(100 << 20), Never, ANY),
    parameter("internalQueryFacetMaxOutputDocSizeBytes", Int(100 << 20), Never, ANY),
    parameter("internalQueryFrameworkControl", Text("forceClassicEngine"), Never, ANY),
    parameter("internalQueryMaxAddToSetBytes", Int(100 << 20), Never, ANY),
    parameter("internalQueryMaxBlockingSortMemoryUsageBytes", Int(100 << 20), Never, ANY),
    parameter("internalQueryPlannerIgnoreIndexWithCollationForRegex", Bool(true), Never, ANY),
    parameter("internalQueryProhibitBlockingMergeOnMongoS", Bool(false), Never, ANY),
    parameter("internalQueryStatsRateLimit", Int(0), Both, (-1.0, f64::MAX)),
    parameter("journalCommitInterval", Int(100), Both, (1.0, 500.0)),
    parameter("localLogicalSessionTimeoutMinutes", Int(30), Startup, POSITIVE),
    parameter("logLevel", Int(0), Both, (0.0, 5.0)),
    parameter("maxSessions", Int(1_000_000), Startup, POSITIVE),
    parameter("ingressConnectionEstablishmentBurstCapacitySecs", Double(f64::MAX), Both, POSITIVE),
    parameter("ingressConnectionEstablishmentMaxQueueDepth", Int(0), Both, (0.0, i32::MAX as f64)),
    parameter("ingressConnectionEstablishmentRateLimiterEnabled", Bool(false), Both, ANY),
    parameter("ingressConnectionEstablishmentRatePerSec", Int(i32::MAX as i64), Both, (1.0, i32::MAX as f64)),
    parameter("initialSyncMaxBytesPerSec", Int(0), Both, (0.0, f64::MAX)),
    parameter("JWKSMinimumQuiescePeriodSecs", Int(60), Both, (0.0, f64::MAX)),
    parameter("notablescan", Bool(false), Both, ANY),
    parameter("oidcIdentityProviders", Text(""), Both, ANY),
    parameter("operationMemoryBytes", Int(0), Startup, (0.0, f64::MAX)),
    parameter("operationsMemoryBytes", Int(0), Startup, (0.0, f64::MAX)),
    parameter("orphanCleanupDelaySecs", Int(900), Both, (0.0, f64::MAX)),
    parameter("peerAddresses", Text(""), Startup, ANY),
    parameter("processUmask", Text(""), Startup, ANY),
    parameter("queryAnalysisSampleExpirationSecs", Int(7 * 24 * 3600), Both, POSITIVE),
    parameter("queryAnalysisSamplerConfigurationRefreshSecs", Int(10), Both, POSITIVE),
    parameter("queryAnalysisWriterIntervalSecs", Int(90), Both, POSITIVE),
    parameter("quiet", Bool(false), Both, ANY),
    parameter("redactClientLogData", Bool(false), Both, ANY),
    parameter("requireApiVersion", Bool(false), Both, ANY),
    parameter("scramIterationCount", Int(10_000), Both, (5000.0, i32::MAX as f64)),
    parameter("scramSHA256IterationCount", Int(15_000), Both, (5000.0, i32::MAX as f64)),
    parameter("shutdownTimeoutMillisForSignaledShutdown", Int(3000), Both, (0.0, f64::MAX)),
    parameter("syncdelay", Double(60.0), Both, (0.0, 3600.0)),
    parameter("tlsMode", Text("disabled"), Runtime, ANY),
    parameter("tlsX509ClusterAuthDNOverride", Text(""), Startup, ANY),
    parameter("tlsX509ExpirationWarningThresholdDays", Int(30), Startup, (0.0, f64::MAX)),
    parameter("transactionLifetimeLimitSeconds", Int(60), Both, POSITIVE),
    parameter("ttlMonitorEnabled", Bool(true), Both, ANY),
    parameter("ttlMonitorSleepSecs", Int(60), Both, POSITIVE),
    parameter("zlibCompressionLevel", Int(6), Runtime, (0.0, 9.0)),
];

/// The parameters that explain shows, in its order.
const EXPLAINED: [&str; 10] = [
    "internalQueryFacetBufferSizeBytes",
    "internalQueryFacetMaxOutputDocSizeBytes",
    "internalLookupStageIntermediateDocumentMaxSizeBytes",
    "internalDocumentSourceGroupMaxMemoryBytes",
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "internalQueryProhibitBlockingMergeOnMongoS",
    "internalQueryMaxAddToSetBytes",
    "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
    "internalQueryFrameworkControl",
    "internalQueryPlannerIgnoreIndexWithCollationForRegex",
];

#[derive(Clone, Debug, PartialEq)]
enum Setting {
    Bool(bool),
    Int(i64),
    Double(f64),
    Text(String),
}

/// The parameters' present values.
pub struct Parameters {
    values: RwLock<Vec<Setting>>,
    /// One changes them at a time.
    changing: Mutex<()>,
    /// `requireApiVersion`, which every command asks for.
    pub require_api_version: AtomicBool,
    /// `notablescan`, which every query asks for.
    pub no_table_scan: AtomicBool,
    told: OnceLock<Box<Told>>,
    feature_version: OnceLock<Box<FeatureVersion>>,
    /// Those that a server of this role has not.
    absent: OnceLock<&'static [&'static str]>,
}

/// Tells the feature compatibility version that is kept with the data, if one is.
type FeatureVersion = dyn Fn() -> Option<String> + Send + Sync;

/// Is told of a parameter that has been set.
type Told = dyn Fn(&Parameters, &str) + Send + Sync;

impl Default for Parameters {
    fn default() -> Self {
        let values = PARAMETERS
            .iter()
            .map(|parameter| match parameter.default {
                Bool(b) => Setting::Bool(b),
                Int(n) => Setting::Int(n),
                Double(n) => Setting::Double(n),
                Text(text) => Setting::Text(text.to_owned()),
            })
            .collect();
        Parameters {
            values: RwLock::new(values),
            changing: Mutex::default(),
            require_api_version: AtomicBool::new(false),
            no_table_scan: AtomicBool::new(false),
            told: OnceLock::new(),
            feature_version: OnceLock::new(),
            absent: OnceLock::new(),
        }
    }
}

fn unrecognized(name: &str) -> Error {
    let text = format!("attempted to set unrecognized parameter [{name}], use help:true to see options ");
    Error::new(Code::INVALID_OPTIONS, text)
}

fn place(name: &str) -> Option<usize> {
    PARAMETERS.iter().position(|parameter| parameter.name == name)
}

impl Parameters {
    /// A number, with its fraction if it has one; 0 for a parameter that does not exist.
    pub fn double(&self, name: &str) -> f64 {
        match place(name).map(|at| self.values.read()[at].clone()) {
            Some(Setting::Int(n)) => n as f64,
            Some(Setting::Double(n)) => n,
            _ => 0.0,
        }
    }

    /// An integer parameter; 0 for one that does not exist.
    pub fn int(&self, name: &str) -> i64 {
        match place(name).map(|at| self.values.read()[at].clone()) {
            Some(Setting::Int(n)) => n,
            Some(Setting::Double(n)) => n as i64,
            _ => 0,
        }
    }

    /// A text parameter; empty for one that does not exist.
    pub fn text(&self, name: &str) -> String {
        match place(name).map(|at| self.values.read()[at].clone()) {
            Some(Setting::Text(text)) => text,
            _ => String::new(),
        }
    }

    /// A boolean parameter; false for one that does not exist.
    pub fn bool(&self, name: &str) -> bool {
        matches!(place(name).map(|at| self.values.read()[at].clone()), Some(Setting::Bool(true)))
    }

    /// Writes a parameter's value as the field `key`; false if there is none of this name.
    pub fn write_value(&self, name: &str, key: &str, doc: &mut DocWriter<'_, Vec<u8>>) -> bool {
        if name == "featureCompatibilityVersion" {
            doc.document(key).append("version", &self.feature_version());
            return true;
        }
        if name == COMPONENTS {
            components::write(&mut doc.document(key));
            return true;
        }
        if name == "authenticationMechanisms" {
            let names = self.text(name);
            let mut list = doc.array(key);
            names.split(',').for_each(|name| {
                list.push(name.trim());
            });
            return true;
        }
        let Some(at) = place(name).filter(|_| !self.is_absent(name)) else { return false };
        append(doc, name, key, &self.values.read()[at]);
        true
    }

    /// Writes those that explain shows, flags as numbers.
    pub fn write_explained(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        for name in EXPLAINED {
            let at = place(name).expect("explain shows parameters that there are");
            match &self.values.read()[at] {
                Setting::Bool(flag) => append(doc, name, name, &Setting::Int(i64::from(*flag))),
                setting => append(doc, name, name, setting),
            }
        }
    }

    /// All names, with whether each may be set at run time and at start.
    pub fn names() -> impl Iterator<Item = (&'static str, bool, bool)> {
        let others = [("featureCompatibilityVersion", false, false), (COMPONENTS, true, true)];
        PARAMETERS
            .iter()
            .map(|p| (p.name, matches!(p.when, Runtime | Both), matches!(p.when, Startup | Both)))
            .chain(others)
    }

    /// As long as the result lives, nobody else changes parameters: what is told of one is what it is, and steps from one value to
    /// another are looked at and taken together.
    pub fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// Sets a parameter at run time and gives its old value as the document `{was: old}`.
    ///
    /// Errors: `InvalidOptions` for an unknown name, `IllegalOperation` for one that is only set at
    /// start, `BadValue`/`TypeMismatch` for a bad value.
    pub fn set(&self, name: &str, value: Value<'_>) -> Result<DocBuf> {
        if name == COMPONENTS {
            let levels = Levels::parse(value)?;
            let was = components::document();
            self.take_levels(&levels);
            return Ok(DocBuf::new().with("was", &was));
        }
        let (at, setting) = self.known_and_checked(name, value)?;
        let old = self.store(at, setting);
        Ok(DocBuf::build(|doc| append(doc, name, "was", &old)))
    }

    fn take_levels(&self, levels: &Levels) {
        if let (Some(level), Some(at)) = (levels.whole, place("logLevel")) {
            self.store(at, Setting::Int(level.max(0)));
            self.apply("logLevel");
        }
        levels.apply();
    }

    /// What [`Parameters::set`] would say.
    pub fn check(&self, name: &str, value: Value<'_>) -> Result<()> {
        if name == COMPONENTS {
            return Levels::parse(value).map(|_| ());
        }
        self.known_and_checked(name, value).map(|_| ())
    }

    /// Has the server know nothing of these, which are of another role.
    ///
    /// Errors: `BadValue` for one that the command line has set.
    pub fn leave_out(&self, names: &'static [&'static str], set: &[(String, String)]) -> Result<()> {
        if let Some((name, _)) = set.iter().find(|(name, _)| names.contains(&&**name)) {
            bail!(Code::BAD_VALUE, "Unknown --setParameter '{name}'");
        }
        let _ = self.absent.set(names);
        Ok(())
    }

    /// Whether a server of this role has no such parameter.
    pub fn is_absent(&self, name: &str) -> bool {
        self.absent.get().is_some_and(|absent| absent.contains(&name))
    }

    fn known_and_checked(&self, name: &str, value: Value<'_>) -> Result<(usize, Setting)> {
        if self.is_absent(name) {
            return Err(unrecognized(name));
        }
        Self::checked(name, value)
    }

    fn checked(name: &str, value: Value<'_>) -> Result<(usize, Setting)> {
        let Some(at) = place(name) else {
            return Err(unrecognized(name));
        };
        if !matches!(PARAMETERS[at].when, Runtime | Both) {
            bail!(Code::ILLEGAL_OPERATION, "not allowed to change [{name}] at runtime");
        }
        if name == PROVIDERS {
            let Value::Array(list) = value else {
                bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field '{name}' is the wrong type '{}', expected type 'array'",
                    value.type_name()
                );
            };
            return Ok((
                at,
                Setting::Text({
                    Providers::read(list)?;
                    value_to_json(value, Style::Relaxed)
                }),
            ));
        }
        Ok((at, convert(&PARAMETERS[at], value)?))
    }

    /// Sets a parameter from the command line.
    ///
    /// Errors: `BadValue`; the text is for the user.
    pub fn set_at_start(&self, name: &str, text: &str) -> Result<()> {
        if name == COMPONENTS {
            self.take_levels(&Levels::parse_text(text)?);
            return Ok(());
        }
        let Some(at) = place(name) else {
            bail!(Code::BAD_VALUE, "Unknown --setParameter '{name}'");
        };
        if !matches!(PARAMETERS[at].when, Startup | Both) {
            bail!(Code::BAD_VALUE, "Cannot use --setParameter to set '{name}' at startup");
        }
        if name == "authenticationMechanisms"
            && let Some(unknown) = text
                .split(',')
                .find(|name| !OTHERS.contains(&name.trim()) && Mechanism::from_name(name.trim()).is_none())
        {
            bail!(Code::BAD_VALUE, "SASL Mechanism '{unknown}' is not supported");
        }
        if name == PROVIDERS {
            Providers::parse(text)?;
        }
        let value = match (PARAMETERS[at].default, text) {
            (Bool(_), "true" | "1") => Value::Bool(true),
            (Bool(_), "false" | "0") => Value::Bool(false),
            (Text(_), text) => Value::String(text),
            (Bool(_), _) => {
                bail!(
                    Code::BAD_VALUE,
                    "Invalid value for parameter {name}: '{text}' is neither true nor false"
                )
            }
            (_, text) => match text.parse() {
                Ok(number) => Value::Double(number),
                Err(_) => bail!(Code::BAD_VALUE, "Invalid value for parameter {name}: '{text}' is no number"),
            },
        };
        let setting = convert(&PARAMETERS[at], value)?;
        self.store(at, setting);
        Ok(())
    }

    /// Puts the value of a text parameter that flags have decided.
    pub(crate) fn put(&self, name: &str, text: &str) {
        if let Some(at) = place(name) {
            self.store(at, Setting::Text(text.to_owned()));
        }
    }

    /// Who knows the feature compatibility version. Once.
    pub fn feature_version_from(&self, known: impl Fn() -> Option<String> + Send + Sync + 'static) {
        assert!(self.feature_version.set(Box::new(known)).is_ok(), "who knows the version is said once");
    }

    /// `featureCompatibilityVersion`.
    pub fn feature_version(&self) -> String {
        let kept = self.feature_version.get().and_then(|known| known());
        kept.unwrap_or_else(|| crate::version::FEATURE_VERSION.to_owned())
    }

    /// Has somebody told of parameters that are set at run time, besides the front itself: whoever a parameter belongs to.
    /// Once.
    pub fn tell(&self, whom: impl Fn(&Parameters, &str) + Send + Sync + 'static) {
        assert!(self.told.set(Box::new(whom)).is_ok(), "whom parameters are told is said once");
    }

    /// Tells those to whom a parameter belongs that it has been set.
    pub fn apply(&self, name: &str) {
        match name {
            "logLevel" => crate::log::set_verbosity(self.int(name)),
            "quiet" => crate::log::set_quiet(self.bool(name)),
            "redactClientLogData" => crate::log::set_redacting(self.bool(name)),
            _ => {
                if let Some(told) = self.told.get() {
                    told(self, name);
                }
            }
        }
    }

    fn store(&self, at: usize, setting: Setting) -> Setting {
        let flag = match PARAMETERS[at].name {
            "requireApiVersion" => Some(&self.require_api_version),
            "notablescan" => Some(&self.no_table_scan),
            _ => None,
        };
        if let Some(flag) = flag {
            flag.store(setting == Setting::Bool(true), Ordering::Relaxed);
        }
        std::mem::replace(&mut self.values.write()[at], setting)
    }
}

/// Mechanisms without passwords.
const OTHERS: &[&str] = &["MONGODB-X509", "MONGODB-OIDC"];

fn append(doc: &mut DocWriter<'_, Vec<u8>>, name: &str, key: &str, setting: &Setting) {
    match setting {
        Setting::Text(text) if name == PROVIDERS => {
            // What is kept was read once before.
            let providers = Providers::parse(text).unwrap_or_default();
            doc.append(key, Value::Array(providers.shown()))
        }
        Setting::Bool(b) => doc.append(key, *b),
        Setting::Int(n) => match i32::try_from(*n) {
            Ok(n) => doc.append(key, n),
            Err(_) => doc.append(key, *n),
        },
        Setting::Double(n) => doc.append(key, *n),
        Setting::Text(text) => doc.append(key, text),
    };
}

fn convert(parameter: &Parameter, value: Value<'_>) -> Result<Setting> {
    let name = parameter.name;
    let number = |value: Value<'_>| -> Result<f64> {
        let Some(n) = value.as_f64() else {
            bail!(
                Code::BAD_VALUE,
                "Unable to coerce value of type {} for parameter {name}",
                value.type_name()
            );
        };
        if n < parameter.range.0 {
            // A positive number is asked for as one that is greater than zero.
            let asked = match parameter.range {
                POSITIVE => "greater than 0".to_owned(),
                (least, _) => format!("greater than or equal to {least}"),
            };
            bail!(Code::BAD_VALUE, "Invalid value for parameter {name}: {n} is not {asked}");
        }
        if n > parameter.range.1 {
            bail!(
                Code::BAD_VALUE,
                "Invalid value for parameter {name}: {n} is not less than or equal to {}",
                parameter.range.1
            );
        }
        Ok(n)
    };
    Ok(match (parameter.default, value) {
        (Bool(_), Value::Bool(b)) => Setting::Bool(b),
        (Bool(_), value) if value.is_number() => Setting::Bool(value.truthy()),
        (Int(_), value) => Setting::Int(number(value)? as i64),
        (Double(_), value) => Setting::Double(number(value)?),
        (Text(_), Value::String(text)) if text.len() as f64 > parameter.range.1 => bail!(
            Code::OVERFLOW,
            "Value for parameter {name} must be no more than {} bytes, and has {}",
            parameter.range.1,
            text.len()
        ),
        (Text(_), Value::String(text)) if name == QUERY_STATS_SIZE && memory_size(text, 0).is_none() => {
            bail!(Code::BAD_VALUE, "Failed to parse the memory size of {name}: '{text}'")
        }
        (Text(_), Value::String(text)) => Setting::Text(text.to_owned()),
        (_, value) => {
            bail!(Code::BAD_VALUE, "Invalid value for parameter {name}: of type {}", value.type_name())
        }
    })
}

/// The bytes that a size says: a share of the machine's memory (`1%`), or a number with a unit. `None` if it says nothing.
pub fn memory_size(text: &str, machine_bytes: u64) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].to_ascii_uppercase().as_str() {
        "%" => machine_bytes as f64 / 100.0,
        "B" => 1.0,
        "KB" => 1024.0,
        "MB" => 1024.0 * 1024.0,
        "GB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some((number * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_role_has_not_nobody_can_set() {
        let parameters = Parameters::default();
        parameters.set("notablescan", Value::Bool(true)).expect("a server with data has it");
        parameters.leave_out(&["notablescan"], &[]).expect("nobody has set it");
        let error = parameters.set("notablescan", Value::Bool(true)).expect_err("a router has it not");
        assert_eq!(error.code(), Code::INVALID_OPTIONS);
        assert!(parameters.check("notablescan", Value::Bool(true)).is_err());
        let shown = DocBuf::build(|doc| assert!(!parameters.write_value("notablescan", "value", doc)));
        assert!(shown.as_raw().is_empty());
        let set = [("notablescan".to_owned(), "1".to_owned())];
        assert_eq!(parameters.leave_out(&["notablescan"], &set).unwrap_err().code(), Code::BAD_VALUE);
    }

    #[test]
    fn sizes_are_shares_or_bytes() {
        assert_eq!(memory_size("1%", 1000), Some(10));
        assert_eq!(memory_size("2MB", 0), Some(2 << 20));
        assert_eq!(memory_size("0.5kb", 0), Some(512));
        for bad in ["", "77", "MB", "1TB", "-1MB", "1.2.3MB", "x1%"] {
            assert_eq!(memory_size(bad, 1000), None, "{bad}");
        }
    }

    #[test]
    fn what_explain_shows_can_be_asked_for_and_not_be_set() {
        let parameters = Parameters::default();
        let shown = DocBuf::build(|doc| parameters.write_explained(doc));
        assert_eq!(shown.as_raw().iter().count(), EXPLAINED.len());
        for field in shown.as_raw() {
            let asked = DocBuf::build(|doc| assert!(parameters.write_value(field.key(), "value", doc)));
            let asked = match asked.as_raw().get_or_missing("value") {
                Value::Bool(flag) => Value::Int32(i32::from(flag)),
                value => value,
            };
            let text = sheaf_bson::value_text;
            assert_eq!(text(asked), text(field.value()), "{}", field.key());
            let refused = parameters.set(field.key(), Value::Int32(1)).unwrap_err();
            assert_eq!(refused.code(), Code::ILLEGAL_OPERATION);
            assert!(parameters.set_at_start(field.key(), "1").is_err());
        }
    }

    #[test]
    fn setting_and_reading() {
        let parameters = Parameters::default();
        assert_eq!(parameters.int("transactionLifetimeLimitSeconds"), 60);
        let was = parameters.set("transactionLifetimeLimitSeconds", Value::Double(3.0)).unwrap();
        assert_eq!(was, DocBuf::new().with("was", 60));
        assert_eq!(parameters.int("transactionLifetimeLimitSeconds"), 3);
        let code = |name, value| parameters.set(name, value).unwrap_err().code();
        assert_eq!(code("nonesuch", Value::Int32(1)), Code::INVALID_OPTIONS);
        assert_eq!(code("enableTestCommands", Value::Int32(1)), Code::ILLEGAL_OPERATION);
        assert_eq!(code("zlibCompressionLevel", Value::Int32(10)), Code::BAD_VALUE);
    }
}
