//! Dates by units: `$dateAdd`, `$dateSubtract`, `$dateDiff`, `$dateTrunc`.

use sheaf_bson::Value;
use sheaf_bson::calendar::days_from_civil;
use sheaf_errors::{Code, Result, bail};

use super::date_parts::{all_known, known_zone, serialize_named, zone_of};
use super::show;
use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Named, Operator, State, custom};
use crate::parse::parse_named;
use crate::time::{self, Civil, MILLIS_PER_DAY, MILLIS_PER_HOUR, MILLIS_PER_MINUTE, MILLIS_PER_SECOND, Zone};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$dateAdd", |op, argument, cx| parse(op, &ADD, argument, cx), |call, cx| date_add(call, cx, 1))
        .serialized(|call, arena| serialize_named(&ADD, call, arena)),
    custom(
        "$dateSubtract",
        |op, argument, cx| parse(op, &ADD, argument, cx),
        |call, cx| date_add(call, cx, -1),
    )
    .serialized(|call, arena| serialize_named(&ADD, call, arena)),
    custom("$dateDiff", |op, argument, cx| parse(op, &DIFF, argument, cx), date_diff)
        .serialized(|call, arena| serialize_named(&DIFF, call, arena)),
    custom("$dateTrunc", |op, argument, cx| parse(op, &TRUNC, argument, cx), date_trunc)
        .serialized(|call, arena| serialize_named(&TRUNC, call, arena)),
];

static ADD: Named = Named {
    fields: &[("startDate", 5166402), ("unit", 5166402), ("amount", 5166402), ("timezone", 0)],
    not_object: 5166400,
    unknown: 5166401,
};

static DIFF: Named = Named {
    fields: &[
        ("startDate", 5166303),
        ("endDate", 5166304),
        ("unit", 5166305),
        ("timezone", 0),
        ("startOfWeek", 0),
    ],
    not_object: 5166301,
    unknown: 5166302,
};

static TRUNC: Named = Named {
    fields: &[("date", 5439009), ("unit", 5439010), ("binSize", 0), ("timezone", 0), ("startOfWeek", 0)],
    not_object: 5439007,
    unknown: 5439008,
};

fn parse(op: &'static Operator, spec: &'static Named, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let args = parse_named(op.name, spec, argument, cx)?;
    match known_null(op, spec, &args, cx) {
        Ok(true) => return Ok(Expr::null()),
        Ok(false) => {}
        Err(error) => cx.fold_failed(error),
    }
    Ok(Expr::call(op, args, State::None, cx))
}

/// Looks at the arguments that are known while others are not, as MongoDB does while it optimises: what is wrong with them is
/// found whatever the documents hold, and a null makes the whole null before the dates are looked at.
fn known_null(op: &Operator, spec: &Named, args: &[Expr], cx: &mut ParseCx) -> Result<bool> {
    if all_known(args) {
        return Ok(false);
    }
    let known = |name: &str| {
        let at = spec.fields.iter().position(|(field, _)| *field == name)?;
        args[at].constant()
    };
    if let Some(unit) = known("unit") {
        if unit.is_nullish() {
            return Ok(true);
        }
        unit_of(op.name, unit)?;
    }
    if let Some(day) = known("startOfWeek")
        && first_day(op.name, day)?.is_none()
    {
        return Ok(true);
    }
    let zone = spec.fields.iter().position(|(field, _)| *field == "timezone");
    if zone.is_some_and(|at| known_zone(op, args, at, cx)) {
        return Ok(true);
    }
    match known("binSize") {
        Some(size) => Ok(bin_size(size)?.is_none()),
        None => Ok(false),
    }
}

/// A unit of time, by its name in MongoDB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Unit {
    Year,
    Quarter,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
    Millisecond,
}

impl Unit {
    /// The unit of this name.
    pub fn of(name: &str) -> Option<Unit> {
        Some(match name {
            "year" => Unit::Year,
            "quarter" => Unit::Quarter,
            "month" => Unit::Month,
            "week" => Unit::Week,
            "day" => Unit::Day,
            "hour" => Unit::Hour,
            "minute" => Unit::Minute,
            "second" => Unit::Second,
            "millisecond" => Unit::Millisecond,
            _ => return None,
        })
    }

    /// The unit's length in milliseconds; `None` for a unit of varying length.
    pub fn fixed_millis(self) -> Option<i64> {
        self.months().is_none().then(|| self.millis())
    }

    /// The date that many units later, in UTC; `None` if no date can say it.
    pub fn add_to(self, date: i64, amount: i64) -> Option<i64> {
        add_units(date, self, amount, &Zone::Utc)
    }

    /// The unit's length, for units of fixed length.
    fn millis(self) -> i64 {
        match self {
            Unit::Week => 7 * MILLIS_PER_DAY,
            Unit::Day => MILLIS_PER_DAY,
            Unit::Hour => MILLIS_PER_HOUR,
            Unit::Minute => MILLIS_PER_MINUTE,
            Unit::Second => MILLIS_PER_SECOND,
            _ => 1,
        }
    }

