//! Opening cursors on several shards at once.

use std::sync::Arc;

use sheaf_cluster::Answer;
use sheaf_errors::{Code, Error, Result};

use super::on_member::Abandoned;
use super::remote::Remote;
use crate::addressed::Addressed;

/// The cursors of what each of these has answered.
///
/// Errors: the first that one of them has answered, one that says that the router's view is out of date before others. What was opened is
/// closed then.
pub fn opened(
    abandoned: &Arc<Abandoned>,
    all: &[Addressed],
    answers: Vec<Result<Answer>>,
) -> Result<Vec<Remote>> {
    let mut opened = Vec::with_capacity(all.len());
    let mut failed: Option<Error> = None;
    for (to, answer) in all.iter().zip(answers) {
        let remote = answer.and_then(|answer| Remote::of(abandoned, &to.target, &answer));
        match remote {
            Ok(remote) => opened.push(remote),
            Err(error) if failed.is_none() || is_stale(&error) => failed = Some(error),
            Err(_) => {}
        }
    }
    match failed {
        None => Ok(opened),
        Some(error) => Err(error),
    }
}

/// Whether somebody could not be reached, or not in time: the one kind of error that leaves a shard out.
pub fn is_out_of_reach(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::HOST_UNREACHABLE
            | Code::NETWORK_TIMEOUT
            | Code::FAILED_TO_SATISFY_READ_PREFERENCE
            | Code::MAX_TIME_MS_EXPIRED
    )
}

fn is_stale(error: &Error) -> bool {
    matches!(error.code(), Code::STALE_CONFIG | Code::STALE_DB_VERSION)
}
