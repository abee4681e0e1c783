//! Calendar arithmetic on milliseconds since the epoch, and time zones.
//!
//! BSON dates reach far beyond the years that calendar libraries know, so that the arithmetic is done here;
//! jiff tells the offsets of named zones.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use sheaf_bson::Value;
use sheaf_bson::calendar::{civil_from_days, days_from_civil};
use sheaf_errors::{Result, bail};

pub(crate) const MILLIS_PER_SECOND: i64 = 1000;
pub(crate) const MILLIS_PER_MINUTE: i64 = 60 * MILLIS_PER_SECOND;
pub(crate) const MILLIS_PER_HOUR: i64 = 60 * MILLIS_PER_MINUTE;
pub(crate) const MILLIS_PER_DAY: i64 = 24 * MILLIS_PER_HOUR;

/// A moment in calendar terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Civil {
    pub(crate) year: i64,
    /// 1 to 12.
    pub(crate) month: i64,
    /// 1 to 31.
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) millis: i64,
}

/// The length of a month.
pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    days_from_civil(year, month + 1, 1) - days_from_civil(year, month, 1)
}

impl Civil {
    /// The calendar parts of milliseconds of local time.
    pub(crate) fn of(local_millis: i64) -> Civil {
        let (year, month, day) = civil_from_days(local_millis.div_euclid(MILLIS_PER_DAY));
        let rest = local_millis.rem_euclid(MILLIS_PER_DAY);
        Civil {
            year,
            month,
            day,
            hour: rest / MILLIS_PER_HOUR,
            minute: rest / MILLIS_PER_MINUTE % 60,
            second: rest / MILLIS_PER_SECOND % 60,
            millis: rest % MILLIS_PER_SECOND,
        }
    }

    /// Milliseconds of local time; parts out of range carry over. `None` if that leaves 64 bits.
    pub(crate) fn to_millis(self) -> Option<i64> {
        days_from_civil(self.year, self.month, 1)
            .checked_add(self.day - 1)?
            .checked_mul(MILLIS_PER_DAY)?
            .checked_add(self.hour.checked_mul(MILLIS_PER_HOUR)?)?
            .checked_add(self.minute.checked_mul(MILLIS_PER_MINUTE)?)?
            .checked_add(self.second.checked_mul(MILLIS_PER_SECOND)?)?
            .checked_add(self.millis)
    }

    fn days(&self) -> i64 {
        days_from_civil(self.year, self.month, self.day)
    }

    /// 1 to 366.
    pub(crate) fn day_of_year(&self) -> i64 {
        self.days() - days_from_civil(self.year, 1, 1) + 1
    }

    /// 1 (Sunday) to 7 (Saturday).
    pub(crate) fn day_of_week(&self) -> i64 {
        (self.days() + 4).rem_euclid(7) + 1
    }

    /// 1 (Monday) to 7 (Sunday).
    pub(crate) fn iso_day_of_week(&self) -> i64 {
        (self.days() + 3).rem_euclid(7) + 1
    }

    /// Weeks begin on Sundays; days before the first Sunday are in week 0.
    pub(crate) fn week(&self) -> i64 {
        (self.day_of_year() + 7 - self.day_of_week()) / 7
    }

    /// The ISO 8601 year and week.
    pub(crate) fn iso_week(&self) -> (i64, i64) {
        // A week belongs to the year of its Thursday.
        let thursday = self.days() - self.iso_day_of_week() + 4;
        let (year, ..) = civil_from_days(thursday);
        (year, (thursday - days_from_civil(year, 1, 1)) / 7 + 1)
    }
}

/// The day number of the Monday of ISO week 1.
pub(crate) fn iso_year_start(year: i64) -> i64 {
    // January 4th is always in week 1.
    let fourth = days_from_civil(year, 1, 4);
    fourth - (fourth + 3).rem_euclid(7)
}

/// `2024-01-02T03:04:05.006Z`.
pub(crate) fn iso_string(millis: i64) -> String {
    let c = Civil::of(millis);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        c.year, c.month, c.day, c.hour, c.minute, c.second, c.millis
    )
}

/// A time zone.
#[derive(Clone, Debug)]
pub(crate) enum Zone {
    Utc,
    /// Fixed, in seconds east of Greenwich.
    Offset(i64),
    Named(TimeZone),
}

impl Zone {
    /// Parses an Olson name (`Europe/London`) or an offset (`+05:30`, `-0800`, `+03`).
    pub(crate) fn parse(text: &str) -> Result<Zone> {
        if text == "UTC" {
            return Ok(Zone::Utc);
        }
        if let Some(offset) = parse_offset(text) {
            return Ok(Zone::Offset(offset));
        }
        let known = if text.is_empty() { None } else { bundled().get(text).ok() };
        match known {
            // jiff does not care for case, MongoDB does.
            Some(zone) if zone.iana_name() == Some(text) => Ok(Zone::Named(zone)),
            _ => bail!(40485, "unrecognized time zone identifier: \"{text}\""),
        }
    }

    /// The zone of an evaluated `timezone` argument; `None` for a null one.
    pub(crate) fn of_value(name: &str, value: Value<'_>) -> Result<Option<Zone>> {
        match value {
            Value::String(text) => Zone::parse(text).map(Some),
            value if value.is_nullish() => Ok(None),
            other => bail!(40517, "{name} timezone must evaluate to a string, found {}", other.type_name()),
        }
    }

    /// Whether this is UTC itself; the zone that is called GMT counts as another.
    pub(crate) fn is_utc(&self) -> bool {
        matches!(self, Zone::Utc | Zone::Offset(0))
    }

