//! How many values an encrypted field has that is searched by ranges: what clients' tokens of a query are counted by.

use sheaf_bson::{DecimalClass, Value};
use sheaf_errors::{Code, Result, bail};

/// A range that is searched with more tokens than this is none: they would not fit in one document.
const TAGS_MAX: u64 = 300_000;
/// `log2(TAGS_MAX)`, the next whole number.
const TAGS_MAX_LOG2: i64 = 19;
/// `sparsity` where none is given.
const SPARSITY: i64 = 2;

/// The values of a field between two ends.
pub(super) struct Domain<'a> {
    pub(super) bson_type: &'a str,
    pub(super) min: Value<'a>,
    pub(super) max: Value<'a>,
    /// Digits behind the point.
    pub(super) precision: Option<i64>,
}

impl Domain<'_> {
    /// Checks that the ends have no more digits than the precision says, and that the values fit in an integer.
    ///
    /// Errors: 6966805 to 6966808, 9157100, 9157101.
    pub(super) fn check_precision(&self) -> Result<()> {
        let Some(precision) = self.precision else { return Ok(()) };
        let double = self.bson_type == "double";
        let codes = if double { [6966805, 6966806] } else { [6966807, 6966808] };
        for ((end, what), code) in [(self.min, "minimum"), (self.max, "maximum")].into_iter().zip(codes) {
            if !has_digits(end, precision) {
                bail!(
                    Code(code),
                    "The number of decimal digits for {what} value must be less than or equal to precision"
                );
            }
        }
        let (code, most) = if double { (9157100, 64) } else { (9157101, 128) };
        if self.bits() >= most {
            bail!(
                Code(code),
                "The domain of {} values specified by the min, max, and precision cannot be represented in fewer than {most} bits",
                self.bson_type
            );
        }
        Ok(())
    }

    /// Checks how many levels of the tree of values are left out of it.
    ///
    /// Errors: 8574000, 9203504, 9203508.
    pub(super) fn check_trim(&self, trim: i64, sparsity: Option<i64>) -> Result<()> {
        let bits = self.bits();
        if trim != 0 && trim >= i64::from(bits) {
            bail!(
                8574000,
                "The field 'trimFactor' must be >= 0 and less than the total number of bits needed to represent elements in the domain ({bits})"
            );
        }
        let sparsity = sparsity.unwrap_or(SPARSITY);
        let size = self.size_log2();
        if size < (TAGS_MAX as f64).log2() {
            return Ok(());
        }
        if trim + sparsity > TAGS_MAX_LOG2 {
            bail!(
                9203504,
                "Sparsity and trimFactor together are too large and could create queries that exceed the BSON size limit"
            );
        }
        let tags = (1_u64 << sparsity) as f64 * (2.0 * size - 1.0 + (1_u64 << trim) as f64);
        if tags >= TAGS_MAX as f64 {
            bail!(
                9203508,
                "Sparsity, trimFactor, min, and max together are too large and could create queries that exceed the BSON size limit"
            );
        }
        Ok(())
    }

    /// Bits of the last value, counted from the first as 0.
    fn bits(&self) -> u32 {
        match self.last() {
            Some(last) => u128::BITS - last.leading_zeros(),
            None => self.bits_of_fractions(),
        }
    }

    fn size_log2(&self) -> f64 {
        match self.last() {
            Some(last) => (last as f64 + 1.0).log2(),
            None => f64::from(self.bits_of_fractions()),
        }
    }

    /// The last value of whole numbers and dates.
    fn last(&self) -> Option<u128> {
        let (low, high) = match self.bson_type {
            "int" => (i64::from(i32::MIN), i64::from(i32::MAX)),
            "long" | "date" => (i64::MIN, i64::MAX),
            _ => return None,
        };
        let whole = |end: Value<'_>, default| match end {
            Value::DateTime(millis) => millis,
            end => end.as_exact_i64().unwrap_or(default),
        };
        let (min, max) = (whole(self.min, low), whole(self.max, high));
        Some((i128::from(max) - i128::from(min)).unsigned_abs())
    }

    /// Bits of numbers with fractions: those of all of their type, or of those that the precision tells apart.
    fn bits_of_fractions(&self) -> u32 {
        let all = if self.bson_type == "double" { 64 } else { 128 };
        let (Some(precision), Some(min), Some(max)) = (self.precision, self.min.as_f64(), self.max.as_f64())
        else {
            return all;
        };
        let bits = (max - min + 1.0).log2() + precision as f64 * 10_f64.log2();
        if bits.is_finite() { (bits.ceil() as u32).min(all) } else { all }
    }
}

/// Whether a number has at most so many digits behind its point.
fn has_digits(number: Value<'_>, precision: i64) -> bool {
    match number {
        Value::Decimal128(number) => match number.stripped().class() {
            DecimalClass::Finite { exponent, .. } => i64::from(exponent) >= -precision,
            _ => false,
        },
        number => {
            let scaled = number.as_f64().unwrap_or(0.0) * 10_f64.powf(precision as f64);
            // Doubles that stand for decimals are nearly whole where these are.
            (scaled - scaled.trunc()).abs() <= (f64::EPSILON * scaled.trunc()).abs()
        }
    }
}
