//! Trigonometry of decimals, with all digits that a decimal has.

use super::arithmetic::through_binary;
use super::{Class, PRECISION};
use crate::value::Decimal128;

/// A number with twice the digits of a result, so that neither sums nor reductions show in it.
type Wide = dec::Decimal<25>;
type Cx = dec::Context<Wide>;

const DIGITS: usize = 70;

/// Pi, with the digits that taking whole turns from an argument costs.
const PI: &str = "3.14159265358979323846264338327950288419716939937510582097494459230781640628";

/// Beyond this power of ten whole turns are taken away by their digits.
const TURNS_MAX: i32 = 30;

/// Beyond this power of ten a number's square plus one is its square.
const HUGE: i32 = 40;

/// Below this power of ten a function that is about its argument is its argument.
const TINY: i32 = -20;

impl Decimal128 {
    /// The sine.
    #[must_use]
    pub fn sin(self) -> Decimal128 {
        self.angle_function(f64::sin, |cx, x| sin_cos(cx, x).0)
    }

    /// The cosine.
    #[must_use]
    pub fn cos(self) -> Decimal128 {
        match self.magnitude() {
            // Less below one than a decimal shows.
            Some(power) if power < TINY => Decimal128::from_i64(1),
            _ => self.angle_function(f64::cos, |cx, x| sin_cos(cx, x).1),
        }
    }

    /// The tangent.
    #[must_use]
    pub fn tan(self) -> Decimal128 {
        self.angle_function(f64::tan, |cx, x| {
            let (sin, cos) = sin_cos(cx, x);
            div(cx, sin, &cos)
        })
    }

    /// The angle between -pi/2 and pi/2 that has this sine; NaN outside of [-1, 1].
    #[must_use]
    pub fn asin(self) -> Decimal128 {
        self.odd_function(f64::asin, |cx, x| {
            let one = cx.from_i32(1);
            let (below, above) = (sub(cx, one, &x), add(cx, one, &x));
            match below.is_zero() || above.is_zero() {
                true => {
                    let half = half_pi(cx);
                    if x.is_negative() { negated(half) } else { half }
                }
                false => {
                    let mut root = mul(cx, below, &above);
                    cx.sqrt(&mut root);
                    let ratio = div(cx, x, &root);
                    atan(cx, ratio)
                }
            }
        })
    }

    /// The angle between 0 and pi that has this cosine; NaN outside of [-1, 1].
    #[must_use]
    pub fn acos(self) -> Decimal128 {
        self.function(f64::acos, |cx, x| {
            let one = cx.from_i32(1);
            let (below, above) = (sub(cx, one, &x), add(cx, one, &x));
            if above.is_zero() {
                return pi(cx);
            }
            let mut ratio = div(cx, below, &above);
            cx.sqrt(&mut ratio);
            let half = atan(cx, ratio);
            add(cx, half, &half)
        })
    }

    /// The angle between -pi/2 and pi/2 that has this tangent.
    #[must_use]
    pub fn atan(self) -> Decimal128 {
        match self.class() {
            Class::Infinite { negative } => quarters(if negative { -2 } else { 2 }),
            _ if self.is_huge() => quarters(if self.is_negative() { -2 } else { 2 }),
            _ => self.odd_function(f64::atan, atan),
        }
    }

    /// The angle of the point `(x, self)`, between -pi and pi.
    #[must_use]
    pub fn atan2(self, x: Decimal128) -> Decimal128 {
        if self.is_nan() || x.is_nan() {
            return Decimal128::NAN;
        }
        let special = |n: Decimal128| n.is_zero() || matches!(n.class(), Class::Infinite { .. });
        if special(self) || special(x) {
            let angle = self.to_f64().atan2(x.to_f64());
            let eighths = (angle / std::f64::consts::FRAC_PI_4).round() as i32;
            return match eighths {
                0 if angle.is_sign_negative() => Decimal128::ZERO.negated(),
                eighths => quarters(eighths),
            };
        }
        run(self, |cx, y| {
            let x_wide = Wide::from(x.to_dec());
            let ratio = div(cx, y, &x_wide);
            let angle = atan(cx, ratio);
            match (x.is_negative(), self.is_negative()) {
                (false, _) => angle,
                (true, false) => {
                    let pi = pi(cx);
                    add(cx, angle, &pi)
                }
                (true, true) => {
                    let pi = pi(cx);
                    sub(cx, angle, &pi)
                }
            }
        })
    }

