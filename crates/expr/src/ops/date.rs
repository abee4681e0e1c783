//! Dates from and to text: `$dateToString`, `$dateFromString`.

use std::fmt::Write;

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use super::date_parts::{known_zone, serialize_named, zone_of};
use super::show;
use crate::context::ParseCx;
use crate::date_text::{self, Parsed};
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Named, Operator, State, custom};
use crate::parse::parse_named;
use crate::time::{self, Civil, Zone};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$dateToString", |op, argument, cx| parse(op, &TO_STRING, argument, cx), date_to_string)
        .serialized(|call, arena| serialize_named(&TO_STRING, call, arena)),
    custom("$dateFromString", |op, argument, cx| parse(op, &FROM_STRING, argument, cx), date_from_string)
        .serialized(|call, arena| serialize_named(&FROM_STRING, call, arena)),
];

/// Where the time zone stands in both.
const ZONE: usize = 2;

fn parse(op: &'static Operator, spec: &'static Named, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_named(op.name, spec, argument, cx)?;
    // A null zone is left to the evaluation, where what `onNull` says comes first.
    known_zone(op, &args, ZONE, cx);
    Ok(Expr::call(op, args, State::None, cx))
}

static TO_STRING: Named = Named {
    fields: &[("date", 18628), ("format", 0), ("timezone", 0), ("onNull", 0)],
    not_object: 18629,
    unknown: 18534,
};

static FROM_STRING: Named = Named {
    fields: &[("dateString", 40542), ("format", 0), ("timezone", 0), ("onNull", 0), ("onError", 0)],
    not_object: 40540,
    unknown: 40541,
};

/// What `$dateToString` prints if no format is given, for UTC and for other zones.
const UTC_FORMAT: &str = "%Y-%m-%dT%H:%M:%S.%LZ";
const LOCAL_FORMAT: &str = "%Y-%m-%dT%H:%M:%S.%L";

/// An optional argument's value, null if it is not given.
fn optional<'a>(call: &'a Call, at: usize, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    if call.has(at) { call.arg(at, cx) } else { Ok(Value::Null) }
}

fn date_to_string<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let date = call.arg(0, cx)?;
    let format = match optional(call, 1, cx)? {
        Value::String(format) => {
            check_format(format)?;
            Some(format)
        }
        value if value.is_nullish() => None,
        other => bail!(
            18533,
            "$dateToString requires that 'format' be a string, found: {} with value {}",
            other.type_name(),
            show(other)
        ),
    };
    let zone = zone_of(call, ZONE, cx)?;
    if date.is_nullish() {
        return optional(call, 3, cx);
    }
    let Some(zone) = zone else { return Ok(Value::Null) };
    let format = match format {
        Some(format) => format,
        None if call.has(1) => return Ok(Value::Null),
        None if zone.is_utc() => UTC_FORMAT,
        None => LOCAL_FORMAT,
    };
    let text = print(format, time::require_date(date)?, &zone)?;
    Ok(cx.env.text(&text))
}

fn check_format(format: &str) -> Result<()> {
    sheaf_meter::tick_for(format.len())?;
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        match chars.next() {
            None => bail!(18535, "Unmatched '%' at end of format string"),
            Some(c) if "%bBdGHjLmMSuUVwYzZ".contains(c) => {}
            Some(c) => bail!(18536, "Invalid format character '%{c}' in format string"),
        }
    }
    Ok(())
}

