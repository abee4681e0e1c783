//! Errors of other servers as errors of this one.

use std::io::ErrorKind;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Error};

/// Labels that a server may give.
const LABELS: [&str; 6] = [
    "TransientTransactionError",
    "UnknownTransactionCommitResult",
    "RetryableWriteError",
    "NoWritesPerformed",
    "ResumableChangeStreamError",
    "NonResumableChangeStreamError",
];

/// Fields of an error reply that stand for something else than what is beside the code.
const OWN_FIELDS: [&str; 10] = [
    "ok",
    "errmsg",
    "code",
    "codeName",
    "errorLabels",
    "errInfo",
    "$clusterTime",
    "operationTime",
    "topologyVersion",
    "$configTime",
];

/// The error that is a reply's whole content: code, message, labels, and what stands beside the code.
pub fn error_in(reply: RawDoc<'_>) -> Option<Error> {
    if reply.get("ok").is_some_and(|ok| ok.truthy()) {
        return None;
    }
    let code = reply.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1) as i32;
    let message = reply.get("errmsg").and_then(|message| message.as_str());
    let message = message.unwrap_or("the reply is no error and no success");
    let mut error = Error::new(Code(code), message);
    let labels = reply.get("errorLabels").and_then(|labels| labels.as_array());
    for label in labels.into_iter().flat_map(|labels| labels.values()) {
        if let Some(label) = LABELS.into_iter().find(|known| label.as_str() == Some(known)) {
            error = error.with_label(label);
        }
    }
    if let Some(info) = reply.get("errInfo").and_then(|info| info.as_doc()) {
        error = error.with_err_info(info.as_bytes().to_vec());
    }
    let beside = DocBuf::build(|out| {
        for field in reply.iter().filter(|field| !OWN_FIELDS.contains(&field.key())) {
            out.append_element(field);
        }
    });
    if beside.as_raw().is_empty() { Some(error) } else { Some(error.with_extra(beside.into_bytes())) }
}

/// Whether the member that answered is not what the request needs, or goes down: another one may be.
pub fn is_not_primary(code: Code) -> bool {
    matches!(code.0, 10107 | 13435 | 13436 | 11602 | 11600 | 189 | 91 | 10058)
}

/// An error that a member has answered as a router's client gets it: one of a member about itself would have drivers take the router for
/// that member.
pub fn for_client(error: Error) -> Error {
    if is_not_primary(error.code()) { Error::new(Code::HOST_UNREACHABLE, error.message()) } else { error }
}

/// A failure of the network as a client sees it.
pub fn unreachable(host: &str, error: &sheaf_client::Error) -> Error {
    let code = match error {
        sheaf_client::Error::Io(error) if error.kind() == ErrorKind::TimedOut => Code::NETWORK_TIMEOUT,
        sheaf_client::Error::Io(_) => Code::HOST_UNREACHABLE,
        // Nothing was sent.
        sheaf_client::Error::Usage(why) => return Error::new(Code::BSON_OBJECT_TOO_LARGE, why.as_str()),
        _ => Code::PROTOCOL_ERROR,
    };
    Error::new(code, format!("Error connecting to {host} :: caused by :: {error}"))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn an_error_keeps_all_that_it_says() {
        assert!(error_in(doc! { "n": 1, "ok": 1.0 }.as_raw()).is_none());
        let reply = doc! {
            "errorLabels": ["TransientTransactionError", "made up"], "ok": 0.0, "errmsg": "twice", "code": 11000,
            "codeName": "DuplicateKey", "keyPattern": { "a": 1 }, "errInfo": { "why": "so" }, "operationTime": 5
        };
        let error = error_in(reply.as_raw()).unwrap();
        assert_eq!((error.code(), error.message()), (Code(11000), "twice"));
        assert_eq!(error.labels(), ["TransientTransactionError"]);
        assert_eq!(error.extra().unwrap(), doc! { "keyPattern": { "a": 1 } }.as_bytes());
        assert_eq!(error.err_info().unwrap(), doc! { "why": "so" }.as_bytes());
    }
}
