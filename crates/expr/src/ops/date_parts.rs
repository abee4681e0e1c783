//! Parts of dates: `$year` and kin, `$dateToParts`, `$dateFromParts`.

use sheaf_bson::{Bump, Value, document_in};
use sheaf_errors::{Code, Result, bail};

use super::show;
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Named, Operator, State, custom};
use crate::parse::parse_named;
use crate::time::{self, Civil, Zone};

pub(crate) static OPERATORS: &[Operator] = &[
    part("$year", |call, cx| int_part(call, cx, |c| c.year)),
    part("$month", |call, cx| int_part(call, cx, |c| c.month)),
    part("$dayOfMonth", |call, cx| int_part(call, cx, |c| c.day)),
    part("$hour", |call, cx| int_part(call, cx, |c| c.hour)),
    part("$minute", |call, cx| int_part(call, cx, |c| c.minute)),
    part("$second", |call, cx| int_part(call, cx, |c| c.second)),
    part("$millisecond", |call, cx| int_part(call, cx, |c| c.millis)),
    part("$dayOfWeek", |call, cx| int_part(call, cx, Civil::day_of_week)),
    part("$dayOfYear", |call, cx| int_part(call, cx, Civil::day_of_year)),
    part("$week", |call, cx| int_part(call, cx, Civil::week)),
    part("$isoDayOfWeek", |call, cx| int_part(call, cx, Civil::iso_day_of_week)),
    part("$isoWeek", |call, cx| int_part(call, cx, |c| c.iso_week().1)),
    // This one alone is a long.
    part("$isoWeekYear", |call, cx| {
        Ok(civil_of(call, cx)?.map_or(Value::Null, |civil| Value::Int64(civil.iso_week().0)))
    }),
    custom("$dateToParts", parse_to_parts, date_to_parts)
        .serialized(|call, arena| serialize_named(&TO_PARTS, call, arena)),
    custom("$dateFromParts", parse_from_parts, date_from_parts).serialized(serialize_from_parts),
];

static TO_PARTS: Named =
    Named { fields: &[("date", 40522), ("timezone", 0), ("iso8601", 0)], not_object: 40524, unknown: 40520 };

const fn part(name: &'static str, eval: crate::operator::LazyFn) -> Operator {
    custom(name, parse_part, eval).serialized(serialize_part)
}

/// Arguments: date, timezone.
fn parse_part(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let (date, timezone) = match argument {
        // An object that is no operator names date and timezone.
        Value::Document(doc) if !doc.iter().next().is_some_and(|first| first.key().starts_with('$')) => {
            let (mut date, mut timezone) = (None, None);
            for element in doc.iter() {
                match element.key() {
                    "date" => date = Some(Expr::parse(element.value(), cx)?),
                    "timezone" => timezone = Some(Expr::parse(element.value(), cx)?),
                    other => bail!(40535, "unrecognized option to {}: \"{other}\"", op.name),
                }
            }
            let Some(date) = date else { bail!(40539, "missing 'date' argument to {}", op.name) };
            (date, timezone.unwrap_or(Expr::absent()))
        }
        Value::Array(array) => match (array.values().next(), array.count()) {
            (Some(only), 1) => (Expr::parse(only, cx)?, Expr::absent()),
            (_, count) => bail!(
                40536,
                "{} accepts exactly one argument if given an array, but was given {count}",
                op.name
            ),
        },
        other => (Expr::parse(other, cx)?, Expr::absent()),
    };
    let args = vec![date, timezone];
    known_zone(op, &args, 1, cx);
    Ok(Expr::call(op, args, State::None, cx))
}

/// Whether no argument is left to the document.
pub(super) fn all_known(args: &[Expr]) -> bool {
    args.iter().all(|arg| arg.constant().is_some() || arg.is_absent())
}

