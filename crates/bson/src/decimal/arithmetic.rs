//! Decimal128 arithmetic: exact results in plain integers, everything else in decNumber.

use super::{Class, MAX_COEFFICIENT, MAX_EXPONENT, MIN_EXPONENT, PRECISION};
use crate::value::Decimal128;

/// How a quotient or a dropped digit is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// To the nearest, halves to the even neighbour.
    HalfEven,
    /// Towards zero.
    Truncate,
    /// Towards minus infinity.
    Floor,
    /// Towards plus infinity.
    Ceiling,
}

impl Decimal128 {
    /// The sum.
    #[must_use]
    #[expect(
        clippy::should_implement_trait,
        reason = "named like its neighbours, and never written as an operator"
    )]
    pub fn add(self, other: Decimal128) -> Decimal128 {
        exact_sum(self, other).unwrap_or_else(|| binary(self, other, |cx, a, b| cx.add(a, b)))
    }

    /// The difference.
    #[must_use]
    pub fn subtract(self, other: Decimal128) -> Decimal128 {
        self.add(other.negated())
    }

    /// The product.
    #[must_use]
    pub fn multiply(self, other: Decimal128) -> Decimal128 {
        exact_product(self, other).unwrap_or_else(|| binary(self, other, |cx, a, b| cx.mul(a, b)))
    }

    /// The quotient: an infinity for a zero divisor, NaN for zero by zero.
    #[must_use]
    pub fn divide(self, other: Decimal128) -> Decimal128 {
        binary(self, other, |cx, a, b| cx.div(a, b))
    }

    /// The remainder with the sign of the dividend, as C's `fmod`; NaN for a zero divisor.
    #[must_use]
    pub fn modulo(self, other: Decimal128) -> Decimal128 {
        let (negative, a, p) = match self.class() {
            Class::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
            _ => return Decimal128::NAN,
        };
        let (b, q) = match other.class() {
            Class::Finite { coefficient: 0, .. } | Class::Nan => return Decimal128::NAN,
            Class::Infinite { .. } => return self,
            Class::Finite { coefficient, exponent, .. } => (coefficient, exponent),
        };
        let remainder = if p >= q {
            // a * 10^(p-q) mod b, some powers of ten at a time.
            let (mut rest, mut power) = (a % b, (p - q) as u32);
            while power > 0 && rest > 0 {
                let step = power.min(4);
                rest = rest * 10u128.pow(step) % b;
                power -= step;
            }
            rest
        } else {
            match 10u128.checked_pow((q - p) as u32).and_then(|unit| unit.checked_mul(b)) {
                Some(divisor) => a % divisor,
                None => a,
            }
        };
        Decimal128::from_parts(negative, remainder, p.min(q))
    }

    /// The square root; NaN for a negative number.
    #[must_use]
    pub fn sqrt(self) -> Decimal128 {
        self.with_wide(|cx, n| cx.sqrt(n))
    }

    /// e to the power of the number.
    #[must_use]
    pub fn exp(self) -> Decimal128 {
        let power = self.with_wide(|cx, n| cx.exp(n));
        // Near zero it is one, without the zeros behind it.
        if power.stripped() == Decimal128::from_i64(1) { power.stripped() } else { power }
    }

    /// The natural logarithm; NaN for a negative number.
    #[must_use]
    pub fn ln(self) -> Decimal128 {
        self.logarithm(|cx, n| cx.ln(n))
    }

    /// The logarithm to base ten; NaN for a negative number.
    #[must_use]
    pub fn log10(self) -> Decimal128 {
        self.logarithm(|cx, n| cx.log10(n))
    }

    /// A logarithm as MongoDB's library makes it, which computes with binary numbers of 113 bits: what these lack shows
    /// in the last digit. Near one it takes the logarithm of the difference, which loses nothing.
    fn logarithm(
        self,
        run: impl FnOnce(&mut dec::Context<dec::Decimal<15>>, &mut dec::Decimal<15>),
    ) -> Decimal128 {
        let near = self.to_f64();
        self.with_wide(|cx, n| {
            if near.is_normal() && (near - 1.0).abs() >= 0.1 {
                through_binary(cx, n);
            }
            run(cx, n);
            // What is exact stays so, without zeros behind it.
            if n.digits() > PRECISION as u32 {
                through_binary(cx, n);
            }
        })
    }

    /// The power, with all 34 digits, as MongoDB gives it; a zero has the least exponent and no sign.
    #[must_use]
    pub fn pow(self, exponent: Decimal128) -> Decimal128 {
        if exponent.is_zero() {
            return Decimal128::from_i64(1);
        }
        let exponent = dec::Decimal::from(exponent.to_dec());
        let power = self.with_wide(|cx, n| cx.pow::<12>(n, &exponent));
        if power.is_zero() {
            return Decimal128::from_parts(false, 0, MIN_EXPONENT);
        }
        match power.abs() == Decimal128::from_parts(false, MAX_COEFFICIENT, MAX_EXPONENT) {
            // MongoDB's approximation rounds it up, out of range.
            true if power.is_negative() => Decimal128::NEG_INFINITY,
            true => Decimal128::INFINITY,
            false => power.quantize(MIN_EXPONENT, Rounding::HalfEven),
        }
    }

    /// The number as a multiple of `10^exponent`. Where that would take more than 34 digits, it is
    /// given with as many as there is room for; infinities and NaN stay what they are.
    #[must_use]
    pub fn quantize(self, exponent: i32, rounding: Rounding) -> Decimal128 {
        let Class::Finite { negative, coefficient, exponent: own } = self.class() else { return self };
        let wanted = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT);
        if wanted <= own {
            let room = coefficient.checked_ilog10().map_or(i32::MAX, |log| PRECISION - 1 - log as i32);
            let zeros = (own - wanted).min(room);
            let coefficient = if coefficient == 0 { 0 } else { coefficient * 10u128.pow(zeros as u32) };
            return Decimal128::from_parts(negative, coefficient, own - zeros);
        }
        let dropped = (wanted - own) as u32;
        let (kept, rest, half) = match 10u128.checked_pow(dropped) {
            Some(unit) => (coefficient / unit, coefficient % unit, unit / 2),
            // More places than any coefficient has: far less than a half is dropped.
            None => (0, coefficient, u128::MAX),
        };
        let up = match rounding {
            Rounding::HalfEven => rest > half || (rest == half && kept % 2 == 1),
            Rounding::Truncate => false,
            Rounding::Floor => negative && rest > 0,
            Rounding::Ceiling => !negative && rest > 0,
        };
        Decimal128::from_parts(negative, kept + u128::from(up), wanted)
    }

    /// The nearest integer in the direction of `rounding`; what has no fraction stays as it is.
    #[must_use]
    pub fn to_integral(self, rounding: Rounding) -> Decimal128 {
        match self.class() {
            Class::Finite { exponent, .. } if exponent < 0 => self.quantize(0, rounding),
            _ => self,
        }
    }

    /// In decNumber's form.
    pub(super) fn to_dec(self) -> dec::Decimal128 {
        let (negative, coefficient, exponent) = match self.class() {
            Class::Nan => return dec::Decimal128::NAN,
            Class::Infinite { negative: false } => {
                return dec::Decimal128::from_be_bytes((0x78u128 << 120).to_be_bytes());
            }
            Class::Infinite { negative: true } => {
                return dec::Decimal128::from_be_bytes((0xF8u128 << 120).to_be_bytes());
            }
            Class::Finite { negative, coefficient, exponent } => (negative, coefficient, exponent),
        };
        let (mut rest, mut declets) = (coefficient, 0u128);
        for at in 0..11 {
            declets |= u128::from(DECLETS[(rest % 1000) as usize]) << (10 * at);
            rest /= 1000;
        }
        // The first digit shares five bits with the top two bits of the exponent.
        let biased = (exponent - MIN_EXPONENT) as u128;
        let top = biased >> 12;
        let combination = if rest < 8 { (top << 3) | rest } else { 0x18 | (top << 1) | (rest & 1) };
        let bits = (u128::from(negative) << 127) | (combination << 122) | ((biased & 0xFFF) << 110) | declets;
        dec::Decimal128::from_be_bytes(bits.to_be_bytes())
    }

    /// From decNumber's form.
    pub(super) fn from_dec(n: dec::Decimal128) -> Decimal128 {
        let negative = n.is_signed();
        if n.is_nan() {
            Decimal128::NAN
        } else if n.is_infinite() {
            if negative { Decimal128::NEG_INFINITY } else { Decimal128::INFINITY }
        } else {
            Decimal128::from_parts(negative, n.coefficient().unsigned_abs(), n.exponent())
        }
    }

    /// Runs a function with more digits than the result will have, so that its last digit is right.
    fn with_wide(
        self,
        run: impl FnOnce(&mut dec::Context<dec::Decimal<15>>, &mut dec::Decimal<15>),
    ) -> Decimal128 {
        let mut cx = dec::Context::<dec::Decimal<15>>::default();
        // The bounds of decNumber's mathematical functions.
        let _ = cx.set_max_exponent(99_999);
        let _ = cx.set_min_exponent(-99_999);
        let _ = cx.set_precision(42);
        let mut n = dec::Decimal::<15>::from(self.to_dec());
        run(&mut cx, &mut n);
        Decimal128::from_dec(dec::Context::<dec::Decimal128>::default().from_decimal(&n))
    }
}