/// Prints a date by a checked format.
fn print(format: &str, date: i64, zone: &Zone) -> Result<String> {
    let c = zone.civil(date);
    let mut out = String::with_capacity(32);
    let mut chars = format.chars();
    while let Some(letter) = chars.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        sheaf_meter::tick(2)?;
        // Writing to a String does not fail.
        _ = match chars.next().unwrap_or('%') {
            'd' => write!(out, "{:02}", c.day),
            'G' => write!(out, "{:04}", printable_year(c.iso_week().0)?),
            'H' => write!(out, "{:02}", c.hour),
            'j' => write!(out, "{:03}", c.day_of_year()),
            'L' => write!(out, "{:03}", c.millis),
            'm' => write!(out, "{:02}", c.month),
            'M' => write!(out, "{:02}", c.minute),
            'S' => write!(out, "{:02}", c.second),
            'u' => write!(out, "{}", c.iso_day_of_week()),
            'U' => write!(out, "{:02}", c.week()),
            'V' => write!(out, "{:02}", c.iso_week().1),
            'w' => write!(out, "{}", c.day_of_week()),
            'Y' => write!(out, "{:04}", printable_year(c.year)?),
            'b' => write!(out, "{}", &date_text::MONTHS[c.month as usize - 1][..3]),
            'B' => write!(out, "{}", date_text::MONTHS[c.month as usize - 1]),
            'z' => {
                let minutes = zone.offset_at(date) / 60;
                let sign = if minutes < 0 { '-' } else { '+' };
                write!(out, "{sign}{:02}{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
            'Z' => write!(out, "{}", zone.offset_at(date) / 60),
            other => write!(out, "{other}"),
        };
    }
    Ok(out)
}

fn printable_year(year: i64) -> Result<i64> {
    if !(0..=9999).contains(&year) {
        bail!(18537, "$dateToString is only defined on year 0-9999, tried to use year {year}");
    }
    Ok(year)
}

/// The date in its standard form, as conversions to string print it.
pub(super) fn standard_text(date: i64) -> Result<String> {
    print(UTC_FORMAT, date, &Zone::Utc)
}

fn date_from_string<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let text = call.arg(0, cx)?;
    let format = match optional(call, 1, cx)? {
        Value::String(format) => {
            date_text::check_format(format)?;
            Some(format)
        }
        value if value.is_nullish() => None,
        other => bail!(
            40684,
            "$dateFromString requires that 'format' be a string, found: {} with value {}",
            other.type_name(),
            show(other)
        ),
    };
    let zone = zone_of(call, ZONE, cx)?;
    if text.is_nullish() {
        return optional(call, 3, cx);
    }
    // What is no string fails before a null zone or format counts.
    let null = zone.is_none() || (call.has(1) && format.is_none());
    if null && text.as_str().is_some() {
        return Ok(Value::Null);
    }
    let given = if call.has(ZONE) { zone } else { None };
    match parse_date(text, format, given) {
        Ok(date) => Ok(Value::DateTime(date)),
        Err(error) if error.code() == Code::CONVERSION_FAILURE && call.has(4) => call.arg(4, cx),
        Err(error) => Err(error),
    }
}

fn parse_date(value: Value<'_>, format: Option<&str>, zone: Option<Zone>) -> Result<i64> {
    let Value::String(text) = value else {
        bail!(
            Code::CONVERSION_FAILURE,
            "$dateFromString requires that 'dateString' be a string, found: {} with value {}",
            value.type_name(),
            show(value)
        );
    };
    let parsed = match format {
        Some(format) => date_text::parse_by(text, format),
        None => date_text::parse(text),
    };
    let Parsed { local, zone: own } = match parsed {
        Ok(parsed) => parsed,
        Err(reason) => bail!(Code::CONVERSION_FAILURE, "Error parsing date string '{text}'; {reason}"),
    };
    match (own, zone) {
        (Some(_), Some(given)) if !given.is_utc() => bail!(
            Code::CONVERSION_FAILURE,
            "you cannot pass in a date/time string with time zone information together with a timezone argument"
        ),
        (Some(zone), _) | (None, Some(zone)) => Ok(zone.to_utc(local)),
        (None, None) => Ok(local),
    }
}

/// The date that a string stands for in conversions.
pub(super) fn date_of_text(text: &str) -> Result<i64> {
    if text.starts_with(char::is_whitespace) {
        return Err(super::convert::failure(format!(
            "Error parsing date string '{text}'; 0: Unexpected character ' '"
        )));
    }
    parse_date(Value::String(text), None, None)
}

/// Checks that calendar parts are what they claim, for text that names a date.
pub(crate) fn checked_millis(c: Civil) -> Option<i64> {
    let fits = (1..=12).contains(&c.month)
        && (1..=time::days_in_month(c.year, c.month)).contains(&c.day)
        && (0..24).contains(&c.hour)
        && (0..60).contains(&c.minute)
        && (0..60).contains(&c.second);
    if fits { c.to_millis() } else { None }
}
