//! The fields of which SCRAM's messages are made.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sheaf_errors::{Code, Error};

pub(super) fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// A message that is none of SCRAM's. What it holds is not repeated: it may be a secret.
pub(super) fn malformed(what: &str) -> Error {
    Error::new(Code::BAD_VALUE, format!("Incorrect SCRAM message: {what}"))
}

/// The value of the attribute that this part of a message is.
pub(super) fn attribute(part: Option<&str>, letter: char) -> Option<&str> {
    part?.strip_prefix(letter)?.strip_prefix('=')
}

/// A name as it stands in a message: `=` and `,` are written otherwise.
pub(super) fn escape(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// The name that stands in a message; `None` if something else is written with `=`.
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (letter, rest) = match part.as_bytes() {
            [b'2', b'C', ..] => (',', &part[2..]),
            [b'3', b'D', ..] => ('=', &part[2..]),
            _ => return None,
        };
        name.push(letter);
        name.push_str(rest);
    }
    Some(name)
}

pub(super) fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}
