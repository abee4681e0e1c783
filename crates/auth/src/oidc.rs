//! `MONGODB-OIDC`: tokens that an identity provider has signed (RFC 7515, 7517, 7519), and whom they name.
//!
//! The signatures are verified by `ring`, which TLS has brought. Only algorithms with public keys are known, so no text that everybody
//! may read is ever taken for a secret key, and what is not signed is no token.

mod keys;
mod provider;
mod token;

pub use keys::{KeySet, VerifyingKey};
pub use provider::{Identity, Provider, Providers};
pub use token::Token;

/// Why a token is not taken; for the log, so without any of it.
pub type Refusal = &'static str;

/// The field of a JSON Web Key or a token in base64 without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    // Some providers pad.
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests;
