//! The public keys of an issuer, as a JSON Web Key set has them.

use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use sheaf_bson::{DocBuf, RawDoc, Value, json};

use super::decode;
use super::token::Algorithm;

/// A public key of an issuer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyingKey {
    /// `kid`: by which tokens name it.
    pub id: String,
    /// The only algorithm for which it is, if the set says so.
    algorithm: Option<Algorithm>,
    material: Material,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
}

impl VerifyingKey {
    /// Reads a key; `None` if it is none that verifies: another kind, for another use, without a name.
    fn read(key: RawDoc<'_>) -> Option<Self> {
        let text = |name: &str| key.get(name).and_then(|value| value.as_str());
        if text("use").is_some_and(|of| of != "sig") {
            return None;
        }
        let algorithm = match text("alg") {
            Some(name) => Some(Algorithm::from_name(name)?),
            None => None,
        };
        let bytes = |name: &str| text(name).and_then(decode);
        let material = match text("kty")? {
            "RSA" => {
                // Some libraries write the sign's zero, too.
                let n = bytes("n")?.into_iter().skip_while(|byte| *byte == 0).collect();
                Material::Rsa { n, e: bytes("e")? }
            }
            "EC" => {
                let (width, wrap): (usize, fn(Vec<u8>) -> Material) = match text("crv")? {
                    "P-256" => (32, Material::P256),
                    "P-384" => (48, Material::P384),
                    _ => return None,
                };
                let (x, y) = (bytes("x")?, bytes("y")?);
                if x.len() != width || y.len() != width {
                    return None;
                }
                wrap([&[4], &x[..], &y[..]].concat())
            }
            _ => return None,
        };
        Some(VerifyingKey { id: text("kid")?.to_owned(), algorithm, material })
    }

    /// Whether this key has signed the message.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], mark: &[u8]) -> bool {
        if self.algorithm.is_some_and(|only| only != algorithm) {
            return false;
        }
        let rsa = match algorithm {
            Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::Es256 | Algorithm::Es384 => {
                let verified = match (algorithm, &self.material) {
                    (Algorithm::Es256, Material::P256(point)) => {
                        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                            .verify(message, mark)
                    }
                    (Algorithm::Es384, Material::P384(point)) => {
                        UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point)
                            .verify(message, mark)
                    }
                    _ => return false,
                };
                return verified.is_ok();
            }
        };
        let Material::Rsa { n, e } = &self.material else { return false };
        RsaPublicKeyComponents { n, e }.verify(rsa, message, mark).is_ok()
    }
}

/// The fields of a key that may be shown: a set that holds private ones by mistake gives none of them away.
const SHOWN: &[&str] = &["kid", "kty", "alg", "use", "n", "e", "crv", "x", "y"];

/// Longest set that is read.
const LONGEST: usize = 1 << 20;

/// The keys of an issuer.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct KeySet {
    keys: Vec<VerifyingKey>,
    shown: Vec<DocBuf>,
}

impl KeySet {
    /// Reads a set: `{"keys": [...]}`. Keys that verify nothing are left out.
    ///
    /// Errors: a text for the log.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err(format!("the key set has {} bytes, {LONGEST} at most are read", text.len()));
        }
        let set = json::parse_document(text).map_err(|error| error.to_string())?;
        let Some(Value::Array(list)) = set.as_raw().get("keys") else {
            return Err("the key set has no list of keys".to_owned());
        };
        let mut found = KeySet::default();
        for document in list.values().filter_map(|value| value.as_doc()) {
            let Some(key) = VerifyingKey::read(document) else { continue };
            if found.find(&key.id).is_some() {
                return Err(format!("the key set has two keys with the kid '{}'", key.id));
            }
            found.keys.push(key);
            found.shown.push(DocBuf::build(|doc| {
                for field in document.iter().filter(|field| SHOWN.contains(&field.key())) {
                    doc.append_element(field);
                }
            }));
        }
        Ok(found)
    }

    /// The key of this name.
    pub fn find(&self, id: &str) -> Option<&VerifyingKey> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Whether this very key is still in it.
    pub fn has(&self, key: &VerifyingKey) -> bool {
        self.find(&key.id) == Some(key)
    }

    /// The keys as `oidcListKeys` shows them.
    pub fn shown(&self) -> impl Iterator<Item = &DocBuf> {
        self.shown.iter()
    }
}