/// Looks at a time zone that is known while other arguments are not: one that does not exist is refused then, whatever the
/// documents hold. Tells whether it is null.
pub(super) fn known_zone(op: &Operator, args: &[Expr], at: usize, cx: &mut ParseCx) -> bool {
    let Some(zone) = args[at].constant().filter(|_| !all_known(args)) else { return false };
    match Zone::of_value(op.name, zone) {
        Ok(zone) => zone.is_none(),
        Err(error) => {
            cx.fold_failed(error);
            false
        }
    }
}

/// Prints the arguments that were given.
pub(super) fn serialize_named<'a>(spec: &Named, call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for ((name, _), arg) in spec.fields.iter().zip(&call.args) {
            if !arg.is_absent() {
                out.append(name, arg.serialize(arena));
            }
        }
    }))
}

fn parse_to_parts(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_named(op.name, &TO_PARTS, argument, cx)?;
    if known_zone(op, &args, 1, cx) {
        return Ok(Expr::null());
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn serialize_part<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        out.append("date", call.args[0].serialize(arena));
        out.append("timezone", call.args[1].serialize(arena));
    }))
}

/// The zone of an optional argument: UTC if absent, `None` if null.
pub(super) fn zone_of<'a>(call: &'a Call, at: usize, cx: Cx<'a, '_>) -> Result<Option<Zone>> {
    if !call.has(at) {
        return Ok(Some(Zone::Utc));
    }
    Zone::of_value(call.op.name, call.arg(at, cx)?)
}

/// The calendar parts of the arguments `date` and `timezone`; `None` if one is null.
fn civil_of<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Option<Civil>> {
    let date = call.arg(0, cx)?;
    if date.is_nullish() {
        return Ok(None);
    }
    let date = time::require_date(date)?;
    Ok(zone_of(call, 1, cx)?.map(|zone| zone.civil(date)))
}

fn int_part<'a>(call: &'a Call, cx: Cx<'a, '_>, get: impl FnOnce(&Civil) -> i64) -> Result<Value<'a>> {
    Ok(civil_of(call, cx)?.map_or(Value::Null, |civil| Value::Int32(get(&civil) as i32)))
}

fn date_to_parts<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let date = call.arg(0, cx)?;
    let Some(zone) = zone_of(call, 1, cx)? else { return Ok(Value::Null) };
    let iso = match call.arg(2, cx)? {
        _ if !call.has(2) => false,
        Value::Bool(iso) => iso,
        value if value.is_nullish() => return Ok(Value::Null),
        other => bail!(40521, "iso8601 must evaluate to a bool, found {}", other.type_name()),
    };
    if date.is_nullish() {
        return Ok(Value::Null);
    }
    let c = zone.civil(time::require_date(date)?);
    Ok(Value::Document(document_in(cx.env.arena(), |out| {
        if iso {
            let (year, week) = c.iso_week();
            out.append("isoWeekYear", year as i32)
                .append("isoWeek", week as i32)
                .append("isoDayOfWeek", c.iso_day_of_week() as i32);
        } else {
            out.append("year", c.year as i32).append("month", c.month as i32).append("day", c.day as i32);
        }
        out.append("hour", c.hour as i32)
            .append("minute", c.minute as i32)
            .append("second", c.second as i32)
            .append("millisecond", c.millis as i32);
    })))
}

const FROM_PARTS: [&str; 11] = [
    "year",
    "month",
    "day",
    "hour",
    "minute",
    "second",
    "millisecond",
    "isoWeekYear",
    "isoWeek",
    "isoDayOfWeek",
    "timezone",
];

/// Where the time zone stands in [`FROM_PARTS`].
const ZONE: usize = 10;