/// Rounds the number to 113 bits, as a binary number of 128 bits has them; those out of a double's range stay as they are.
pub(super) fn through_binary<const N: usize>(
    cx: &mut dec::Context<dec::Decimal<N>>,
    n: &mut dec::Decimal<N>,
) {
    let Ok(near) = cx.try_into_f64(*n) else { return };
    if !near.is_normal() {
        return;
    }
    let lowest_bit = (near.to_bits() >> 52 & 0x7FF) as i32 - 1023 - 112;
    let mut unit = cx.from_i32(2);
    let power = cx.from_i32(lowest_bit);
    cx.pow(&mut unit, &power);
    cx.div(n, &unit);
    cx.round(n);
    cx.mul(n, &unit);
}

fn binary(
    a: Decimal128,
    b: Decimal128,
    run: impl FnOnce(&mut dec::Context<dec::Decimal128>, dec::Decimal128, dec::Decimal128) -> dec::Decimal128,
) -> Decimal128 {
    // A NaN keeps its sign, the first one's if both are.
    if let Some(nan) = [a, b].into_iter().find(|n| n.is_nan()) {
        return if nan.is_negative() { Decimal128::NAN.negated() } else { Decimal128::NAN };
    }
    let mut cx = dec::Context::<dec::Decimal128>::default();
    Decimal128::from_dec(run(&mut cx, a.to_dec(), b.to_dec()))
}