    /// Seconds east of Greenwich at a moment.
    pub(crate) fn offset_at(&self, millis: i64) -> i64 {
        match self {
            Zone::Utc => 0,
            Zone::Offset(seconds) => *seconds,
            Zone::Named(zone) => {
                let clamped = millis.clamp(MIN_JIFF_MILLIS, MAX_JIFF_MILLIS);
                let moment =
                    jiff::Timestamp::from_millisecond(clamped).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
                i64::from(zone.to_offset(moment).seconds())
            }
        }
    }

    /// Milliseconds of local time at a moment.
    pub(crate) fn to_local(&self, millis: i64) -> i64 {
        millis.saturating_add(self.offset_at(millis) * MILLIS_PER_SECOND)
    }

    /// The moment of a local time: the first of two in a fold; in a gap, as if the old offset went on.
    pub(crate) fn to_utc(&self, local: i64) -> i64 {
        let before = self.offset_at(local.saturating_sub(MILLIS_PER_DAY)) * MILLIS_PER_SECOND;
        let after = self.offset_at(local.saturating_add(MILLIS_PER_DAY)) * MILLIS_PER_SECOND;
        let first = local.saturating_sub(before);
        let second = local.saturating_sub(after);
        let fits = |utc: i64, offset: i64| self.offset_at(utc) * MILLIS_PER_SECOND == offset;
        if before == after || fits(first, before) || !fits(second, after) { first } else { second }
    }

    pub(crate) fn civil(&self, millis: i64) -> Civil {
        Civil::of(self.to_local(millis))
    }
}

/// Years -9998 and 9998: jiff's bounds, with room for any offset.
const MIN_JIFF_MILLIS: i64 = -377_673_580_800_000;
const MAX_JIFF_MILLIS: i64 = 253_370_764_800_000;

fn bundled() -> &'static TimeZoneDatabase {
    static DATABASE: std::sync::LazyLock<TimeZoneDatabase> =
        std::sync::LazyLock::new(TimeZoneDatabase::bundled);
    &DATABASE
}

/// `+hh`, `+hhmm` or `+hh:mm`, in seconds.
pub(crate) fn parse_offset(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes().split_first()? {
        (b'+', rest) => (1, rest),
        (b'-', rest) => (-1, rest),
        _ => return None,
    };
    let number = |bytes: &[u8]| {
        let digits = bytes.iter().all(u8::is_ascii_digit) && !bytes.is_empty();
        digits.then(|| bytes.iter().fold(0i64, |n, b| n * 10 + i64::from(b - b'0')))
    };
    let (hours, minutes) = match digits.len() {
        2 => (number(digits)?, 0),
        4 => (number(&digits[..2])?, number(&digits[2..])?),
        5 if digits[2] == b':' => (number(&digits[..2])?, number(&digits[3..])?),
        _ => return None,
    };
    Some(sign * (hours * 3600 + minutes * 60))
}

/// The moment that a date, timestamp or ObjectId stands for.
pub(crate) fn date_of(value: Value<'_>) -> Option<i64> {
    match value {
        Value::DateTime(millis) => Some(millis),
        Value::Timestamp(time) => Some(i64::from(time.seconds()) * MILLIS_PER_SECOND),
        Value::ObjectId(id) => {
            // Signed: an ObjectId whose first bit is set is of before 1970.
            let seconds = i32::from_be_bytes([id.0[0], id.0[1], id.0[2], id.0[3]]);
            Some(i64::from(seconds) * MILLIS_PER_SECOND)
        }
        _ => None,
    }
}

/// Seconds as C's `ctime` gives them, without weekday and year: `Jan  1 00:00:00`.
pub(crate) fn short_text(seconds: u32) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let c = Civil::of(i64::from(seconds) * MILLIS_PER_SECOND);
    let month = MONTHS[(c.month - 1) as usize % 12];
    format!("{month} {:>2} {:02}:{:02}:{:02}", c.day, c.hour, c.minute, c.second)
}

/// Like [`date_of`], with MongoDB's error for other types.
pub(crate) fn require_date(value: Value<'_>) -> Result<i64> {
    match date_of(value) {
        Some(millis) => Ok(millis),
        None => bail!(16006, "can't convert from BSON type {} to Date", value.type_name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_have_their_days() {
        assert_eq!((days_in_month(2023, 2), days_in_month(2024, 2), days_in_month(2023, 12)), (28, 29, 31));
    }

    #[test]
    fn local_times_in_gaps_and_folds() {
        let zone = Zone::parse("America/New_York").unwrap();
        let local = |month, day, hour, minute| {
            Civil { year: 2024, month, day, hour, minute, second: 0, millis: 0 }.to_millis().unwrap()
        };
        // 02:30 does not exist on March 10th; 01:30 comes twice on November 3rd.
        assert_eq!(iso_string(zone.to_utc(local(3, 10, 2, 30))), "2024-03-10T07:30:00.000Z");
        assert_eq!(iso_string(zone.to_utc(local(11, 3, 1, 30))), "2024-11-03T05:30:00.000Z");
        assert!(Zone::parse("america/new_york").is_err());
        assert!(Zone::parse("+100:00").is_err());
    }

    #[test]
    fn iso_weeks_at_the_turn_of_years() {
        let of = |year, month, day| Civil { year, month, day, hour: 0, minute: 0, second: 0, millis: 0 };
        assert_eq!(of(2021, 1, 3).iso_week(), (2020, 53));
        assert_eq!(of(2024, 12, 30).iso_week(), (2025, 1));
        assert_eq!(of(2016, 1, 1).week(), 0);
        assert_eq!(of(2024, 6, 15).week(), 23);
    }
}
