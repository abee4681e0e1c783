//! OP_MSG.

use sheaf_bson::{MAX_DEPTH, MAX_DOCUMENT_SIZE, RawDoc, validate};
use sheaf_errors::{Code, Error};

use crate::header::HEADER_LEN;
use crate::{Header, OpCode, WireError};

/// Largest document in a message: a stored document's limit and room for the command around it.
pub const MAX_BODY_SIZE: usize = MAX_DOCUMENT_SIZE + 16 * 1024;

/// Most levels of documents and arrays in a message, its own one included.
const MESSAGE_DEPTH: usize = MAX_DEPTH + 1;

/// Most kind-1 sections of one message (`bulkWrite` uses two).
const MAX_SEQUENCES: usize = 2;

/// Flag bits of OP_MSG.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// The message ends in a CRC-32C.
    pub const CHECKSUM_PRESENT: u32 = 1;
    /// The sender will send another message, and wants no answer to this one.
    pub const MORE_TO_COME: u32 = 2;
    /// The client takes several answers to one request.
    pub const EXHAUST_ALLOWED: u32 = 1 << 16;

    /// Whether the message ends in a checksum.
    pub fn checksum_present(self) -> bool {
        self.0 & Self::CHECKSUM_PRESENT != 0
    }

    /// Whether no answer is wanted.
    pub fn more_to_come(self) -> bool {
        self.0 & Self::MORE_TO_COME != 0
    }

    /// Whether several answers are welcome.
    pub fn exhaust_allowed(self) -> bool {
        self.0 & Self::EXHAUST_ALLOWED != 0
    }
}

/// A kind-1 section: documents one after another, validated, under a name of the command.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The field that the documents belong to, such as `documents`.
    pub name: &'a str,
    /// The documents' bytes.
    pub bytes: &'a [u8],
}

impl<'a> Sequence<'a> {
    /// The documents in order.
    pub fn iter(&self) -> SequenceIter<'a> {
        SequenceIter { rest: self.bytes }
    }
}

/// Iterator over the documents of a [`Sequence`].
#[derive(Clone, Debug)]
pub struct SequenceIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for SequenceIter<'a> {
    type Item = RawDoc<'a>;

    fn next(&mut self) -> Option<RawDoc<'a>> {
        let head = self.rest.first_chunk::<4>()?;
        let len = i32::from_le_bytes(*head) as usize;
        let (doc, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(RawDoc::new(doc))
    }
}

/// A parsed OP_MSG.
#[derive(Debug)]
pub struct OpMsg<'a> {
    /// The message's header.
    pub header: Header,
    /// Its flags.
    pub flags: Flags,
    /// The kind-0 section.
    pub body: RawDoc<'a>,
    sequences: [Option<Sequence<'a>>; MAX_SEQUENCES],
}

