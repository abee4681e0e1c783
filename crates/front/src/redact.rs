//! Commands as logs, profiles and other clients may see them: without what proves who somebody is.

use std::borrow::Cow;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

/// What stands in a secret's place.
const HIDDEN: &str = "xxx";

/// What stands in the place of a client's value where logs tell none.
pub const NO_VALUE: &str = "###";

/// The document with its fields and without their values.
pub fn without_values(doc: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|out| put_without_values(doc, out))
}

fn put_without_values(doc: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in doc {
        match field.value() {
            Value::Document(inner) => put_without_values(inner, &mut out.document(field.key())),
            Value::Array(inner) => {
                let values = without_values(inner);
                out.append(field.key(), Value::Array(values.as_raw()));
            }
            _ => {
                out.append(field.key(), NO_VALUE);
            }
        }
    }
}

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
    if command == "explain" {
        return shown_within(body);
    }
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

/// The command without the secrets of the one that stands in it.
fn shown_within(body: RawDoc<'_>) -> Cow<'_, [u8]> {
    let Some(inner) = body.iter().next().and_then(|first| first.value().as_doc()) else {
        return Cow::Borrowed(body.as_bytes());
    };
    let name = inner.iter().next().map_or("", |first| first.key());
    // Nothing explains one that explains.
    let Cow::Owned(hidden) = (if name == "explain" { Cow::Borrowed(&[][..]) } else { shown(name, inner) })
    else {
        return Cow::Borrowed(body.as_bytes());
    };
    let hidden = DocBuf::build(|doc| {
        for (at, field) in body.iter().enumerate() {
            match at {
                0 => {
                    doc.append(field.key(), RawDoc::new(&hidden));
                }
                _ => {
                    doc.append_element(field);
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
    fn fields_stay_and_values_go() {
        let find = doc! { "find": "c", "filter": { "a": { "$in": [1, { "b": "secret" }] } } };
        let shown = doc! { "find": "###", "filter": { "a": { "$in": ["###", { "b": "###" }] } } };
        assert_eq!(without_values(find.as_raw()), shown);
    }

    #[test]
    fn secrets_are_hidden_and_nothing_else() {
        let user = doc! { "createUser": "u", "pwd": "secret", "roles": [] };
        let other = doc! { "createUser": "u", "pwd": "xxx", "roles": [] };
        assert_eq!(RawDoc::new(&shown("createUser", user.as_raw())), other.as_raw());
        assert_eq!(&*shown("insert", user.as_raw()), user.as_bytes());
        let explained = doc! { "explain": { "createUser": "u", "pwd": "secret" }, "verbosity": "x" };
        let other = doc! { "explain": { "createUser": "u", "pwd": "xxx" }, "verbosity": "x" };
        assert_eq!(RawDoc::new(&shown("explain", explained.as_raw())), other.as_raw());
        let hello = doc! { "hello": 1, "speculativeAuthenticate": { "saslStart": 1, "payload": "secret", "db": "x" } };
        let other =
            doc! { "hello": 1, "speculativeAuthenticate": { "saslStart": 1, "payload": "xxx", "db": "x" } };
        assert_eq!(RawDoc::new(&shown("hello", hello.as_raw())), other.as_raw());
    }
}
