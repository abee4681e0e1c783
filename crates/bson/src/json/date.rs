//! Dates as ISO 8601 text in UTC.

use crate::calendar::{civil_from_days, days_from_civil};

const DAY_MILLIS: i64 = 86_400_000;

/// `2024-02-29T12:30:00.500Z` for years 1970 to 9999, `None` for others. Zero milliseconds are left
/// out unless `millis_always`.
pub fn iso_date(millis: i64, millis_always: bool) -> Option<String> {
    let (days, rest) = (millis.div_euclid(DAY_MILLIS), millis.rem_euclid(DAY_MILLIS));
    let (year, month, day) = civil_from_days(days);
    if !(1970..=9999).contains(&year) {
        return None;
    }
    let (hour, minute, second, milli) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60, rest % 1000);
    let fraction = if milli != 0 || millis_always { format!(".{milli:03}") } else { String::new() };
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

/// Milliseconds since the epoch of `YYYY-MM-DDTHH:MM:SS`, an optional fraction of which three digits
/// count, and `Z` or an offset `+HH:MM`.
pub fn parse_iso_date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0')))
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if marks.iter().any(|(at, mark)| bytes.get(*at) != Some(mark)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut at = 19;
    let mut millis = 0;
    if bytes.get(at) == Some(&b'.') {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let counted = digits.min(3);
        millis = number(at + 1, at + 1 + counted)? * 10i64.pow(3 - counted as u32);
        if digits == 0 {
            return None;
        }
        at += 1 + digits;
    }
    let offset = match bytes.get(at..)? {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, rest @ ..] => {
            let minutes = match rest {
                [] => 0,
                [b':', _, _] => number(at + 4, at + 6)?,
                [_, _] => number(at + 3, at + 5)?,
                _ => return None,
            };
            let offset = number(at + 1, at + 3)? * 60 + minutes;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    Some(days * DAY_MILLIS + ((hour * 60 + minute - offset) * 60 + second) * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_texts() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_356_351_330_501, "2012-12-24T12:15:30.501Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(iso_date(millis, false).as_deref(), Some(text));
            assert_eq!(parse_iso_date(text), Some(millis));
        }
        assert_eq!(iso_date(0, true).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(iso_date(-1, false), None);
        assert_eq!(iso_date(i64::MAX, false), None);
        assert_eq!(parse_iso_date("1969-12-31T23:59:59.9995Z"), Some(-1));
        assert_eq!(parse_iso_date("1970-01-01T01:00:00+01:00"), Some(0));
        assert_eq!(parse_iso_date("1970-01-01T00:00:00.5-0030"), Some(1_800_500));
        for bad in [
            "",
            "1970-01-01",
            "1970-02-30T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00:00.Z",
        ] {
            assert_eq!(parse_iso_date(bad), None, "{bad}");
        }
    }
}
