//! The server's side of a SCRAM conversation.

use ctutils::CtEq;
use sheaf_errors::{Code, Error, Result};

use super::message::{attribute, from_base64, malformed, to_base64, unescape, xor};
use super::{Credential, Mechanism};

/// What a server adds to a client's nonce, before it is written in base64.
pub const NONCE_BYTES: usize = 24;

/// A client's first message.
#[derive(Debug)]
pub struct First {
    /// Who the client says that it is.
    pub user: String,
    /// The message without its header, which both sides sign.
    bare: String,
    /// The client's nonce.
    nonce: String,
    /// The header, which the client repeats.
    header: String,
}

impl First {
    /// Reads a client's first message.
    ///
    /// Errors: `BadValue` for something else, and for what no server here knows: channel binding, another identity.
    pub fn read(payload: &[u8]) -> Result<First> {
        let text = std::str::from_utf8(payload).map_err(|_| malformed("not UTF-8"))?;
        let mut parts = text.splitn(3, ',');
        match parts.next() {
            Some("n" | "y") => {}
            Some(flag) if flag.starts_with("p=") => {
                return Err(Error::new(Code::BAD_VALUE, "Server does not support channel binding"));
            }
            _ => return Err(malformed("no GS2 header")),
        }
        let identity = parts.next().ok_or_else(|| malformed("no GS2 header"))?;
        let bare = parts.next().ok_or_else(|| malformed("nothing after the GS2 header"))?;
        let mut fields = bare.split(',');
        let user =
            attribute(fields.next(), 'n').and_then(unescape).ok_or_else(|| malformed("no user name"))?;
        let nonce = attribute(fields.next(), 'r').ok_or_else(|| malformed("no client nonce"))?;
        if user.is_empty() || nonce.is_empty() {
            return Err(malformed("an empty user name or nonce"));
        }
        let authorization = identity.strip_prefix("a=").and_then(unescape);
        if !identity.is_empty() && authorization.as_deref() != Some(&user) {
            return Err(malformed("another authorization identity"));
        }
        let header = text[..text.len() - bare.len()].to_owned();
        Ok(First { nonce: nonce.to_owned(), bare: bare.to_owned(), header, user })
    }

    /// The server's answer, and what the client's next message is checked by: one of the credentials, which have salt and iterations
    /// in common. `known` says whether there is such a user: without it everything goes on as with one, and fails at the end.
    pub fn challenge(
        self,
        mechanism: Mechanism,
        credentials: Vec<Credential>,
        known: bool,
        server_nonce: &[u8],
    ) -> (Challenge, String) {
        let nonce = format!("{}{}", self.nonce, to_base64(server_nonce));
        let first = credentials.first().expect("whoever there is not has one, too");
        let answer = format!("r={nonce},s={},i={}", to_base64(&first.salt), first.iterations);
        let signed = format!("{},{answer}", self.bare);
        (Challenge { mechanism, credentials, known, nonce, signed, header: self.header }, answer)
    }
}

/// A conversation that waits for the client's proof.
#[derive(Debug)]
pub struct Challenge {
    mechanism: Mechanism,
    credentials: Vec<Credential>,
    known: bool,
    nonce: String,
    /// What both sides sign, but for the client's last message.
    signed: String,
    header: String,
}

/// Who has not proved what he says learns no more than this.
pub fn failed() -> Error {
    Error::new(Code::AUTHENTICATION_FAILED, "Authentication failed.")
}

impl Challenge {
    /// Checks the client's proof; gives the server's own, by which the client sees that the server knows the credential.
    ///
    /// Errors: `AuthenticationFailed`; `BadValue` for a message that is none.
    pub fn verify(&self, payload: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(payload).map_err(|_| malformed("not UTF-8"))?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(|| malformed("no proof"))?;
        let mut fields = without_proof.split(',');
        let binding = attribute(fields.next(), 'c').and_then(from_base64);
        if binding.as_deref() != Some(self.header.as_bytes()) {
            return Err(malformed("another channel binding"));
        }
        if attribute(fields.next(), 'r') != Some(&self.nonce) {
            return Err(malformed("another nonce"));
        }
        let proof = from_base64(proof).ok_or_else(|| malformed("no proof"))?;
        let signed = format!("{},{without_proof}", self.signed);
        let mut proved = None;
        for credential in &self.credentials {
            let signature = self.mechanism.hmac(&credential.stored_key, signed.as_bytes());
            // All of it is done whether the user is known or not, and compared in constant time.
            let whole = proof.len() == signature.len();
            let client_key = xor(&signature, &proof);
            let stored = self.mechanism.hash(&client_key);
            let equal = stored.as_slice().ct_eq(credential.stored_key.as_slice()).to_bool();
            let server_signature = self.mechanism.hmac(&credential.server_key, signed.as_bytes());
            if equal & whole & self.known {
                proved = Some(server_signature);
            }
        }
        proved.map(|signature| format!("v={}", to_base64(&signature))).ok_or_else(failed)
    }
}
