//! Values as numbers whose differences are small.

use std::ops::Range;

/// Type bytes that this module tells apart.
pub(super) mod kind {
    pub(in super::super) const NONE: u8 = 0x00;
    pub(in super::super) const DOUBLE: u8 = 0x01;
    pub(in super::super) const STRING: u8 = 0x02;
    pub(in super::super) const DOCUMENT: u8 = 0x03;
    pub(in super::super) const ARRAY: u8 = 0x04;
    pub(in super::super) const BINARY: u8 = 0x05;
    pub(in super::super) const OBJECT_ID: u8 = 0x07;
    pub(in super::super) const BOOL: u8 = 0x08;
    pub(in super::super) const DATE: u8 = 0x09;
    pub(in super::super) const CODE: u8 = 0x0D;
    pub(in super::super) const INT32: u8 = 0x10;
    pub(in super::super) const TIMESTAMP: u8 = 0x11;
    pub(in super::super) const INT64: u8 = 0x12;
    pub(in super::super) const DECIMAL: u8 = 0x13;
}

/// Powers by which doubles are multiplied to become integers.
const SCALES: [f64; 5] = [1.0, 10.0, 100.0, 10_000.0, 100_000_000.0];
/// The scale of doubles that are taken as their bits, and of everything else.
pub(super) const BITS: u8 = 5;
/// Up to here a double has every integer.
const SAFE: f64 = 9_007_199_254_740_992.0;
/// Most bytes of a text or binary that is a number.
const SHORT: usize = 16;

/// The control byte of words whose doubles have this scale.
pub(super) fn control_of(scale: u8) -> u8 {
    [0x90, 0xA0, 0xB0, 0xC0, 0xD0, 0x80][usize::from(scale.min(BITS))]
}

/// The scale that a control byte names.
pub(super) fn scale_of(control: u8) -> Option<u8> {
    match control >> 4 {
        0x8 => Some(BITS),
        high @ 0x9..=0xD => Some(high - 9),
        _ => None,
    }
}

/// Whether differences of differences are kept.
pub(super) fn is_twice(kind: u8) -> bool {
    matches!(kind, kind::OBJECT_ID | kind::DATE | kind::TIMESTAMP)
}

/// Whether differences have 128 bits.
pub(super) fn is_wide(kind: u8) -> bool {
    matches!(kind, kind::STRING | kind::CODE | kind::BINARY | kind::DECIMAL)
}

