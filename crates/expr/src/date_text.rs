//! Reading dates from text, freely or by a format.

use sheaf_errors::{Result, bail};

use crate::ops::checked_millis;
use crate::time::{self, Civil, Zone};

pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// A date read from text: local time, and the zone if the text names one.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) local: i64,
    pub(crate) zone: Option<Zone>,
}

/// Why text is no date.
type Reason = String;

/// Checks the letters of a format for reading.
pub(crate) fn check_format(format: &str) -> Result<()> {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            continue;
        }
        match chars.next() {
            None => bail!(18535, "Unmatched '%' at end of format string"),
            Some(c) if "%bBdGHjLmMSuVYzZ".contains(c) => {}
            Some(c) => bail!(18536, "Invalid format character '%{c}' in format string"),
        }
    }
    Ok(())
}

/// A reader of text from left to right.
struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    fn eat(&mut self, wanted: char) -> bool {
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Skips what stands between the parts of free text.
    fn skip_spaces(&mut self) {
        self.run(|c| matches!(c, ' ' | '\t' | '.' | ','));
    }

    /// The run of characters at the front of this kind.
    fn run(&mut self, kind: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !kind(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        self.rest = rest;
        run
    }

    fn digits(&mut self, min: usize, max: usize) -> Option<i64> {
        let available = self.rest.bytes().take(max).take_while(u8::is_ascii_digit).count();
        if available < min {
            return None;
        }
        let (digits, rest) = self.rest.split_at(available);
        self.rest = rest;
        digits.parse().ok()
    }

    /// A month by name or by its first three letters, in any case.
    fn month_name(&mut self) -> Option<i64> {
        let before = self.rest;
        let word = self.run(|c| c.is_ascii_alphabetic());
        if let Some(at) = ROMAN.iter().position(|month| *month == word) {
            return Some(at as i64 + 1);
        }
        let word = word.to_ascii_lowercase();
        let found = MONTHS.iter().position(|month| {
            let month = month.to_ascii_lowercase();
            word == month || word == month[..3] || (word == "sept" && month == "september")
        });
        if found.is_none() {
            self.rest = before;
        }
        found.map(|at| at as i64 + 1)
    }

    /// Digits of a fraction of a second, as milliseconds.
    fn fraction(&mut self) -> i64 {
        let digits = self.run(|c| c.is_ascii_digit());
        let mut millis = 0;
        for at in 0..3 {
            millis = millis * 10 + digits.as_bytes().get(at).map_or(0, |b| i64::from(b - b'0'));
        }
        millis
    }

    /// A number of at most so many digits, behind whatever else stands in front of it.
    fn next_number(&mut self, max: usize) -> Option<i64> {
        self.run(|c| !c.is_ascii_digit());
        self.digits(1, max)
    }

    /// `Z`, `+02:00`, `GMT`, `GMT+2`, `EST`, ...: offsets and abbreviations, but no names of places.
    fn zone(&mut self) -> Option<Zone> {
        self.run(|c| matches!(c, ' ' | '\t' | '('));
        if self.rest.starts_with("GMT+") || self.rest.starts_with("GMT-") {
            self.rest = &self.rest[3..];
        }
        let zone = match self.peek()? {
            '+' | '-' => {
                let before = self.rest;
                let sign = self.rest.as_bytes()[0];
                self.rest = &self.rest[1..];
                let digits = self.run(|c| c.is_ascii_digit() || c == ':').len();
                let text = &before[1..=digits];
                offset_text(text).map(|seconds| Zone::Offset(if sign == b'-' { -seconds } else { seconds }))
            }
            c if c.is_ascii_alphabetic() => {
                let name = self.run(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+'));
                abbreviated_zone(name)
            }
            _ => None,
        };
        self.run(|c| c == ')');
        zone
    }
}

/// The seconds of `5`, `05`, `530`, `0530`, `5:30` and `05:30`.
fn offset_text(text: &str) -> Option<i64> {
    let (hours, minutes) = match text.split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None if text.len() <= 2 => (text, "0"),
        None => text.split_at_checked(text.len() - 2)?,
    };
    if !(1..=2).contains(&hours.len()) || !(1..=2).contains(&minutes.len()) {
        return None;
    }
    Some(hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60)
}

/// The zone of an abbreviation; military letters are among them. MongoDB takes names of places only as `timezone`.
fn abbreviated_zone(name: &str) -> Option<Zone> {
    let name = name.to_ascii_uppercase();
    let minutes = match name.as_str() {
        "Z" | "UTC" | "GMT" | "WET" => return Some(Zone::Utc),
        "NST" => -210,
        "NDT" => -150,
        "ACST" => 570,
        "ACDT" => 630,
        "IST" => 120,
        _ => 60 * abbreviated_hours(&name)?,
    };
    Some(Zone::Offset(minutes * 60))
}

fn abbreviated_hours(name: &str) -> Option<i64> {
    Some(match name {
        "SST" => -11,
        "HST" => -10,
        "AKST" | "HDT" => -9,
        "PST" | "AKDT" => -8,
        "MST" | "PDT" => -7,
        "CST" | "MDT" => -6,
        "EST" | "CDT" => -5,
        "AST" | "EDT" => -4,
        "ADT" => -3,
        "CET" | "BST" | "WEST" | "WAT" => 1,
        "CEST" | "EET" | "CAT" | "SAST" => 2,
        "EEST" | "MSK" | "EAT" => 3,
        "MSD" => 4,
        "PKT" => 5,
        "WIB" => 7,
        "AWST" | "HKT" | "WITA" => 8,
        "JST" | "KST" | "WIT" => 9,
        "AEST" | "CHST" => 10,
        "AEDT" => 11,
        "NZST" => 12,
        "NZDT" => 13,
        _ => match name.as_bytes() {
            // J is the zone of whoever looks at the clock.
            [letter @ b'A'..=b'I'] => i64::from(letter - b'A') + 1,
            [letter @ b'K'..=b'M'] => i64::from(letter - b'K') + 10,
            [letter @ b'N'..=b'Y'] => -i64::from(letter - b'N') - 1,
            _ => return None,
        },
    })
}

/// Reads a date by a format; every character of the text must be used.
pub(crate) fn parse_by(text: &str, format: &str) -> Result<Parsed, Reason> {
    let mut at = Reader { rest: text };
    let (mut year, mut month, mut day) = (None, None, None);
    let (mut iso_year, mut iso_week, mut iso_day, mut day_of_year) = (None, None, None, None);
    let mut c = Civil { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0, millis: 0 };
    let mut zone = None;
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            if !at.eat(letter) {
                return Err(format!("Format literal not found '{letter}'"));
            }
            continue;
        }
        let wanted = letters.next().unwrap_or('%');
        let read = match wanted {
            // As in mongod's parser, numbers may be shorter than the manual says, but those of minutes and seconds.
            'd' => put(&mut day, at.digits(1, 2)),
            'm' => put(&mut month, at.digits(1, 2)),
            'Y' => put(&mut year, at.digits(1, 4)),
            'b' | 'B' => put(&mut month, at.month_name()),
            'G' => put(&mut iso_year, at.next_number(4)),
            'V' => put(&mut iso_week, at.next_number(2)),
            'u' => put(&mut iso_day, at.next_number(1)),
            'j' => put(&mut day_of_year, at.digits(1, 3)),
            'H' => set(&mut c.hour, at.digits(1, 2)),
            'M' => set(&mut c.minute, at.digits(2, 2)),
            'S' => set(&mut c.second, at.digits(2, 2)),
            'L' => match at.peek() {
                Some(digit) if digit.is_ascii_digit() => {
                    let length = at.rest.bytes().take(3).take_while(u8::is_ascii_digit).count();
                    let (digits, rest) = at.rest.split_at(length);
                    c.millis = Reader { rest: digits }.fraction();
                    at.rest = rest;
                    true
                }
                _ => false,
            },
            'z' => put(&mut zone, at.zone()),
            'Z' => put(&mut zone, offset_minutes(&mut at)),
            literal => at.eat(literal),
        };
        if !read {
            return Err(format!("text does not match '%{wanted}' at '{}'", at.rest));
        }
    }
    if !at.rest.is_empty() {
        return Err(format!("Trailing data '{}'", at.rest));
    }
    let days = resolve_day(year, month, day, (iso_year, iso_week, iso_day), day_of_year)?;
    let in_day = checked_millis(c).ok_or("a part of the time is out of range")?;
    Ok(Parsed { local: days * time::MILLIS_PER_DAY + in_day, zone })
}