    /// The unit's length in months, for units of varying length.
    fn months(self) -> Option<i64> {
        match self {
            Unit::Year => Some(12),
            Unit::Quarter => Some(3),
            Unit::Month => Some(1),
            _ => None,
        }
    }
}

fn date_add<'a>(call: &'a Call, cx: Cx<'a, '_>, sign: i64) -> Result<Value<'a>> {
    let name = call.op.name;
    let (start, unit) = (call.arg(0, cx)?, call.arg(1, cx)?);
    if start.is_nullish() || unit.is_nullish() {
        return Ok(Value::Null);
    }
    let unit = unit_of(name, unit)?;
    let amount = call.arg(2, cx)?;
    if amount.is_nullish() {
        return Ok(Value::Null);
    }
    let Some(zone) = zone_of(call, 3, cx)? else { return Ok(Value::Null) };
    let Some(start) = time::date_of(start) else {
        bail!(5166403, "{name} requires startDate to be convertible to a date");
    };
    let Some(amount) = amount.as_exact_i64() else {
        bail!(5166405, "{name} expects integer amount of time units");
    };
    if sign < 0 && amount == i64::MIN {
        bail!(6045000, "invalid $dateSubtract 'amount' parameter value: {amount}");
    }
    let amount = amount * sign;
    // Past this many units no date is representable, and the calendar arithmetic could overflow.
    let bound = match unit {
        Unit::Millisecond => i64::MAX,
        Unit::Year | Unit::Quarter | Unit::Month => 12 * 300_000_000,
        other => i64::MAX / other.millis(),
    };
    if !(-bound..=bound).contains(&amount) {
        bail!(5976500, "invalid {name} 'amount' parameter value: {amount} {unit:?}");
    }
    match add_units(start, unit, amount, &zone) {
        Some(date) => Ok(Value::DateTime(date)),
        None => bail!(5166406, "{name} overflowed"),
    }
}

/// Adds to the local time for days and longer units, to the moment for shorter ones.
fn add_units(date: i64, unit: Unit, amount: i64, zone: &Zone) -> Option<i64> {
    if let Some(months) = unit.months() {
        let local = zone.civil(date);
        let month = local.month - 1 + amount.checked_mul(months)?;
        let (year, month) = (local.year + month.div_euclid(12), month.rem_euclid(12) + 1);
        // The 31st of a month becomes the last day of a shorter one.
        let day = local.day.min(time::days_in_month(year, month));
        return Some(zone.to_utc(Civil { year, month, day, ..local }.to_millis()?));
    }
    let more = amount.checked_mul(unit.millis())?;
    match unit {
        Unit::Week | Unit::Day if !zone.is_utc() => Some(zone.to_utc(zone.to_local(date).checked_add(more)?)),
        _ => date.checked_add(more),
    }
}

/// The argument `unit`; null was handled by the caller.
fn unit_of(name: &str, value: Value<'_>) -> Result<Unit> {
    let Value::String(text) = value else {
        bail!(5439013, "{name} requires 'unit' to be a string, but got {}", value.type_name());
    };
    match Unit::of(text) {
        Some(unit) => Ok(unit),
        None => bail!(Code::FAILED_TO_PARSE, "unknown time unit value: {text}"),
    }
}

/// The argument `startOfWeek` as days after Monday; only weeks look at it.
fn start_of_week<'a>(call: &'a Call, at: usize, unit: Unit, cx: Cx<'a, '_>) -> Result<Option<i64>> {
    if unit != Unit::Week || !call.has(at) {
        return Ok(Some(6));
    }
    first_day(call.op.name, call.arg(at, cx)?)
}

/// A day of the week as days after Monday; `None` for null.
fn first_day(name: &str, value: Value<'_>) -> Result<Option<i64>> {
    let text = match value {
        Value::String(text) => text,
        value if value.is_nullish() => return Ok(None),
        other => {
            bail!(5439015, "{name} requires 'startOfWeek' to be a string, but got {}", other.type_name())
        }
    };
    let lower = text.to_ascii_lowercase();
    const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    match DAYS.iter().position(|day| lower == *day || lower == day[..3]) {
        Some(day) => Ok(Some(day as i64)),
        None => bail!(
            5439016,
            "{name} parameter 'startOfWeek' value cannot be recognized as a day of a week: {text}"
        ),
    }
}

