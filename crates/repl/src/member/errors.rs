//! What is done about an error, which is all that tells errors apart here.
//!
//! Commands of clients end in a [`sheaf_errors::Error`], which the client is told. What another member says and cannot be true is
//! refused and named ([`super::plausible`]). What is left are raft-rs's errors, of which there are three kinds.

use sheaf_errors::{Code, Error, Result};

/// What an error of raft-rs calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    /// The message is of no use to this member now: its sender repeats what matters.
    PassOver,
    /// The proposal was not taken: its client asks the next primary.
    TellClient,
    /// Log and consensus group contradict each other: nothing that this member says from here on can be trusted.
    Stop,
}

/// The reaction to an error of raft-rs.
pub(super) fn reaction(error: &raft::Error) -> Reaction {
    use raft::Error::*;
    match error {
        StepLocalMsg | StepPeerNotFound | RequestSnapshotDropped => Reaction::PassOver,
        ProposalDropped => Reaction::TellClient,
        Io(_)
        | Store(_)
        | ConfigInvalid(_)
        | CodecError(_)
        | Exists { .. }
        | NotExists { .. }
        | ConfChangeError(_) => Reaction::Stop,
    }
}

/// What raft-rs made of an input.
///
/// Errors: `NotWritablePrimary` for a proposal that is not taken.
pub(super) fn taken(result: raft::Result<()>) -> Result<()> {
    let Err(error) = result else { return Ok(()) };
    match reaction(&error) {
        Reaction::PassOver => Ok(()),
        Reaction::TellClient => Err(not_primary()),
        Reaction::Stop => panic!("raft-rs cannot go on: {error}"),
    }
}

/// Like [`taken`], for an input that proposes nothing.
pub(super) fn stepped(result: raft::Result<()>) {
    taken(result).expect("only a proposal is not taken");
}

/// What a write gets where there is no primary.
pub(super) fn not_primary() -> Error {
    Error::new(Code::NOT_WRITABLE_PRIMARY, "not primary")
}

/// What a member without a configuration answers.
pub(super) fn not_yet_initialized() -> Error {
    Error::new(Code::NOT_YET_INITIALIZED, "no replset config has been received")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_reaction() {
        assert_eq!(taken(Err(raft::Error::StepPeerNotFound)), Ok(()));
        assert_eq!(taken(Err(raft::Error::ProposalDropped)), Err(not_primary()));
        let damaged = raft::Error::Store(raft::StorageError::Unavailable);
        assert_eq!(reaction(&damaged), Reaction::Stop);
    }

    #[test]
    #[should_panic(expected = "raft-rs cannot go on")]
    fn a_damaged_log_is_no_error_that_anybody_is_told() {
        let _ = taken(Err(raft::Error::Store(raft::StorageError::Unavailable)));
    }
}