fn put<T>(target: &mut Option<T>, value: Option<T>) -> bool {
    let read = value.is_some();
    if read {
        *target = value;
    }
    read
}

fn set(target: &mut i64, value: Option<i64>) -> bool {
    match value {
        Some(value) => {
            *target = value;
            true
        }
        None => false,
    }
}

/// `%Z`: minutes east of Greenwich.
fn offset_minutes(at: &mut Reader<'_>) -> Option<Zone> {
    let sign = if at.eat('-') {
        -1
    } else if at.eat('+') {
        1
    } else {
        return None;
    };
    at.digits(1, 9).map(|minutes| Zone::Offset(sign * minutes * 60))
}

type IsoDay = (Option<i64>, Option<i64>, Option<i64>);

/// The day that the date parts of a format name.
fn resolve_day(
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    iso: IsoDay,
    day_of_year: Option<i64>,
) -> Result<i64, Reason> {
    match (year, month, day, iso, day_of_year) {
        (Some(year), Some(month), Some(day), (None, None, None), None) => {
            checked_millis(Civil { year, month, day, hour: 0, minute: 0, second: 0, millis: 0 })
                .map(|millis| millis.div_euclid(time::MILLIS_PER_DAY))
                .ok_or_else(|| "The parsed date was invalid".to_owned())
        }
        // Read, days of the year count from 0 (printed, from 1), and run on into the next year.
        (Some(year), None, None, (None, None, None), Some(day)) => {
            Ok(sheaf_bson::calendar::days_from_civil(year, 1, 1) + day)
        }
        (None, None, None, (Some(year), week, day), None) => {
            let (week, day) = (week.unwrap_or(1), day.unwrap_or(1));
            if !(1..=53).contains(&week) || !(1..=7).contains(&day) {
                return Err("The parsed date was invalid".to_owned());
            }
            Ok(time::iso_year_start(year) + (week - 1) * 7 + day - 1)
        }
        _ => Err("an incomplete date/time string has been found, with elements missing".to_owned()),
    }
}

