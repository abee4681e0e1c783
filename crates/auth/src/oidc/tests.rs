use base64::Engine;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use sheaf_bson::{DocBuf, doc, json};

use super::*;
use crate::name::{RoleName, UserName};

fn encode(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes)
}

struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random);
        Issuer(pair.unwrap())
    }

    fn keys(&self, more: &str) -> KeySet {
        let point = self.0.public_key().as_ref();
        let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
        let key = format!(r#"{{"kty":"EC","crv":"P-256","kid":"k","x":"{x}","y":"{y}","d":"secret"{more}}}"#);
        KeySet::parse(&format!(r#"{{"keys":[{{"kty":"oct","kid":"o","k":"AAAA"}},{key}]}}"#)).unwrap()
    }

    fn token(&self, header: &DocBuf, claims: &DocBuf) -> String {
        let part = |doc: &DocBuf| encode(json::to_json(doc.as_raw(), json::Style::Relaxed).as_bytes());
        let signed = format!("{}.{}", part(header), part(claims));
        let mark = self.0.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", encode(mark.as_ref()))
    }
}

fn header() -> DocBuf {
    doc! { "alg": "ES256", "kid": "k" }
}

fn claims() -> DocBuf {
    doc! { "iss": "i", "aud": ["x", "sheaf"], "sub": "ann", "exp": 100, "groups": ["a", "b"] }
}

fn provider() -> DocBuf {
    doc! {
        "issuer": "i", "audience": "sheaf", "authNamePrefix": "idp", "clientId": "c", "authorizationClaim": "groups",
    }
}

fn providers(list: &[DocBuf]) -> sheaf_errors::Result<Providers> {
    let texts: Vec<_> = list.iter().map(|one| json::to_json(one.as_raw(), json::Style::Relaxed)).collect();
    Providers::parse(&format!("[{}]", texts.join(",")))
}

#[test]
fn a_signed_token_names_its_user_and_roles() {
    let issuer = Issuer::new();
    let keys = issuer.keys("");
    let token: Token = issuer.token(&header(), &claims()).parse().unwrap();
    let (claims, until) = token.verify(keys.find(token.key()).unwrap(), 99_999).unwrap();
    assert_eq!(until, 100_000);
    let known = providers(&[provider()]).unwrap();
    let identity = known.of(&token).unwrap().identity(claims).unwrap();
    assert_eq!(identity.user, UserName::new("idp/ann", "$external"));
    let roles = ["idp/a", "idp/b"].map(|role| RoleName::new(role, "admin"));
    assert_eq!(identity.roles.as_deref(), Some(&roles[..]));
    assert_eq!(identity.logged, doc! { "iss": "i", "sub": "ann" });
    // Nothing private is shown.
    assert!(keys.shown().all(|key| key.as_raw().get("d").is_none()));
    assert_eq!(keys.shown().count(), 1);
}

#[test]
fn what_does_not_hold_is_refused() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    let keys = issuer.keys("");
    let key = keys.find("k").unwrap();
    let judged =
        |text: &str, now: i64| text.parse::<Token>().and_then(|token| token.verify(key, now).map(drop));
    let good = issuer.token(&header(), &claims());
    assert_eq!(judged(&good, 0), Ok(()));
    assert_eq!(judged(&good, 100_000), Err("the token has expired"));
    assert_eq!(judged(&stranger.token(&header(), &claims()), 0), Err("the signature is wrong"));
    for algorithm in ["none", "None", "HS256", "ES512", ""] {
        let bad = issuer.token(&doc! { "alg": algorithm, "kid": "k" }, &claims());
        assert!(judged(&bad, 0).unwrap_err().contains("algorithm"), "{algorithm}");
    }
    // Another algorithm than the key's own.
    for algorithm in ["RS256", "PS384", "ES384"] {
        let bad = issuer.token(&doc! { "alg": algorithm, "kid": "k" }, &claims());
        assert_eq!(judged(&bad, 0), Err("the signature is wrong"));
    }
    let only = issuer.keys(r#","alg":"ES384""#);
    let token: Token = good.parse().unwrap();
    assert!(token.verify(only.find("k").unwrap(), 0).is_err());
    assert!(issuer.keys(r#","use":"enc""#).find("k").is_none());
    assert!(
        judged(&issuer.token(&doc! { "alg": "ES256", "kid": "k", "crit": ["x"] }, &claims()), 0).is_err()
    );
    assert!(judged(&issuer.token(&doc! { "alg": "ES256" }, &claims()), 0).is_err());
    for (field, value) in [("exp", "x"), ("nbf", "y")] {
        let bad = DocBuf::build(|doc| {
            doc.append(field, value);
            for other in claims().as_raw().iter().filter(|other| other.key() != field) {
                doc.append_element(other);
            }
        });
        assert_eq!(judged(&issuer.token(&header(), &bad), 0), Err("a time of the token is no number"));
    }
    assert_eq!(judged(&issuer.token(&header(), &doc! { "sub": "ann" }), 0), Err("the token says no end"));
    let early = doc! { "exp": 100, "nbf": 50.5 };
    assert_eq!(judged(&issuer.token(&header(), &early), 50_499), Err("the token does not hold yet"));
    assert_eq!(judged(&issuer.token(&header(), &early), 50_500), Ok(()));
    for name in ["groups", "sub", "exp"] {
        let twice = DocBuf::build(|doc| _ = doc.append_all(claims().as_raw()).append(name, 1));
        assert_eq!(judged(&issuer.token(&header(), &twice), 0), Err("a part of the token has a name twice"));
    }
    let twice = doc! { "alg": "ES256", "kid": "k", "kid": "k" };
    assert!(judged(&issuer.token(&twice, &claims()), 0).is_err());
    // One character that is another one.
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        // The last bits of base64 may say nothing.
        assert!(judged(&changed, 0).is_err() || at + 1 >= good.len(), "{at}");
    }
    for text in ["", ".", "..", "a.b.c", "e30.e30.", "e30.e30.e30"] {
        assert!(judged(text, 0).is_err(), "{text}");
    }
}

#[test]
fn providers_must_be_told_from_each_other() {
    let with = |more: DocBuf| {
        DocBuf::build(|doc| {
            doc.append_all(more.as_raw());
            for field in provider().as_raw().iter().filter(|field| more.as_raw().get(field.key()).is_none()) {
                doc.append_element(field);
            }
        })
    };
    for (list, works) in [
        (vec![], true),
        (vec![provider()], true),
        (vec![provider(), provider()], false),
        (vec![with(doc! { "issuer": "j" }), provider()], false),
        (vec![with(doc! { "issuer": "j", "supportsHumanFlows": false }), provider()], true),
        (vec![with(doc! { "issuer": "j", "matchPattern": "x$" }), provider()], false),
        (vec![with(doc! { "issuer": "j", "matchPattern": "x$" }), with(doc! { "matchPattern": "y$" })], true),
        (vec![with(doc! { "matchPattern": "(" })], false),
        (vec![with(doc! { "authNamePrefix": "a/b" })], false),
        (vec![with(doc! { "other": 1 })], false),
        (vec![with(doc! { "JWKSPollSecs": -1 })], false),
        (vec![with(doc! { "audience": 1 })], false),
        (vec![doc! { "issuer": "i", "audience": "a", "authNamePrefix": "p", "clientId": "c" }], false),
        (
            vec![doc! { "issuer": "i", "audience": "a", "authNamePrefix": "p", "authorizationClaim": "c" }],
            false,
        ),
        (
            vec![doc! {
                "issuer": "i", "audience": "a", "authNamePrefix": "p", "supportsHumanFlows": false, "useAuthorizationClaim": false,
            }],
            true,
        ),
    ] {
        let read = providers(&list);
        assert_eq!(read.is_ok(), works, "{list:?}: {:?}", read.err());
    }
    assert!(Providers::parse("{}").is_err() && Providers::parse("[1]").is_err());
    let known = [with(doc! { "issuer": "j", "matchPattern": "x$" }), with(doc! { "matchPattern": "y$" })];
    let known = providers(&known).unwrap();
    assert_eq!(known.for_person(Some("yy")).ok().map(|one| one.issuer.as_str()), Some("i"));
    assert!(known.for_person(Some("z")).is_err() && known.for_person(None).is_err());
    assert!(providers(&[provider()]).unwrap().for_person(None).is_ok());
}

#[test]
fn a_login_goes_on_as_long_as_its_token_would_name_the_same() {
    let with = |field: &str, value: &str| {
        DocBuf::build(|doc| {
            for old in provider().as_raw().iter().filter(|old| old.key() != field) {
                doc.append_element(old);
            }
            doc.append(field, value);
        })
    };
    let before = providers(&[provider()]).unwrap();
    let earlier = before.iter().next().unwrap();
    let still = |list: &[DocBuf]| providers(list).unwrap().still_have(earlier);
    assert!(still(&[provider()]));
    // What decides nothing about whom a token names.
    assert!(still(&[with("clientId", "another")]));
    for field in ["issuer", "audience", "authNamePrefix", "principalName", "authorizationClaim"] {
        assert!(!still(&[with(field, "another")]), "{field}");
    }
    assert!(!still(&[]));
}
