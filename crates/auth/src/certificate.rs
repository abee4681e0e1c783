//! Whom a certificate names, as MongoDB names users by it: the subject by RFC 2253, last part first.
//!
//! It is read of certificates that have been verified; who signed them, and until when they hold, is not looked at here.

use std::fmt::Write;

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One value: its tag and its bytes; the rest follows.
fn take(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(length)?;
    Some((tag, value, rest))
}

fn take_as(der: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    take(der).filter(|(tag, ..)| *tag == wanted).map(|(_, value, rest)| (value, rest))
}

/// What follows the serial number, the algorithm and the issuer: the validity, then the subject.
fn behind_issuer(der: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = take_as(der, SEQUENCE)?;
    let (mut signed, _) = take_as(certificate, SEQUENCE)?;
    if let Some((_, rest)) = take_as(signed, VERSION) {
        signed = rest;
    }
    for _ in 0..3 {
        signed = take(signed)?.2;
    }
    Some(signed)
}

/// From when and until when a certificate in DER holds, in seconds since the epoch; `None` for what is no certificate.
pub fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (validity, _) = take_as(behind_issuer(der)?, SEQUENCE)?;
    let (tag, begin, rest) = take(validity)?;
    let begin = time(tag, begin)?;
    let (tag, end, _) = take(rest)?;
    Some((begin, time(tag, end)?))
}

/// Until when a list of revocations in DER holds, in seconds since the epoch; `None` for what is none, or one that says no end.
pub fn list_end(der: &[u8]) -> Option<i64> {
    let (list, _) = take_as(der, SEQUENCE)?;
    let (mut signed, _) = take_as(list, SEQUENCE)?;
    if let Some((_, rest)) = take_as(signed, INTEGER) {
        signed = rest;
    }
    // The algorithm, the issuer, and when it was made.
    for _ in 0..3 {
        signed = take(signed)?.2;
    }
    let (tag, end, _) = take(signed)?;
    time(tag, end)
}

fn time(tag: u8, text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i64 = year.parse().ok()?;
            (year + if year < 50 { 2000 } else { 1900 }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let days = days_before(year, part(0)?, part(2)?);
    Some(((days * 24 + part(4)?) * 60 + part(6)?) * 60 + part(8)?)
}

/// Days from the epoch to a day of the Gregorian calendar; a year begins with March here.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 1
        - 719_468
}

/// The subject of a certificate in DER; `None` for what is no certificate, or one whose subject has no name.
pub fn subject(der: &[u8]) -> Option<String> {
    let (_, _, subject) = take(behind_issuer(der)?)?;
    let (mut names, _) = take_as(subject, SEQUENCE)?;
    let mut parts = Vec::new();
    while !names.is_empty() {
        let (set, rest) = take_as(names, SET)?;
        parts.push(relative_name(set)?);
        names = rest;
    }
    parts.reverse();
    (!parts.is_empty()).then(|| parts.join(","))
}

fn relative_name(mut set: &[u8]) -> Option<String> {
    let mut attributes = Vec::new();
    while !set.is_empty() {
        let (attribute, rest) = take_as(set, SEQUENCE)?;
        let (oid, value) = take_as(attribute, OBJECT_IDENTIFIER)?;
        attributes.push(format!("{}={}", attribute_name(oid), text(value)?));
        set = rest;
    }
    Some(attributes.join("+"))
}

fn attribute_name(oid: &[u8]) -> String {
    let known = match oid {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 4] => "SN",
        [0x55, 4, 5] => "serialNumber",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 9] => "STREET",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        [0x55, 4, 12] => "title",
        [0x55, 4, 42] => "GN",
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1] => "emailAddress",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1] => "UID",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25] => "DC",
        _ => return dotted(oid),
    };
    known.to_owned()
}

fn dotted(oid: &[u8]) -> String {
    let mut numbers: Vec<u64> = Vec::new();
    let mut number = 0u64;
    for byte in oid {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.extend([first, number - 40 * first]);
            } else {
                numbers.push(number);
            }
            number = 0;
        }
    }
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