/// The sum, if it needs no rounding and little scaling.
fn exact_sum(a: Decimal128, b: Decimal128) -> Option<Decimal128> {
    let (
        Class::Finite { negative, coefficient, exponent },
        Class::Finite { negative: n, coefficient: c, exponent: e },
    ) = (a.class(), b.class())
    else {
        return None;
    };
    let lowest = exponent.min(e);
    let scaled = |coefficient: u128, exponent: i32| {
        10u128
            .checked_pow((exponent - lowest) as u32)
            .and_then(|unit| unit.checked_mul(coefficient))
            .filter(|scaled| *scaled <= MAX_COEFFICIENT)
    };
    let (left, right) = (scaled(coefficient, exponent)? as i128, scaled(c, e)? as i128);
    let sum = if negative { -left } else { left } + if n { -right } else { right };
    // An exact zero is positive, unless both operands were negative zeros.
    let negative = sum < 0 || (sum == 0 && negative && n);
    (sum.unsigned_abs() <= MAX_COEFFICIENT)
        .then(|| Decimal128::from_parts(negative, sum.unsigned_abs(), lowest))
}

/// The product, if it needs no rounding.
fn exact_product(a: Decimal128, b: Decimal128) -> Option<Decimal128> {
    let (
        Class::Finite { negative, coefficient, exponent },
        Class::Finite { negative: n, coefficient: c, exponent: e },
    ) = (a.class(), b.class())
    else {
        return None;
    };
    let product = coefficient.checked_mul(c).filter(|product| *product <= MAX_COEFFICIENT)?;
    let exponent = exponent + e;
    (MIN_EXPONENT..=MAX_EXPONENT)
        .contains(&exponent)
        .then(|| Decimal128::from_parts(negative != n, product, exponent))
}

/// Three digits in ten bits: IEEE 754's densely packed decimal, by value.
const DECLETS: [u16; 1000] = {
    let mut table = [0; 1000];
    let mut n = 0;
    while n < 1000 {
        table[n] = declet(n as u16);
        n += 1;
    }
    table
};

