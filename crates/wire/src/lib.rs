//! MongoDB's wire protocol: bytes to messages and back. No socket is ever seen here.
//!
//! - [`Header`]: the sixteen bytes in front of every message, checked before anything is allocated.
//! - [`parse`]: a whole message to a [`Request`], validated; everything borrows from the bytes.
//! - [`decompress`], [`compress`]: OP_COMPRESSED with snappy, zlib and zstd, bounded.
//! - [`finish_msg`], [`op_reply`]: closing a reply that was built in the buffer that is sent.
//! - [`append_cluster_time`]: how far the cluster's time has come, in requests and replies.
//!
//! Life of a request: the server reads a header, checks it ([`Header::parse`]), reads the rest as it
//! arrives, undoes OP_COMPRESSED, parses, and from there on trusts the BSON.

#![forbid(unsafe_code)]

mod cluster_time;
mod compressed;
mod error;
mod header;
mod msg;
mod query;
mod reply;

pub use cluster_time::append_cluster_time;
pub use compressed::{Compressor, compress, decompress};
pub use error::WireError;
pub use header::{ADDED_ON_THE_WAY, HEADER_LEN, Header, MAX_MESSAGE_SIZE, OpCode, http_answer};
pub use msg::{Flags, MAX_BODY_SIZE, OpMsg, Sequence, SequenceIter, command_name};
pub use query::OpQuery;
pub use reply::{REPLY_HEAD, checksum_matches, finish_msg, op_reply};

/// A parsed message that asks for something.
#[derive(Debug)]
pub enum Request<'a> {
    /// OP_MSG.
    Msg(OpMsg<'a>),
    /// OP_QUERY, which only handshakes still use.
    Query(OpQuery<'a>),
}

/// Parses one whole message (not OP_COMPRESSED; see [`decompress`]). `bytes` starts at the header
/// and has exactly the header's length.
///
/// ```
/// use sheaf_bson::doc;
/// use sheaf_wire::{REPLY_HEAD, Request, finish_msg, parse};
///
/// let mut message = vec![0; REPLY_HEAD];
/// message.extend_from_slice(doc! { "ping": 1, "$db": "admin" }.as_bytes());
/// finish_msg(&mut message, 7, 0, 0);
/// assert!(matches!(parse(&message), Ok(Request::Msg(_))));
/// assert!(parse(&message[..20]).is_err());
/// ```
pub fn parse(bytes: &[u8]) -> Result<Request<'_>, WireError> {
    let header = Header::parse(bytes)?;
    if header.length as usize != bytes.len() {
        return Err(WireError::close(format!(
            "message length {} does not match its {} bytes",
            header.length,
            bytes.len()
        )));
    }
    match header.opcode {
        OpCode::Msg => OpMsg::parse(bytes).map(Request::Msg),
        OpCode::Query => OpQuery::parse(bytes).map(Request::Query),
        other => Err(WireError::close(format!("unexpected opcode {}", other.number()))),
    }
}

#[cfg(test)]
mod tests;
