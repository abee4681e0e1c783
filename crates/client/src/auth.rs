//! Logging in: SCRAM-SHA-256 (RFC 5802, RFC 7677), the default of MongoDB.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use sheaf_auth::{Keys, MEMBER_USER};
use sheaf_bson::{Binary, DocBuf, Value, doc};

use super::Connection;
use crate::error::{Error, Result};

/// Who logs in.
#[derive(Clone, PartialEq)]
pub struct Credentials {
    /// Name.
    pub user: String,
    /// Password.
    pub password: String,
    /// Database that knows the user: `authSource`, or else the one that the connection string names.
    pub source: String,
    /// Passwords to try if that one is refused: another key, while keys are changed.
    pub others: Vec<String>,
    /// Whether a server that refuses all of them is spoken to by nobody in particular.
    pub optional: bool,
    /// Whether the certificate of the connection says who it is; there is no password then.
    pub by_certificate: bool,
    /// What was derived of a password last, for who logs in often.
    pub(super) derived: Derived,
}

impl Credentials {
    /// Of this user of a database.
    pub fn new(user: impl Into<String>, password: impl Into<String>, source: impl Into<String>) -> Self {
        let (user, password, source) = (user.into(), password.into(), source.into());
        let derived = Derived::default();
        let (others, optional, by_certificate) = (Vec::new(), false, false);
        Credentials { user, password, source, others, optional, by_certificate, derived }
    }

    /// Of whom the certificate of the connection names; `user` is asked for if it is not empty.
    pub fn by_certificate(user: impl Into<String>) -> Self {
        Credentials { by_certificate: true, ..Credentials::new(user, "", "$external") }
    }

    /// Of a member of a deployment with these keys.
    pub fn of_members(keys: &Keys, optional: bool) -> Self {
        let (user, source) = MEMBER_USER;
        let mut keys = keys.iter().map(str::to_owned);
        let first = keys.next().unwrap_or_default();
        Credentials { others: keys.collect(), optional, ..Credentials::new(user, first, source) }
    }
}

/// What was derived of a password, by that password, its salt and the rounds; each server has its own salt.
#[derive(Clone, Default)]
pub(super) struct Derived(Arc<Mutex<HashMap<Salted, Hash>>>);

/// A password, its salt and the rounds.
type Salted = (String, Vec<u8>, u32);

/// Servers whose salts are remembered; with one more it begins anew.
const DERIVED_MOST: usize = 256;

impl Derived {
    fn salted(&self, password: &str, salt: &[u8], rounds: u32) -> Hash {
        let key = (password.to_owned(), salt.to_vec(), rounds);
        if let Some(known) = self.0.lock().get(&key) {
            return *known;
        }
        let hash = salted(password, salt, rounds);
        let mut known = self.0.lock();
        if known.len() >= DERIVED_MOST {
            known.clear();
        }
        known.insert(key, hash);
        hash
    }
}

/// It only saves time.
impl PartialEq for Derived {
    fn eq(&self, _: &Derived) -> bool {
        true
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.user, self.source)
    }
}

type Hash = [u8; 32];

/// Fewer rounds than this would make the password easy to find for who listens.
const LEAST_ROUNDS: u32 = 4096;
/// More rounds than this would only keep this client busy.
const MOST_ROUNDS: u32 = 10_000_000;

