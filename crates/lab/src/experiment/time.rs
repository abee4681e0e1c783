//! Lengths of time as people write them: `10s`, `0.86ms`, `2m`; a bare number is seconds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A length of time in a file or a flag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// The units, longest first where one ends like another.
const UNITS: [(&str, f64); 5] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Nothing that a file asks for lasts longer.
const LONGEST_S: f64 = 1e6;

impl Time {
    /// Of so many seconds.
    pub fn seconds(seconds: f64) -> Result<Time, String> {
        if (0.0..=LONGEST_S).contains(&seconds) {
            Ok(Time(Duration::from_secs_f64(seconds)))
        } else {
            Err(format!("{seconds} seconds is no length of time"))
        }
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[digits.len()..];
        let factor = match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => *factor,
            None if unit.is_empty() => 1.0,
            None => return Err(format!("\"{text}\" is no length of time: say 10s, 250ms or 2m")),
        };
        let number: f64 = digits
            .trim_end()
            .parse()
            .map_err(|_| format!("\"{text}\" is no length of time: say 10s, 250ms or 2m"))?;
        Time::seconds(number * factor)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let micros = self.0.as_micros();
        match micros {
            0 => f.write_str("0s"),
            1..1000 => write!(f, "{micros}us"),
            1000..1_000_000 => write!(f, "{}ms", micros as f64 / 1e3),
            _ => write!(f, "{seconds}s"),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a length of time: 10s, 250ms, 2m, or seconds")]
        enum Either {
            Number(f64),
            Text(String),
        }
        match Either::deserialize(from)? {
            Either::Number(seconds) => Time::seconds(seconds),
            Either::Text(text) => text.parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_people_write_them() {
        for (text, micros) in
            [("10s", 10_000_000), ("0.86ms", 860), ("2m", 120_000_000), ("1.5", 1_500_000), ("40us", 40)]
        {
            let time: Time = text.parse().unwrap();
            assert_eq!(time.0.as_micros(), micros, "{text}");
            assert_eq!(time.to_string().parse::<Time>().unwrap(), time, "{text}");
        }
        for text in ["", "s", "ten", "-1s", "5 parsecs", "1e99s", "NaNs"] {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        assert_eq!(serde_yaml_ng::from_str::<Time>("3").unwrap(), Time(Duration::from_secs(3)));
        assert_eq!(serde_yaml_ng::from_str::<Time>("71ms").unwrap(), Time(Duration::from_millis(71)));
        assert!(serde_yaml_ng::from_str::<Time>("[1]").is_err());
    }
}
