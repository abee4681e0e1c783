//! SCRAM: what is kept of a password, and both sides of the conversation (RFC 5802, RFC 7677).

pub mod client;
mod message;
pub mod server;
#[cfg(test)]
mod tests;

use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sheaf_bson::{DocWriter, RawDoc};
use sheaf_errors::{Code, Result, bail};

/// The ways to prove a password that there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mechanism {
    /// `SCRAM-SHA-1`, of a password's MD5 digest.
    Sha1,
    /// `SCRAM-SHA-256`, of a password as SASLprep makes it.
    Sha256,
}

impl Mechanism {
    /// All, in the order in which users have them.
    pub const ALL: [Mechanism; 2] = [Mechanism::Sha1, Mechanism::Sha256];

    /// `SCRAM-SHA-1` or `SCRAM-SHA-256`.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Sha1 => "SCRAM-SHA-1",
            Mechanism::Sha256 => "SCRAM-SHA-256",
        }
    }

    /// The mechanism of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Bytes of the salt that MongoDB gives a new credential: with its block number the salt fills the hash's block.
    pub fn salt_bytes(self) -> usize {
        self.key_bytes() - 4
    }

    /// Bytes of a key.
    pub fn key_bytes(self) -> usize {
        match self {
            Mechanism::Sha1 => 20,
            Mechanism::Sha256 => 32,
        }
    }

    /// The mechanism's hash.
    pub fn hash(self, data: &[u8]) -> Vec<u8> {
        match self {
            Mechanism::Sha1 => Sha1::digest(data).to_vec(),
            Mechanism::Sha256 => Sha256::digest(data).to_vec(),
        }
    }

    /// HMAC with the mechanism's hash.
    pub fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        const ANY: &str = "HMAC takes keys of any length";
        match self {
            Mechanism::Sha1 => {
                let mut mac = Hmac::<Sha1>::new_from_slice(key).expect(ANY);
                mac.update(data);
                mac.finalize().into_bytes().to_vec()
            }
            Mechanism::Sha256 => {
                let mut mac = Hmac::<Sha256>::new_from_slice(key).expect(ANY);
                mac.update(data);
                mac.finalize().into_bytes().to_vec()
            }
        }
    }

    /// `SaltedPassword` of a password as [`prepare`] gives it.
    pub(crate) fn salted(self, password: &str, salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut out = vec![0; self.key_bytes()];
        match self {
            Mechanism::Sha1 => {
                pbkdf2::pbkdf2_hmac::<Sha1>(password.as_bytes(), salt, iterations, &mut out);
            }
            Mechanism::Sha256 => {
                pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), salt, iterations, &mut out);
            }
        }
        out
    }
}

/// The text of which a mechanism derives its keys.
///
/// Errors: `BadValue` for a password that SASLprep refuses.
pub fn prepare(mechanism: Mechanism, user: &str, password: &str) -> Result<String> {
    match mechanism {
        Mechanism::Sha1 => Ok(legacy_digest(user, password)),
        Mechanism::Sha256 => match stringprep::saslprep(password) {
            Ok(prepared) => Ok(prepared.into_owned()),
            Err(_) => {
                bail!(Code::BAD_VALUE, "Error preflighting UTF-8 conversion: the password is not valid")
            }
        },
    }
}

/// The MD5 digest that `SCRAM-SHA-1` uses in place of a password.
pub fn legacy_digest(user: &str, password: &str) -> String {
    let digest = Md5::digest(format!("{user}:mongo:{password}"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a server keeps of a password: nobody can log in with it, or learn the password from it but by trying.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// How often the hash was applied.
    pub iterations: u32,
    /// What makes the same password differ from user to user.
    pub salt: Vec<u8>,
    /// By which a client's proof is checked.
    pub stored_key: Vec<u8>,
    /// With which the server proves that it knows the credential.
    pub server_key: Vec<u8>,
}

/// Keys are shown to nobody.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credential {{ iterations: {} }}", self.iterations)
    }
}

impl Credential {
    /// Of a password as [`prepare`] gives it.
    pub fn derive(mechanism: Mechanism, prepared: &str, salt: Vec<u8>, iterations: u32) -> Self {
        let salted = mechanism.salted(prepared, &salt, iterations);
        let stored_key = mechanism.hash(&mechanism.hmac(&salted, b"Client Key"));
        let server_key = mechanism.hmac(&salted, b"Server Key");
        Credential { iterations, salt, stored_key, server_key }
    }

    /// Of a user that there is not: looks like any other, is the same each time, and nothing proves it. `secret` is the server's
    /// own.
    pub fn of_nobody(mechanism: Mechanism, secret: &[u8], user: &str, iterations: u32) -> Self {
        let part = |what: &str| mechanism.hmac(secret, format!("{what}:{user}").as_bytes());
        let mut salt = part("salt");
        salt.truncate(mechanism.salt_bytes());
        Credential { iterations, salt, stored_key: part("stored"), server_key: part("server") }
    }

    /// Reads one of the documents of a user's `credentials`.
    pub fn read(mechanism: Mechanism, doc: RawDoc<'_>) -> Option<Self> {
        let bytes = |name: &str| message::from_base64(doc.get(name)?.as_str()?);
        let iterations = u32::try_from(doc.get("iterationCount")?.as_exact_i64()?).ok()?;
        let credential = Credential {
            iterations,
            salt: bytes("salt")?,
            stored_key: bytes("storedKey")?,
            server_key: bytes("serverKey")?,
        };
        let sound = iterations > 0
            && credential.stored_key.len() == mechanism.key_bytes()
            && credential.server_key.len() == mechanism.key_bytes();
        sound.then_some(credential)
    }

    /// Writes the fields of one of the documents of a user's `credentials`.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        doc.append("iterationCount", self.iterations as i32)
            .append("salt", &message::to_base64(&self.salt))
            .append("storedKey", &message::to_base64(&self.stored_key))
            .append("serverKey", &message::to_base64(&self.server_key));
    }
}
