//! Axes: from figures to places on the paper, with ticks at round numbers.

use super::format::{latency, number, short};

/// What an axis counts; decides how its ticks and the values under the pointer are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Plain figures.
    Plain,
    /// Microseconds, printed in the unit that suits.
    Latency,
    /// Seconds of a run.
    Seconds,
    /// 1 / (1 - quantile), printed as per cent.
    Nines,
}

impl Unit {
    /// The name that the page's script knows it by.
    pub fn id(self) -> &'static str {
        match self {
            Unit::Plain => "plain",
            Unit::Latency => "us",
            Unit::Seconds => "s",
            Unit::Nines => "nines",
        }
    }

    fn label(self, value: f64) -> String {
        match self {
            Unit::Plain => trimmed(&short(value)),
            Unit::Seconds => trimmed(&number(value)),
            Unit::Latency => trimmed(&latency(value)),
            Unit::Nines => nines(value),
        }
    }
}

/// "0.2" for "0.200", "1.5 k" for "1.50 k".
fn trimmed(label: &str) -> String {
    let (figure, unit) = label.split_once(' ').map_or((label, ""), |(f, _)| (f, &label[f.len()..]));
    let figure =
        if figure.contains('.') { figure.trim_end_matches('0').trim_end_matches('.') } else { figure };
    format!("{figure}{unit}")
}

/// "0 %", "90 %", "99.9 %" from 1, 10, 1000.
fn nines(inverse: f64) -> String {
    match inverse.log10().round() as usize {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        n => format!("99{}{} %", if n > 2 { "." } else { "" }, "9".repeat(n - 2)),
    }
}

/// How figures are spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Evenly.
    Linear,
    /// By their logarithm; figures are above zero.
    Log,
}

/// One axis of a plot.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it says beside it.
    pub title: String,
    /// See [`Unit`].
    pub unit: Unit,
    /// See [`Spacing`].
    pub spacing: Spacing,
    /// The figure at its beginning.
    pub low: f64,
    /// The figure at its end.
    pub high: f64,
    /// Where it is ruled, and what stands there.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero to the first round number that holds all of `values`.
    pub fn from_zero(title: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        let top = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let top = if top > 0.0 { top } else { 1.0 };
        Axis::stepped(title, unit, top, round_up(top / 5.0))
    }

    fn stepped(title: &str, unit: Unit, top: f64, step: f64) -> Axis {
        let steps = (top / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=steps as u32).map(|i| f64::from(i) * step).map(|v| (v, unit.label(v))).collect();
        Axis { title: title.to_owned(), unit, spacing: Spacing::Linear, low: 0.0, high: steps * step, ticks }
    }

    /// Seconds from zero to exactly the end of the data.
    pub fn time(values: impl Iterator<Item = f64>) -> Axis {
        let end = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
        let end = if end > 0.0 { end } else { 1.0 };
        let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0];
        let step = steps.into_iter().find(|step| end / step <= 8.0).unwrap_or_else(|| round_up(end / 8.0));
        let step = if end < 4.0 { round_up(end / 5.0) } else { step };
        let mut axis = Axis::stepped("seconds", Unit::Seconds, end, step);
        axis.high = end;
        axis.ticks.retain(|(v, _)| *v <= end);
        axis
    }

    /// Seconds from exactly the beginning of the data to exactly its end.
    pub fn window(values: impl Iterator<Item = f64>) -> Axis {
        let bounds = values.filter(|v| v.is_finite()).fold(None, |bounds: Option<(f64, f64)>, v| {
            Some(bounds.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        });
        let (low, high) = bounds.filter(|(low, high)| high > low).unwrap_or((0.0, 1.0));
        let step = round_up((high - low) / 6.0);
        let first = (low / step - 1e-9).ceil();
        let ticks = (0..8).map(|i| (first + f64::from(i)) * step).filter(|v| *v <= high + 1e-9);
        let ticks = ticks.map(|v| (v, Unit::Seconds.label(v))).collect();
        Axis { title: "seconds".to_owned(), unit: Unit::Seconds, spacing: Spacing::Linear, low, high, ticks }
    }

    /// Logarithmic between round numbers (1, 2, 5 of a decade) that hold all of `values` above zero.
    pub fn log(title: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|v| v.is_finite() && *v > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            (low, high) = (1.0, 10.0);
        }
        let (low, high) = (round_down(low), round_up(high));
        // A range of less than a decade shows too little of a scale to be read.
        let high = if high / low < 9.99 { round_up(low * 9.99) } else { high };
        let mut axis =
            Axis { title: title.to_owned(), unit, spacing: Spacing::Log, low, high, ticks: Vec::new() };
        let decades = (high / low).log10();
        let wanted: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        for decade in (low.log10().floor() as i32)..=(high.log10().ceil() as i32) {
            for factor in wanted {
                let value = factor * 10_f64.powi(decade);
                if value >= low * 0.999 && value <= high * 1.001 {
                    axis.ticks.push((value, unit.label(value)));
                }
            }
        }
        axis
    }

    /// `1 / (1 - quantile)` from 1 to just `end`, ruled at 90 %, 99 %, 99.9 % ...
    pub fn nines(end: f64) -> Axis {
        let high = end.max(10.0);
        let ticks = (0..16).map(|n| 10_f64.powi(n)).filter(|v| *v <= high).map(|v| (v, nines(v))).collect();
        Axis {
            title: "percentile".to_owned(),
            unit: Unit::Nines,
            spacing: Spacing::Log,
            low: 1.0,
            high,
            ticks,
        }
    }

    /// Logarithmic, ruled at exactly `values` (numbers of clients).
    pub fn at(title: &str, values: &[f64]) -> Axis {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min).max(1.0);
        let high = values.iter().copied().fold(low, f64::max);
        let (low, high) = if high > low { (low, high) } else { (low / 2.0, low * 2.0) };
        let ticks = values.iter().map(|v| (*v, number(*v))).collect();
        Axis { title: title.to_owned(), unit: Unit::Plain, spacing: Spacing::Log, low, high, ticks }
    }

    /// The share of the axis before `value`, held within 0 ..= 1.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Log => {
                (value.max(f64::MIN_POSITIVE).ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
            }
        };
        share.clamp(0.0, 1.0)
    }
}