impl<'a> OpMsg<'a> {
    /// The kind-1 sections, copied out (there are at most two).
    pub fn sequences(&self) -> ([Sequence<'a>; MAX_SEQUENCES], usize) {
        let none = Sequence { name: "", bytes: &[] };
        let count = self.sequences.iter().flatten().count();
        ([self.sequences[0].unwrap_or(none), self.sequences[1].unwrap_or(none)], count)
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let header = Header::parse(bytes)?;
        let after = &bytes[HEADER_LEN..];
        let Some(flag_bytes) = after.first_chunk::<4>() else {
            return Err(WireError::close("OP_MSG without flags"));
        };
        let flags = Flags(u32::from_le_bytes(*flag_bytes));
        // The low half of the flags must be understood; a stream with unknown ones is unreadable.
        if flags.0 & 0xFFFF & !(Flags::CHECKSUM_PRESENT | Flags::MORE_TO_COME) != 0 {
            return Err(WireError::close(format!("Message contains illegal flags value: {:#b}", flags.0)));
        }
        let mut rest = &after[4..];
        if flags.checksum_present() {
            let Some(at) = rest.len().checked_sub(4) else {
                return Err(WireError::close("OP_MSG too short for its checksum"));
            };
            if !crate::checksum_matches(bytes) {
                return Err(WireError::close("OP_MSG checksum does not match contents"));
            }
            rest = &rest[..at];
        }
        let mut body = None;
        let mut sequences = [None; MAX_SEQUENCES];
        while let Some((&kind, after_kind)) = rest.split_first() {
            match kind {
                0 => {
                    if body.is_some() {
                        return Err(answer(40430, "Multiple body sections in message"));
                    }
                    let len = document(after_kind, MESSAGE_DEPTH)?;
                    body = Some(RawDoc::new(&after_kind[..len]));
                    rest = &after_kind[len..];
                }
                1 => {
                    let (sequence, after_sequence) = sequence(after_kind)?;
                    let Some(free) = sequences
                        .iter_mut()
                        .find(|slot| slot.is_none_or(|other: Sequence<'_>| other.name == sequence.name))
                    else {
                        return Err(WireError::close("Too many document sequences"));
                    };
                    if free.is_some() {
                        return Err(answer(
                            40431,
                            &format!("Duplicate document sequence: {}", sequence.name),
                        ));
                    }
                    *free = Some(sequence);
                    rest = after_sequence;
                }
                other => return Err(answer(40432, &format!("Unknown section kind {other}"))),
            }
        }
        let Some(body) = body else {
            return Err(answer(40587, "OP_MSG messages must have a body"));
        };
        if let Some(sequence) = sequences.iter().flatten().find(|s| body.element(s.name).is_some()) {
            return Err(answer(
                40433,
                &format!("Duplicate field between body and document sequence {}", sequence.name),
            ));
        }
        Ok(OpMsg { header, flags, body, sequences })
    }
}

fn answer(code: i32, text: &str) -> WireError {
    WireError::Answer(Error::location(code, text))
}

/// Validates the document that starts `bytes`.
fn document(bytes: &[u8], depth: usize) -> Result<usize, WireError> {
    let claimed = bytes.first_chunk::<4>().map_or(-1, |head| i32::from_le_bytes(*head));
    if claimed > MAX_BODY_SIZE as i32 {
        return Err(answer(
            10334,
            &format!(
                "BSONObj size: {claimed} ({claimed:#x}) is invalid. Size must be between 0 and {MAX_BODY_SIZE}(16MB)"
            ),
        ));
    }
    Ok(validate(bytes, depth)?)
}

/// A kind-1 section after its kind byte: size, name, documents.
fn sequence(bytes: &[u8]) -> Result<(Sequence<'_>, &[u8]), WireError> {
    let invalid = |text: &str| WireError::Answer(Error::new(Code::INVALID_BSON, text));
    let size = bytes.first_chunk::<4>().map_or(-1, |head| i32::from_le_bytes(*head));
    if size < 5 || size as usize > bytes.len() {
        return Err(invalid("document sequence with a wrong length"));
    }
    let (section, after) = bytes.split_at(size as usize);
    let Some(name_len) = section[4..].iter().position(|b| *b == 0) else {
        return Err(invalid("document sequence name is not terminated"));
    };
    let Ok(name) = std::str::from_utf8(&section[4..4 + name_len]) else {
        return Err(invalid("document sequence name is not valid UTF-8"));
    };
    let documents = &section[4 + name_len + 1..];
    let mut rest = documents;
    while !rest.is_empty() {
        rest = &rest[document(rest, MESSAGE_DEPTH)?..];
    }
    Ok((Sequence { name, bytes: documents }, after))
}

/// The name of the command in an OP_MSG that begins with its body, read without a check of anything else: enough to
/// decide who looks at it. `None` if there is none to be seen; an OP_QUERY can only be a `hello`.
pub fn command_name(message: &[u8]) -> Option<&str> {
    let header = Header::parse(message).ok()?;
    match header.opcode {
        OpCode::Msg => {}
        OpCode::Query => return Some("hello"),
        _ => return None,
    }
    // Flags, the section's kind, the document's length, the first field's type.
    let (&0, body) = message.get(HEADER_LEN + 4..)?.split_first()? else { return None };
    let name = body.get(5..)?;
    let end = name.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&name[..end]).ok()
}
