use super::*;

fn dec(text: &str) -> Value<'static> {
    Value::Decimal128(text.parse().unwrap())
}

/// Same type and same bits, which MongoDB's comparison would not tell.
fn same(got: Option<Value<'_>>, want: Option<Value<'_>>) -> bool {
    format!("{got:?}") == format!("{want:?}")
}

macro_rules! golden {
    ($($call:expr => $want:expr),* $(,)?) => {
        $({
            let (got, want) = ($call, $want);
            assert!(same(got, want), "{}: {got:?}, not {want:?}", stringify!($call));
        })*
    };
}

const fn int(n: i32) -> Value<'static> {
    Value::Int32(n)
}
const fn long(n: i64) -> Value<'static> {
    Value::Int64(n)
}
const fn double(n: f64) -> Value<'static> {
    Value::Double(n)
}

#[test]
fn sums_and_products_widen() {
    golden! {
        add(int(1), int(2)) => Some(int(3)),
        add(int(i32::MAX), int(1)) => Some(long(2_147_483_648)),
        add(int(1), long(2)) => Some(long(3)),
        add(long(i64::MAX), int(1)) => Some(double(9_223_372_036_854_775_808.0)),
        checked_add(long(i64::MAX), int(1)) => None,
        checked_add(int(i32::MIN), int(-1)) => Some(long(-2_147_483_649)),
        add(int(1), double(0.5)) => Some(double(1.5)),
        add(double(0.1), dec("1")) => Some(dec("1.100000000000000")),
        add(long(1), dec("1.50")) => Some(dec("2.50")),
        add(Value::String("1"), int(1)) => None,
        add(Value::Null, Value::Null) => None,
        subtract(int(i32::MIN), int(1)) => Some(long(-2_147_483_649)),
        subtract(long(i64::MIN), long(1)) => Some(double(-9_223_372_036_854_775_808.0)),
        subtract(dec("1"), dec("1.0")) => Some(dec("0.0")),
        multiply(int(65_536), int(65_536)) => Some(long(4_294_967_296)),
        multiply(long(i64::MAX), int(2)) => Some(double(18_446_744_073_709_551_616.0)),
        checked_multiply(long(i64::MAX), int(2)) => None,
        multiply(int(2), double(1.5)) => Some(double(3.0)),
        multiply(dec("1.5"), int(2)) => Some(dec("3.0")),
    }
}

#[test]
fn quotients_and_remainders() {
    golden! {
        divide(int(6), int(3)) => Some(double(2.0)),
        divide(int(1), double(-0.0)) => None,
        divide(int(1), dec("0")) => None,
        divide(dec("1"), int(4)) => Some(dec("0.25")),
        modulo(int(-7), int(3)) => Some(int(-1)),
        modulo(int(7), long(3)) => Some(long(1)),
        modulo(int(7), double(3.0)) => Some(double(1.0)),
        modulo(int(7), double(2.5)) => Some(double(2.0)),
        modulo(long(7), double(3.0)) => Some(double(1.0)),
        modulo(int(7), double(3e10)) => Some(double(7.0)),
        modulo(double(7.5), int(2)) => Some(double(1.5)),
        modulo(long(i64::MIN), int(-1)) => Some(long(0)),
        modulo(int(7), dec("2.5")) => Some(dec("2.0")),
        modulo(int(7), int(0)) => None,
        modulo(int(7), double(f64::NAN)) => Some(double(f64::NAN)),
    }
}

#[test]
fn rounding() {
    golden! {
        abs(int(i32::MIN)) => Some(long(2_147_483_648)),
        abs(long(i64::MIN)) => None,
        abs(dec("-1.50")) => Some(dec("1.50")),
        ceil(double(-0.5)) => Some(double(-0.0)),
        floor(double(-0.5)) => Some(double(-1.0)),
        ceil(dec("1.1")) => Some(dec("2")),
        floor(long(3)) => Some(long(3)),
        round(double(2.5), 0, Rounding::HalfEven) => Some(double(2.0)),
        round(double(1.235), 2, Rounding::HalfEven) => Some(double(1.24)),
        round(double(1.005), 2, Rounding::HalfEven) => Some(double(1.0)),
        round(double(19.25), 1, Rounding::HalfEven) => Some(double(19.2)),
        round(double(1234.5), -2, Rounding::HalfEven) => Some(double(1200.0)),
        round(double(-7.89), 1, Rounding::Truncate) => Some(double(-7.8)),
        round(int(15), -1, Rounding::HalfEven) => Some(int(20)),
        round(int(25), -1, Rounding::HalfEven) => Some(int(20)),
        round(int(29), -1, Rounding::Truncate) => Some(int(20)),
        round(int(i32::MAX), -1, Rounding::HalfEven) => Some(long(2_147_483_650)),
        round(long(i64::MAX), -1, Rounding::HalfEven) => None,
        round(int(3), 5, Rounding::HalfEven) => Some(int(3)),
        round(dec("2.675"), 2, Rounding::HalfEven) => Some(dec("2.68")),
        round(double(f64::INFINITY), 3, Rounding::HalfEven) => Some(double(f64::INFINITY)),
        negate(int(i32::MIN)) => Some(long(2_147_483_648)),
        negate(long(i64::MIN)) => Some(double(9_223_372_036_854_775_808.0)),
    }
}

