//! `$readPreference`: which member of a set drivers ask.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::refuse_twice;

/// What its `mode` can say.
const MODES: [&str; 5] = ["primary", "primaryPreferred", "secondary", "secondaryPreferred", "nearest"];

/// The least staleness that a client may bear.
const MIN_STALENESS_SECONDS: i64 = 90;

/// Checks what a client gives, whether or not it matters to this server.
///
/// Errors: `TypeMismatch`, `BadValue`, 40414, 40415, `MaxStalenessOutOfRange`, `InvalidOptions`.
pub(crate) fn check(preference: RawDoc<'_>) -> Result<()> {
    let (mut mode, mut tags, mut staleness, mut hedged) = (None, None, 0, false);
    for field in preference.iter() {
        let (name, value) = (field.key(), field.value());
        match (name, value) {
            (_, Value::Null | Value::Undefined) => {}
            ("mode", Value::String(named)) => mode = Some(known_mode(named)?),
            ("tags", Value::Array(sets)) => tags = Some(sets),
            ("hedge", Value::Document(hedge)) => hedged = is_hedged(hedge)?,
            ("maxStalenessSeconds", number) if let Some(seconds) = number.as_f64() => {
                // A fraction is cut.
                staleness = check_staleness(seconds as i64)?;
            }
            ("mode", _) => return wrong_type("$readPreference", name, value, "string"),
            ("tags", _) => return wrong_type("$readPreference", name, value, "array"),
            ("hedge", _) => return wrong_type("$readPreference", name, value, "object"),
            ("maxStalenessSeconds", _) => return wrong_type("$readPreference", name, value, "number"),
            // Others are for members among themselves, or of later versions.
            _ => {}
        }
    }
    refuse_twice(preference, "$readPreference")?;
    let Some(mode) = mode else {
        bail!(40414, "BSON field '$readPreference.mode' is missing but a required field");
    };
    if mode != "primary" {
        return Ok(());
    }
    if hedged {
        bail!(Code::INVALID_OPTIONS, "cannot enable hedging for $readPreference mode \"primaryOnly\"");
    }
    if tags.is_some_and(|tags| !matches_any(tags)) {
        bail!(Code::BAD_VALUE, "Only empty tags are allowed with primary read preference");
    }
    if staleness != 0 {
        bail!(Code::BAD_VALUE, "maxStalenessSeconds can not be set for the primary mode");
    }
    Ok(())
}

fn known_mode(mode: &str) -> Result<&str> {
    if !MODES.contains(&mode) {
        bail!(
            Code::BAD_VALUE,
            "Enumeration value '{mode}' for field '$readPreference.mode' is not a valid value."
        );
    }
    Ok(mode)
}

/// No tags at all, or one set of none.
fn matches_any(tags: RawDoc<'_>) -> bool {
    let mut sets = tags.values();
    match (sets.next(), sets.next()) {
        (None, _) => true,
        (Some(Value::Document(only)), None) => only.is_empty(),
        _ => false,
    }
}

fn wrong_type<T>(place: &str, name: &str, value: Value<'_>, expected: &str) -> Result<T> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field '{place}.{name}' is the wrong type '{}', expected type '{expected}'",
        value.type_name()
    )
}

fn check_staleness(seconds: i64) -> Result<i64> {
    match seconds {
        0 => {}
        ..0 => bail!(Code::BAD_VALUE, "maxStalenessSeconds must be a non-negative integer"),
        1..MIN_STALENESS_SECONDS => bail!(
            Code::MAX_STALENESS_OUT_OF_RANGE,
            "maxStalenessSeconds value can not be less than {MIN_STALENESS_SECONDS}"
        ),
        i64::MAX => bail!(Code::BAD_VALUE, "maxStalenessSeconds value can not exceed {}", i64::MAX),
        _ => {}
    }
    Ok(seconds)
}

/// Whether `hedge` asks for it: unless it says no.
fn is_hedged(hedge: RawDoc<'_>) -> Result<bool> {
    let mut enabled = true;
    for field in hedge.iter() {
        match (field.key(), field.value()) {
            ("enabled" | "delay", Value::Null | Value::Undefined) => {}
            ("enabled", Value::Bool(flag)) => enabled = flag,
            ("delay", Value::Bool(_)) => {}
            (name @ ("enabled" | "delay"), other) => return wrong_type("hedge", name, other, "bool"),
            (name, _) => bail!(40415, "BSON field 'hedge.{name}' is an unknown field."),
        }
    }
    Ok(enabled)
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};

    use super::*;

    fn code(preference: &DocBuf) -> Option<i32> {
        check(preference.as_raw()).err().map(|error| error.code().0)
    }

    #[test]
    fn what_drivers_send_is_taken() {
        for preference in [
            doc! { "mode": "primary" },
            doc! { "mode": "primary", "tags": [{}] },
            doc! { "mode": "primary", "hedge": { "enabled": false } },
            doc! { "mode": "nearest", "tags": [{ "rack": "a" }, {}], "maxStalenessSeconds": 90 },
            doc! { "mode": "secondary", "maxStalenessSeconds": 120.0, "hedge": {} },
            doc! { "mode": "secondaryPreferred", "maxStalenessSeconds": 0, "later": 1 },
        ] {
            assert_eq!(code(&preference), None, "{preference:?}");
        }
    }

    #[test]
    fn what_mongod_refuses_is_refused() {
        for (preference, expected) in [
            (doc! {}, 40414),
            (doc! { "mode": Value::Null }, 40414),
            (doc! { "mode": 1 }, 14),
            (doc! { "mode": "first" }, 2),
            (doc! { "mode": "nearest", "tags": 1 }, 14),
            (doc! { "mode": "primary", "tags": [{ "rack": "a" }] }, 2),
            (doc! { "mode": "nearest", "maxStalenessSeconds": "1" }, 14),
            (doc! { "mode": "nearest", "maxStalenessSeconds": -1 }, 2),
            (doc! { "mode": "nearest", "maxStalenessSeconds": 89 }, 160),
            (doc! { "mode": "primary", "maxStalenessSeconds": 89 }, 160),
            (doc! { "mode": "primary", "maxStalenessSeconds": 90 }, 2),
            (doc! { "mode": "secondary", "hedge": 1 }, 14),
            (doc! { "mode": "secondary", "hedge": { "enabled": 1 } }, 14),
            (doc! { "mode": "secondary", "hedge": { "soon": true } }, 40415),
            (doc! { "mode": "primary", "hedge": {} }, 72),
        ] {
            assert_eq!(code(&preference), Some(expected), "{preference:?}");
        }
    }
}
