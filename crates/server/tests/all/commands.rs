//! Scripts of commands: requests to a server, and its replies.
//!
//! A file is a family of commands and has a server of its own. `> db {request}` is a request (`-` for no database), the line after it the reply.
//! `| field field.below list.0` behind a request names the fields of the reply that are shown. `CURSOR` in a request is the cursor that
//! was opened last. What differs from run to run is shown as `"<time>"`, `"<timestamp>"`, `"<id>"`, `"<uuid>"` or `"<cursor>"`, unless a
//! request has named it. `UPDATE=1` in the environment writes the replies anew.
#![allow(
    clippy::disallowed_methods,
    reason = "a test reads its scripts, and writes them anew if it is asked to"
)]

#[path = "../../../query/tests/support/text.rs"]
#[allow(dead_code)]
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Connection, Server};
use sheaf_bson::{ArrayBuf, DocBuf, OwnedValue, RawDoc, Value};

/// The form of a UUID as text.
const UUID: &str = "00000000-0000-0000-0000-000000000000";

/// One file's server, and what its requests have named.
struct Script {
    connection: Connection,
    said: String,
    cursor: i64,
    _server: Server,
}

/// Fields that tell how long something took.
const TIMES: &[&str] = &["optimizationTimeMillis", "executionTimeMillis", "executionTimeMillisEstimate"];

impl Script {
    fn begin() -> Script {
        let server = Server::start(|_, _| {});
        Script { connection: server.connect(), said: String::new(), cursor: 0, _server: server }
    }

    /// Sends `db {request} | fields` and gives the reply's text.
    fn run(&mut self, line: &str) -> String {
        let (request, fields) = line.rsplit_once("} | ").map_or((line, None), |(request, fields)| {
            (&line[..request.len() + 1], Some(fields.split_whitespace().collect::<Vec<_>>()))
        });
        let request = request.replace("CURSOR", &format!("NumberLong({})", self.cursor));
        let (db, command) = request.split_once(' ').expect("a database and a command");
        let mut command = text::parse_doc(command);
        if db != "-" {
            command.append("$db", db);
        }
        self.said.push_str(&text::show(command.as_raw()));
        let reply = self.connection.run(&command);
        let reply = self.masked(Value::Document(reply.as_raw()));
        let Value::Document(reply) = reply.as_value() else { unreachable!("a document stays one") };
        let shown = match fields {
            None => DocBuf::from(reply),
            Some(fields) => DocBuf::build(|doc| {
                reply.iter().filter(|field| fields.contains(&field.key())).for_each(|field| {
                    doc.append_element(field);
                });
                for path in fields.iter().filter(|field| field.contains('.')) {
                    let mut parts = path.split('.');
                    let found = parts.try_fold(Value::Document(reply), |value, name| {
                        value.as_doc().or(value.as_array())?.get(name)
                    });
                    if let Some(value) = found {
                        doc.append(path, value);
                    }
                }
            }),
        };
        text::show(shown.as_raw())
    }

    /// The value without what differs from run to run.
    fn masked(&mut self, value: Value<'_>) -> OwnedValue {
        let mask = match value {
            Value::Document(doc) => {
                return OwnedValue::from(Value::Document(self.masked_document(doc).as_raw()));
            }
            Value::Array(array) => {
                let items: Vec<_> = array.values().map(|item| self.masked(item)).collect();
                let array = ArrayBuf::of(items.iter().map(OwnedValue::as_value));
                return OwnedValue::from(Value::Array(array.as_raw()));
            }
            Value::String(text) => return OwnedValue::from(Value::String(&self.without_uuids(text))),
            Value::DateTime(_) => "<time>",
            Value::Timestamp(_) => "<timestamp>",
            Value::ObjectId(_) => "<id>",
            Value::Binary(binary) if binary.subtype == 4 => "<uuid>",
            _ => return OwnedValue::from(value),
        };
        let named = self.said.contains(&text::show_value(value));
        OwnedValue::from(if named { value } else { Value::String(mask) })
    }

    /// A message without the UUIDs of collections and index builds in it.
    fn without_uuids(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let is_uuid = |part: &str| {
            part.len() == UUID.len()
                && part.bytes().zip(UUID.bytes()).all(|(c, form)| match form {
                    b'-' => c == b'-',
                    _ => c.is_ascii_hexdigit(),
                })
        };
        while let Some(at) = (0..text.len()).find(|at| text.get(*at..at + UUID.len()).is_some_and(is_uuid)) {
            text.replace_range(at..at + UUID.len(), "<uuid>");
        }
        text
    }

    fn masked_document(&mut self, doc: RawDoc<'_>) -> DocBuf {
        let is_cursor = doc.get("firstBatch").is_some() || doc.get("nextBatch").is_some();
        let mut masked = DocBuf::new();
        for field in doc.iter() {
            match field.value() {
                Value::Int64(id) if is_cursor && field.key() == "id" && id != 0 => {
                    self.cursor = id;
                    masked.append("id", "<cursor>");
                }
                Value::Int32(_) | Value::Int64(_) if TIMES.contains(&field.key()) => {
                    masked.append(field.key(), "<time>");
                }
                value => {
                    masked.append(field.key(), self.masked(value).as_value());
                }
            }
        }
        masked
    }
}

/// Runs a script and gives it with the replies that came.
fn rewritten(script: &str) -> String {
    let mut server = Script::begin();
    let mut lines = script.lines().peekable();
    let mut out = String::new();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if let Some(request) = line.strip_prefix("> ") {
            lines.next_if(|reply| reply.starts_with('{'));
            out.push_str(&server.run(request));
            out.push('\n');
        }
    }
    out
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new("tests/scripts");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn replies_are_what_the_scripts_say() {
    let mut failures = String::new();
    for file in scripts() {
        let script = fs::read_to_string(&file).unwrap();
        let now = rewritten(&script);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, now).unwrap();
            continue;
        }
        let mut request = "";
        for (then, now) in script.lines().zip(now.lines()) {
            if then != now {
                failures +=
                    &format!("{}:\n{request}\n--- expected\n{then}\n--- got\n{now}\n\n", file.display());
                break;
            }
            request = then;
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
