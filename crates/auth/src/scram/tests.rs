use proptest::prelude::*;
use sheaf_bson::DocBuf;

use super::*;

/// RFC 7677, section 3: the server's side with its nonce.
#[test]
fn the_rfcs_conversation_in_sha_256() {
    let credential = Credential::derive(
        Mechanism::Sha256,
        &prepare(Mechanism::Sha256, "user", "pencil").unwrap(),
        message::from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap(),
        4096,
    );
    // The server's nonce is no base64 in the RFC, so the client's side is followed with the RFC's own messages.
    let (started, first) =
        client::start(Mechanism::Sha256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO").unwrap();
    assert_eq!(first, "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
    let challenge = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    let (proved, last) = started.answer(challenge.as_bytes()).unwrap();
    assert_eq!(
        last,
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    proved.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
    assert!(proved.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=").is_err());
    assert_eq!(credential.stored_key.len(), 32);
}

fn converse(mechanism: Mechanism, kept: &str, given: &str, user: &str, known: bool) -> Result<()> {
    let salt = vec![7; mechanism.salt_bytes()];
    let credential = Credential::derive(mechanism, &prepare(mechanism, user, kept)?, salt, 4096);
    let (started, first) = client::start(mechanism, user, given, "fyko+d2lbbFgONRv9qkxdawL")?;
    let first = server::First::read(first.as_bytes())?;
    assert_eq!(first.user, user);
    let (challenge, answer) = first.challenge(mechanism, vec![credential], known, &[5; server::NONCE_BYTES]);
    let (proved, last) = started.answer(answer.as_bytes())?;
    proved.check(challenge.verify(last.as_bytes())?.as_bytes())
}

#[test]
fn both_sides_agree_on_a_password_and_on_no_other() {
    for mechanism in Mechanism::ALL {
        converse(mechanism, "pencil", "pencil", "us=er,1", true).unwrap();
        let errors = [
            converse(mechanism, "pencil", "pencils", "user", true).unwrap_err(),
            converse(mechanism, "pencil", "pencil", "user", false).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.code(), Code::AUTHENTICATION_FAILED);
            assert_eq!(error.message(), "Authentication failed.");
        }
    }
    // SASLprep: a soft hyphen is nothing, and IX is written otherwise.
    converse(Mechanism::Sha256, "I\u{ad}X", "\u{2168}", "user", true).unwrap();
    assert!(prepare(Mechanism::Sha256, "user", "\u{7}").is_err());
    assert_eq!(legacy_digest("user", "pencil"), "1c33006ec1ffd90f9cadcbcc0e118200");
}

#[test]
fn credentials_are_read_as_they_were_written() {
    for mechanism in Mechanism::ALL {
        let credential = Credential::derive(mechanism, "x", vec![1; mechanism.salt_bytes()], 5000);
        let doc = DocBuf::build(|doc| credential.write(doc));
        assert_eq!(Credential::read(mechanism, doc.as_raw()), Some(credential));
        let other = if mechanism == Mechanism::Sha1 { Mechanism::Sha256 } else { Mechanism::Sha1 };
        assert_eq!(Credential::read(other, doc.as_raw()), None);
        assert!(!format!("{:?}", Credential::read(mechanism, doc.as_raw())).contains("Key"));
    }
}

#[test]
fn messages_that_are_none_are_refused() {
    let refused = [
        "",
        "n",
        "n,,",
        "n,,n=,r=a",
        "n,,n=u",
        "n,,n=u,r=",
        "p=tls-unique,,n=u,r=a",
        "x,,n=u,r=a",
        "n,a=v,n=u,r=a",
        "n,,n=u=2,r=a",
        "n,,m=1,n=u,r=a",
    ];
    for text in refused {
        assert_eq!(server::First::read(text.as_bytes()).unwrap_err().code(), Code::BAD_VALUE, "{text:?}");
    }
    assert_eq!(server::First::read(b"n,a=u,n=u,r=a").unwrap().user, "u");
}

proptest! {
    #[test]
    fn no_payload_makes_the_server_panic_or_agree(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = server::First::read(&payload);
        let credential = Credential::of_nobody(Mechanism::Sha1, b"secret", "u", 4096);
        let first = server::First::read(b"n,,n=u,r=abc").unwrap();
        let (challenge, _) = first.challenge(Mechanism::Sha1, vec![credential], true, &[0; server::NONCE_BYTES]);
        prop_assert!(challenge.verify(&payload).is_err());
    }

    #[test]
    fn changed_proofs_are_refused(at in 0usize..27, letter in "[A-Za-z0-9+/]") {
        let mechanism = Mechanism::Sha1;
        let credential = Credential::derive(mechanism, &legacy_digest("u", "p"), vec![1; 16], 4096);
        let (started, first) = client::start(mechanism, "u", "p", "abc").unwrap();
        let first = server::First::read(first.as_bytes()).unwrap();
        let (challenge, answer) = first.challenge(mechanism, vec![credential], true, &[0; server::NONCE_BYTES]);
        let (_, last) = started.answer(answer.as_bytes()).unwrap();
        challenge.verify(last.as_bytes()).unwrap();
        let place = last.rfind("p=").unwrap() + 2 + at;
        // The last letter of 20 bytes has two bits that mean nothing.
        if at < 26 && &last[place..=place] != letter.as_str() {
            let mut changed = last.clone();
            changed.replace_range(place..=place, &letter);
            prop_assert!(challenge.verify(changed.as_bytes()).is_err());
        }
    }
}
