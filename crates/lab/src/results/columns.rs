//! How series are written: column by column, so that a name stands once and not in every line.
//!
//! `{"n": 3, "at_s": [0, 1, 2], "count": [7, 0, 9], "errors": 0}`: a number that is the same in all lines stands alone.
//! Whole numbers are exact, all others have [`DIGITS`] significant digits, more than any report shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Moment, Second};

/// Significant decimal digits of what is no whole number.
const DIGITS: i32 = 5;

/// A line of a series: always the same numbers.
pub(super) trait Line: Sized {
    /// Their names.
    const NAMES: &'static [&'static str];

    /// The numbers, in the order of the names.
    fn numbers(&self) -> Vec<f64>;

    /// The line with these numbers, of which there are as many as names.
    fn of(numbers: &[f64]) -> Self;
}

impl Line for Second {
    const NAMES: &'static [&'static str] =
        &["at_s", "count", "errors", "mean_us", "p50_us", "p95_us", "p99_us", "p999_us", "max_us"];

    fn numbers(&self) -> Vec<f64> {
        let (count, errors) = (self.count as f64, self.errors as f64);
        vec![
            self.at_s,
            count,
            errors,
            self.mean_us,
            self.p50_us,
            self.p95_us,
            self.p99_us,
            self.p999_us,
            self.max_us,
        ]
    }

    fn of(numbers: &[f64]) -> Second {
        Second {
            at_s: numbers[0],
            count: numbers[1] as u64,
            errors: numbers[2] as u64,
            mean_us: numbers[3],
            p50_us: numbers[4],
            p95_us: numbers[5],
            p99_us: numbers[6],
            p999_us: numbers[7],
            max_us: numbers[8],
        }
    }
}

impl Line for Moment {
    const NAMES: &'static [&'static str] = &["at_s", "count", "errors", "p50_us", "max_us"];

    fn numbers(&self) -> Vec<f64> {
        vec![self.at_s, self.count as f64, self.errors as f64, self.p50_us, self.max_us]
    }

    fn of(numbers: &[f64]) -> Moment {
        Moment {
            at_s: numbers[0],
            count: numbers[1] as u64,
            errors: numbers[2] as u64,
            p50_us: numbers[3],
            max_us: numbers[4],
        }
    }
}

/// A number as it is written.
#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(transparent)]
struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value = self.0;
        if value.fract() == 0.0 && value.abs() < 9e15 {
            return to.serialize_i64(value as i64);
        }
        if !value.is_normal() {
            return to.serialize_f64(value);
        }
        let decimals = DIGITS - 1 - value.abs().log10().floor() as i32;
        if decimals <= 0 {
            return to.serialize_i64(value.round() as i64);
        }
        // By way of its text, so that no digits appear that nobody has asked for.
        let text = format!("{value:.*}", decimals as usize);
        to.serialize_f64(text.parse().unwrap_or(value))
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Column {
    Same(Number),
    Each(Vec<Option<Number>>),
}

impl Column {
    fn new(values: Vec<Option<f64>>) -> Column {
        match values.first() {
            Some(Some(first)) if values.len() > 1 && values.iter().all(|value| *value == Some(*first)) => {
                Column::Same(Number(*first))
            }
            _ => Column::Each(values.into_iter().map(|value| value.map(Number)).collect()),
        }
    }

    fn get(&self, line: usize) -> Option<f64> {
        match self {
            Column::Same(number) => Some(number.0),
            Column::Each(numbers) => numbers.get(line).copied().flatten().map(|number| number.0),
        }
    }
}

/// Lines by column.
#[derive(Serialize, Deserialize)]
struct Columns {
    n: usize,
    #[serde(flatten)]
    columns: BTreeMap<String, Column>,
}

impl Columns {
    fn of<T: Line>(lines: &[T]) -> Columns {
        let numbers: Vec<Vec<f64>> = lines.iter().map(Line::numbers).collect();
        let column = |at: usize| Column::new(numbers.iter().map(|line| Some(line[at])).collect());
        let columns = T::NAMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), column(at)));
        Columns { n: lines.len(), columns: columns.collect() }
    }

    fn lines<T: Line>(&self) -> Result<Vec<T>, String> {
        let line = |at: usize| {
            let number = |name: &&str| {
                let found = self.columns.get(*name).and_then(|column| column.get(at));
                found.ok_or_else(|| format!("{name} of line {at} is missing"))
            };
            Ok(T::of(&T::NAMES.iter().map(number).collect::<Result<Vec<f64>, String>>()?))
        };
        (0..self.n).map(line).collect()
    }
}

/// For `#[serde(with)]`: lines.
pub(super) mod lines {
    use super::{Columns, Deserialize, Deserializer, Line, Serialize, Serializer};
    use serde::de::Error as _;

    pub fn serialize<T: Line, S: Serializer>(lines: &[T], to: S) -> Result<S::Ok, S::Error> {
        Columns::of(lines).serialize(to)
    }

    pub fn deserialize<'de, T: Line, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Columns::deserialize(from)?.lines().map_err(D::Error::custom)
    }
}

/// For `#[serde(with)]`: lines by kind of operation.
pub(super) mod named_lines {
    use super::{BTreeMap, Columns, Deserialize, Deserializer, Line, Serialize, Serializer};
    use serde::de::Error as _;

