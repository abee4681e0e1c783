//! Decimal128 arithmetic and text, over decNumber.

use crate::value::Decimal128;

impl Decimal128 {
    /// Whether it is a zero of any sign and exponent.
    pub fn is_zero(self) -> bool {
        unimplemented!()
    }
    /// Whether it is NaN.
    pub fn is_nan(self) -> bool {
        unimplemented!()
    }
    /// The integer that it stands for exactly, if it fits.
    pub fn to_i64_exact(self) -> Option<i64> {
        unimplemented!()
    }
    /// The nearest double.
    pub fn to_f64(self) -> f64 {
        unimplemented!()
    }
}
