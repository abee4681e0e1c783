//! Resume tokens: positions in a change stream as text that sorts in the stream's order.
//!
//! `{_data: <hex>}` holds, each as an order-preserving key: cluster time, version, kind, number within the
//! transaction, whether it stands behind an invalidation, the collection's UUID, what identifies the event
//! (`{operationType, documentKey}` or `{operationType, operationDescription}`), and the number of a fragment. A
//! *high-water mark* is a token that has only a time: it stands before all events of that time.

use std::fmt::Write as _;

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// Version of tokens that tell events apart by type and document key.
const VERSION: i64 = 2;
/// Kind of a token that belongs to an event; a high-water mark's is 0.
const EVENT: i64 = 128;

/// The bytes that stand before each kind of value, in the values' order.
mod kind {
    pub const END: u8 = 4;
    pub const NULL: u8 = 20;
    pub const NUMBER: u8 = 30;
    pub const ZERO: u8 = 41;
    pub const STRING: u8 = 60;
    pub const OBJECT: u8 = 70;
    pub const ARRAY: u8 = 80;
    pub const BINARY: u8 = 90;
    pub const OBJECT_ID: u8 = 100;
    pub const FALSE: u8 = 110;
    pub const DATE: u8 = 120;
    pub const TIMESTAMP: u8 = 130;
    pub const OTHER: u8 = 200;

    /// Whether a value of any type, as MongoDB encodes them, can begin with this byte.
    pub fn is_known(byte: u8) -> bool {
        matches!(byte, 10 | 15 | NULL | 29..=53 | STRING | OBJECT | ARRAY | BINARY | OBJECT_ID | FALSE | 111)
            || matches!(byte, DATE | TIMESTAMP | 140 | 150 | 160 | 170 | OTHER | 240)
    }
}

/// A position in a change stream. They compare as they follow each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResumeToken {
    /// Cluster time.
    pub time: u64,
    version: i64,
    event: bool,
    /// Which of its transaction's operations it is.
    pub op_index: u64,
    /// Whether it is the position behind the event that ended the stream.
    pub from_invalidate: bool,
    /// The collection.
    pub uuid: Option<[u8; 16]>,
    /// What tells the event from others of this time, encoded.
    identifier: Vec<u8>,
    /// Which part of a split event.
    pub fragment: Option<u64>,
}

impl ResumeToken {
    /// The position before all events at or after this time.
    pub fn high_water_mark(time: u64) -> Self {
        ResumeToken {
            time,
            version: VERSION,
            event: false,
            op_index: 0,
            from_invalidate: false,
            uuid: None,
            identifier: Vec::new(),
            fragment: None,
        }
    }

