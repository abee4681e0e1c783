//! Commands as logs, profiles and other clients may see them: without what proves who somebody is.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use sheaf_bson::{DocBuf, DocWriter, Element, RawDoc, Value};

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
    /// These, besides those that every command takes, and of each only what it can soundly hold: in place of a secret's field
    /// there may be one that is nearly it, and the secret may stand in another one's value.
    Only(&'static [(&'static str, Holds)]),
    /// All but this one, whose document is a message of a login.
    Login(&'static str),
}

/// What a field can hold that anybody may see.
#[derive(Clone, Copy)]
enum Holds {
    /// A name: a text.
    Name,
    /// The same, or a list of them.
    Names,
    /// A number or a flag.
    Number,
    /// One of [`MECHANISMS`], or a list of them.
    Mechanisms,
    /// Documents with these fields, names all, or lists of them; a name alone, too.
    Parts(&'static [&'static str]),
    /// Documents with resources, which are documents as well.
    Privileges,
    /// Whatever a user keeps there, but for credentials.
    Anything,
}

/// The mechanisms that clients name.
const MECHANISMS: &[&str] = &[
    "SCRAM-SHA-1",
    "SCRAM-SHA-256",
    "MONGODB-X509",
    "MONGODB-OIDC",
    "MONGODB-CR",
    "MONGODB-AWS",
    "GSSAPI",
    "PLAIN",
];

const ROLE: Holds = Holds::Parts(&["role", "db"]);
const USER: Holds = Holds::Parts(&["user", "db", "forAllDBs"]);
const RESTRICTIONS: Holds = Holds::Parts(&["clientSource", "serverAddress"]);

fn fields(command: &str) -> Fields {
    match command {
        "saslStart" => Fields::Only(&[
            ("saslStart", Holds::Number),
            ("mechanism", Holds::Mechanisms),
            ("autoAuthorize", Holds::Number),
        ]),
        "saslContinue" => Fields::Only(&[("saslContinue", Holds::Number), ("conversationId", Holds::Number)]),
        "authenticate" => Fields::Only(&[
            ("authenticate", Holds::Number),
            ("mechanism", Holds::Mechanisms),
            ("user", Holds::Names),
        ]),
        "logout" => Fields::Only(&[("logout", Holds::Number)]),
        "createUser" | "updateUser" => Fields::Only(&[
            ("createUser", Holds::Name),
            ("updateUser", Holds::Name),
            ("customData", Holds::Anything),
            ("roles", ROLE),
            ("digestPassword", Holds::Number),
            ("mechanisms", Holds::Mechanisms),
            ("authenticationRestrictions", RESTRICTIONS),
        ]),
        "dropUser" | "grantRolesToUser" | "revokeRolesFromUser" => Fields::Only(&[
            ("dropUser", Holds::Name),
            ("grantRolesToUser", Holds::Name),
            ("revokeRolesFromUser", Holds::Name),
            ("roles", ROLE),
        ]),
        "createRole" | "updateRole" => Fields::Only(&[
            ("createRole", Holds::Name),
            ("updateRole", Holds::Name),
            ("roles", ROLE),
            ("privileges", Holds::Privileges),
            ("authenticationRestrictions", RESTRICTIONS),
        ]),
        "usersInfo" => Fields::Only(&[
            ("usersInfo", USER),
            ("showCredentials", Holds::Number),
            ("showCustomData", Holds::Number),
            ("showPrivileges", Holds::Number),
            ("showAuthenticationRestrictions", Holds::Number),
            ("filter", Holds::Anything),
        ]),
        "hello" | "isMaster" => Fields::Login("speculativeAuthenticate"),
        _ => Fields::All,
    }
}

