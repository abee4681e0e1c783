//! ObjectIds and UUIDs: making and writing them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::value::ObjectId;

impl ObjectId {
    /// Seconds since the epoch at which it was made.
    pub fn timestamp(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for ObjectId {
    /// 24 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text was not what it should have been.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not the expected number of hexadecimal digits")
    }
}

impl std::error::Error for ParseIdError {}

impl FromStr for ObjectId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        hex(text.bytes()).map(ObjectId).ok_or(ParseIdError)
    }
}

/// Exactly `2 * N` hexadecimal digits.
fn hex<const N: usize>(mut digits: impl Iterator<Item = u8>) -> Option<[u8; N]> {
    let mut digit = || (digits.next()? as char).to_digit(16).map(|n| n as u8);
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = digit()? << 4 | digit()?;
    }
    digits.next().is_none().then_some(bytes)
}

/// Makes ObjectIds that no other process makes, and each only once.
#[derive(Debug)]
pub struct ObjectIdGenerator {
    process: [u8; 5],
    counter: AtomicU32,
}

impl ObjectIdGenerator {
    /// `random` must be drawn anew by each process.
    pub fn new(random: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = random.to_le_bytes();
        ObjectIdGenerator {
            process: [a, b, c, d, e],
            counter: AtomicU32::new(u32::from_le_bytes([f, g, h, 0])),
        }
    }

    /// The next ObjectId; `seconds` is the time since the epoch.
    pub fn next(&self, seconds: u32) -> ObjectId {
        let [_, x, y, z] = self.counter.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let ([s0, s1, s2, s3], [p0, p1, p2, p3, p4]) = (seconds.to_be_bytes(), self.process);
        ObjectId([s0, s1, s2, s3, p0, p1, p2, p3, p4, x, y, z])
    }
}

/// The usual text of a UUID: `8-4-4-4-12` hexadecimal digits.
pub fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [byte >> 4, byte & 0xF] {
            text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
    }
    text
}

/// Reads the usual text of a UUID.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], ParseIdError> {
    let dashes = text.bytes().enumerate().all(|(at, byte)| matches!(at, 8 | 13 | 18 | 23) == (byte == b'-'));
    if !dashes || text.len() != 36 {
        return Err(ParseIdError);
    }
    hex(text.bytes().filter(|byte| *byte != b'-')).ok_or(ParseIdError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_each_other() {
        let ids = ObjectIdGenerator::new(0x00FF_FFFF_0504_0302_u64 << 8 | 1);
        assert_eq!(ids.next(0x1234_5678).to_string(), "123456780102030405ffffff");
        let next = ids.next(0x1234_5679);
        assert_eq!(next.to_string(), "123456790102030405000000");
        assert_eq!(next.timestamp(), 0x1234_5679);
    }

    #[test]
    fn texts_are_read_strictly() {
        let text = "507f1f77bcf86cd799439011";
        assert_eq!(text.parse::<ObjectId>().unwrap().to_string(), text);
        for bad in [
            "",
            "507f1f77bcf86cd79943901",
            "507f1f77bcf86cd7994390110",
            "507f1f77bcf86cd79943901g",
            "+07f1f77bcf86cd799439011",
        ] {
            assert_eq!(bad.parse::<ObjectId>(), Err(ParseIdError), "{bad}");
        }
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(uuid_text(parse_uuid(uuid).unwrap()), uuid);
        for bad in [
            "",
            "0123456789abcdef0123456789abcdef",
            "01234567-89ab-cdef-0123-456789abcde",
            "012345678-9ab-cdef-0123-456789abcdef",
        ] {
            assert_eq!(parse_uuid(bad), Err(ParseIdError), "{bad}");
        }
    }
}
