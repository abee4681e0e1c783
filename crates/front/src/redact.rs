//! Commands as logs, profiles and other clients may see them: without what proves who somebody is.

use std::borrow::Cow;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

/// What stands in a secret's place.
const HIDDEN: &str = "xxx";

/// The fields of a command that nobody is shown.
fn secrets(command: &str) -> &'static [&'static str] {
    match command {
        "saslStart" | "saslContinue" => &["payload"],
        "createUser" | "updateUser" => &["pwd"],
        "authenticate" => &["key", "nonce", "pwd"],
        "hello" | "isMaster" => &["speculativeAuthenticate"],
        _ => &[],
    }
}

/// The command without its secrets.
pub fn shown<'a>(command: &str, body: RawDoc<'a>) -> Cow<'a, [u8]> {
    let secrets = secrets(command);
    if !body.iter().any(|field| secrets.contains(&field.key())) {
        return Cow::Borrowed(body.as_bytes());
    }
    let hidden = DocBuf::build(|doc| {
        for field in body {
            match (secrets.contains(&field.key()), field.value()) {
                (false, _) => {
                    doc.append_element(field);
                }
                (true, Value::Document(inner)) => hide_payload(&mut doc.document(field.key()), inner),
                (true, _) => {
                    doc.append(field.key(), HIDDEN);
                }
            }
        }
    });
    Cow::Owned(hidden.into_bytes())
}

fn hide_payload(doc: &mut DocWriter<'_, Vec<u8>>, inner: RawDoc<'_>) {
    for field in inner {
        match field.key() {
            "saslStart" | "authenticate" | "mechanism" | "db" | "options" => {
                doc.append_element(field);
            }
            other => {
                doc.append(other, HIDDEN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{RawDoc, doc};

    use super::*;

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let user = doc! { "createUser": "u", "pwd": "secret", "roles": [] };
        let other = doc! { "createUser": "u", "pwd": "xxx", "roles": [] };
        assert_eq!(RawDoc::new(&shown("createUser", user.as_raw())), other.as_raw());
        assert_eq!(&*shown("insert", user.as_raw()), user.as_bytes());
        let hello = doc! { "hello": 1, "speculativeAuthenticate": { "saslStart": 1, "payload": "secret", "db": "x" } };
        let other =
            doc! { "hello": 1, "speculativeAuthenticate": { "saslStart": 1, "payload": "xxx", "db": "x" } };
        assert_eq!(RawDoc::new(&shown("hello", hello.as_raw())), other.as_raw());
    }
}
