//! Numbers and texts as people read them.

/// A text for HTML: content and attribute values alike.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are not allowed in HTML.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A number with three or four digits that matter: "12,345", "123", "12.3", "1.23", "0.0123".
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    let decimals = match size {
        0.0 => 0,
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.00001 => (2.0 - s.log10().floor()) as usize,
        _ => return format!("{value:.1e}"),
    };
    let text = format!("{value:.decimals$}");
    let text = match text.split_once('.') {
        Some((whole, part)) if part.bytes().all(|b| b == b'0') => whole.to_owned(),
        _ => text,
    };
    if size >= 999.5 { thousands(&text) } else { text }
}

fn thousands(whole: &str) -> String {
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |d| ("-", d));
    let mut grouped = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A whole number with separators.
pub fn count(value: u64) -> String {
    thousands(&value.to_string())
}

/// Microseconds in the unit that suits: "850 ns", "12.3 µs", "1.5 ms", "2.1 s".
pub fn latency(us: f64) -> String {
    match us {
        us if !us.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        us if us < 0.9995 => format!("{} ns", number(us * 1e3)),
        us if us < 999.5 => format!("{} µs", number(us)),
        us if us < 999_500.0 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

/// Short for axes: "0", "250", "1.5 k", "2 M".
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{} G", number(value / 1e9)),
        v if v >= 1e6 => format!("{} M", number(value / 1e6)),
        v if v >= 1e4 => format!("{} k", number(value / 1e3)),
        _ => number(value),
    }
}

/// Bytes in binary units.
pub fn bytes(value: u64) -> String {
    let value = value as f64;
    let units =
        [(1024.0_f64.powi(4), "TiB"), (1024.0_f64.powi(3), "GiB"), (1024.0 * 1024.0, "MiB"), (1024.0, "KiB")];
    units.iter().find(|(size, _)| value >= *size).map_or_else(
        || format!("{} B", number(value)),
        |(size, unit)| format!("{} {unit}", number(value / size)),
    )
}

/// A figure of a table; latencies choose their unit.
pub fn figure(value: f64, unit: &str) -> String {
    match unit {
        "us" | "µs" => latency(value),
        "ms" => latency(value * 1e3),
        "ns" => latency(value / 1e3),
        "bytes" | "B" if value >= 0.0 => bytes(value as u64),
        "%" => percent(value),
        _ => number(value),
    }
}

/// A range with its unit once: "40.7-115 ms". `dash` stands in between.
pub fn range(low: f64, high: f64, unit: &str, dash: &str) -> String {
    let (low, high) = (figure(low, unit), figure(high, unit));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((figure, unit)), Some((_, same))) if unit == same => format!("{figure}{dash}{high}"),
        _ => format!("{low}{dash}{high}"),
    }
}

/// Per cent, never rounded up to 100: a single wrong document must show.
fn percent(value: f64) -> String {
    let text = number(value);
    if text != "100" || value >= 100.0 {
        return text;
    }
    let missing = (-(100.0 - value).log10()).ceil().max(0.0) as usize + 1;
    format!("{value:.missing$}")
}

/// The unit to print beside a figure: empty when [`figure`] prints it itself or the name says it.
pub fn unit_text<'a>(name: &str, unit: &'a str) -> &'a str {
    match unit {
        "us" | "µs" | "ms" | "ns" | "bytes" | "B" | "" => "",
        unit if name.contains(unit) => "",
        "1/s" if name.contains("/s") => "",
        unit => unit,
    }
}

/// "2026-11-21 05:03:04 UTC" from milliseconds since 1970.
pub fn date(ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        // A results file may hold anything.
        Err(_) => format!("{ms} ms"),
    }
}

/// "45 s", "3 min 20 s", "1 h 5 min".
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=9 => format!("{} s", number(seconds)),
        10..=119 => format!("{whole} s"),
        120..=3599 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        let expected = [
            (0.0, "0"),
            (12_345.4, "12,345"),
            (1_234_567.0, "1,234,567"),
            (999.7, "1,000"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.0, "1"),
            (1.239, "1.24"),
            (0.5, "0.500"),
            (0.01234, "0.0123"),
            (-4321.0, "-4,321"),
            (f64::NAN, "-"),
        ];
        for (value, text) in expected {
            assert_eq!(number(value), text, "{value}");
        }
    }

    #[test]
    fn latencies_choose_their_unit() {
        for (us, text) in [
            (0.85, "850 ns"),
            (12.3, "12.3 µs"),
            (999.7, "1 ms"),
            (1500.0, "1.50 ms"),
            (2_100_000.0, "2.10 s"),
        ] {
            assert_eq!(latency(us), text, "{us}");
        }
    }

    #[test]
    fn ranges_name_a_common_unit_once() {
        assert_eq!(range(40_700.0, 115_000.0, "us", "-"), "40.7-115 ms");
        assert_eq!(range(900.0, 1_500.0, "us", " – "), "900 µs – 1.50 ms");
        assert_eq!(range(395.0, 420.0, "MB/s", "-"), "395-420");
    }

    #[test]
    fn almost_all_is_not_all() {
        assert_eq!(figure(100.0, "%"), "100");
        assert_eq!(figure(99.999_5, "%"), "99.99950");
        assert_eq!(figure(99.97, "%"), "99.970");
        assert_eq!(figure(42.0, "%"), "42");
    }

    #[test]
    fn units_are_said_once() {
        assert_eq!(unit_text("transactions/s", "1/s"), "");
        assert_eq!(unit_text("MB/s written", "MB/s"), "");
        assert_eq!(unit_text("consistent reads", "%"), "%");
        assert_eq!(unit_text("write p99", "us"), "");
    }

    #[test]
    fn dates_and_escapes() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_827_696_000), "2000-02-29 12:34:56 UTC");
        assert_eq!(date(1_795_237_384_123), "2026-11-21 05:03:04 UTC");
        assert_eq!(escape("<a href=\"x\">&'\u{1}"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\u{fffd}");
    }
}