/// Reads a date in one of the customary forms.
pub(crate) fn parse(text: &str) -> Result<Parsed, Reason> {
    // mongod's parser takes zero bytes around a date for blanks.
    let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || matches!(c, '\0' | '\x0B'));
    let mut at = Reader { rest: text };
    if at.rest.is_empty() {
        return Err("Empty string".to_owned());
    }
    if let Some(seconds) = text.strip_prefix('@').and_then(|seconds| seconds.parse::<i64>().ok()) {
        let local = seconds.checked_mul(time::MILLIS_PER_SECOND).ok_or("Number out of range")?;
        return Ok(Parsed { local, zone: Some(Zone::Utc) });
    }
    if let Some(parsed) = read_year_last(text) {
        return Ok(parsed);
    }
    let mut c = Civil { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0, millis: 0 };
    let time_first = text.bytes().take_while(u8::is_ascii_digit).count() <= 2
        && text.trim_start_matches(|c: char| c.is_ascii_digit()).starts_with(':');
    if time_first {
        read_time(&mut at, &mut c).ok_or("Unexpected character")?;
        at.skip_spaces();
    }
    let Some(days) = read_day(&mut at) else {
        return Err(match names_no_day(text) {
            true => "The parsed date was invalid".to_owned(),
            false => "an incomplete date/time string has been found, with elements missing".to_owned(),
        });
    };
    let had_space = at.peek().is_some_and(|c| matches!(c, ' ' | '\t' | ','));
    at.skip_spaces();
    let marked = at.eat('T') || at.eat('t');
    at.skip_spaces();
    // Fourteen digits are a date and a time.
    let joined = text.len() == 14 && text.bytes().all(|b| b.is_ascii_digit());
    if at.peek().is_some_and(|c| c.is_ascii_digit()) && (marked || had_space || joined) && !time_first {
        read_time(&mut at, &mut c).ok_or("Unexpected character")?;
    } else if let Some(hour) = read_time_word(&mut at) {
        c.hour = hour;
    } else if marked {
        return Err("Unexpected character".to_owned());
    }
    at.skip_spaces();
    let zone = if at.rest.is_empty() {
        None
    } else {
        Some(at.zone().ok_or("The timezone could not be found in the database")?)
    };
    at.skip_spaces();
    if !at.rest.is_empty() {
        return Err(format!("Unexpected character '{}'", at.rest));
    }
    let in_day = checked_millis(c).ok_or("The parsed time was invalid")?;
    Ok(Parsed { local: days * time::MILLIS_PER_DAY + in_day, zone })
}

/// Whether text is a date, `2024-02-30` with what may stand behind, of a day that its month does not have.
fn names_no_day(text: &str) -> bool {
    let mut at = Reader { rest: text };
    let mut parts = || {
        let year = at.digits(4, 4)?;
        let month = if at.eat('-') { at.digits(1, 2)? } else { return None };
        let day = if at.eat('-') { at.digits(1, 2)? } else { return None };
        Some((year, month, day))
    };
    let Some((year, 0..=12, 0..=31)) = parts() else { return false };
    !at.peek().is_some_and(|c| c.is_ascii_digit()) && parse(&format!("{year:04}-01-01{}", at.rest)).is_ok()
}

