//! Closing replies in the buffer in which they were built.

use crate::header::{HEADER_LEN, Header, OpCode};
use crate::msg::Flags;

/// Bytes that a reply under construction keeps free: header, flags, kind of the body section.
pub const REPLY_HEAD: usize = HEADER_LEN + 4 + 1;

/// Bytes in front of the documents of an OP_REPLY.
const OP_REPLY_HEAD: usize = HEADER_LEN + 4 + 8 + 4 + 4;

/// Turns `bytes` ([`REPLY_HEAD`] free bytes and a complete document) into an OP_MSG. With
/// [`Flags::CHECKSUM_PRESENT`] a CRC-32C is appended.
pub fn finish_msg(bytes: &mut Vec<u8>, request_id: i32, response_to: i32, flags: u32) {
    let checksum = flags & Flags::CHECKSUM_PRESENT != 0;
    let length = bytes.len() as u32 + if checksum { 4 } else { 0 };
    Header { length, request_id, response_to, opcode: OpCode::Msg }.write(bytes);
    bytes[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&flags.to_le_bytes());
    bytes[HEADER_LEN + 4] = 0;
    if checksum {
        let sum = crc32c::crc32c(bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
    }
}

/// Turns a reply under construction into an OP_REPLY, the answer to an OP_QUERY.
pub fn op_reply(bytes: &[u8], request_id: i32, response_to: i32) -> Vec<u8> {
    let body = &bytes[REPLY_HEAD..];
    let mut out = vec![0; OP_REPLY_HEAD];
    let length = (OP_REPLY_HEAD + body.len()) as u32;
    Header { length, request_id, response_to, opcode: OpCode::Reply }.write(&mut out);
    // "AwaitCapable", which every server since 1.6 is.
    out[16..20].copy_from_slice(&8i32.to_le_bytes());
    out[32..36].copy_from_slice(&1i32.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Whether the last four bytes are the CRC-32C of those before.
pub fn checksum_matches(message: &[u8]) -> bool {
    match message.split_last_chunk::<4>() {
        Some((contents, sum)) => crc32c::crc32c(contents) == u32::from_le_bytes(*sum),
        None => false,
    }
}