/// The commands that `explain` takes, which carry no secrets of logins: what else stands there is one that was meant otherwise.
const EXPLAINED: &[&str] = &[
    "aggregate",
    "bulkWrite",
    "count",
    "delete",
    "distinct",
    "find",
    "findAndModify",
    "findandmodify",
    "insert",
    "mapReduce",
    "mapreduce",
    "update",
];

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
    if command == "applyOps" {
        let shown = with_shown_entries(body);
        return Cow::Owned(without_credentials(shown.as_raw()).into_owned());
    }
    match fields(command) {
        Fields::All => without_credentials(body),
        Fields::Only(known) => {
            let is_shown = |field: &Element<'_>| match known.iter().find(|(name, _)| *name == field.key()) {
                Some((_, holds)) => holds.soundly(field.value()),
                None => is_generic(field.key_bytes()),
            };
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

impl Holds {
    /// Whether the value is one that such a field can hold.
    fn soundly(self, value: Value<'_>) -> bool {
        match (self, value) {
            (Holds::Anything, _) | (_, Value::Null) => true,
            (Holds::Number, Value::Document(_) | Value::Array(_)) | (Holds::Name, Value::Array(_)) => false,
            (_, Value::Bool(_)) => true,
            (_, value) if value.as_f64().is_some() => true,
            (Holds::Number, _) => false,
            (_, Value::Array(list)) => {
                list.values().all(|value| !matches!(value, Value::Array(_)) && self.soundly(value))
            }
            (Holds::Mechanisms, value) => value.as_str().is_some_and(|name| MECHANISMS.contains(&name)),
            (Holds::Name | Holds::Names, value) => value.as_str().is_some(),
            (Holds::Parts(names), Value::Document(part)) => {
                part.iter().all(|field| names.contains(&field.key()) && Holds::Names.soundly(field.value()))
            }
            (Holds::Privileges, Value::Document(part)) => part.iter().all(|field| match field.key() {
                "resource" => Holds::Parts(RESOURCE).soundly(field.value()),
                "actions" => Holds::Names.soundly(field.value()),
                _ => false,
            }),
            (Holds::Parts(_) | Holds::Privileges, value) => value.as_str().is_some(),
        }
    }
}

/// The fields of a privilege's resource.
const RESOURCE: &[&str] = &["db", "collection", "system_buckets", "cluster", "anyResource"];

/// The `applyOps` without the secrets of the commands that are its entries.
fn with_shown_entries(body: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|doc| {
        for field in body {
            let Value::Array(entries) = field.value() else {
                doc.append_element(field);
                continue;
            };
            let mut out = doc.array(field.key());
            for entry in entries.values() {
                match entry {
                    Value::Document(entry) => put_entry(entry, &mut out.document()),
                    other => _ = out.push(other),
                }
            }
        }
    })
}

fn put_entry(entry: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in entry {
        match (field.key(), field.value()) {
            // Whatever kind of entry it says it is.
            ("o", Value::Document(object)) => {
                let name = object.iter().next().map_or("", |first| first.key());
                out.append("o", RawDoc::new(&shown(name, object)));
            }
            _ => _ = out.append_element(field),
        }
    }
}

/// The command without the secrets of the one that stands in it.
fn shown_within(body: RawDoc<'_>) -> Cow<'_, [u8]> {
    let first = body.iter().next();
    let inner = first.as_ref().and_then(|first| first.value().as_doc());
    let name = inner.and_then(|inner| inner.iter().next()).map_or("", |first| first.key());
    // Of what is nothing to be explained nobody has to see anything.
    let inner = inner.filter(|_| name != "explain");
    let hidden = match (inner, fields(name)) {
        (Some(inner), Fields::All) if EXPLAINED.contains(&name) => Some(without_credentials(inner)),
        (Some(inner), Fields::Only(_) | Fields::Login(_)) => Some(shown(name, inner)),
        _ => None,
    };
    let is_shown = |field: &Element<'_>| {
        is_generic(field.key_bytes()) || field.key() == "verbosity" && field.value().as_str().is_some()
    };
    if matches!(hidden, Some(Cow::Borrowed(_))) && body.iter().skip(1).all(|field| is_shown(&field)) {
        return Cow::Borrowed(body.as_bytes());
    }
    let shown = DocBuf::build(|doc| {
        for (at, field) in body.iter().enumerate() {
            match (at, &hidden) {
                (0, Some(inner)) => _ = doc.append(field.key(), RawDoc::new(inner)),
                (0, None) => _ = doc.append(field.key(), HIDDEN),
                _ if is_shown(&field) => _ = doc.append_element(field),
                _ => _ = doc.append(field.key(), HIDDEN),
            }
        }
    });
    Cow::Owned(shown.into_bytes())
}

