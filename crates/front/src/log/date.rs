//! Times as mongod's log and tools write them, in UTC.

use sheaf_bson::calendar::civil_from_days;

/// `2026-11-21T01:02:03.004+00:00`.
pub fn iso_date(millis: i64) -> String {
    let days = millis.div_euclid(86_400_000);
    let of_day = millis.rem_euclid(86_400_000);
    let (year, month, day) = civil_from_days(days);
    let (h, m, s, ms) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}+00:00")
}

/// `Sat Nov 21 01:02:03.004`.
pub fn long_date(millis: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = millis.div_euclid(86_400_000);
    let of_day = millis.rem_euclid(86_400_000);
    let (_, month, day) = civil_from_days(days);
    let (h, m, s, ms) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    let (weekday, month) = (DAYS[days.rem_euclid(7) as usize], MONTHS[month as usize - 1]);
    format!("{weekday} {month} {day} {h:02}:{m:02}:{s:02}.{ms:03}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(iso_date(0), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(iso_date(951_782_400_123), "2000-02-29T00:00:00.123+00:00");
        assert_eq!(iso_date(-1), "1969-12-31T23:59:59.999+00:00");
        assert_eq!(long_date(951_782_400_123), "Tue Feb 29 00:00:00.123");
    }
}
