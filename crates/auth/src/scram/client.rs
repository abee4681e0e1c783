//! The client's side of a SCRAM conversation.

use ctutils::CtEq;
use sheaf_errors::{Code, Error, Result};

use super::message::{attribute, escape, from_base64, malformed, to_base64, xor};
use super::{Mechanism, prepare};

/// Fewer iterations than these are a server that wants to learn the password.
const LEAST_ITERATIONS: u32 = 4096;

/// More are a server that wants to keep its client busy.
const MOST_ITERATIONS: u32 = 10_000_000;

/// A conversation whose first message has been sent.
pub struct Started {
    mechanism: Mechanism,
    prepared: String,
    nonce: String,
    bare: String,
}

/// Begins a conversation; `nonce` is random and without commas. Gives the first message.
///
/// Errors: `BadValue` for a password that SASLprep refuses.
pub fn start(mechanism: Mechanism, user: &str, password: &str, nonce: &str) -> Result<(Started, String)> {
    let prepared = prepare(mechanism, user, password)?;
    let bare = format!("n={},r={nonce}", escape(user));
    let first = format!("n,,{bare}");
    Ok((Started { mechanism, prepared, nonce: nonce.to_owned(), bare }, first))
}

impl Started {
    /// The answer to the server's challenge, and by what the server's own proof is checked.
    ///
    /// Errors: `BadValue` for a challenge that is none, or none to this conversation.
    pub fn answer(self, challenge: &[u8]) -> Result<(Proved, String)> {
        let text = std::str::from_utf8(challenge).map_err(|_| malformed("not UTF-8"))?;
        let mut fields = text.split(',');
        let nonce = attribute(fields.next(), 'r').ok_or_else(|| malformed("no nonce"))?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(malformed("another nonce"));
        }
        let salt = attribute(fields.next(), 's').and_then(from_base64).ok_or_else(|| malformed("no salt"))?;
        let iterations: u32 = attribute(fields.next(), 'i')
            .and_then(|count| count.parse().ok())
            .filter(|count| (LEAST_ITERATIONS..=MOST_ITERATIONS).contains(count))
            .ok_or_else(|| malformed("no sound number of iterations"))?;
        let salted = self.mechanism.salted(&self.prepared, &salt, iterations);
        let client_key = self.mechanism.hmac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", to_base64(b"n,,"));
        let signed = format!("{},{text},{without_proof}", self.bare);
        let signature = self.mechanism.hmac(&self.mechanism.hash(&client_key), signed.as_bytes());
        let proof = to_base64(&xor(&client_key, &signature));
        let server_key = self.mechanism.hmac(&salted, b"Server Key");
        let expected = self.mechanism.hmac(&server_key, signed.as_bytes());
        Ok((Proved { expected }, format!("{without_proof},p={proof}")))
    }
}

/// A conversation in which the server's proof is still to come.
pub struct Proved {
    expected: Vec<u8>,
}

impl Proved {
    /// Checks the server's proof.
    ///
    /// Errors: `AuthenticationFailed`: the server does not know the credential.
    pub fn check(&self, last: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(last).map_err(|_| malformed("not UTF-8"))?;
        let proof = attribute(text.split(',').next(), 'v').and_then(from_base64);
        let equal = proof.is_some_and(|proof| {
            proof.len() == self.expected.len() && proof.as_slice().ct_eq(self.expected.as_slice()).to_bool()
        });
        if equal {
            return Ok(());
        }
        Err(Error::new(Code::AUTHENTICATION_FAILED, "The server has not proved that it knows the credential"))
    }
}
