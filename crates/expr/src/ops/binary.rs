//! Binary data as text and as numbers, for conversions.

use sheaf_bson::Binary;
use sheaf_errors::{Error, Result};

use super::convert::failure;
use super::hex;

/// The forms that binary data has as text.
pub(super) const FORMATS: &[&str] = &["base64", "base64url", "hex", "uuid", "utf8", "auto"];

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Binary data in one of the [`FORMATS`].
pub(super) fn to_text(binary: Binary<'_>, format: &str) -> Result<String> {
    // The old binary subtype repeats its length inside.
    let inside = if binary.subtype == 2 { binary.bytes.get(4..).unwrap_or_default() } else { binary.bytes };
    let binary = Binary { bytes: inside, ..binary };
    let uuid = binary.subtype == 4 && binary.bytes.len() == 16;
    match format {
        "hex" => Ok(hex(binary.bytes).to_uppercase()),
        "base64" => Ok(to_base64(binary.bytes, BASE64, true)),
        "base64url" => Ok(to_base64(binary.bytes, BASE64_URL, false)),
        "utf8" => match std::str::from_utf8(binary.bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(failure("Invalid UTF-8 in binData in $convert with no onError value")),
        },
        "uuid" if !uuid => {
            Err(failure("Only the UUID subtype of binData can be converted with the 'uuid' format"))
        }
        "uuid" => Ok(uuid_text(binary.bytes)),
        _ if uuid => Ok(uuid_text(binary.bytes)),
        _ => Ok(to_base64(binary.bytes, BASE64, true)),
    }
}

/// Reads binary data from text in one of the [`FORMATS`].
pub(super) fn from_text(text: &str, format: &str, subtype: u8) -> Result<Vec<u8>> {
    let read = match format {
        "hex" => from_hex(text)?,
        "base64" => from_base64(text, BASE64, true)?,
        "base64url" => from_base64(text, BASE64_URL, false)?,
        "utf8" => Some(text.as_bytes().to_vec()),
        // UUIDs are the only thing that can be told without being told.
        _ if subtype != 4 => {
            return Err(failure(format!(
                "Input string cannot be converted to binData subtype {subtype} with the '{format}' format"
            )));
        }
        _ => from_uuid(text)?,
    };
    if (subtype == 4) != matches!(format, "uuid" | "auto") {
        return Err(failure(format!(
            "The '{format}' format does not fit binData subtype {subtype} in $convert with no onError value"
        )));
    }
    read.ok_or_else(|| {
        failure(format!("Failed to parse BinData '{text}' in $convert with no onError value: not {format}"))
    })
}

/// The error for binary data that no number of this type has the length of.
pub(super) fn wrong_length(binary: Binary<'_>, kind: &str) -> Error {
    failure(format!(
        "Failed to convert '{}' to number in $convert because of invalid length: {} for {kind}",
        hex(binary.bytes),
        binary.bytes.len()
    ))
}

/// At most eight bytes as a signed integer.
pub(super) fn to_integer(bytes: &[u8], big_endian: bool) -> i64 {
    let fill = |first: u8| if first & 0x80 == 0 { 0 } else { -1i64 };
    let push = |n: i64, byte: &u8| (n << 8) | i64::from(*byte);
    if big_endian {
        bytes.iter().fold(fill(bytes.first().copied().unwrap_or(0)), push)
    } else {
        bytes.iter().rev().fold(fill(bytes.last().copied().unwrap_or(0)), push)
    }
}

/// Four or eight bytes as a floating point number.
pub(super) fn to_double(bytes: &[u8], big_endian: bool) -> Option<f64> {
    let bytes = ordered(bytes.to_vec(), big_endian);
    match bytes.len() {
        4 => Some(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        8 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

/// Little-endian bytes in the order that is asked for.
pub(super) fn ordered(mut bytes: Vec<u8>, big_endian: bool) -> Vec<u8> {
    if big_endian {
        bytes.reverse();
    }
    bytes
}

fn uuid_text(bytes: &[u8]) -> String {
    let digits = hex(bytes);
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

fn from_uuid(text: &str) -> Result<Option<Vec<u8>>> {
    let dashes = text.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at);
    if text.len() != 36 || !dashes.eq([8, 13, 18, 23]) {
        return Ok(None);
    }
    from_hex(&text.replace('-', ""))
}

/// So many digits are read until time is looked at again; each takes some nanoseconds.
const PART: usize = 4 << 10;

/// What one digit costs, in bytes looked at.
const DIGIT_COST: usize = 4;

/// The bytes of hexadecimal digits; `None` where they are none.
///
/// Errors: those of [`sheaf_meter::tick`].
pub(super) fn from_hex(text: &str) -> Result<Option<Vec<u8>>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Ok(None);
    }
    let digit = |b: u8| (b as char).to_digit(16);
    let mut out = Vec::with_capacity(digits.len() / 2);
    for part in digits.chunks(PART) {
        sheaf_meter::tick_for(part.len() * DIGIT_COST)?;
        for pair in part.chunks(2) {
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Ok(None) };
            out.push((high * 16 + low) as u8);
        }
    }
    Ok(Some(out))
}

fn to_base64(bytes: &[u8], alphabet: &[u8; 64], pad: bool) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, b| (bits << 8) | u32::from(*b)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            out.push(alphabet[(bits >> (18 - 6 * place)) as usize & 63] as char);
        }
        if pad {
            (chunk.len()..3).for_each(|_| out.push('='));
        }
    }
    out
}

fn from_base64(text: &str, alphabet: &[u8; 64], padded: bool) -> Result<Option<Vec<u8>>> {
    if padded && !text.len().is_multiple_of(4) {
        return Ok(None);
    }
    let digits = text.trim_end_matches('=').as_bytes();
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    let mut values = [u8::MAX; 256];
    for (value, digit) in alphabet.iter().enumerate() {
        values[usize::from(*digit)] = value as u8;
    }
    for part in digits.chunks(PART) {
        sheaf_meter::tick_for(part.len() * DIGIT_COST)?;
        for chunk in part.chunks(4) {
            let mut bits = 0u32;
            for digit in chunk {
                let value = values[usize::from(*digit)];
                if value == u8::MAX {
                    return Ok(None);
                }
                bits = (bits << 6) | u32::from(value);
            }
            bits <<= 6 * (4 - chunk.len());
            out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
        }
    }
    Ok(Some(out))
}