/// Arguments: in the order of [`FROM_PARTS`].
fn parse_from_parts(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::Document(doc) = argument else {
        bail!(40519, "$dateFromParts only supports an object as its argument");
    };
    let mut args: Vec<Expr> = FROM_PARTS.iter().map(|_| Expr::absent()).collect();
    for element in doc.iter() {
        match FROM_PARTS.iter().position(|name| *name == element.key()) {
            Some(at) => args[at] = Expr::parse(element.value(), cx)?,
            None => bail!(40518, "Unrecognized argument to $dateFromParts: {}", element.key()),
        }
    }
    let has = |at: usize| !args[at].is_absent();
    if !has(0) && !has(7) {
        bail!(40516, "$dateFromParts requires either 'year' or 'isoWeekYear' to be present");
    }
    if has(0) && (has(7) || has(8) || has(9)) {
        bail!(40489, "$dateFromParts does not allow mixing natural dates with ISO dates");
    }
    if has(7) && (has(1) || has(2)) {
        bail!(40525, "$dateFromParts does not allow mixing ISO dates with natural dates");
    }
    if known_zone(op, &args, ZONE, cx) {
        return Ok(Expr::null());
    }
    Ok(Expr::call(op, args, State::None, cx))
}

fn serialize_from_parts<'a>(call: &'a Call, arena: &'a Bump) -> Value<'a> {
    Value::Document(document_in(arena, |out| {
        for (name, arg) in FROM_PARTS.iter().zip(&call.args) {
            if !arg.is_absent() {
                out.append(name, arg.serialize(arena));
            }
        }
    }))
}

/// One part: its default if absent; `None` if null.
fn part_value<'a>(call: &'a Call, at: usize, default: i64, cx: Cx<'a, '_>) -> Result<Option<i64>> {
    if !call.has(at) {
        return Ok(Some(default));
    }
    let value = call.arg(at, cx)?;
    if value.is_nullish() {
        return Ok(None);
    }
    let name = FROM_PARTS[at];
    match value.as_exact_i64() {
        // Seconds and milliseconds may be many, and the year has bounds of its own; the parts between them are bounded.
        Some(n) if matches!(at, 0 | 5 | 6 | 7) || i16::try_from(n).is_ok() => Ok(Some(n)),
        Some(n) => {
            bail!(
                31034,
                "'{name}' must evaluate to a value in the range [-32768, 32767]; value {n} is not in range"
            )
        }
        None => bail!(
            40515,
            "'{name}' must evaluate to an integer, found {} with value {}",
            value.type_name(),
            show(value)
        ),
    }
}

fn date_from_parts<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let iso = call.has(7);
    let first = if iso { 7 } else { 0 };
    // The time of day comes first, then the zone, then the day: which of several errors is told, or null, depends on it.
    let mut parts = [0; 7];
    for at in [3, 4, 5, 6] {
        match part_value(call, at, 0, cx)? {
            Some(n) => parts[at] = n,
            None => return Ok(Value::Null),
        }
    }
    let Some(zone) = zone_of(call, ZONE, cx)? else { return Ok(Value::Null) };
    for at in [0, 1, 2] {
        match part_value(call, first + at, 1, cx)? {
            Some(n) => parts[at] = n,
            None => return Ok(Value::Null),
        }
    }
    if !(1..=9999).contains(&parts[0]) {
        let code = Code(if iso { 31095 } else { 40523 });
        bail!(
            code,
            "'{}' must evaluate to an integer in the range 1 to 9999, found {}",
            FROM_PARTS[first],
            parts[0]
        );
    }
    let [year, month, day, hour, minute, second, millis] = parts;
    let time_of_day = Civil { year: 1970, month: 1, day: 1, hour, minute, second, millis }.to_millis();
    let days = if iso {
        time::iso_year_start(year) + (month - 1) * 7 + day - 1
    } else {
        sheaf_bson::calendar::days_from_civil(year, month, 1) + day - 1
    };
    match time_of_day.and_then(|time| days.checked_mul(time::MILLIS_PER_DAY)?.checked_add(time)) {
        Some(local) => Ok(Value::DateTime(zone.to_utc(local))),
        None => bail!(
            Code::DURATION_OVERFLOW,
            "Overflow casting from a lower-precision duration to a higher-precision duration"
        ),
    }
}
