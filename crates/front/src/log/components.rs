//! How much each component writes: `logComponentVerbosity`. What has no level of its own has that of what it is a part of,
//! in the end the log's (`logLevel`).

use std::sync::atomic::{AtomicI64, Ordering};

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// A component: its name in the parameter, its name in lines of the log, and the place of what it is a part of.
struct Component {
    name: &'static str,
    shown: &'static str,
    part_of: Option<usize>,
}

const fn top(name: &'static str, shown: &'static str) -> Component {
    Component { name, shown, part_of: None }
}

const fn part(of: usize, name: &'static str, shown: &'static str) -> Component {
    Component { name, shown, part_of: Some(of) }
}

const NETWORK: usize = 0;
const QUERY: usize = 1;
const REPLICATION: usize = 2;
const SHARDING: usize = 3;
const STORAGE: usize = 4;
const WT: usize = 5;

/// Those that have parts come first.
const COMPONENTS: [Component; 42] = [
    top("network", "NETWORK"),
    top("query", "QUERY"),
    top("replication", "REPL"),
    top("sharding", "SHARDING"),
    top("storage", "STORAGE"),
    part(STORAGE, "wt", "WT"),
    top("accessControl", "ACCESS"),
    top("assert", "ASSERT"),
    top("command", "COMMAND"),
    top("control", "CONTROL"),
    top("executor", "EXECUTOR"),
    top("ftdc", "FTDC"),
    top("geo", "GEO"),
    top("index", "INDEX"),
    top("processHealth", "HEALTH"),
    top("resharding", "RESHARD"),
    top("test", "TEST"),
    top("tracking", "TRACKING"),
    top("transaction", "TXN"),
    top("write", "WRITE"),
    part(NETWORK, "asio", "ASIO"),
    part(NETWORK, "bridge", "BRIDGE"),
    part(NETWORK, "connectionPool", "CONNPOOL"),
    part(NETWORK, "grpc", "GRPC"),
    part(QUERY, "optimizer", "QUERY_OPT"),
    part(QUERY, "ce", "QUERY_CE"),
    part(QUERY, "rejected", "REJECTED"),
    part(REPLICATION, "election", "ELECTION"),
    part(REPLICATION, "heartbeats", "REPL_HB"),
    part(REPLICATION, "initialSync", "INITSYNC"),
    part(REPLICATION, "rollback", "ROLLBACK"),
    part(SHARDING, "migration", "MIGRATE"),
    part(SHARDING, "rangeDeleter", "SH_RNG_DEL"),
    part(SHARDING, "shardingCatalogRefresh", "SH_REFR"),
    part(SHARDING, "shardMigrationPerf", "MIG_PERF"),
    part(STORAGE, "journal", "JOURNAL"),
    part(STORAGE, "recovery", "RECOVERY"),
    part(WT, "wtBackup", "WTBACKUP"),
    part(WT, "wtCheckpoint", "WTCHKPT"),
    part(WT, "wtCompact", "WTCMPCT"),
    part(WT, "wtEviction", "WTEVICT"),
    part(WT, "wtRecovery", "WTRECOV"),
];

/// No level of its own.
const NONE: i64 = -1;

static LEVELS: [AtomicI64; COMPONENTS.len()] = [const { AtomicI64::new(NONE) }; COMPONENTS.len()];

/// The level of debug messages of the component with this name in the log's lines.
pub fn level(shown: &str) -> i64 {
    let mut at = COMPONENTS.iter().position(|component| component.shown == shown);
    while let Some(place) = at {
        let own = LEVELS[place].load(Ordering::Relaxed);
        if own != NONE {
            return own;
        }
        at = COMPONENTS[place].part_of;
    }
    super::verbosity()
}

/// Writes all levels: `{verbosity: 0, network: {verbosity: -1, asio: {verbosity: -1}}}`.
pub fn write(doc: &mut DocWriter<'_, Vec<u8>>) {
    doc.append("verbosity", super::verbosity() as i32);
    write_parts(doc, None);
}

fn write_parts(doc: &mut DocWriter<'_, Vec<u8>>, of: Option<usize>) {
    for (at, component) in COMPONENTS.iter().enumerate().filter(|(_, component)| component.part_of == of) {
        let mut own = doc.document(component.name);
        own.append("verbosity", LEVELS[at].load(Ordering::Relaxed) as i32);
        write_parts(&mut own, Some(at));
    }
}

