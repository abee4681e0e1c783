use super::*;

fn dec(text: &str) -> Decimal128 {
    text.parse().unwrap()
}

#[test]
fn text_round_trips_in_the_specified_forms() {
    for text in [
        "0",
        "-0",
        "0.00",
        "0E+3",
        "0E-10",
        "1",
        "-1.50",
        "1E+3",
        "1.5E+10",
        "0.000001",
        "1E-7",
        "1.0E-7",
        "12345.678",
        "NaN",
        "Infinity",
        "-Infinity",
        "9.999999999999999999999999999999999E+6144",
        "1E-6176",
        "0.1234567890",
    ] {
        assert_eq!(dec(text).to_string(), text);
    }
    for (from, to) in [
        ("1e3", "1E+3"),
        ("+.5", "0.5"),
        ("5.", "5"),
        ("inf", "Infinity"),
        ("-INF", "-Infinity"),
        ("nan", "NaN"),
        ("00012", "12"),
        ("1E6112", "1.0E+6112"),
        ("0E9999", "0E+6111"),
        ("12345678901234567890123456789012345", "1.234567890123456789012345678901234E+34"),
        ("12345678901234567890123456789012355", "1.234567890123456789012345678901236E+34"),
        ("99999999999999999999999999999999999", "1.000000000000000000000000000000000E+35"),
    ] {
        assert_eq!(dec(from).to_string(), to, "{from}");
    }
}

#[test]
fn what_is_no_decimal_is_refused() {
    for text in ["", ".", "-", "1e", "1e+", "0x1", "1 ", " 1", "1.2.3", "abc", "--1", "infin"] {
        assert_eq!(text.parse::<Decimal128>(), Err(ParseDecimalError::Invalid), "{text}");
    }
    assert_eq!("1E6145".parse::<Decimal128>(), Err(ParseDecimalError::Overflow));
    assert_eq!("1E-6177".parse::<Decimal128>(), Err(ParseDecimalError::Underflow));
}

#[test]
fn doubles_become_fifteen_digits() {
    for (from, to) in [
        (0.1, "0.100000000000000"),
        (2.5, "2.50000000000000"),
        (1.0, "1.00000000000000"),
        (0.0, "0"),
        (-0.0, "-0"),
        (1e300, "1.00000000000000E+300"),
        (0.9999999999999999, "1.00000000000000"),
        (1.0 / 3.0, "0.333333333333333"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-Infinity"),
        (5e-324, "4.94065645841247E-324"),
    ] {
        assert_eq!(Decimal128::from_f64(from).to_string(), to);
    }
    assert_eq!(Decimal128::from_f64_exact(0.1).to_string(), "0.1000000000000000055511151231257827");
    assert_eq!(Decimal128::from_f64_exact(2.5).to_string(), "2.5");
    assert_eq!(Decimal128::from_f64_exact(1e20).to_string(), "100000000000000000000");
}

#[test]
fn integers_come_back_only_if_exact() {
    for (text, want) in [
        ("3", Some(3)),
        ("3.00", Some(3)),
        ("3E2", Some(300)),
        ("3.5", None),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("0E-6176", Some(0)),
        ("NaN", None),
        ("Infinity", None),
        ("1E+6000", None),
        ("1E-100", None),
    ] {
        assert_eq!(dec(text).to_i64_exact(), want, "{text}");
    }
}

#[test]
fn decimals_compare_by_value() {
    let rising = [
        "NaN",
        "-Infinity",
        "-1E+6144",
        "-2",
        "-1.5",
        "-1E-6176",
        "0",
        "1E-6176",
        "0.1",
        "1",
        "1.5",
        "2E+10",
        "Infinity",
    ];
    for (i, a) in rising.iter().enumerate() {
        for (j, b) in rising.iter().enumerate() {
            assert_eq!(dec(a).compare(dec(b)), i.cmp(&j), "{a} {b}");
        }
    }
    for (a, b) in [("1", "1.00"), ("0", "-0E+10"), ("1E+3", "1000"), ("NaN", "-NaN")] {
        assert_eq!(dec(a).compare(dec(b)), Ordering::Equal);
    }
}

#[test]
fn decimals_compare_exactly_with_doubles() {
    for (text, double, want) in [
        ("0.1", 0.1, Ordering::Less), // the double is a little more than a tenth
        ("0.5", 0.5, Ordering::Equal),
        ("0.3", 0.3, Ordering::Greater),
        ("1E+22", 1e22, Ordering::Equal),
        ("1E+23", 1e23, Ordering::Greater),
        ("1E-6176", 0.0, Ordering::Greater),
        ("-1E-6176", -0.0, Ordering::Less),
        ("1E+6000", f64::MAX, Ordering::Greater),
        ("1E+6000", f64::INFINITY, Ordering::Less),
        ("NaN", f64::NAN, Ordering::Equal),
        ("-Infinity", f64::NAN, Ordering::Greater),
        ("4.940656458412465441765687928682214E-324", 5e-324, Ordering::Greater),
        ("179769313486231570814527423731704356798.1", f64::MAX, Ordering::Less),
        ("-0.3", -0.3, Ordering::Less),
    ] {
        assert_eq!(dec(text).compare_f64(double), want, "{text} {double}");
    }
}

#[test]
fn logarithms_are_made_with_binary_numbers_of_113_bits() {
    let dec = |text: &str| text.parse::<Decimal128>().unwrap();
    for (n, ln) in [
        ("2.718281828459045", "0.9999999999999999134157889710887611"),
        ("2", "0.6931471805599453094172321214581766"),
        ("10", "2.302585092994045684017991454684364"),
        ("1", "0"),
        ("1.000000000000000000000000000000001", "9.999999999999999999999999999999995E-34"),
        ("1E+300", "690.7755278982137052053974364053093"),
        ("1E+6000", "13815.51055796427410410794872810618"),
    ] {
        let got = dec(n).ln();
        assert!((got.to_string() == ln) || got.subtract(dec(ln)).is_zero(), "ln {n}: {got}");
    }
    for (n, log) in [("1000", "3"), ("1E+40", "40"), ("0.001", "-3"), ("1E-6000", "-6000")] {
        assert!(dec(n).log10().subtract(dec(log)).is_zero(), "log10 {n}: {}", dec(n).log10());
    }
}