/// `Wed Jan 31 12:05:28 +03:30 1996`: the form of C's `asctime` and of `date`, with the year last.
fn read_year_last(text: &str) -> Option<Parsed> {
    let mut at = Reader { rest: text };
    skip_weekday(&mut at);
    let month = at.month_name()?;
    at.skip_spaces();
    let day = at.digits(1, 2)?;
    at.skip_spaces();
    let mut c = Civil { year: 1970, month: 1, day: 1, hour: 0, minute: 0, second: 0, millis: 0 };
    // Without a colon this would be a year.
    if at.rest.find(':').is_none_or(|colon| colon > 2) {
        return None;
    }
    read_time(&mut at, &mut c)?;
    at.skip_spaces();
    let zone = if at.peek()?.is_ascii_digit() { None } else { Some(at.zone()?) };
    at.skip_spaces();
    let days = day_number(at.digits(4, 4)?, month, day)?;
    let in_day = checked_millis(c)?;
    at.rest.is_empty().then_some(Parsed { local: days * time::MILLIS_PER_DAY + in_day, zone })
}

fn day_number(year: i64, month: i64, day: i64) -> Option<i64> {
    checked_millis(Civil { year, month, day, hour: 0, minute: 0, second: 0, millis: 0 })
        .map(|millis| millis.div_euclid(time::MILLIS_PER_DAY))
}

/// The day of a year, counted from 1.
fn day_of_year(year: i64, day: i64) -> Option<i64> {
    let first = sheaf_bson::calendar::days_from_civil(year, 1, 1);
    (1..=366).contains(&day).then_some(first + day - 1)
}

/// A date at the front of the text, in any of the forms that are read. A weekday in front of it moves it on to that day.
fn read_day(at: &mut Reader<'_>) -> Option<i64> {
    let weekday = skip_weekday(at);
    let days = read_plain_day(at)?;
    // The first of January 1970 was a Thursday.
    Some(weekday.map_or(days, |weekday| days + (weekday - days - 3).rem_euclid(7)))
}

fn read_plain_day(at: &mut Reader<'_>) -> Option<i64> {
    if at.peek()?.is_ascii_alphabetic() {
        return read_month_first(at);
    }
    if at.peek() == Some('-') {
        return read_year_first(at);
    }
    let digits = at.rest.bytes().take_while(u8::is_ascii_digit).count();
    match digits {
        8 | 14 => day_number(at.digits(4, 4)?, at.digits(2, 2)?, at.digits(2, 2)?),
        7 => day_of_year(at.digits(4, 4)?, at.digits(3, 3)?),
        4 => read_year_first(at),
        1 | 2 => read_day_first(at),
        _ => None,
    }
}

/// `Tue, ` in front of a date: the days since Monday.
fn skip_weekday(at: &mut Reader<'_>) -> Option<i64> {
    let before = at.rest;
    let word = at.run(|c| c.is_ascii_alphabetic()).to_ascii_lowercase();
    const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let found = DAYS.iter().position(|day| word == *day || word == day[..3]);
    if found.is_some() {
        at.skip_spaces();
    } else {
        at.rest = before;
    }
    found.map(|at| at as i64)
}

/// `July 4, 2017`, `Jul 4th 2017`.
fn read_month_first(at: &mut Reader<'_>) -> Option<i64> {
    let month = at.month_name()?;
    at.run(|c| c == '.' || c == '-' || c.is_whitespace());
    // A month and a year alone are its first day.
    if at.rest.bytes().take_while(u8::is_ascii_digit).count() == 4 {
        return day_number(at.digits(4, 4)?, month, 1);
    }
    let day = at.digits(1, 2)?;
    at.run(|c| c.is_ascii_alphabetic());
    at.run(|c| c == ',' || c == '-' || c.is_whitespace());
    day_number(at.digits(4, 4)?, month, day)
}