    /// The position of an event. `detail` is the document key, or the description of what was done.
    pub fn of_event(
        time: u64,
        op_index: u64,
        uuid: Option<[u8; 16]>,
        operation_type: &str,
        detail: Option<(&str, RawDoc<'_>)>,
    ) -> Self {
        let mut identifier = vec![kind::OBJECT];
        put_field("operationType", Value::String(operation_type), &mut identifier);
        if let Some((name, detail)) = detail {
            put_field(name, Value::Document(detail), &mut identifier);
        }
        identifier.push(0);
        ResumeToken { event: true, op_index, uuid, identifier, ..Self::high_water_mark(time) }
    }

    /// Whether it has only a time.
    pub fn is_high_water_mark(&self) -> bool {
        !self.event
    }

    /// The token of the invalidation that follows this event.
    pub fn invalidated(&self) -> Self {
        ResumeToken { from_invalidate: true, ..self.clone() }
    }

    /// The token of the whole event.
    pub fn without_fragment(&self) -> Self {
        ResumeToken { fragment: None, ..self.clone() }
    }

    /// The token of a part of the event.
    pub fn with_fragment(&self, fragment: u64) -> Self {
        ResumeToken { fragment: Some(fragment), ..self.clone() }
    }

    /// `{_data: "..."}`.
    pub fn to_doc(&self) -> DocBuf {
        let mut key = Vec::with_capacity(48 + self.identifier.len());
        key.push(kind::TIMESTAMP);
        key.extend_from_slice(&self.time.to_be_bytes());
        put_int(self.version, &mut key);
        put_int(if self.event { EVENT } else { 0 }, &mut key);
        put_int(self.op_index as i64, &mut key);
        key.push(kind::FALSE + u8::from(self.from_invalidate));
        match &self.uuid {
            None => key.push(kind::NULL),
            Some(uuid) => {
                key.extend_from_slice(&[kind::BINARY, 16, 4]);
                key.extend_from_slice(uuid);
            }
        }
        key.extend_from_slice(&self.identifier);
        if let Some(fragment) = self.fragment {
            put_int(fragment as i64, &mut key);
        }
        key.push(kind::END);
        let mut hex = String::with_capacity(key.len() * 2);
        key.iter().for_each(|byte| _ = write!(hex, "{byte:02X}"));
        DocBuf::new().with("_data", &hex)
    }

    /// Reads a token.
    ///
    /// What stands behind its end is ignored, and the end may be missing: MongoDB decodes the key value by value.
    ///
    /// Errors: 40647 and kin, `FailedToParse`, `Overflow` for a token that ends within a value.
    pub fn parse(doc: RawDoc<'_>) -> Result<Self> {
        let Some(Value::String(hex)) = doc.get("_data") else {
            bail!(
                40647,
                "Bad resume token: _data of missing or of wrong type: {}",
                crate::print::document(doc)
            );
        };
        if let Some(bits) = doc.get("_typeBits").filter(|bits| !matches!(bits, Value::Binary(_))) {
            bail!(40648, "Bad resume token: _typeBits of wrong type: {}", bits.type_name());
        }
        let Some(key) = unhex(hex) else {
            bail!(Code::FAILED_TO_PARSE, "resume token string was not a valid hex string");
        };
        if key.is_empty() {
            bail!(40649, "invalid empty resume token");
        }
        if !kind::is_known(key[0]) {
            bail!(50811, "KeyString format error: Unknown type: {}", key[0]);
        }
        let mut reader = Reader { rest: &key, cut: false };
        let token = reader.token();
        match token {
            Some(token) if (1..=VERSION).contains(&token.version) => Ok(token),
            Some(_) => bail!(50795, "Invalid Resume Token: only supports version 0 or 1 or 2"),
            None if reader.cut => bail!(Code::OVERFLOW, "the resume token ends within a value: {hex}"),
            None => bail!(40650, "Invalid resume token: {hex}"),
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// A whole number: its length in the first byte, the number doubled behind it.
fn put_int(n: i64, out: &mut Vec<u8>) {
    if n == 0 {
        out.push(kind::ZERO);
        return;
    }
    let doubled = n.unsigned_abs() << 1;
    let bytes = doubled.to_be_bytes();
    let skip = (doubled.leading_zeros() / 8).min(7) as usize;
    let more = (7 - skip) as u8;
    if n > 0 {
        out.push(kind::ZERO + 2 + more);
        out.extend_from_slice(&bytes[skip..]);
    } else {
        out.push(kind::ZERO - 2 - more);
        out.extend(bytes[skip..].iter().map(|byte| !byte));
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        out.push(byte);
        if byte == 0 {
            out.push(0xFF);
        }
    }
    out.push(0);
}

fn kind_of(value: Value<'_>) -> u8 {
    match value {
        Value::Null => kind::NULL,
        Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_) => kind::NUMBER,
        Value::String(_) => kind::STRING,
        Value::Document(_) => kind::OBJECT,
        Value::Array(_) => kind::ARRAY,
        Value::Binary(binary) if binary.bytes.len() < 0xFF => kind::BINARY,
        Value::ObjectId(_) => kind::OBJECT_ID,
        Value::Bool(_) => kind::FALSE,
        Value::DateTime(_) => kind::DATE,
        Value::Timestamp(_) => kind::TIMESTAMP,
        _ => kind::OTHER,
    }
}

fn put_field(name: &str, value: Value<'_>, out: &mut Vec<u8>) {
    out.push(kind_of(value));
    put_text(name, out);
    put_value(value, out);
}

fn put_value(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(kind::NULL),
        Value::Int32(n) => put_int(n.into(), out),
        Value::Int64(n) if n.unsigned_abs() < 1 << 62 => put_int(n, out),
        Value::String(text) => {
            out.push(kind::STRING);
            put_text(text, out);
        }
        Value::Document(doc) => {
            out.push(kind::OBJECT);
            doc.iter().for_each(|field| put_field(field.key(), field.value(), out));
            out.push(0);
        }
        Value::Array(array) => {
            out.push(kind::ARRAY);
            array.values().for_each(|value| put_value(value, out));
            out.push(0);
        }
        Value::Binary(binary) if binary.bytes.len() < 0xFF => {
            out.extend_from_slice(&[kind::BINARY, binary.bytes.len() as u8, binary.subtype]);
            out.extend_from_slice(binary.bytes);
        }
        Value::ObjectId(id) => {
            out.push(kind::OBJECT_ID);
            out.extend_from_slice(&id.0);
        }
        Value::Bool(b) => out.push(kind::FALSE + u8::from(b)),
        Value::DateTime(millis) => {
            out.push(kind::DATE);
            out.extend_from_slice(&((millis as u64) ^ (1 << 63)).to_be_bytes());
        }
        Value::Timestamp(time) => {
            out.push(kind::TIMESTAMP);
            out.extend_from_slice(&time.0.to_be_bytes());
        }
        // Their place among values of other kinds does not matter: only equal times are compared this far.
        other => {
            let mut bytes = Vec::new();
            sheaf_bson::key::encode_bound(other, false, &mut bytes);
            out.push(kind::OTHER);
            out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            out.extend_from_slice(&bytes);
        }
    }
}

/// Takes values off the front of a key.
struct Reader<'k> {
    rest: &'k [u8],
    /// Whether the key ended within a value.
    cut: bool,
}

impl Reader<'_> {
    fn token(&mut self) -> Option<ResumeToken> {
        if self.byte()? != kind::TIMESTAMP {
            return None;
        }
        let time = u64::from_be_bytes(self.take(8)?.try_into().ok()?);
        let mut token = ResumeToken { version: self.next_int()?, ..ResumeToken::high_water_mark(time) };
        token.event = match self.next_int()? {
            0 => false,
            EVENT => true,
            _ => return None,
        };
        token.op_index = u64::try_from(self.next_int()?).ok()?;
        if !self.more() {
            return None;
        }
        token.from_invalidate = match self.byte()? {
            kind::FALSE => false,
            byte if byte == kind::FALSE + 1 => true,
            _ => return None,
        };
        if !self.more() {
            return Some(token);
        }
        token.uuid = match self.byte()? {
            kind::NULL => None,
            kind::BINARY if self.take(2)? == [16, 4] => Some(self.take(16)?.try_into().ok()?),
            _ => return None,
        };
        if self.rest.first() == Some(&kind::OBJECT) {
            let before = self.rest;
            self.skip_value(0)?;
            token.identifier = before[..before.len() - self.rest.len()].to_vec();
        }
        if self.more() {
            token.fragment = Some(u64::try_from(self.next_int()?).ok()?);
        }
        (!self.more()).then_some(token)
    }