/// A signed number as an unsigned one whose low bit is the sign.
pub(super) fn zigzag(n: i64) -> u128 {
    u128::from((n as u64) << 1 ^ (n >> 63) as u64)
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(n: u128) -> i64 {
    let n = n as u64;
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// As [`zigzag`].
pub(super) fn zigzag_wide(n: i128) -> u128 {
    (n as u128) << 1 ^ (n >> 127) as u128
}

/// As [`unzigzag`].
pub(super) fn unzigzag_wide(n: u128) -> i128 {
    (n >> 1) as i128 ^ -((n & 1) as i128)
}

/// A double as an integer of this scale; nothing if it would not come back bit by bit.
pub(super) fn double_at(value: f64, scale: u8) -> Option<i64> {
    let Some(power) = SCALES.get(usize::from(scale)) else { return Some(value.to_bits() as i64) };
    let scaled = value * power;
    if !(-SAFE..=SAFE).contains(&scaled) {
        return None;
    }
    let whole = scaled.round() as i64;
    ((whole as f64 / power).to_bits() == value.to_bits()).then_some(whole)
}

/// The double of an integer of this scale.
pub(super) fn double_of(number: i64, scale: u8) -> f64 {
    match SCALES.get(usize::from(scale)) {
        Some(power) => number as f64 / power,
        None => f64::from_bits(number as u64),
    }
}

/// The least scale at which both doubles are integers.
pub(super) fn common_scale(a: f64, b: f64) -> u8 {
    (0..BITS).find(|&scale| double_at(a, scale).is_some() && double_at(b, scale).is_some()).unwrap_or(BITS)
}

/// The double that a value's bytes are.
pub(super) fn double(data: &[u8]) -> f64 {
    f64::from_le_bytes(data.try_into().unwrap_or_default())
}

/// A value of a kind with narrow differences, but for doubles, as a number; 0 for kinds that have none.
pub(super) fn narrow(kind: u8, data: &[u8]) -> i64 {
    match (kind, data) {
        (kind::BOOL, [value]) => i64::from(*value),
        (kind::INT32, data) => data.try_into().map_or(0, |data| i64::from(i32::from_le_bytes(data))),
        (kind::INT64 | kind::DATE | kind::TIMESTAMP, data) => data.try_into().map_or(0, i64::from_le_bytes),
        // The bytes that change most lie lowest: counter and seconds, interleaved.
        (kind::OBJECT_ID, &[t0, t1, t2, t3, _, _, _, _, _, c0, c1, c2]) => {
            i64::from_le_bytes([c2, t3, c1, t2, c0, t1, t0, 0])
        }
        _ => 0,
    }
}

/// Whether values of the kind have differences other than none.
pub(super) fn has_differences(kind: u8) -> bool {
    is_wide(kind) || is_twice(kind) || matches!(kind, kind::DOUBLE | kind::BOOL | kind::INT32 | kind::INT64)
}

/// The value of a number, by the value before it: writes its bytes and gives their number.
pub(super) fn put_narrow(kind: u8, number: i64, before: &[u8], out: &mut [u8; 24]) -> Option<usize> {
    let mut put = |bytes: &[u8]| {
        out[..bytes.len()].copy_from_slice(bytes);
        Some(bytes.len())
    };
    match kind {
        kind::BOOL => put(&[u8::from(number != 0)]),
        kind::INT32 => put(&(number as i32).to_le_bytes()),
        kind::INT64 | kind::DATE | kind::TIMESTAMP => put(&number.to_le_bytes()),
        kind::OBJECT_ID => {
            let [c2, t3, c1, t2, c0, t1, t0, _] = number.to_le_bytes();
            let own: [u8; 5] = before.get(4..9)?.try_into().ok()?;
            let [a, b, c, d, e] = own;
            put(&[t0, t1, t2, t3, a, b, c, d, e, c0, c1, c2])
        }
        _ => None,
    }
}

/// The text of a string's bytes.
fn text(data: &[u8]) -> Option<&[u8]> {
    data.get(4..data.len().checked_sub(1)?)
}

/// Where a binary's bytes lie in its value; nothing for the old subtype, which has a length within.
fn binary(data: &[u8]) -> Option<Range<usize>> {
    (data.len() >= 5 && data[4] != 2).then_some(5..data.len())
}

/// A value of a kind with wide differences as a number, if it is short enough.
pub(super) fn wide(kind: u8, data: &[u8]) -> Option<i128> {
    let mut out = [0; SHORT];
    match kind {
        kind::DECIMAL => return data.try_into().ok().map(i128::from_le_bytes),
        kind::BINARY => {
            let bytes = &data[binary(data)?];
            out.get_mut(..bytes.len())?.copy_from_slice(bytes);
        }
        // Reversed, so that what differs at the end differs little; without zeros at the front, which would be lost.
        _ => {
            let text = text(data)?;
            if text.first() == Some(&0) {
                return None;
            }
            out.get_mut(..text.len())?.copy_from_slice(text);
            out[..text.len()].reverse();
        }
    }
    Some(i128::from_le_bytes(out))
}

/// As [`put_narrow`]. Whether a text is UTF-8 is looked at here.
pub(super) fn put_wide(kind: u8, number: i128, before: &[u8], out: &mut [u8; 24]) -> Option<usize> {
    let bytes = number.to_le_bytes();
    match kind {
        kind::DECIMAL => {
            out[..16].copy_from_slice(&bytes);
            Some(16)
        }
        kind::BINARY => {
            let place = binary(before).filter(|place| place.len() <= SHORT)?;
            out[..5].copy_from_slice(&before[..5]);
            out[place.clone()].copy_from_slice(&bytes[..place.len()]);
            Some(place.end)
        }
        _ => {
            let len = SHORT - bytes.iter().rev().take_while(|&&byte| byte == 0).count();
            out[..4].copy_from_slice(&(len as i32 + 1).to_le_bytes());
            out[4..4 + len].copy_from_slice(&bytes[..len]);
            out[4..4 + len].reverse();
            out[4 + len] = 0;
            std::str::from_utf8(&out[4..4 + len]).ok()?;
            Some(5 + len)
        }
    }
}