/// The next of 1, 2, 5 times a power of ten at or above `value`.
fn round_up(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|f| f * decade)
        .find(|v| *v >= value * 0.999_999)
        .unwrap_or(10.0 * decade)
}

/// The next of 1, 2, 5 times a power of ten at or below `value`.
fn round_down(value: f64) -> f64 {
    let decade = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0].iter().map(|f| f * decade).find(|v| *v <= value * 1.000_001).unwrap_or(decade)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_are_round() {
        let axis = Axis::from_zero("", Unit::Plain, [3.0, 8700.0].into_iter());
        assert_eq!(labels(&axis), ["0", "2,000", "4,000", "6,000", "8,000", "10 k"]);
        assert_eq!(axis.high, 10_000.0);
        let axis = Axis::log("", Unit::Latency, [130.0, 41_000.0].into_iter());
        assert_eq!((axis.low, axis.high), (100.0, 50_000.0));
        assert_eq!(labels(&axis), ["100 µs", "1 ms", "10 ms"]);
        let axis = Axis::log("", Unit::Latency, [130.0, 900.0].into_iter());
        assert_eq!(labels(&axis), ["100 µs", "200 µs", "500 µs", "1 ms"]);
        assert_eq!(labels(&Axis::nines(12_000.0)), ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn a_window_begins_where_its_data_do() {
        let axis = Axis::window([29.9, 42.3, 38.0].into_iter());
        assert_eq!(labels(&axis), ["30", "35", "40"]);
        assert_eq!((axis.low, axis.high), (29.9, 42.3));
        let axis = Axis::window([0.0, 5.0].into_iter());
        assert_eq!(labels(&axis), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(Axis::window(std::iter::empty()).high, 1.0);
    }

    #[test]
    fn ticks_have_no_idle_digits() {
        let axis = Axis::from_zero("", Unit::Seconds, std::iter::once(1.0));
        assert_eq!(labels(&axis), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(Unit::Plain.label(15_000.0), "15 k");
        assert_eq!(Unit::Latency.label(1_500.0), "1.5 ms");
    }

    #[test]
    fn places_are_shares() {
        let axis = Axis::log("", Unit::Plain, [1.0, 100.0].into_iter());
        assert!((axis.place(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(axis.place(0.0), 0.0);
        assert_eq!(axis.place(1e9), 1.0);
        let empty = Axis::from_zero("", Unit::Plain, std::iter::empty());
        assert_eq!(empty.place(0.5), 0.5);
        let same = Axis::at("clients", &[4.0]);
        assert!((same.place(4.0) - 0.5).abs() < 1e-9);
    }
}