/// A message of a login, of which only its kind is shown.
fn hide_message(doc: &mut DocWriter<'_, Vec<u8>>, inner: RawDoc<'_>) {
    for field in inner {
        let holds = match field.key() {
            "saslStart" | "authenticate" => Some(Holds::Number),
            "mechanism" => Some(Holds::Mechanisms),
            "db" => Some(Holds::Names),
            _ => None,
        };
        match holds.is_some_and(|holds| holds.soundly(field.value())) {
            true => doc.append_element(field),
            false => doc.append(field.key(), HIDDEN),
        };
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
    use sheaf_bson::{array, doc};

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
                &doc! { "saslStart": 1, "comment": "seen", (field): "secret", "options": { "a": "secret" } },
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
    fn what_stands_where_it_cannot_be_is_hidden() {
        let entry = |object: DocBuf| doc! { "op": "c", "ns": "admin.$cmd", "o": &object };
        let list = |entry: DocBuf| {
            let entries = array![&entry];
            doc! { "applyOps": (Value::Array(entries.as_raw())) }
        };
        let creating = list(entry(doc! { "createUser": "u", "pwd": "secret" }));
        let seen = list(entry(doc! { "createUser": "u", "pwd": "xxx" }));
        assert_eq!(RawDoc::new(&shown("applyOps", creating.as_raw())), seen.as_raw());
        let nested = list(entry(creating));
        assert_eq!(RawDoc::new(&shown("applyOps", nested.as_raw())), list(entry(seen)).as_raw());
        hides(&doc! { "explain": { "creatUser": "u", "pwd": "secret" }, "verbosity": "seen" });
        hides(&doc! { "explain": { "pwd": "secret" }, "verbosity": "seen" });
        hides(&doc! { "explain": "secret", "verbosity": "seen" });
        hides(&doc! { "explain": { "find": "seen" }, "pwd": "secret" });
        hides(&doc! { "explain": { "createUser": { "pwd": "secret" }, "comment": "seen" } });
        for command in ["createUser", "updateUser"] {
            hides(&doc! { (command): { "user": "x", "pwd": "secret" }, "comment": "seen" });
            hides(&doc! { (command): ["x", "secret"], "comment": "seen" });
            hides(&doc! { (command): "seen", "roles": [{ "role": "read", "db": "x", "pwd": "secret" }] });
            hides(&doc! { (command): "seen", "roles": [{ "role": { "pwd": "secret" } }] });
            hides(&doc! { (command): "seen", "roles": { "pwd": "secret" } });
            hides(&doc! { (command): "seen", "roles": [["secret"]] });
            hides(&doc! { (command): "seen", "mechanisms": ["secret"] });
            hides(&doc! { (command): "seen", "mechanisms": "secret", "digestPassword": "secret" });
            hides(&doc! { (command): "seen", "authenticationRestrictions": [{ "pwd": "secret" }] });
        }
        hides(&doc! { "grantRolesToUser": "seen", "pwd": "secret", "roles": ["read"] });
        hides(&doc! { "createRole": "seen", "privileges": [{ "resource": { "pwd": "secret" } }] });
        hides(&doc! { "usersInfo": { "user": "u", "db": "d", "pwd": "secret" }, "comment": "seen" });
        for command in ["saslStart", "saslContinue", "authenticate", "logout"] {
            hides(&doc! { (command): "secret", "comment": "seen" });
            hides(&doc! { (command): { "payload": "secret" }, "mechanism": "secret", "comment": "seen" });
        }
        let login = doc! { "saslStart": "secret", "mechanism": "secret", "db": { "a": "secret" } };
        hides(&doc! { "hello": "seen", "speculativeAuthenticate": login.as_raw() });
    }

    #[test]
    fn what_is_sound_is_shown() {
        let role = doc! {
            "createRole": "r", "roles": ["read", { "role": "x", "db": "y" }],
            "privileges": [
                { "resource": { "db": "a", "collection": "" }, "actions": ["find"] },
                { "resource": { "cluster": true }, "actions": ["inprog"] },
            ],
            "authenticationRestrictions": [{ "clientSource": ["127.0.0.1"] }], "$db": "a",
        };
        let find = doc! { "explain": { "find": "c", "filter": { "pwd": 1 } }, "verbosity": "x", "$db": "a" };
        for body in [
            &role,
            &find,
            &doc! { "createUser": "u", "mechanisms": ["SCRAM-SHA-256"], "customData": { "a": 1 }, "roles": [] },
            &doc! { "usersInfo": [{ "user": "u", "db": "d" }, "v"], "showPrivileges": true },
            &doc! { "saslStart": 1, "mechanism": "PLAIN", "$db": "a" },
        ] {
            let name = body.as_raw().iter().next().unwrap().key();
            assert_eq!(RawDoc::new(&shown(name, body.as_raw())), body.as_raw());
        }
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
