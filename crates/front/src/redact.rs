//! Commands as logs, profiles and other clients may see them: without what proves who somebody is.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Value, doc};

use crate::generic::is_generic;

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

/// How a command's fields are shown.
enum Fields {
    /// All, but what is known to be secret wherever it stands.
    All,
    /// These, besides those that every command takes: in place of a secret's field there may be one that is nearly it.
    Only(&'static [&'static str]),
    /// All but this one, whose document is a message of a login.
    Login(&'static str),
}

fn fields(command: &str) -> Fields {
    match command {
        "saslStart" => Fields::Only(&["saslStart", "mechanism", "autoAuthorize"]),
        "saslContinue" => Fields::Only(&["saslContinue", "conversationId"]),
        "authenticate" => Fields::Only(&["authenticate", "mechanism", "user"]),
        "createUser" | "updateUser" => Fields::Only(&[
            "createUser",
            "updateUser",
            "customData",
            "roles",
            "digestPassword",
            "mechanisms",
            "authenticationRestrictions",
        ]),
        "hello" | "isMaster" => Fields::Login("speculativeAuthenticate"),
        _ => Fields::All,
    }
}

/// What stands in the names of fields that hold credentials: those of users, as `admin.system.users` keeps them.
static CREDENTIALS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("SCRAM-SHA-"));

fn names_credentials(name: &str) -> bool {
    name.contains("SCRAM-SHA-")
}

/// The command without its secrets.
pub fn shown<'a>(command: &str, body: RawDoc<'a>) -> Cow<'a, [u8]> {
    if command == "explain" {
        return shown_within(body);
    }
    match fields(command) {
        Fields::All => without_credentials(body),
        Fields::Only(known) => {
            let is_shown =
                |field: &Element<'_>| known.contains(&field.key()) || is_generic(field.key_bytes());
            if body.iter().all(|field| is_shown(&field)) {
                return without_credentials(body);
            }
            let hidden = DocBuf::build(|doc| {
                for field in body {
                    match is_shown(&field) {
                        true => doc.append_element(field),
                        false => doc.append(field.key(), HIDDEN),
                    };
                }
            });
            Cow::Owned(without_credentials(hidden.as_raw()).into_owned())
        }
        Fields::Login(name) => {
            if body.get(name).is_none() {
                return Cow::Borrowed(body.as_bytes());
            }
            let hidden = DocBuf::build(|doc| {
                for field in body {
                    match (field.key() == name, field.value()) {
                        (false, _) => {
                            doc.append_element(field);
                        }
                        (true, Value::Document(inner)) => hide_message(&mut doc.document(name), inner),
                        (true, _) => {
                            doc.append(name, HIDDEN);
                        }
                    }
                }
            });
            Cow::Owned(hidden.into_bytes())
        }
    }
}

/// The command without the secrets of the one that stands in it.
fn shown_within(body: RawDoc<'_>) -> Cow<'_, [u8]> {
    let Some(inner) = body.iter().next().and_then(|first| first.value().as_doc()) else {
        return Cow::Borrowed(body.as_bytes());
    };
    let name = inner.iter().next().map_or("", |first| first.key());
    // Nothing explains one that explains, so there is nothing in it that anybody has to see.
    let hidden = match name {
        "explain" => Cow::Owned(doc! { "explain": HIDDEN }.into_bytes()),
        _ => shown(name, inner),
    };
    let Cow::Owned(hidden) = hidden else { return Cow::Borrowed(body.as_bytes()) };
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

/// A message of a login, of which only its kind is shown.
fn hide_message(doc: &mut DocWriter<'_, Vec<u8>>, inner: RawDoc<'_>) {
    for field in inner {
        match field.key() {
            "saslStart" | "authenticate" | "mechanism" | "db" => {
                doc.append_element(field);
            }
            other => {
                doc.append(other, HIDDEN);
            }
        }
    }
}

fn without_credentials(body: RawDoc<'_>) -> Cow<'_, [u8]> {
    if CREDENTIALS.find(body.as_bytes()).is_none() {
        return Cow::Borrowed(body.as_bytes());
    }
    Cow::Owned(DocBuf::build(|out| put_without_credentials(body, out)).into_bytes())
}

fn put_without_credentials(doc: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in doc {
        match field.value() {
            _ if names_credentials(field.key()) => {
                out.append(field.key(), HIDDEN);
            }
            Value::Document(inner) => put_without_credentials(inner, &mut out.document(field.key())),
            Value::Array(inner) => {
                let values = DocBuf::build(|out| put_without_credentials(inner, out));
                out.append(field.key(), Value::Array(values.as_raw()));
            }
            _ => {
                out.append_element(field);
            }
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// A body of this command with a secret somewhere that is not to be seen, and something that is.
    fn hides(body: &DocBuf) {
        let name = body.as_raw().iter().next().unwrap().key();
        let shown = sheaf_bson::document_text(RawDoc::new(&shown(name, body.as_raw())));
        assert!(!shown.contains("secret") && shown.contains("seen"), "{shown}");
    }

    #[test]
    fn what_is_nearly_a_secrets_field_is_hidden() {
        for field in ["pwd", "password", "Pwd", "payload"] {
            hides(&doc! { "createUser": "seen", (field): "secret", "roles": [] });
            hides(&doc! { "updateUser": "seen", (field): { "a": "secret" }, "comment": 1 });
            hides(&doc! { "authenticate": 1, "user": "seen", (field): "secret" });
            hides(
                &doc! { "saslStart": 1, "mechanism": "seen", (field): "secret", "options": { "a": "secret" } },
            );
            hides(&doc! { "saslContinue": 1, "conversationId": 1, (field): "secret", "comment": "seen" });
        }
        hides(
            &doc! { "hello": "seen", "speculativeAuthenticate": { "saslStart": 1, "options": { "a": "secret" } } },
        );
        hides(
            &doc! { "explain": { "explain": { "createUser": "u", "pwd": "secret" } }, "verbosity": "seen" },
        );
    }

    #[test]
    fn credentials_are_hidden_wherever_they_stand() {
        let kept =
            doc! { "SCRAM-SHA-256": { "salt": "secret", "storedKey": "secret" }, "SCRAM-SHA-1": "secret" };
        hides(
            &doc! { "insert": "system.users", "documents": [{ "user": "seen", "credentials": kept.as_raw() }] },
        );
        let set = doc! { "$set": { "credentials.SCRAM-SHA-1.serverKey": "secret" } };
        hides(&doc! { "update": "seen", "updates": [{ "q": {}, "u": set.as_raw() }] });
        hides(&doc! { "createUser": "seen", "customData": kept.as_raw(), "roles": [] });
        let names = doc! { "createUser": "seen", "mechanisms": ["SCRAM-SHA-256"], "roles": [] };
        assert_eq!(&*shown("createUser", names.as_raw()), names.as_bytes());
    }
}
