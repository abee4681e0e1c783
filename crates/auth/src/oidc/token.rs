//! A token: a header, claims, and a signature over both.

use std::str::FromStr;

use sheaf_bson::{DocBuf, RawDoc, Value, json};

use super::keys::VerifyingKey;
use super::{Refusal, decode};

/// How a token is signed. There is no `none`, and nothing with a secret that both sides have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
}

impl Algorithm {
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Algorithm::Rs256,
            "RS384" => Algorithm::Rs384,
            "RS512" => Algorithm::Rs512,
            "PS256" => Algorithm::Ps256,
            "PS384" => Algorithm::Ps384,
            "PS512" => Algorithm::Ps512,
            "ES256" => Algorithm::Es256,
            "ES384" => Algorithm::Es384,
            _ => return None,
        })
    }
}

/// Longest token that is looked at.
const LONGEST: usize = 16 << 10;

/// What a client has sent as a token. Nothing of it is to be believed before [`Token::verify`].
pub struct Token {
    signed: String,
    mark: Vec<u8>,
    algorithm: Algorithm,
    key: String,
    claims: DocBuf,
}

impl FromStr for Token {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text.len() > LONGEST {
            return Err("the token is too long");
        }
        let (signed, mark) = text.rsplit_once('.').ok_or("the token has no signature")?;
        let (header, claims) = signed.split_once('.').ok_or("the token has no claims")?;
        let part = |part: &str| {
            let bytes = decode(part).ok_or("a part of the token is no base64")?;
            let text = String::from_utf8(bytes).map_err(|_| "a part of the token is no UTF-8")?;
            let part = json::parse_document(&text).map_err(|_| "a part of the token is no JSON")?;
            // What readers make of such a part differs, and with it who somebody is.
            let mut names: Vec<_> = part.as_raw().iter().map(|field| field.key().to_owned()).collect();
            names.sort_unstable();
            match names.windows(2).any(|two| two[0] == two[1]) {
                true => Err("a part of the token has a name twice"),
                false => Ok(part),
            }
        };
        let header = part(header)?;
        let header = header.as_raw();
        let field = |name: &str| header.get(name).and_then(|value| value.as_str());
        if header.get("crit").is_some() {
            return Err("the token asks for an extension");
        }
        let algorithm = field("alg").and_then(Algorithm::from_name);
        Ok(Token {
            algorithm: algorithm.ok_or("the token is signed by an unknown algorithm, or not at all")?,
            key: field("kid").ok_or("the token names no key")?.to_owned(),
            claims: part(claims)?,
            mark: decode(mark).ok_or("the signature is no base64")?,
            signed: signed.to_owned(),
        })
    }
}

impl Token {
    /// `kid`: by which key it says that it is signed.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// `iss`: who it says has made it.
    pub fn issuer(&self) -> Option<&str> {
        self.claims.as_raw().get("iss")?.as_str()
    }

    /// Whether it says that it is meant for this audience.
    pub fn is_for(&self, audience: &str) -> bool {
        match self.claims.as_raw().get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(list)) => list.values().any(|one| one.as_str() == Some(audience)),
            _ => false,
        }
    }

    /// Its claims, if this key has signed them and they hold now; and until when, in milliseconds since 1970.
    ///
    /// Errors: why not.
    pub fn verify(&self, key: &VerifyingKey, now: i64) -> Result<(RawDoc<'_>, i64), Refusal> {
        if key.id != self.key || !key.verifies(self.algorithm, self.signed.as_bytes(), &self.mark) {
            return Err("the signature is wrong");
        }
        let claims = self.claims.as_raw();
        // Seconds, with a fraction perhaps. What is past all time is the end of time.
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) if value.is_number() => Ok(value.as_f64().map(|seconds| (seconds * 1000.0) as i64)),
            Some(_) => Err("a time of the token is no number"),
        };
        let until = time("exp")?.ok_or("the token says no end")?;
        if until <= now {
            return Err("the token has expired");
        }
        if time("nbf")?.is_some_and(|begins| begins > now) {
            return Err("the token does not hold yet");
        }
        Ok((claims, until))
    }
}