    /// The hyperbolic sine.
    #[must_use]
    pub fn sinh(self) -> Decimal128 {
        self.odd_function(f64::sinh, |cx, x| {
            let (up, down) = exponentials(cx, x);
            let difference = sub(cx, up, &down);
            halved(cx, difference)
        })
    }

    /// The hyperbolic cosine.
    #[must_use]
    pub fn cosh(self) -> Decimal128 {
        self.function(f64::cosh, |cx, x| {
            let (up, down) = exponentials(cx, x);
            let sum = add(cx, up, &down);
            halved(cx, sum)
        })
    }

    /// The hyperbolic tangent.
    #[must_use]
    pub fn tanh(self) -> Decimal128 {
        // From there on it is one but for what no decimal shows.
        if self.to_f64().abs() > 80.0 {
            return Decimal128::from_i64(if self.is_negative() { -1 } else { 1 });
        }
        self.odd_function(f64::tanh, |cx, x| {
            let (up, down) = exponentials(cx, x);
            let (difference, sum) = (sub(cx, up, &down), add(cx, up, &down));
            div(cx, difference, &sum)
        })
    }

    /// The number that has this hyperbolic sine.
    #[must_use]
    pub fn asinh(self) -> Decimal128 {
        if self.is_huge() {
            let positive = self.abs().ln_of_double();
            return if self.is_negative() { positive.negated() } else { positive };
        }
        self.odd_function(f64::asinh, |cx, x| {
            let mut positive = x;
            cx.abs(&mut positive);
            let one = cx.from_i32(1);
            let square = mul(cx, positive, &positive);
            let mut root = add(cx, square, &one);
            cx.sqrt(&mut root);
            let mut result = add(cx, positive, &root);
            cx.ln(&mut result);
            if x.is_negative() { negated(result) } else { result }
        })
    }

    /// The number of at least 0 that has this hyperbolic cosine; NaN below one.
    #[must_use]
    pub fn acosh(self) -> Decimal128 {
        if self.is_huge() {
            return self.ln_of_double();
        }
        self.function(f64::acosh, |cx, x| {
            let one = cx.from_i32(1);
            let (below, above) = (sub(cx, x, &one), add(cx, x, &one));
            let mut root = mul(cx, below, &above);
            cx.sqrt(&mut root);
            let mut result = add(cx, x, &root);
            cx.ln(&mut result);
            result
        })
    }

    /// The number that has this hyperbolic tangent; infinite at -1 and 1, NaN beyond.
    #[must_use]
    pub fn atanh(self) -> Decimal128 {
        match self.abs() == Decimal128::from_i64(1) {
            true if self.is_negative() => Decimal128::NEG_INFINITY,
            true => Decimal128::INFINITY,
            false => self.odd_function(f64::atanh, |cx, x| {
                let one = cx.from_i32(1);
                let (below, above) = (sub(cx, one, &x), add(cx, one, &x));
                let mut ratio = div(cx, above, &below);
                cx.ln(&mut ratio);
                halved(cx, ratio)
            }),
        }
    }

    /// Whether one is nothing beside the number's square, and no double may be near it.
    fn is_huge(self) -> bool {
        self.magnitude().is_some_and(|power| power > HUGE)
    }

    /// The logarithm of twice the number.
    fn ln_of_double(self) -> Decimal128 {
        let mut cx = wide_cx();
        let (mut n, two) = (Wide::from(self.to_dec()), cx.from_i32(2));
        n = mul(&mut cx, n, &two);
        cx.ln(&mut n);
        finished(&mut cx, n)
    }

    /// A function of angles: the sine and what is made of it.
    fn angle_function(self, doubles: fn(f64) -> f64, wide: impl FnOnce(&mut Cx, Wide) -> Wide) -> Decimal128 {
        match self.magnitude() {
            Some(power) if power > TURNS_MAX => self.without_turns(wide),
            _ if doubles(0.0) == 0.0 => self.odd_function(doubles, wide),
            _ => self.function(doubles, wide),
        }
    }

    /// A function of angles of what is left of this one without whole turns.
    fn without_turns(self, wide: impl FnOnce(&mut Cx, Wide) -> Wide) -> Decimal128 {
        let Class::Finite { negative, coefficient, exponent } = self.class() else { return Decimal128::NAN };
        let part = format!("0.{}", super::turns::part_of_turn(coefficient, exponent));
        let mut cx = wide_cx();
        let part = cx.parse(part.as_str()).unwrap_or_else(|_| Wide::nan());
        let half_turn = pi(&mut cx);
        let turn = add(&mut cx, half_turn, &half_turn);
        let rest = mul(&mut cx, part, &turn);
        let result = wide(&mut cx, if negative { negated(rest) } else { rest });
        finished(&mut cx, result)
    }