/// One entry of [`DECLETS`]: small digits (0 to 7) keep three bits each, large ones only their
/// lowest, and the bits that remain say which digits are large.
const fn declet(n: u16) -> u16 {
    let (x, y, z) = (n / 100, n / 10 % 10, n % 10);
    let (low_x, low_y, low_z) = (x & 1, y & 1, z & 1);
    match (x > 7, y > 7, z > 7) {
        (false, false, false) => (x << 7) | (y << 4) | z,
        (false, false, true) => (x << 7) | (y << 4) | 0x8 | low_z,
        (false, true, false) => (x << 7) | ((z & 6) << 4) | (low_y << 4) | 0xA | low_z,
        (true, false, false) => ((z & 6) << 7) | (low_x << 7) | (y << 4) | 0xC | low_z,
        (true, true, false) => ((z & 6) << 7) | (low_x << 7) | (low_y << 4) | 0xE | low_z,
        (true, false, true) => ((y & 6) << 7) | (low_x << 7) | 0x20 | (low_y << 4) | 0xE | low_z,
        (false, true, true) => (x << 7) | 0x40 | (low_y << 4) | 0xE | low_z,
        (true, true, true) => (low_x << 7) | 0x60 | (low_y << 4) | 0xE | low_z,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dec(text: &str) -> Decimal128 {
        text.parse().unwrap()
    }

    #[test]
    fn both_forms_agree_for_every_declet() {
        for n in 0..1000u128 {
            for coefficient in
                [n, n * 1000 + 999, 9_000_000_000_000_000_000_000_000_000_000_000 + n, MAX_COEFFICIENT - n]
            {
                for exponent in [MIN_EXPONENT, -1, 0, 5, MAX_EXPONENT] {
                    let own = Decimal128::from_parts(n % 2 == 1, coefficient, exponent);
                    assert_eq!(own.to_dec().to_string(), own.to_string());
                    assert_eq!(Decimal128::from_dec(own.to_dec()), own);
                }
            }
        }
        for special in [Decimal128::NAN, Decimal128::INFINITY, Decimal128::NEG_INFINITY] {
            assert_eq!(special.to_dec().to_string(), special.to_string());
            assert_eq!(Decimal128::from_dec(special.to_dec()), special);
        }
    }

    #[test]
    fn the_exact_paths_agree_with_decnumber() {
        let numbers = [
            "0",
            "-0",
            "0E+5",
            "1",
            "-1.50",
            "99999999999999999",
            "1E-20",
            "-1E+20",
            "0.1",
            "-0.1",
            "9999999999999999999999999999999999",
            "-9999999999999999999999999999999999",
            "1E+6111",
            "1E-6176",
            "Infinity",
            "NaN",
        ];
        for a in numbers.map(dec) {
            for b in numbers.map(dec) {
                assert_eq!(a.add(b), binary(a, b, |cx, a, b| cx.add(a, b)), "{a} + {b}");
                assert_eq!(a.multiply(b), binary(a, b, |cx, a, b| cx.mul(a, b)), "{a} * {b}");
            }
        }
    }

    #[test]
    fn arithmetic_results() {
        assert_eq!(dec("1").divide(dec("3")).to_string(), "0.3333333333333333333333333333333333");
        assert_eq!(dec("10").divide(dec("4")).to_string(), "2.5");
        assert_eq!(dec("1").divide(dec("0")).to_string(), "Infinity");
        assert_eq!(dec("2").sqrt().to_string(), "1.414213562373095048801688724209698");
        assert_eq!(dec("0").exp().to_string(), "1");
        assert_eq!(dec("1").exp().to_string(), "2.718281828459045235360287471352662");
        assert_eq!(dec("10").ln().to_string(), "2.302585092994045684017991454684364");
        assert_eq!(dec("1000").log10().to_string(), "3");
        assert_eq!(dec("2").pow(dec("10")).to_string(), "1024.000000000000000000000000000000");
        assert_eq!(dec("2").pow(dec("0.5")).to_string(), "1.414213562373095048801688724209698");
        assert_eq!(dec("1E+6000").pow(dec("2")).to_string(), "Infinity");
    }

    #[test]
    fn remainders_have_the_sign_of_the_dividend_and_are_exact() {
        for (a, b, want) in [
            ("7", "3", "1"),
            ("-7", "3", "-1"),
            ("7", "-3", "1"),
            ("7.5", "2", "1.5"),
            ("1E+40", "7", "4"),
            ("5", "1E+40", "5"),
            ("1", "0.3", "0.1"),
            ("5", "Infinity", "5"),
            ("Infinity", "5", "NaN"),
            ("5", "0", "NaN"),
            ("-6", "3", "-0"),
        ] {
            assert_eq!(dec(a).modulo(dec(b)).to_string(), want, "{a} mod {b}");
        }
    }

    #[test]
    fn quantizing_rounds_and_pads() {
        for (n, exponent, rounding, want) in [
            ("2.5", 0, Rounding::HalfEven, "2"),
            ("3.5", 0, Rounding::HalfEven, "4"),
            ("-2.51", 0, Rounding::HalfEven, "-3"),
            ("2.9", 0, Rounding::Truncate, "2"),
            ("-2.1", 0, Rounding::Floor, "-3"),
            ("2.1", 0, Rounding::Ceiling, "3"),
            ("0.4", 3, Rounding::HalfEven, "0E+3"),
            ("1250", 2, Rounding::HalfEven, "1.2E+3"),
            ("1.5", -3, Rounding::HalfEven, "1.500"),
            (
                "1.298912343250054252245154325",
                -100,
                Rounding::HalfEven,
                "1.298912343250054252245154325000000",
            ),
            ("Infinity", 0, Rounding::Floor, "Infinity"),
            ("1E-6176", 40, Rounding::HalfEven, "0E+40"),
        ] {
            assert_eq!(dec(n).quantize(exponent, rounding).to_string(), want, "{n} {exponent}");
        }
        assert_eq!(dec("1E+40").to_integral(Rounding::Floor).to_string(), "1E+40");
    }
}
