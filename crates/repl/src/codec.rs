//! Messages as bytes.

use crate::message::Envelope;

pub(crate) fn encode(_: &Envelope) -> Vec<u8> {
    Vec::new()
}

pub(crate) fn decode(_: &[u8]) -> Result<Envelope, String> {
    Err(String::new())
}
