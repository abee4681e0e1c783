//! Members' `_id`s as raft-rs has them: it does not know 0.

/// raft-rs's id of a member.
pub(super) fn raft_id(id: u64) -> u64 {
    id + 1
}

/// The member that raft-rs knows by this id, if it means one.
pub(super) fn member_id(raft_id: u64) -> Option<u64> {
    raft_id.checked_sub(1)
}
