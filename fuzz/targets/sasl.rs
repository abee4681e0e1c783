//! Any bytes as a message of SCRAM, to either side, and as a token or a key set: nothing panics, nobody proves a password that he does not
//! know, and no token is taken that nobody has signed.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sheaf_auth::client::Proved;
use sheaf_auth::oidc::{KeySet, Providers, Token};
use sheaf_auth::server::First;
use sheaf_auth::{Credential, Mechanism, client};

/// As few as may be: what is derived is not what is looked at.
const ITERATIONS: u32 = 1;

fuzz_target!(|data: &[u8]| {
    let (first, second) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, data),
    };
    for mechanism in Mechanism::ALL {
        server(mechanism, first, second);
        as_client(mechanism, first, second);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = text.parse::<Token>();
    let _ = Providers::parse(text);
    if let Ok(keys) = KeySet::parse(text) {
        assert!(keys.shown().all(|key| key.as_raw().get("d").is_none()), "a private key is shown");
    }
});

fn credential(mechanism: Mechanism) -> Credential {
    Credential::derive(mechanism, "pencil", vec![7; mechanism.salt_bytes()], ITERATIONS)
}

fn server(mechanism: Mechanism, first: &[u8], proof: &[u8]) {
    let Ok(read) = First::read(first) else { return };
    let (challenge, answer) = read.challenge(mechanism, vec![credential(mechanism)], true, b"server's nonce");
    assert!(challenge.verify(proof).is_err(), "{first:?} {proof:?}");
    // Whatever was said first, and with the nonces that were agreed upon.
    let nonce = answer.split(',').next().unwrap_or_default();
    for binding in ["c=biws", "c=eSws"] {
        let proof = [format!("{binding},{nonce},p=").as_bytes(), proof].concat();
        assert!(challenge.verify(&proof).is_err(), "{first:?} {proof:?}");
    }
}

fn as_client(mechanism: Mechanism, challenge: &[u8], last: &[u8]) {
    // A server may ask for as much work as a client allows: that is its own bound, and not what is looked for.
    let works = challenge.windows(2).any(|two| two == b"i=");
    let Ok((started, _)) = client::start(mechanism, "ann", "pencil", "nonce") else { return };
    if !works {
        assert!(started.answer(challenge).is_err(), "{challenge:?}");
    }
    static WAITING: OnceLock<Vec<Proved>> = OnceLock::new();
    for proved in WAITING.get_or_init(|| Mechanism::ALL.into_iter().map(waiting).collect()) {
        assert!(proved.check(last).is_err(), "{last:?}");
    }
}

/// A client that waits for the server's proof.
fn waiting(mechanism: Mechanism) -> Proved {
    let (started, _) = client::start(mechanism, "ann", "pencil", "nonce").expect("a password");
    started.answer(b"r=noncemore,s=AAAA,i=4096").expect("a challenge").0
}
