//! The header of every message.

use crate::WireError;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;

/// Largest message, header included: `maxMessageSizeBytes` of hello.
pub const MAX_MESSAGE_SIZE: usize = 48_000_000;

/// What a router may add to a client's message on its way to a shard: times, concerns, and for each of up to 100,000 statements its number (12
/// bytes) and an `_id` (17 bytes).
pub const ADDED_ON_THE_WAY: usize = 4 << 20;

/// Operation codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpCode {
    /// 1: the answer to OP_QUERY.
    Reply,
    /// 2004.
    Query,
    /// 2012.
    Compressed,
    /// 2013.
    Msg,
    /// Anything else, among it the opcodes that MongoDB 5.1 removed.
    Other(i32),
}

impl OpCode {
    /// From its number.
    pub fn from_number(number: i32) -> OpCode {
        match number {
            1 => OpCode::Reply,
            2004 => OpCode::Query,
            2012 => OpCode::Compressed,
            2013 => OpCode::Msg,
            other => OpCode::Other(other),
        }
    }

    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            OpCode::Reply => 1,
            OpCode::Query => 2004,
            OpCode::Compressed => 2012,
            OpCode::Msg => 2013,
            OpCode::Other(other) => other,
        }
    }
}

/// What browsers and health checks search for on this port: mongod's words.
const OVER_HTTP: &str = "It looks like you are trying to access MongoDB over HTTP on the native driver port.";

fn is_http(head: &[u8]) -> bool {
    [&b"GET "[..], b"HEAD ", b"POST ", b"PUT ", b"OPTIONS "].iter().any(|verb| head.starts_with(verb))
}

/// Whether these bytes begin a handshake of TLS: a record of one, of any version, with a client's first message in it.
fn is_tls(head: &[u8; HEADER_LEN]) -> bool {
    let known = matches!(u32::from_le_bytes([head[12], head[13], head[14], head[15]]), 1 | 2001..=2013);
    matches!(head, [0x16, 3, 0..=4, _, _, 1, ..]) && !known
}

/// What is sent before the connection is closed, if these bytes, with which a message should begin, are an HTTP request's.
pub fn http_answer(start: &[u8]) -> Option<String> {
    is_http(start).then(|| {
        let text = format!("{OVER_HTTP}\r\nConnect with a driver or with mongosh instead.\r\n");
        let length = text.len();
        let body = if start.starts_with(b"HEAD ") { "" } else { &text };
        format!(
            "HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    })
}

/// Says what these bytes are, if they are no header.
#[cold]
fn check_foreign(head: &[u8; HEADER_LEN], length: i32, fits: bool) -> Result<(), WireError> {
    if is_http(head) {
        return Err(WireError::close(OVER_HTTP));
    }
    if is_tls(head) {
        return Err(WireError::close("SSL handshake received but server is started without SSL support"));
    }
    if fits {
        return Ok(());
    }
    Err(WireError::close(format!(
        "recv(): message msgLen {length} is invalid. Min {HEADER_LEN} Max: {MAX_MESSAGE_SIZE}"
    )))
}

/// A message's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Length of the whole message, header included.
    pub length: u32,
    /// The sender's number for this message.
    pub request_id: i32,
    /// The request that this message answers.
    pub response_to: i32,
    /// What follows.
    pub opcode: OpCode,
}

impl Header {
    /// Reads a header and checks its length and opcode, so that neither a wrong length nor
    /// another protocol (a TLS hello, an HTTP request) makes the reader wait for or allocate
    /// anything.
    pub fn parse(bytes: &[u8]) -> Result<Header, WireError> {
        let Some(head) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(WireError::close("message shorter than its header"));
        };
        let int = |at: usize| i32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (length, opcode) = (int(0), OpCode::from_number(int(12)));
        let fits = (HEADER_LEN as i32..=(MAX_MESSAGE_SIZE + ADDED_ON_THE_WAY) as i32).contains(&length);
        // The words of HTTP would be lengths of more than a gigabyte, and no handshake of TLS has this code.
        if !fits || opcode != OpCode::Msg {
            check_foreign(head, length, fits)?;
        }
        Ok(Header { length: length as u32, request_id: int(4), response_to: int(8), opcode })
    }

    /// Writes the header over the first bytes of `out`.
    pub fn write(self, out: &mut [u8]) {
        out[0..4].copy_from_slice(&self.length.to_le_bytes());
        out[4..8].copy_from_slice(&self.request_id.to_le_bytes());
        out[8..12].copy_from_slice(&self.response_to.to_le_bytes());
        out[12..16].copy_from_slice(&self.opcode.number().to_le_bytes());
    }
}