    pub fn serialize<T: Line, S: Serializer>(
        named: &BTreeMap<String, Vec<T>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let named: BTreeMap<&String, Columns> =
            named.iter().map(|(name, lines)| (name, Columns::of(lines))).collect();
        named.serialize(to)
    }

    pub fn deserialize<'de, T: Line, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, Vec<T>>, D::Error> {
        let named = BTreeMap::<String, Columns>::deserialize(from)?;
        let lines = |(name, columns): (String, Columns)| Ok((name, columns.lines()?));
        named.into_iter().map(lines).collect::<Result<_, String>>().map_err(D::Error::custom)
    }
}

/// The column of the moments of a server's samples.
const AT: &str = "at_s";

/// For `#[serde(with)]`: samples of a server, which need not all have the same figures.
pub(super) mod samples {
    use super::{AT, BTreeMap, Column, Columns, Deserialize, Deserializer, Serialize, Serializer};
    use serde::de::Error as _;

    type Samples = Vec<(f64, BTreeMap<String, f64>)>;

    pub fn serialize<S: Serializer>(samples: &Samples, to: S) -> Result<S::Ok, S::Error> {
        let names: std::collections::BTreeSet<&String> =
            samples.iter().flat_map(|(_, figures)| figures.keys()).collect();
        let column = |name: &String| {
            Column::new(samples.iter().map(|(_, figures)| figures.get(name).copied()).collect())
        };
        let mut columns: BTreeMap<String, Column> =
            names.into_iter().map(|name| (name.clone(), column(name))).collect();
        columns.insert(AT.to_owned(), Column::new(samples.iter().map(|(at, _)| Some(*at)).collect()));
        Columns { n: samples.len(), columns }.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Samples, D::Error> {
        let Columns { n, mut columns } = Columns::deserialize(from)?;
        let at = columns.remove(AT).ok_or_else(|| D::Error::missing_field(AT))?;
        let sample = |line: usize| {
            let figures = columns.iter().filter_map(|(name, column)| Some((name.clone(), column.get(line)?)));
            Some((at.get(line)?, figures.collect()))
        };
        (0..n).map(sample).collect::<Option<_>>().ok_or_else(|| D::Error::custom("a sample without a moment"))
    }
}

/// For `#[serde(with)]`: plain numbers.
pub(super) mod numbers {
    use super::{Deserialize, Deserializer, Number, Serializer};

    pub fn serialize<S: Serializer>(numbers: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(numbers.iter().map(|number| Number(*number)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        Vec::<f64>::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, Operation, ServerSeries};
    use super::*;

    fn again<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> (String, T) {
        let text = serde_json::to_string(value).unwrap();
        let back = serde_json::from_str(&text).unwrap();
        (text, back)
    }

    #[test]
    fn series_are_written_by_column_and_read_back() {
        let second = |at_s: f64, count: u64| Second {
            at_s,
            count,
            mean_us: 4_197.906_924,
            p50_us: 0.612_345_678,
            max_us: 17_170_431.25,
            ..Second::default()
        };
        let operation = Operation {
            series: vec![second(0.0, 478), second(1.0, 0)],
            calls_us: vec![0.35, 23.456_000_000_3, 12.0],
            ..Operation::default()
        };
        let (text, back) = again(&operation);
        for part in [
            r#""n":2"#,
            r#""at_s":[0,1]"#,
            r#""count":[478,0]"#,
            r#""errors":0"#,
            r#""mean_us":4197.9,"#,
            r#""p50_us":0.61235"#,
            r#""max_us":17170431"#,
            r#""calls_us":[0.35,23.456,12]"#,
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        let counts: Vec<_> = back.series.iter().map(|second| (second.at_s, second.count)).collect();
        assert_eq!(counts, [(0.0, 478), (1.0, 0)]);
        assert_eq!((back.series[1].p50_us, back.series[1].p99_us), (0.61235, 0.0));
        assert!(again(&Operation::default()).1.series.is_empty());
    }

    #[test]
    fn samples_may_lack_figures() {
        let figures =
            |of: &[(&str, f64)]| of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let samples = vec![
            (0.5, figures(&[("opcounters.insert", 7_336_507.0), ("mem", 12.0)])),
            (1.5, figures(&[("opcounters.insert", 7_336_509.0), ("mem", 12.0), ("cpu_percent", 28.5)])),
        ];
        let (text, back) = again(&ServerSeries { node: "a:1".to_owned(), samples: samples.clone() });
        assert!(text.contains(r#""cpu_percent":[null,28.5]"#) && text.contains(r#""mem":12"#), "{text}");
        assert_eq!(back.samples, samples);
        assert!(again(&ServerSeries::default()).1.samples.is_empty());
    }

    #[test]
    fn moments_stand_by_kind_of_operation() {
        let moment = |at_s| Moment { at_s, count: 29, errors: 1, p50_us: 416.5, max_us: 1_197.0 };
        let around = BTreeMap::from([("put".to_owned(), vec![moment(3.9), moment(4.0)])]);
        let (_, back) = again(&Fault { around: around.clone(), ..Fault::default() });
        assert_eq!(back.around, around);
        let broken = r#"{"at_s":1,"what":"","around":{"put":{"n":1,"at_s":[1]}}}"#;
        let error = serde_json::from_str::<Fault>(broken).unwrap_err().to_string();
        assert!(error.contains("count of line 0 is missing"), "{error}");
    }
}