/// What a wish for levels comes to: the log's own level, and those of components.
#[derive(Default)]
pub struct Levels {
    /// `verbosity` at the top.
    pub whole: Option<i64>,
    of_components: Vec<(usize, i64)>,
}

impl Levels {
    /// Reads `{verbosity: n, command: n, network: {verbosity: n, asio: n}}`.
    ///
    /// Errors: `TypeMismatch` for what is no document, `BadValue` for an unknown component or a level that is no number.
    pub fn parse(value: Value<'_>) -> Result<Levels> {
        let Value::Document(wish) = value else {
            bail!(Code::TYPE_MISMATCH, "log component verbosity is not a BSON object: {}", value.type_name());
        };
        let mut levels = Levels::default();
        levels.read(wish, None)?;
        Ok(levels)
    }

    /// Reads such a wish from the command line, where names may stand without quotes: `{command: 3}`.
    ///
    /// Errors: `FailedToParse`, and those of [`Levels::parse`].
    pub fn parse_text(text: &str) -> Result<Levels> {
        let mut quoted = String::with_capacity(text.len() + 16);
        let (mut in_name, mut in_quotes) = (false, false);
        for c in text.chars() {
            let of_name =
                !in_quotes && (c.is_ascii_alphabetic() || c == '_' || in_name && c.is_ascii_digit());
            if of_name != in_name {
                quoted.push('"');
                in_name = of_name;
            }
            in_quotes ^= c == '"';
            quoted.push(c);
        }
        let Ok(wish) = sheaf_bson::json::parse_document(&quoted) else {
            bail!(
                Code::FAILED_TO_PARSE,
                "Invalid value for parameter logComponentVerbosity: '{text}' is no document"
            );
        };
        Levels::parse(Value::Document(wish.as_raw()))
    }

    fn read(&mut self, wish: RawDoc<'_>, of: Option<usize>) -> Result<()> {
        for field in wish.iter() {
            if field.key() == "verbosity" {
                let level = number(field.value(), field.key())?;
                match of {
                    Some(place) => self.of_components.push((place, level)),
                    None => self.whole = Some(level),
                }
                continue;
            }
            let known = |component: &Component| component.part_of == of && component.name == field.key();
            let Some(place) = COMPONENTS.iter().position(known) else {
                bail!(Code::BAD_VALUE, "Invalid component name {}", field.key());
            };
            match field.value() {
                Value::Document(inner) => self.read(inner, Some(place))?,
                value => self.of_components.push((place, number(value, field.key())?)),
            }
        }
        Ok(())
    }

    /// Makes them hold; the log's own level is the parameter `logLevel`, and its owner's work.
    pub fn apply(&self) {
        for (place, level) in &self.of_components {
            LEVELS[*place].store(*level, Ordering::Relaxed);
        }
    }
}

/// A level; one below zero says that there is none.
fn number(value: Value<'_>, name: &str) -> Result<i64> {
    match crate::args::safe_i64(value) {
        Some(level) => Ok(level.clamp(NONE, i64::from(i32::MAX))),
        None => bail!(
            Code::BAD_VALUE,
            "Expected {name} to be a number or object, but found {}",
            value.type_name()
        ),
    }
}

/// All levels as a document.
pub fn document() -> DocBuf {
    DocBuf::build(write)
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn parts_have_the_level_of_the_whole_until_they_have_their_own() {
        let wish = doc! { "storage": { "verbosity": 2, "wt": { "wtBackup": 4 } } };
        Levels::parse(Value::Document(wish.as_raw())).unwrap().apply();
        assert_eq!([level("STORAGE"), level("JOURNAL"), level("WTBACKUP"), level("WT")], [2, 2, 4, 2]);
        let wish = doc! { "storage": -1 };
        Levels::parse(Value::Document(wish.as_raw())).unwrap().apply();
        assert_eq!(level("JOURNAL"), crate::log::verbosity());
        Levels::parse_text("{ftdc: 3, \"control\": {verbosity: 1}}").unwrap().apply();
        assert_eq!([level("FTDC"), level("CONTROL")], [3, 1]);
        for text in ["ftdc: 3", "{ftdc: high}", "{ftdc 3}", "3", ""] {
            assert!(Levels::parse_text(text).is_err(), "{text}");
        }
        let bad = [doc! { "nonesuch": 1 }, doc! { "asio": 1 }, doc! { "index": "x" }];
        for wish in &bad {
            assert!(Levels::parse(Value::Document(wish.as_raw())).is_err(), "{wish:?}");
        }
    }
}