fn mac(key: &[u8], message: &[u8]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap_or_else(|_| unreachable!("any length will do"));
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// PBKDF2 with one block.
fn salted(password: &str, salt: &[u8], rounds: u32) -> Hash {
    let mut last = mac(password.as_bytes(), &[salt, &[0, 0, 0, 1]].concat());
    let mut all = last;
    for _ in 1..rounds {
        last = mac(password.as_bytes(), &last);
        for (all, last) in all.iter_mut().zip(last) {
            *all ^= last;
        }
    }
    all
}

/// The client's side of one conversation.
struct Scram {
    first: String,
    nonce: String,
    password: String,
    derived: Derived,
}

/// What is sent last, and what the server must answer to it.
struct Final {
    message: String,
    signature: String,
}

impl Scram {
    fn new(credentials: &Credentials, password: &str, nonce: String) -> Scram {
        let user = credentials.user.replace('=', "=3D").replace(',', "=2C");
        let (password, derived) = (password.to_owned(), credentials.derived.clone());
        Scram { first: format!("n={user},r={nonce}"), nonce, password, derived }
    }

    /// Answers the server's first message.
    fn answer(&self, server: &str) -> Result<Final> {
        let wrong = || Error::failed("the server's part of the SCRAM conversation is wrong");
        let part = |name: &str| server.split(',').find_map(|part| part.strip_prefix(name)).ok_or_else(wrong);
        let (nonce, salt, rounds) = (part("r=")?, part("s=")?, part("i=")?);
        let salt = BASE64.decode(salt).map_err(|_| wrong())?;
        let rounds: u32 = rounds.parse().map_err(|_| wrong())?;
        // The server must build on this client's nonce, or it is an old conversation played again.
        if !nonce.starts_with(&self.nonce) || !(LEAST_ROUNDS..=MOST_ROUNDS).contains(&rounds) {
            return Err(wrong());
        }
        let salted = self.derived.salted(&self.password, &salt, rounds);
        let client_key = mac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let conversation = format!("{},{server},{without_proof}", self.first);
        let mut proof = mac(&Sha256::digest(client_key), conversation.as_bytes());
        for (proof, key) in proof.iter_mut().zip(client_key) {
            *proof ^= key;
        }
        let signature = mac(&mac(&salted, b"Server Key"), conversation.as_bytes());
        Ok(Final {
            message: format!("{without_proof},p={}", BASE64.encode(proof)),
            signature: BASE64.encode(signature),
        })
    }
}

/// Logs a new connection in.
pub(super) fn log_in(connection: &mut Connection, credentials: &Credentials) -> Result<()> {
    let mut logged_in = match credentials.by_certificate {
        true => log_in_by_certificate(connection, &credentials.user),
        false => log_in_by(connection, credentials, &credentials.password),
    };
    for other in &credentials.others {
        match logged_in {
            Err(Error::Server(error)) if error.code == AUTHENTICATION_FAILED => {
                logged_in = log_in_by(connection, credentials, other);
            }
            _ => break,
        }
    }
    match logged_in {
        Err(Error::Server(error)) if credentials.optional && error.code == AUTHENTICATION_FAILED => Ok(()),
        logged_in => logged_in,
    }
}

/// The code of the error that says that a password is wrong.
const AUTHENTICATION_FAILED: i32 = 18;

fn log_in_by_certificate(connection: &mut Connection, user: &str) -> Result<()> {
    let command = DocBuf::build(|doc| {
        doc.append("authenticate", 1).append("mechanism", "MONGODB-X509");
        if !user.is_empty() {
            doc.append("user", user);
        }
    });
    connection.command("$external", &command).map(drop)
}

fn log_in_by(connection: &mut Connection, credentials: &Credentials, password: &str) -> Result<()> {
    let db = credentials.source.as_str();
    let nonce: [u8; 24] = rand::random();
    let scram = Scram::new(credentials, password, BASE64.encode(nonce));
    let first = format!("n,,{}", scram.first);
    let start = doc! {
        "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload(&first),
        "options": { "skipEmptyExchange": true }
    };
    let reply = connection.command(db, &start)?;
    let last = scram.answer(text(reply.get("payload"))?)?;
    let id = reply.get("conversationId").and_then(|id| id.as_exact_i64()).unwrap_or(1);
    let next = doc! { "saslContinue": 1, "conversationId": id as i32, "payload": payload(&last.message) };
    let reply = connection.command(db, &next)?;
    if text(reply.get("payload"))?.strip_prefix("v=") != Some(last.signature.as_str()) {
        return Err(Error::failed("the server does not know the password that it accepted"));
    }
    if reply.get("done").is_some_and(|done| done.truthy()) {
        return Ok(());
    }
    // A server that does not know skipEmptyExchange wants one message more.
    let end = doc! { "saslContinue": 1, "conversationId": id as i32, "payload": payload("") };
    connection.command(db, &end).map(drop)
}

fn payload(text: &str) -> Value<'_> {
    Value::Binary(Binary { subtype: 0, bytes: text.as_bytes() })
}

fn text(value: Option<Value<'_>>) -> Result<&str> {
    match value {
        Some(Value::Binary(binary)) => {
            std::str::from_utf8(binary.bytes).map_err(|_| Error::failed("SCRAM: no text"))
        }
        _ => Err(Error::failed("SCRAM: the reply has no payload")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn scram() -> Scram {
        let credentials = Credentials::new("user", "pencil", "admin");
        Scram::new(&credentials, &credentials.password, "rOprNGfwEbeRWgbNEkqO".into())
    }

    #[test]
    fn the_example_of_rfc_7677() {
        let last = scram().answer(SERVER).unwrap();
        assert_eq!(
            last.message,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(last.signature, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn a_wrong_server_is_noticed() {
        for (from, to) in
            [("r=rOpr", "r=other"), ("i=4096", "i=1"), ("i=4096", "i=x"), ("s=W", "s=!"), ("s=", "t=")]
        {
            assert!(scram().answer(&SERVER.replacen(from, to, 1)).is_err(), "{to}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(format!("{:?}", Credentials::new("u", "secret", "db")), "u@db");
        let odd = Credentials::new("a=b,c", "secret", "db");
        assert!(Scram::new(&odd, "secret", "x".into()).first.starts_with("n=a=3Db=2Cc,"));
    }
}
