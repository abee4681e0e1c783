//! The preferred number series that `$bucketAuto` rounds its boundaries to.

use std::borrow::Cow;

use sheaf_bson::{OwnedValue, Value};
use sheaf_errors::{Result, bail};

/// A series.
#[derive(Debug)]
pub(super) enum Granularity {
    /// The mantissas of one decade, from 1 up.
    Series(Cow<'static, [f64]>),
    PowersOf2,
}

const R5: &[f64] = &[10.0, 16.0, 25.0, 40.0, 63.0];
const R10: &[f64] = &[100.0, 125.0, 160.0, 200.0, 250.0, 315.0, 400.0, 500.0, 630.0, 800.0];
const R20: &[f64] = &[
    100.0, 112.0, 125.0, 140.0, 160.0, 180.0, 200.0, 224.0, 250.0, 280.0, 315.0, 355.0, 400.0, 450.0, 500.0,
    560.0, 630.0, 710.0, 800.0, 900.0,
];
const R40: &[f64] = &[
    100.0, 106.0, 112.0, 118.0, 125.0, 132.0, 140.0, 150.0, 160.0, 170.0, 180.0, 190.0, 200.0, 212.0, 224.0,
    236.0, 250.0, 265.0, 280.0, 300.0, 315.0, 335.0, 355.0, 375.0, 400.0, 425.0, 450.0, 475.0, 500.0, 530.0,
    560.0, 600.0, 630.0, 670.0, 710.0, 750.0, 800.0, 850.0, 900.0, 950.0,
];
const R80: &[f64] = &[
    103.0, 109.0, 115.0, 122.0, 128.0, 136.0, 145.0, 155.0, 165.0, 175.0, 185.0, 195.0, 206.0, 218.0, 230.0,
    243.0, 258.0, 272.0, 290.0, 307.0, 325.0, 345.0, 365.0, 387.0, 412.0, 437.0, 462.0, 487.0, 515.0, 545.0,
    575.0, 615.0, 650.0, 690.0, 730.0, 775.0, 825.0, 875.0, 925.0, 975.0,
];
const E6: &[f64] = &[10.0, 15.0, 22.0, 33.0, 47.0, 68.0];
const E12: &[f64] = &[10.0, 12.0, 15.0, 18.0, 22.0, 27.0, 33.0, 39.0, 47.0, 56.0, 68.0, 82.0];
const E24: &[f64] = &[
    10.0, 11.0, 12.0, 13.0, 15.0, 16.0, 18.0, 20.0, 22.0, 24.0, 27.0, 30.0, 33.0, 36.0, 39.0, 43.0, 47.0,
    51.0, 56.0, 62.0, 68.0, 75.0, 82.0, 91.0,
];
const ONE_TWO_FIVE: &[f64] = &[10.0, 20.0, 50.0];

/// The E series of three digits: so many steps of equal ratio in a decade, rounded, but for one number that IEC 60063 has
/// otherwise.
fn three_digits(steps: u32) -> Vec<f64> {
    let step = |at: u32| (100.0 * 10f64.powf(f64::from(at) / f64::from(steps))).round();
    (0..steps).map(step).map(|number| if number == 919.0 { 920.0 } else { number }).collect()
}

impl Granularity {
    pub(super) fn parse(name: &str) -> Result<Self> {
        Ok(Granularity::Series(Cow::Borrowed(match name {
            "R5" => R5,
            "R10" => R10,
            "R20" => R20,
            "R40" => R40,
            "R80" => R80,
            "1-2-5" => ONE_TWO_FIVE,
            "E6" => E6,
            "E12" => E12,
            "E24" => E24,
            "E48" => return Ok(Granularity::Series(Cow::Owned(three_digits(48)))),
            "E96" => return Ok(Granularity::Series(Cow::Owned(three_digits(96)))),
            "E192" => return Ok(Granularity::Series(Cow::Owned(three_digits(192)))),
            "POWERSOF2" => return Ok(Granularity::PowersOf2),
            _ => bail!(40257, "Unknown rounding granularity '{name}'"),
        })))
    }

    /// The smallest number of the series above a value.
    pub(super) fn round_up(&self, value: &OwnedValue) -> OwnedValue {
        self.round(value, true)
    }

    /// The largest number of the series below a value.
    pub(super) fn round_down(&self, value: &OwnedValue) -> OwnedValue {
        self.round(value, false)
    }

    fn round(&self, value: &OwnedValue, up: bool) -> OwnedValue {
        let number = value.as_value().as_f64().unwrap_or(0.0);
        if number == 0.0 || !number.is_finite() {
            return value.clone();
        }
        let rounded = match self {
            Granularity::PowersOf2 => {
                let exponent = number.log2();
                let power = if up { exponent.floor() + 1.0 } else { exponent.ceil() - 1.0 };
                power.exp2()
            }
            Granularity::Series(series) => round_in(series, number, up),
        };
        match value.as_value() {
            Value::Int32(_) | Value::Int64(_) if matches!(self, Granularity::PowersOf2) && rounded >= 1.0 => {
                let whole = rounded as i64;
                OwnedValue::from(i32::try_from(whole).map_or(Value::Int64(whole), Value::Int32))
            }
            _ => OwnedValue::from(Value::Double(rounded)),
        }
    }
}

/// The neighbour of a number in a series that repeats every decade.
fn round_in(series: &[f64], number: f64, up: bool) -> f64 {
    let mut scale = 1.0;
    while number >= series[0] * scale * 10.0 {
        scale *= 10.0;
    }
    while number < series[0] * scale {
        scale /= 10.0;
    }
    if up {
        series.iter().map(|s| s * scale).find(|s| *s > number).unwrap_or(series[0] * scale * 10.0)
    } else {
        let below = series.iter().rev().map(|s| s * scale).find(|s| *s < number);
        below.unwrap_or(series[series.len() - 1] * (scale / 10.0))
    }
}