    /// A function that is about its argument near zero.
    fn odd_function(self, doubles: fn(f64) -> f64, wide: impl FnOnce(&mut Cx, Wide) -> Wide) -> Decimal128 {
        match self.magnitude() {
            Some(power) if power >= TINY => self.function(doubles, wide),
            Some(_) => self,
            None => Decimal128::from_f64(doubles(self.to_f64())),
        }
    }

    /// What a double has no number for is that for a decimal too: infinities, NaN, arguments outside of the domain.
    fn function(self, doubles: fn(f64) -> f64, wide: impl FnOnce(&mut Cx, Wide) -> Wide) -> Decimal128 {
        if self.magnitude().is_none() {
            return Decimal128::from_f64(doubles(self.to_f64()));
        }
        run(self, wide)
    }

    /// The power of ten of a finite number's first digit; a zero has none that is less.
    fn magnitude(self) -> Option<i32> {
        match self.class() {
            Class::Finite { coefficient, exponent, .. } => {
                Some(coefficient.checked_ilog10().map_or(i32::MIN, |log| exponent + log as i32))
            }
            _ => None,
        }
    }
}

fn wide_cx() -> Cx {
    let mut cx = Cx::default();
    // The bounds of decNumber's mathematical functions.
    let _ = cx.set_max_exponent(99_999);
    let _ = cx.set_min_exponent(-99_999);
    let _ = cx.set_precision(DIGITS);
    cx
}

/// A multiple of pi/4.
fn quarters(n: i32) -> Decimal128 {
    run(Decimal128::from_i64(i64::from(n)), |cx, n| {
        let (pi, four) = (pi(cx), cx.from_i32(4));
        let turns = mul(cx, n, &pi);
        div(cx, turns, &four)
    })
}

/// Runs a function on the wide form. As MongoDB's library computes with binary numbers of 113 bits, what these lack is lacking in
/// the argument and in the result; what is exact stays so.
fn run(n: Decimal128, wide: impl FnOnce(&mut Cx, Wide) -> Wide) -> Decimal128 {
    let mut cx = wide_cx();
    let mut argument = Wide::from(n.to_dec());
    through_binary(&mut cx, &mut argument);
    let result = wide(&mut cx, argument);
    finished(&mut cx, result)
}

/// A result as a decimal.
fn finished(cx: &mut Cx, mut result: Wide) -> Decimal128 {
    through_binary(cx, &mut result);
    cx.reduce(&mut result);
    let decimal = Decimal128::from_dec(dec::Context::<dec::Decimal128>::default().from_decimal(&result));
    match decimal.class() {
        // Whole numbers have no exponent.
        Class::Finite { exponent: 1..=PRECISION, .. } => decimal.quantize(0, super::Rounding::HalfEven),
        _ => decimal,
    }
}

fn add(cx: &mut Cx, mut a: Wide, b: &Wide) -> Wide {
    cx.add(&mut a, b);
    a
}

fn sub(cx: &mut Cx, mut a: Wide, b: &Wide) -> Wide {
    cx.sub(&mut a, b);
    a
}

fn mul(cx: &mut Cx, mut a: Wide, b: &Wide) -> Wide {
    cx.mul(&mut a, b);
    a
}

fn div(cx: &mut Cx, mut a: Wide, b: &Wide) -> Wide {
    cx.div(&mut a, b);
    a
}

fn halved(cx: &mut Cx, n: Wide) -> Wide {
    let two = cx.from_i32(2);
    div(cx, n, &two)
}

fn negated(n: Wide) -> Wide {
    -n
}

fn pi(cx: &mut Cx) -> Wide {
    cx.parse(PI).unwrap_or_else(|_| Wide::nan())
}

fn half_pi(cx: &mut Cx) -> Wide {
    let pi = pi(cx);
    halved(cx, pi)
}

/// e to the power of the number, and to its opposite.
fn exponentials(cx: &mut Cx, x: Wide) -> (Wide, Wide) {
    let (mut up, mut down) = (x, negated(x));
    cx.exp(&mut up);
    cx.exp(&mut down);
    (up, down)
}

