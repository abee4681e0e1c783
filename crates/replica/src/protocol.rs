//! How a connection between members begins: the word by which it is known, the frames, and who says what first.
//!
//! What a link says of itself, and what is asked about it, is told in [`crate::confirm`].

use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_repl::Envelope;

/// The first word on a link: read as a message's length it would be above the largest allowed.
pub const MAGIC: [u8; 4] = *b"ShMb";

/// The most that one message may have: an entry is a commit group, and a transaction can be large.
pub const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Version of what is said on links. Members of another version are not listened to.
pub const VERSION: i64 = 2;

/// What a link, a question and an answer begin with is never longer.
pub const GREETING_BYTES_MAX: usize = 4096;

/// A host's name has 253 characters at most; then a colon and a port.
const ADDRESS_BYTES_MAX: usize = 259;

/// The number of a link.
pub type Nonce = [u8; 16];

/// How a connection on the members' protocol begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Messages follow.
    Link {
        /// The sender's set.
        set: String,
        /// The sender's address, as it knows it.
        host: Arc<str>,
        /// The link's number.
        nonce: Nonce,
    },
    /// Somebody asks whether a number is this process's.
    Question {
        /// The set of the one who asks.
        set: String,
        /// The number.
        nonce: Nonce,
        /// The member that asks; `None` while it is in no configuration.
        by: Option<u64>,
    },
}

impl Hello {
    /// As bytes.
    pub fn encode(&self) -> DocBuf {
        let binary = |nonce: &Nonce| {
            DocBuf::build(|doc| {
                doc.append("nonce", Value::Binary(Binary { subtype: 0, bytes: nonce }));
            })
        };
        match self {
            Hello::Link { set, host, nonce } => DocBuf::build(|doc| {
                doc.append("link", VERSION).append("set", set.as_str()).append("host", &**host);
                doc.append_all(binary(nonce).as_raw());
            }),
            Hello::Question { set, nonce, by } => DocBuf::build(|doc| {
                doc.append("confirm", VERSION).append("set", set.as_str());
                doc.append_all(binary(nonce).as_raw());
                if let Some(by) = by {
                    doc.append("by", *by as i64);
                }
            }),
        }
    }

    /// Errors: what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Hello, String> {
        if sheaf_bson::validate(bytes, 4).is_err() {
            // Members of the first version began with their address.
            let text: String =
                String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(100).collect();
            return Err(format!("it speaks another version of the protocol, not {VERSION}: {text}"));
        }
        let doc = RawDoc::new(bytes);
        let number = |name: &str| doc.get(name).and_then(|value| value.as_exact_i64());
        let text = |name: &str| doc.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        let version = number("link").or(number("confirm"));
        if version != Some(VERSION) {
            return Err(format!("it speaks version {version:?} of the protocol, not {VERSION}"));
        }
        let nonce = match doc.get("nonce") {
            Some(Value::Binary(binary)) => binary.bytes.try_into().ok(),
            _ => None,
        };
        let (Some(set), Some(nonce)) = (text("set"), nonce) else {
            return Err("it names no set, or has no number".to_owned());
        };
        match text("host") {
            Some(host) if host.len() > ADDRESS_BYTES_MAX => Err("its address is too long".to_owned()),
            Some(host) if number("link").is_some() => Ok(Hello::Link { set, host: Arc::from(host), nonce }),
            None if number("link").is_some() => Err("it has no address".to_owned()),
            _ => Ok(Hello::Question { set, nonce, by: number("by").map(|by| by as u64) }),
        }
    }
}

/// Adds a frame: the bytes behind their length.
pub fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a frame of {} bytes, which nobody reads", bytes.len());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Adds a frame with a message, which is encoded in its place.
pub fn put_message(out: &mut Vec<u8>, envelope: &Envelope) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    envelope.encode_to(out);
    let length = out.len() - start - 4;
    assert!(length <= MESSAGE_BYTES_MAX, "a frame of {length} bytes, which nobody reads");
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_and_others_are_named() {
        let link = Hello::Link { set: "rs".into(), host: Arc::from("a:1"), nonce: [7; 16] };
        let question = Hello::Question { set: "rs".into(), nonce: [9; 16], by: Some(7) };
        let of_nobody = Hello::Question { set: "rs".into(), nonce: [9; 16], by: None };
        for hello in [link, question, of_nobody] {
            assert_eq!(Hello::decode(hello.encode().as_bytes()), Ok(hello));
        }
        // A member of the first version, and one of a later one.
        assert!(Hello::decode(b"127.0.0.1:27017").unwrap_err().contains("127.0.0.1:27017"));
        let later = sheaf_bson::doc! { "link": 3, "set": "rs", "host": "a:1" };
        assert!(Hello::decode(later.as_bytes()).unwrap_err().contains("version Some(3)"));
        for broken in [
            sheaf_bson::doc! { "link": 2, "set": "rs", "host": "a:1" },
            sheaf_bson::doc! { "link": 2, "host": "a:1", "nonce": "text" },
            sheaf_bson::doc! { "link": 2, "set": "rs", "host": &"a".repeat(300) },
            sheaf_bson::doc! {},
        ] {
            assert!(Hello::decode(broken.as_bytes()).is_err());
        }
    }
}