/// The text of a value, escaped; what is no text is shown as its bytes.
fn text(der: &[u8]) -> Option<String> {
    const UTF8: u8 = 0x0c;
    const BMP: u8 = 0x1e;
    let (tag, value, _) = take(der)?;
    let text = match tag {
        // Also the printable, the teletex and the IA5 string.
        UTF8 | 0x12 | 0x13 | 0x16 | 0x1a => String::from_utf8(value.to_vec()).ok()?,
        0x14 => value.iter().map(|byte| char::from(*byte)).collect(),
        BMP => {
            let units: Vec<u16> =
                value.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]])).collect();
            String::from_utf16(&units).ok()?
        }
        _ => {
            let mut hex = "#".to_owned();
            der.iter().for_each(|byte| _ = write!(hex, "{byte:02X}"));
            return Some(hex);
        }
    };
    Some(escape(&text))
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let last = text.chars().count().saturating_sub(1);
    for (at, c) in text.chars().enumerate() {
        match c {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => out.extend(['\\', c]),
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || at == last => out.push_str("\\ "),
            c if c.is_ascii_control() => _ = write!(out, "\\{:02X}", c as u32),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let all = parts.concat();
        let mut out = vec![tag];
        match all.len() {
            short @ 0..=127 => out.push(short as u8),
            long => out.extend([0x82, (long >> 8) as u8, long as u8]),
        }
        out.extend(all);
        out
    }

    fn attribute(oid: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        value(SEQUENCE, &[&value(OBJECT_IDENTIFIER, &[oid]), &value(tag, &[text])])
    }

    fn certificate(sets: &[Vec<u8>]) -> Vec<u8> {
        let names: Vec<Vec<u8>> = sets.iter().map(|set| value(SET, &[set])).collect();
        let names = value(SEQUENCE, &names.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let empty = value(SEQUENCE, &[]);
        let version = value(VERSION, &[&value(2, &[&[2]])]);
        let serial = value(2, &[&[1; 200]]);
        let times =
            value(SEQUENCE, &[&value(UTC_TIME, &[b"200101000000Z"]), &value(UTC_TIME, &[b"270304050607Z"])]);
        let signed = value(SEQUENCE, &[&version, &serial, &empty, &empty, &times, &names]);
        value(SEQUENCE, &[&signed, &empty])
    }

    #[test]
    fn lists_of_revocations_say_their_end() {
        let empty = value(SEQUENCE, &[]);
        let times = [value(UTC_TIME, &[b"200101000000Z"]), value(UTC_TIME, &[b"200102000000Z"])];
        let of = |parts: &[&[u8]]| list_end(&value(SEQUENCE, &[&value(SEQUENCE, parts), &empty]));
        let end = Some(1_577_923_200);
        assert_eq!(of(&[&value(INTEGER, &[&[1]]), &empty, &empty, &times[0], &times[1], &empty]), end);
        assert_eq!(of(&[&empty, &empty, &times[0], &times[1]]), end);
        // Who says no end has none, whatever comes then.
        assert_eq!(of(&[&empty, &empty, &times[0], &empty]), None);
        assert_eq!(of(&[&empty, &empty, &times[0]]), None);
        assert_eq!(list_end(b"no list"), None);
    }

    #[test]
    fn the_last_part_comes_first() {
        let der = certificate(&[
            attribute(&[0x55, 4, 6], 0x13, b"US"),
            [attribute(&[0x55, 4, 11], 0x0c, b"a+b"), attribute(&[0x55, 4, 10], 0x0c, b" x,y ")].concat(),
            attribute(&[0x55, 4, 3], 0x0c, "zo\u{eb}\n".as_bytes()),
            attribute(&[0x2a, 3], 0x04, b"\x01\xff"),
        ]);
        assert_eq!(validity(&der), Some((1_577_836_800, 1_804_136_767)));
        assert_eq!(subject(&der).unwrap(), "1.2.3=#040201FF,CN=zo\u{eb}\\0A,OU=a\\+b+O=\\ x\\,y\\ ,C=US");
    }

    #[test]
    fn what_is_no_certificate_names_nobody() {
        let der = certificate(&[attribute(&[0x55, 4, 3], 0x0c, b"ann")]);
        assert_eq!(subject(&certificate(&[])), None);
        for length in 0..der.len() - 2 {
            assert_eq!(subject(&der[..length]), None);
        }
        for at in 0..der.len() {
            let mut broken = der.clone();
            broken[at] ^= 0x40;
            let _ = (subject(&broken), validity(&broken));
        }
    }
}