fn date_diff<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let (start, end, unit) = (call.arg(0, cx)?, call.arg(1, cx)?, call.arg(2, cx)?);
    if start.is_nullish() || end.is_nullish() || unit.is_nullish() {
        return Ok(Value::Null);
    }
    let unit = unit_of("$dateDiff", unit)?;
    let Some(first_day) = start_of_week(call, 4, unit, cx)? else { return Ok(Value::Null) };
    let Some(zone) = zone_of(call, 3, cx)? else { return Ok(Value::Null) };
    let date = |value: Value<'_>, which: &str| match time::date_of(value) {
        Some(date) => Ok(date),
        None => bail!(5166307, "$dateDiff requires '{which}' to be a date, but got {}", value.type_name()),
    };
    let (start, end) = (date(start, "startDate")?, date(end, "endDate")?);
    let between = |count: &dyn Fn(i64) -> i64| count(end) - count(start);
    let difference = match unit {
        Unit::Year => between(&|at| zone.civil(at).year),
        Unit::Quarter => between(&|at| zone.civil(at).year * 4 + (zone.civil(at).month - 1) / 3),
        Unit::Month => between(&|at| zone.civil(at).year * 12 + zone.civil(at).month),
        Unit::Week => between(&|at| {
            // Day 0 was a Thursday, the third day after Monday.
            (zone.to_local(at).div_euclid(MILLIS_PER_DAY) + 3 - first_day).div_euclid(7)
        }),
        Unit::Day => between(&|at| zone.to_local(at).div_euclid(MILLIS_PER_DAY)),
        // Changes of the offset by whole hours must not count as hours gone by.
        Unit::Hour => between(&|at| {
            let odd = zone.offset_at(at).rem_euclid(3600) * MILLIS_PER_SECOND;
            at.saturating_add(odd).div_euclid(MILLIS_PER_HOUR)
        }),
        Unit::Minute | Unit::Second => between(&|at| at.div_euclid(unit.millis())),
        Unit::Millisecond => match end.checked_sub(start) {
            Some(difference) => difference,
            None => bail!(Code::DURATION_OVERFLOW, "$dateDiff overflowed"),
        },
    };
    Ok(Value::Int64(difference))
}

/// The argument `binSize`; `None` for null.
fn bin_size(value: Value<'_>) -> Result<Option<i64>> {
    match value.as_exact_i64() {
        _ if value.is_nullish() => Ok(None),
        Some(n) if n > 0 => Ok(Some(n)),
        Some(n) => {
            bail!(5439018, "$dateTrunc requires 'binSize' to be greater than 0, but got value {n}")
        }
        None => bail!(
            5439017,
            "$dateTrunc requires 'binSize' to be a 64-bit integer, but got value '{}' of type {}",
            show(value),
            value.type_name()
        ),
    }
}

fn date_trunc<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let date = call.arg(0, cx)?;
    if date.is_nullish() {
        return Ok(Value::Null);
    }
    let bin = if call.has(2) { bin_size(call.arg(2, cx)?)? } else { Some(1) };
    let Some(bin) = bin else { return Ok(Value::Null) };
    let unit = call.arg(1, cx)?;
    if unit.is_nullish() {
        return Ok(Value::Null);
    }
    let unit = unit_of("$dateTrunc", unit)?;
    let Some(first_day) = start_of_week(call, 4, unit, cx)? else { return Ok(Value::Null) };
    let Some(zone) = zone_of(call, 3, cx)? else { return Ok(Value::Null) };
    let Some(date) = time::date_of(date) else {
        bail!(5166307, "$dateTrunc requires 'date' to be a date, but got {}", date.type_name());
    };
    match truncate(date, unit, bin, first_day, &zone) {
        Some(date) => Ok(Value::DateTime(date)),
        None if unit.months().is_some() => {
            bail!(5439006, "$dateTrunc unsupported binSize value {bin} for unit")
        }
        None => bail!(5439002, "$dateTrunc unsupported binSize value {bin} for unit"),
    }
}

/// The start of the bin in which `date` lies; bins are counted from the start of the year 2000.
fn truncate(date: i64, unit: Unit, bin: i64, first_day: i64, zone: &Zone) -> Option<i64> {
    if let Some(months) = unit.months() {
        let size = bin.checked_mul(months).filter(|size| *size <= 12 * 300_000_000)?;
        let local = zone.civil(date);
        let since = (local.year - 2000) * 12 + local.month - 1;
        let month = since.div_euclid(size) * size;
        // A bin of millions of years may start before the first date there is.
        return Some(zone.to_utc(days_from_civil(2000, month + 1, 1).checked_mul(MILLIS_PER_DAY)?));
    }
    let size = bin.checked_mul(unit.millis())?;
    let reference_day = days_from_civil(2000, 1, 1);
    let reference = match unit {
        // The first day of a week at or after January 1st, a Saturday.
        Unit::Week => (reference_day + (first_day - 5).rem_euclid(7)) * MILLIS_PER_DAY,
        _ => reference_day * MILLIS_PER_DAY,
    };
    match unit {
        Unit::Week | Unit::Day => {
            let since = zone.to_local(date).checked_sub(reference)?;
            Some(zone.to_utc(since.div_euclid(size).checked_mul(size)?.checked_add(reference)?))
        }
        _ => {
            // Shorter bins are counted in elapsed time from the local start of 2000.
            let reference = zone.to_utc(reference);
            let since = date.checked_sub(reference)?;
            since.div_euclid(size).checked_mul(size)?.checked_add(reference)
        }
    }
}
