//! What may stand in `config.settings`: a validator keeps out what nobody reads, sizes that cannot be and settings of the balancer of other
//! types; a document of the balancer that cannot be read all the same, as for a time that no clock shows, stops it, as in MongoDB.

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::{Collection, CollectionChange, Interrupt};

use super::Conductor;
use super::ddl::with;
use super::window::minute_of;

/// Where they are.
pub(super) const SETTINGS: &str = "config.settings";

/// What a chunk may weigh at most, in megabytes.
const MEGABYTES: std::ops::RangeInclusive<i64> = 1..=1024;

fn validator() -> DocBuf {
    doc! {
        "$jsonSchema": { "oneOf": [
            {
                "properties": {
                    "_id": { "enum": ["chunksize"] },
                    "value": { "bsonType": "number", "minimum": *MEGABYTES.start(), "maximum": *MEGABYTES.end() }
                },
                "additionalProperties": false
            },
            {
                "properties": {
                    "_id": { "enum": ["balancer"] },
                    "mode": { "enum": ["full", "off"] },
                    "stopped": { "bsonType": "bool" },
                    "activeWindow": { "bsonType": "object", "required": ["start", "stop"] },
                    "_secondaryThrottle": { "bsonType": ["bool", "object"] },
                    "_waitForDelete": { "bsonType": "bool" },
                    "attemptToBalanceJumboChunks": { "bsonType": "bool" }
                },
                "additionalProperties": false
            },
            { "properties": { "_id": { "enum": ["automerge", "ReadWriteConcernDefaults", "audit"] } } }
        ] }
    }
}

impl Conductor {
    /// Has `config.settings` keep out what cannot be meant.
    pub(super) fn guard_settings(&self, go_on: Interrupt<'_>) -> Result<()> {
        let catalog = self.engine.catalog();
        let validator = validator();
        let is_guarded = |known: &Collection| {
            known.options.as_raw().get("validator").and_then(|known| known.as_doc())
                == Some(validator.as_raw())
        };
        // An older one lets more in.
        if catalog.collection(SETTINGS).is_none_or(|known| is_guarded(known)) {
            return Ok(());
        }
        let change = |now: &Collection| {
            let changes = [
                ("validator", Value::Document(validator.as_raw())),
                ("validationLevel", "strict".into()),
                ("validationAction", "error".into()),
            ];
            let options = Some(with(now.options.as_raw(), &changes));
            Ok(CollectionChange { options, ..CollectionChange::default() })
        };
        self.engine.coll_mod(SETTINGS, &change, go_on).map(|_| ())
    }
}

/// The size of chunks that a document says, in megabytes; `None` without one.
///
/// Errors: `BadValue`.
pub(super) fn chunk_megabytes(setting: Option<RawDoc<'_>>) -> Result<Option<i64>> {
    let Some(setting) = setting else { return Ok(None) };
    match setting.get("value").and_then(|value| value.as_exact_i64()) {
        Some(value) if MEGABYTES.contains(&value) => Ok(Some(value)),
        _ => bail!(
            Code::BAD_VALUE,
            "{} is not a valid value for the maximum chunk size",
            sheaf_bson::document_text(setting)
        ),
    }
}

/// The balancer's document, as it may be read.
pub(super) struct BalancerSettings {
    /// Whether it is on.
    pub on: bool,
    /// The minutes of the day between which it may work.
    pub window: Option<(i32, i32)>,
}

impl BalancerSettings {
    /// What a document says.
    ///
    /// Errors: `BadValue`, `TypeMismatch`.
    pub fn parse(document: RawDoc<'_>) -> Result<BalancerSettings> {
        let mode = match document.get("mode") {
            None => "full",
            Some(Value::String(mode @ ("full" | "off" | "autoSplitOnly"))) => mode,
            Some(Value::String(_)) => bail!(Code::BAD_VALUE, "Invalid balancer mode"),
            Some(other) => return wrong_type("mode", "string", other),
        };
        let flag = |name: &str| match document.get(name) {
            None => Ok(false),
            Some(
                value @ (Value::Bool(_)
                | Value::Int32(_)
                | Value::Int64(_)
                | Value::Double(_)
                | Value::Decimal128(_)),
            ) => Ok(value.truthy()),
            Some(other) => wrong_type(name, "bool", other),
        };
        let stopped = flag("stopped")?;
        flag("_waitForDelete")?;
        let window = match document.get("activeWindow") {
            None => None,
            Some(Value::Document(window)) => Some(window_of(window)?),
            Some(other) => return wrong_type("activeWindow", "object", other),
        };
        Ok(BalancerSettings { on: mode == "full" && !stopped, window })
    }
}

fn window_of(window: RawDoc<'_>) -> Result<(i32, i32)> {
    let end = |name: &str| window.get(name).and_then(|end| end.as_str()).filter(|end| !end.is_empty());
    let (Some(start), Some(stop)) = (end("start"), end("stop")) else {
        let shown = sheaf_bson::document_text(window);
        bail!(Code::BAD_VALUE, "must specify both start and stop of balancing window: {shown}");
    };
    match (minute_of(start), minute_of(stop)) {
        (Some(start), Some(stop)) => Ok((start, stop)),
        _ => bail!(Code::BAD_VALUE, "activeWindow format is {{ start: \"hh:mm\" , stop: \"hh:mm\" }}"),
    }
}

fn wrong_type<T>(name: &str, wanted: &str, found: Value<'_>) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "\"{name}\" had the wrong type. Expected {wanted}, found {}",
        found.type_name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(document: DocBuf) -> i32 {
        BalancerSettings::parse(document.as_raw()).err().map_or(0, |error| error.code().0)
    }

    #[test]
    fn the_balancer_s_document_is_read_or_refused() {
        let read = |document: DocBuf| BalancerSettings::parse(document.as_raw()).unwrap();
        assert!(read(doc! {}).on && read(doc! { "mode": "full", "stopped": false }).on);
        assert!(!read(doc! { "mode": "off" }).on && !read(doc! { "stopped": 1 }).on);
        let window = read(doc! { "activeWindow": { "start": "22:00", "stop": "6:00" } }).window;
        assert_eq!(window, Some((22 * 60, 6 * 60)));
        assert_eq!(code(doc! { "mode": "sometimes" }), 2);
        assert_eq!(code(doc! { "mode": 1 }), 14);
        assert_eq!(code(doc! { "stopped": "yes" }), 14);
        assert_eq!(code(doc! { "activeWindow": "night" }), 14);
        assert_eq!(code(doc! { "activeWindow": { "start": "22:00" } }), 2);
        assert_eq!(code(doc! { "activeWindow": { "start": "22:00", "stop": "25:00" } }), 2);
    }

    #[test]
    fn chunks_have_a_size_that_can_be() {
        let size =
            |value: Value<'_>| chunk_megabytes(Some(doc! { "_id": "chunksize", "value": value }.as_raw()));
        assert_eq!(chunk_megabytes(None).unwrap(), None);
        assert_eq!(size(64.0.into()).unwrap(), Some(64));
        assert!(
            size(Value::Int32(-5)).is_err() && size(1025i64.into()).is_err() && size(1.5.into()).is_err()
        );
        assert!(size("64".into()).is_err());
    }
}
