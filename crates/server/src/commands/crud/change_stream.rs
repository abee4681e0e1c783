//! What change streams add to `aggregate` and `getMore`: which errors a driver may resume after.

use sheaf_bson::RawDoc;
use sheaf_errors::Error;

/// Codes after which the stream is likely to go on elsewhere or in a moment.
const RESUMABLE: [i32; 18] =
    [6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436, 358];

/// Codes that the next attempt would end with, too.
const FINAL: [i32; 3] = [280, 286, 10334];

/// Whether a command opens a change stream.
pub fn is_opened_by(command: RawDoc<'_>) -> bool {
    let stages = command.get("pipeline").and_then(|stages| stages.as_array());
    let first = stages.and_then(|stages| stages.values().next()?.as_doc()?.iter().next());
    first.is_some_and(|stage| stage.key() == "$changeStream")
}

/// The error of a change stream with the label that drivers look for.
pub fn labelled(error: Error) -> Error {
    let code = error.code().0;
    if RESUMABLE.contains(&code) {
        error.with_label("ResumableChangeStreamError")
    } else if FINAL.contains(&code) {
        error.with_label("NonResumableChangeStreamError")
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;
    use sheaf_errors::Code;

    #[test]
    fn labels() {
        for (code, labels) in [
            (Code::HOST_UNREACHABLE, vec!["ResumableChangeStreamError"]),
            (Code::CHANGE_STREAM_HISTORY_LOST, vec!["NonResumableChangeStreamError"]),
            (Code::INTERRUPTED, vec![]),
        ] {
            assert_eq!(labelled(Error::new(code, "")).labels(), labels);
        }
    }

    #[test]
    fn opening_commands() {
        for (command, opens) in [
            (doc! { "aggregate": "c", "pipeline": [{ "$changeStream": {} }] }, true),
            (doc! { "aggregate": "c", "pipeline": [{ "$match": {} }] }, false),
            (doc! { "aggregate": "c", "pipeline": [] }, false),
            (doc! { "find": "c" }, false),
        ] {
            assert_eq!(is_opened_by(command.as_raw()), opens, "{command:?}");
        }
    }
}