/// Sine and cosine: quarter turns are taken away, what is left goes into the series.
fn sin_cos(cx: &mut Cx, x: Wide) -> (Wide, Wide) {
    let half_pi = half_pi(cx);
    let mut turns = div(cx, x, &half_pi);
    cx.round(&mut turns);
    let taken = mul(cx, turns, &half_pi);
    let rest = sub(cx, x, &taken);
    let (sin, cos) = (series(cx, rest, 1), series(cx, rest, 0));
    let four = cx.from_i32(4);
    cx.rem(&mut turns, &four);
    let quarter = cx.try_into_f64(turns).map_or(0, |n| (n as i32).rem_euclid(4));
    match quarter {
        0 => (sin, cos),
        1 => (cos, negated(sin)),
        2 => (negated(sin), negated(cos)),
        _ => (negated(cos), sin),
    }
}

/// The sum of `(-1)^n x^(2n+first) / (2n+first)!`: the sine from 1 on, the cosine from 0 on. Its argument is less than one.
fn series(cx: &mut Cx, x: Wide, first: i32) -> Wide {
    let square = mul(cx, x, &x);
    let mut term = if first == 1 { x } else { cx.from_i32(1) };
    let mut sum = term;
    let mut at = first;
    while at < 80 && !term.is_zero() {
        let divisor = cx.from_i32((at + 1) * (at + 2));
        term = mul(cx, term, &square);
        term = negated(div(cx, term, &divisor));
        sum = add(cx, sum, &term);
        at += 2;
    }
    sum
}