#[test]
fn powers_and_logarithms() {
    golden! {
        pow(int(2), int(10)) => Some(int(1024)),
        pow(int(2), int(31)) => Some(long(2_147_483_648)),
        pow(long(2), int(3)) => Some(long(8)),
        pow(int(2), int(64)) => Some(double(18_446_744_073_709_551_616.0)),
        pow(int(2), int(-1)) => Some(double(0.5)),
        pow(int(-1), int(-3)) => Some(int(-1)),
        pow(int(0), int(0)) => Some(int(1)),
        pow(int(-2), int(63)) => Some(long(i64::MIN)),
        pow(int(2), double(0.5)) => Some(double(std::f64::consts::SQRT_2)),
        pow(dec("2"), int(3)) => Some(dec("8.000000000000000000000000000000000")),
        exp(int(0)) => Some(double(1.0)),
        ln(int(1)) => Some(double(0.0)),
        log10(long(1000)) => Some(double(3.0)),
        sqrt(int(9)) => Some(double(3.0)),
        sqrt(dec("9")) => Some(dec("3")),
        sqrt(Value::Null) => None,
    }
}

#[test]
fn truncation() {
    for (value, want) in [
        (double(-1.9), Truncated::Integer(-1)),
        (double(9.3e18), Truncated::Overflow),
        (double(f64::NAN), Truncated::Nan),
        (double(f64::NEG_INFINITY), Truncated::Infinite),
        (dec("-1.9"), Truncated::Integer(-1)),
        (dec("9223372036854775807.9"), Truncated::Integer(i64::MAX)),
        (dec("9223372036854775808"), Truncated::Overflow),
        (dec("1E-6000"), Truncated::Integer(0)),
        (dec("NaN"), Truncated::Nan),
    ] {
        assert_eq!(truncate_to_i64(value), Some(want), "{value:?}");
    }
    assert_eq!(truncate_to_i64(Value::Bool(true)), None);
}

fn sum(values: &[Value<'_>]) -> Sum {
    let mut sum = Sum::new();
    values.iter().for_each(|value| sum.add(*value));
    sum
}

#[test]
fn running_sums() {
    golden! {
        Some(sum(&[]).total()) => Some(int(0)),
        Some(sum(&[int(1), Value::String("x"), int(2)]).total()) => Some(int(3)),
        Some(sum(&[int(i32::MAX), int(1)]).total()) => Some(long(2_147_483_648)),
        Some(sum(&[long(i64::MAX), long(-1), long(1)]).total()) => Some(long(i64::MAX)),
        Some(sum(&[long(i64::MAX), long(i64::MAX), long(-i64::MAX)]).total()) => Some(long(i64::MAX)),
        Some(sum(&[long(i64::MAX), long(1)]).total()) => Some(double(9_223_372_036_854_775_808.0)),
        Some(sum(&[double(0.1), double(0.2), double(0.3)]).total()) => Some(double(0.6)),
        Some(sum(&[double(1e308), double(1e308), double(-1e308)]).total()) => Some(double(f64::INFINITY)),
        Some(sum(&[double(f64::INFINITY), double(f64::NEG_INFINITY)]).total()) => Some(double(f64::NAN)),
        Some(sum(&[double(1e16), double(1.0), double(-1e16)]).total()) => Some(double(1.0)),
        Some(sum(&[int(1), dec("2.50")]).total()) => Some(dec("3.50")),
        Some(sum(&[double(0.5), dec("2.50")]).total()) => Some(dec("3.00")),
        Some(sum(&[double(f64::NAN), dec("2.50")]).total()) => Some(dec("NaN")),
        Some(sum(&[int(1), int(2)]).average(2)) => Some(double(1.5)),
        Some(sum(&[dec("1"), int(2)]).average(2)) => Some(dec("1.5")),
    }
    let mut merged = sum(&[long(i64::MAX)]);
    merged.merge(&sum(&[long(-5)]));
    assert!(same(Some(merged.total()), Some(long(i64::MAX - 5))));
}
