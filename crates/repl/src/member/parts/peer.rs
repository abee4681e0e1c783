//! What is known of another member.

use crate::config::ConfigVersion;
use crate::types::{MemberState, Positions};

/// What is known of another member.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// When anything was last heard of it.
    pub heard_at: Option<u64>,
    /// Since when the member has been heard of without a break, in the same life.
    pub up_since: u64,
    /// The connection to the member broke, and nothing was heard of it since.
    pub lost: bool,
    /// It was lost at a proof: it is there, and one of both does not believe the other.
    pub unproved: bool,
    /// It has said nothing for much longer than usual, as the primary.
    pub silent: bool,
    /// When the member's last ping came, and the last answer to one.
    pub ping_at: Option<u64>,
    pub pong_at: Option<u64>,
    /// When the first and the last ping were sent, and when the next is due.
    pub pinged_first: Option<u64>,
    pub pinged_at: u64,
    pub ping_due: u64,
    pub incarnation: u64,
    pub config: Option<ConfigVersion>,
    pub state: MemberState,
    pub electable: bool,
    pub short_of_room: bool,
    pub little_room: bool,
    pub primary: Option<u64>,
    pub commit: u64,
    /// How far the member has said it is.
    pub reported: Positions,
    pub term: u64,
    /// How far the member is within this one's log; only kept by a primary, for its own term.
    pub in_log: Positions,
    /// Milliseconds that pings took lately.
    pub round_trip: Option<u64>,
    /// When a newer configuration was last sent to it.
    pub config_sent: Option<u64>,
}