/// `2017-07-04`, `2017/7/4`, `2017-W27-2`, `2017-185`, `2017-Jul-04`.
fn read_year_first(at: &mut Reader<'_>) -> Option<i64> {
    let negative = at.eat('-');
    let year = at.digits(4, 4)?;
    let year = if negative { -year } else { year };
    if at.eat('W') {
        return read_week(at, year);
    }
    if at.eat('-') || at.eat('/') || at.eat('.') {
        if at.eat('W') {
            return read_week(at, year);
        }
        if at.rest.bytes().take_while(u8::is_ascii_digit).count() == 3 {
            return day_of_year(year, at.digits(3, 3)?);
        }
        let month = if at.peek()?.is_ascii_alphabetic() { at.month_name()? } else { at.digits(1, 2)? };
        // A month alone is its first day.
        if !(at.eat('-') || at.eat('/') || at.eat('.')) {
            return day_number(year, month, 1);
        }
        return day_number(year, month, at.digits(1, 2)?);
    }
    at.skip_spaces();
    let month = at.month_name()?;
    at.skip_spaces();
    day_number(year, month, at.digits(1, 2).unwrap_or(1))
}

/// What is behind the W of a week: `27`, `27-2` or `272`.
fn read_week(at: &mut Reader<'_>, year: i64) -> Option<i64> {
    let week = at.digits(2, 2)?;
    let day = if at.eat('-') || at.peek().is_some_and(|c| c.is_ascii_digit()) { at.digits(1, 1)? } else { 1 };
    Some(time::iso_year_start(year) + (week - 1) * 7 + day - 1)
}

/// `7/4/2017` (month first), `04-07-2017` and `4.7.2017` (day first), `4 July 2017`.
fn read_day_first(at: &mut Reader<'_>) -> Option<i64> {
    let first = at.digits(1, 2)?;
    if at.eat('/') {
        let day = at.digits(1, 2)?;
        return if at.eat('/') { day_number(short_year(at)?, first, day) } else { None };
    }
    at.run(|c| c.is_ascii_alphabetic() && matches!(c, 's' | 't' | 'n' | 'r' | 'h'));
    let separated = at.run(|c| c == '-' || c == '.' || c.is_whitespace());
    if at.peek()?.is_ascii_alphabetic() {
        let month = at.month_name()?;
        at.run(|c| c == '-' || c == ',' || c.is_whitespace());
        return day_number(at.digits(4, 4)?, month, first);
    }
    if !matches!(separated, "-" | ".") {
        return None;
    }
    let month = at.digits(1, 2)?;
    if !(at.eat('-') || at.eat('.')) {
        return None;
    }
    // Three pairs of digits begin with the year.
    if separated == "-" && at.rest.bytes().take_while(u8::is_ascii_digit).count() == 2 {
        let year = if first < 70 { first + 2000 } else { first + 1900 };
        return day_number(year, month, at.digits(2, 2)?);
    }
    day_number(at.digits(4, 4)?, month, first)
}

/// `noon`, `midnight` and `today`, which is midnight too, instead of a time.
fn read_time_word(at: &mut Reader<'_>) -> Option<i64> {
    let before = at.rest;
    match at.run(|c| c.is_ascii_alphabetic()).to_ascii_lowercase().as_str() {
        "noon" => Some(12),
        "midnight" | "today" => Some(0),
        _ => {
            at.rest = before;
            None
        }
    }
}

/// A year whose century may be left out: 69 is 2069, 70 is 1970.
fn short_year(at: &mut Reader<'_>) -> Option<i64> {
    let before = at.rest.len();
    let year = at.digits(1, 4)?;
    Some(match year {
        year if before - at.rest.len() == 4 || year >= 100 => year,
        year if year < 70 => year + 2000,
        year => year + 1900,
    })
}

/// `12:30`, `12:30:45.123`, `123045`, `1230`, `11:15 am`.
fn read_time(at: &mut Reader<'_>, c: &mut Civil) -> Option<()> {
    c.hour = at.digits(1, 2)?;
    if at.eat(':') {
        c.minute = at.digits(1, 2)?;
        if at.eat(':') {
            c.second = at.digits(1, 2)?;
        }
    } else if let Some(minute) = at.digits(2, 2) {
        c.minute = minute;
        c.second = at.digits(2, 2).unwrap_or(0);
    }
    let fraction =
        at.rest.strip_prefix(['.', ',']).filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(rest) = fraction {
        at.rest = rest;
        c.millis = at.fraction();
    }
    let before = at.rest;
    at.skip_spaces();
    let word = at.run(|c| c.is_ascii_alphabetic() || c == '.').to_ascii_lowercase();
    match word.replace('.', "").as_str() {
        "am" if (1..=12).contains(&c.hour) => c.hour %= 12,
        "pm" if (1..=12).contains(&c.hour) => c.hour = c.hour % 12 + 12,
        _ => at.rest = before,
    }
    Some(())
}