/// The angle of a tangent: brought below a tenth by halving, then by the series.
fn atan(cx: &mut Cx, x: Wide) -> Wide {
    const HALVINGS: i32 = 4;
    let one = cx.from_i32(1);
    let mut rest = x;
    for _ in 0..HALVINGS {
        let square = mul(cx, rest, &rest);
        let mut root = add(cx, square, &one);
        cx.sqrt(&mut root);
        let divisor = add(cx, root, &one);
        rest = div(cx, rest, &divisor);
    }
    let square = mul(cx, rest, &rest);
    let (mut power, mut sum) = (rest, rest);
    for n in 1..45 {
        power = negated(mul(cx, power, &square));
        let divisor = cx.from_i32(2 * n + 1);
        let term = div(cx, power, &divisor);
        sum = add(cx, sum, &term);
    }
    let factor = cx.from_i32(1 << HALVINGS);
    mul(cx, sum, &factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dec(text: &str) -> Decimal128 {
        text.parse().unwrap()
    }

    #[test]
    fn angles_beyond_every_double_have_their_sines() {
        // Computed with whole numbers of 6,400 digits.
        let cases = [
            (
                "1E+31",
                "0.7848123261263956163385565444",
                "0.6197335014020752845444668670",
                "1.266370664730644069180660895",
            ),
            (
                "1E+308",
                "-0.787606656204735337015086165",
                "-0.616178346829873465698211505",
                "1.278212160905733907673939570",
            ),
            (
                "2E+308",
                "0.9706123347448766454426237251",
                "-0.240648489796008328689773260",
                "-4.03331986653080726143340331",
            ),
            (
                "1E+400",
                "-0.998538231983097722916159280",
                "-0.054049970102390581728124336",
                "18.47435308644015830803943409",
            ),
            (
                "9.999999999999999999999999999999999E+6144",
                "0.5582907749092521238056875912",
                "-0.829645352335096721628911422",
                "-0.672927020368284405677914031",
            ),
            (
                "12345678901234567890123456789012.34",
                "0.9989929681167170677799149743",
                "0.0448670218908266305152751113",
                "22.26564024123401897835152799",
            ),
        ];
        for (angle, sin, cos, tan) in cases {
            let angle = dec(angle);
            for (is, wanted) in [(angle.sin(), sin), (angle.cos(), cos), (angle.tan(), tan)] {
                assert!(is.to_string().starts_with(wanted), "{angle}: {is}, not {wanted}");
            }
            assert_eq!(angle.negated().sin(), angle.sin().negated());
            assert_eq!(angle.negated().cos(), angle.cos());
        }
    }

    type Function = fn(Decimal128) -> Decimal128;

    #[test]
    fn results_have_all_digits() {
        let cases: &[(Function, &str, &str)] = &[
            (Decimal128::sin, "1", "0.8414709848078965066525023216302989996225630607983710656727517099919"),
            (Decimal128::cos, "1", "0.5403023058681397174009366074429766037323104206179222276700972553811"),
            (Decimal128::tan, "1", "1.5574077246549022305069748074583601730872507723815200383839466056989"),
            (Decimal128::sin, "100", "-0.506365641109758793656557610459785432065032721290657323443392473594"),
            (
                Decimal128::asin,
                "0.5",
                "0.5235987755982988730771072305465838140328615665625176368291574320513",
            ),
            (Decimal128::asin, "1", "1.5707963267948966192313216916397514420985846996875529104874722961539"),
            (
                Decimal128::acos,
                "0.5",
                "1.0471975511965977461542144610931676280657231331250352736583148641026",
            ),
            (Decimal128::acos, "-1", "3.1415926535897932384626433832795028841971693993751058209749445923078"),
            (Decimal128::atan, "1", "0.7853981633974483096156608458198757210492923498437764552437361480769"),
            (
                Decimal128::atan,
                "-10",
                "-1.471127674303734591852875571761730851855306377183238262471963519343",
            ),
            (Decimal128::sinh, "1", "1.1752011936438014568823818505956008151557179813340958702295654130133"),
            (Decimal128::cosh, "1", "1.5430806348152437784779056207570616826015291123658637047374022147107"),
            (Decimal128::tanh, "1", "0.7615941559557648881194582826047935904127685972579365515968105001219"),
            (Decimal128::asinh, "1", "0.8813735870195430252326093249797923090281603282616354107532956086533"),
            (Decimal128::acosh, "2", "1.3169578969248167086250463473079684440269819714675164797684722569204"),
            (
                Decimal128::atanh,
                "0.5",
                "0.5493061443340548456976226184612628523237452789113747258673471668187",
            ),
        ];
        for (function, argument, digits) in cases {
            let result = function(dec(argument));
            let off = result.divide(dec(digits)).subtract(Decimal128::from_i64(1)).abs();
            // The last digit shows what 113 bits lack.
            assert!(off.to_f64() < 3e-34, "of {argument}: {result} and not {digits}");
        }
    }

    #[test]
    fn what_is_exact_is_short() {
        for (function, argument, want) in [
            (Decimal128::sin as Function, "0", "0"),
            (Decimal128::cos, "0", "1"),
            (Decimal128::acos, "1", "0"),
            (Decimal128::cosh, "0", "1"),
            (Decimal128::acosh, "1", "0"),
            (Decimal128::tanh, "1000", "1"),
            (Decimal128::tanh, "-Infinity", "-1"),
            (Decimal128::atanh, "1", "Infinity"),
            (Decimal128::sinh, "-Infinity", "-Infinity"),
            (Decimal128::sin, "NaN", "NaN"),
            (Decimal128::asin, "1E-30", "1E-30"),
            (Decimal128::cos, "1E-6143", "1"),
            (Decimal128::cos, "-0E+3", "1"),
        ] {
            assert_eq!(function(dec(argument)).to_string(), want, "of {argument}");
        }
    }

    #[test]
    fn beyond_all_doubles() {
        for (function, argument, want) in [
            (
                Decimal128::atan as Function,
                "9.999999999999999999999999999999999E+6144",
                "1.57079632679489661923132169163",
            ),
            (Decimal128::atan, "-1E+300", "-1.57079632679489661923132169163"),
            (
                Decimal128::asinh,
                "9.999999999999999999999999999999999E+6144",
                "14150.078543628970673599974721156",
            ),
            (
                Decimal128::acosh,
                "9.999999999999999999999999999999999E+6144",
                "14150.078543628970673599974721156",
            ),
            (Decimal128::asinh, "-1E+6144", "-14147.7759585359766279159567297"),
        ] {
            let result = function(dec(argument)).to_string();
            assert!(result.starts_with(want), "of {argument}: {result}");
        }
    }

    #[test]
    fn quadrants() {
        for (y, x, want) in [
            ("1", "1", "0.78539816339744830961566084581987"),
            ("1", "-1", "2.35619449019234492884698253745962"),
            ("-1", "-1", "-2.35619449019234492884698253745962"),
            ("1", "0", "1.57079632679489661923132169163975"),
            ("0", "-1", "3.14159265358979323846264338327950"),
            ("Infinity", "-Infinity", "2.35619449019234492884698253745962"),
        ] {
            let angle = dec(y).atan2(dec(x)).to_string();
            assert!(angle.starts_with(want), "{y}, {x}: {angle}");
        }
        assert_eq!(dec("0").atan2(dec("1")).to_string(), "0");
    }
}
