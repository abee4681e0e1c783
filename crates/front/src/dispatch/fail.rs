//! The `failCommand` fail point.

use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error};

use crate::args::Fields;
use crate::client::Client;
use crate::front::Front;
use crate::request::Request;

/// What a fail point does instead of the command.
pub enum Injected {
    /// Close the connection.
    Close,
    /// Answer with this error; labels given there replace the server's own.
    Error(Error, Option<Vec<String>>),
}

/// What a fail point adds to the command's answer.
#[derive(Default)]
pub struct Additions {
    /// The fail point's data, if it struck.
    pub data: Option<DocBuf>,
}

/// Asks the fail point before the command runs.
pub fn before(request: &Request<'_>, fields: &Fields<'_>) -> Result<Additions, Injected> {
    let front = request.front;
    if !front.fail_points.any() || request.command.name == "configureFailPoint" {
        return Ok(Additions::default());
    }
    let Some(data) = front.fail_points.enter("failCommand", |data| applies(data, request, fields)) else {
        return Ok(Additions::default());
    };
    let doc = data.as_raw();
    if doc.get_or_missing("blockConnection").truthy() {
        let millis = doc.get("blockTimeMS").and_then(|v| v.as_f64()).unwrap_or(0.0).max(0.0);
        tokio::task::block_in_place(|| hold_up(front, request.client, Duration::from_millis(millis as u64)));
    }
    if doc.get_or_missing("closeConnection").truthy() {
        return Err(Injected::Close);
    }
    if let Some(code) = doc.get("errorCode").and_then(|v| v.as_exact_i64()) {
        let error = Error::new(Code(code as i32), "Failing command via 'failCommand' failpoint");
        let error = match doc.get("errorExtraInfo").and_then(|v| v.as_doc()) {
            Some(extra) => error.with_extra(extra.as_bytes().to_vec()),
            None => error,
        };
        return Err(Injected::Error(error, labels(doc)));
    }
    Ok(Additions { data: Some(data) })
}

/// Waits, unless somebody stops the operation or the server; then the command finds out by itself.
fn hold_up(front: &Front, client: &Client, time: Duration) {
    let until = Instant::now() + time;
    while !front.is_shutting_down() && client.stop.check().is_ok() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(10)));
    }
}

/// `errorLabels` of the fail point's data.
pub fn labels(data: RawDoc<'_>) -> Option<Vec<String>> {
    let labels = data.get("errorLabels")?.as_array()?;
    Some(labels.values().filter_map(|v| v.as_str()).map(str::to_owned).collect())
}

fn applies(data: RawDoc<'_>, request: &Request<'_>, fields: &Fields<'_>) -> bool {
    let names = [request.command.name, request.called];
    let named = match data.get("failCommands") {
        Some(Value::Array(commands)) => {
            commands.values().any(|command| command.as_str().is_some_and(|c| names.contains(&c)))
        }
        _ => false,
    };
    let app = data.get("appName").and_then(|v| v.as_str());
    let namespace = data.get("namespace").and_then(|v| v.as_str());
    named
        && app.is_none_or(|app| request.client.app_name().as_deref().or(introduced_as(fields)) == Some(app))
        && namespace.is_none_or(|namespace| {
            let collection = fields.first().and_then(|(f, _)| f.value().as_str()).unwrap_or("");
            namespace == format!("{}.{collection}", request.db)
        })
}

/// The application's name in a connection's first `hello`, which the client does not know yet.
fn introduced_as<'a>(fields: &Fields<'a>) -> Option<&'a str> {
    let metadata = fields.iter().find(|(field, _)| field.key() == "client")?.0.value().as_doc()?;
    metadata.get("application")?.as_doc()?.get("name")?.as_str()
}