    /// Whether another value follows.
    fn more(&self) -> bool {
        !matches!(self.rest.first(), None | Some(&kind::END))
    }

    fn byte(&mut self) -> Option<u8> {
        let Some((first, rest)) = self.rest.split_first() else {
            self.cut = true;
            return None;
        };
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else {
            self.cut = true;
            return None;
        };
        self.rest = rest;
        Some(taken)
    }

    /// The number that follows, if anything does.
    fn next_int(&mut self) -> Option<i64> {
        let first = self.more().then(|| self.byte())??;
        self.int_after(first)
    }

    fn int_after(&mut self, first: u8) -> Option<i64> {
        if first == kind::ZERO {
            return Some(0);
        }
        let negative = first < kind::ZERO;
        let length =
            usize::from(first.abs_diff(kind::ZERO)).checked_sub(1).filter(|n| (1..=8).contains(n))?;
        let bytes = self.take(length)?;
        let n = bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(if negative { !byte } else { *byte }));
        let n = (n >> 1) as i64;
        Some(if negative { -n } else { n })
    }

    fn skip_text(&mut self) -> Option<()> {
        loop {
            if self.byte()? == 0 {
                if self.rest.first() != Some(&0xFF) {
                    return Some(());
                }
                self.byte()?;
            }
        }
    }

    fn skip_value(&mut self, depth: usize) -> Option<()> {
        if depth > sheaf_bson::MAX_DEPTH {
            return None;
        }
        match self.byte()? {
            kind::NULL => {}
            byte if byte == kind::FALSE || byte == kind::FALSE + 1 => {}
            kind::STRING => self.skip_text()?,
            kind::OBJECT => loop {
                if self.byte()? == 0 {
                    break;
                }
                self.skip_text()?;
                self.skip_value(depth + 1)?;
            },
            kind::ARRAY => {
                while self.rest.first() != Some(&0) {
                    self.skip_value(depth + 1)?;
                }
                self.byte()?;
            }
            kind::BINARY => {
                let length = usize::from(self.byte()?);
                self.take(length + 1)?;
            }
            kind::OBJECT_ID => _ = self.take(12)?,
            kind::DATE | kind::TIMESTAMP => _ = self.take(8)?,
            kind::OTHER => {
                let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?) as usize;
                self.take(length)?;
            }
            first => _ = self.int_after(first)?,
        }
        Some(())
    }
}
