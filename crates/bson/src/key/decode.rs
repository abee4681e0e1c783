//! Keys back to values.

use smallvec::SmallVec;

use super::bits::BitReader;
use super::{END, ESCAPE, number, tag};
use crate::build::{DocWriter, Sink, put_value};
use crate::owned::OwnedValue;
use crate::validate::MAX_DEPTH;
use crate::value::Type;

/// Reads the components of a key one after the other, as values. Bytes that are no key give `None`.
pub struct Decoder<'k> {
    bytes: &'k [u8],
    types: BitReader<'k>,
}

impl<'k> Decoder<'k> {
    /// A key with the [`super::TypeBits`] that it was encoded with.
    pub fn new(key: &'k [u8], type_bits: &'k [u8]) -> Self {
        Decoder { bytes: key, types: BitReader::new(type_bits) }
    }

    /// The bytes not yet read.
    pub fn rest(&self) -> &'k [u8] {
        self.bytes
    }

    /// The next component's value.
    pub fn next_value(&mut self, descending: bool) -> Option<OwnedValue> {
        let mut data = SmallVec::new();
        let kind = self.read(descending, &mut data)?;
        Some(OwnedValue::from_parts(kind, data))
    }

    /// Appends the next component's value to a document; a missing value appends nothing.
    pub fn next_into<S: Sink>(
        &mut self,
        descending: bool,
        writer: &mut DocWriter<'_, S>,
        name: &str,
    ) -> Option<()> {
        writer.append_with(name, |out| self.read(descending, out))
    }

    /// Steps over the next component.
    pub fn skip(&mut self, descending: bool) -> Option<()> {
        // The value is read, because only so is it known how many type bits were its own.
        self.next_value(descending).map(|_| ())
    }

    fn read<S: Sink>(&mut self, descending: bool, out: &mut S) -> Option<Type> {
        let mut reader = Reader::new(self.bytes, descending);
        let kind = read(&mut reader, &mut self.types, out, MAX_DEPTH * 2)?;
        self.bytes = reader.rest;
        Some(kind)
    }
}

/// How many bytes the first component of `bytes` takes; `None` if there is none.
pub fn component_len(bytes: &[u8], descending: bool) -> Option<usize> {
    let mut reader = Reader::new(bytes, descending);
    skip(&mut reader, MAX_DEPTH * 2)?;
    Some(bytes.len() - reader.rest.len())
}

/// Bytes that are inverted on their way if the component is descending.
pub(super) struct Reader<'k> {
    rest: &'k [u8],
    flip: u8,
}

impl<'k> Reader<'k> {
    fn new(bytes: &'k [u8], descending: bool) -> Self {
        Reader { rest: bytes, flip: if descending { 0xFF } else { 0 } }
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first ^ self.flip)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(bytes.map(|byte| byte ^ self.flip))
    }

    fn take<S: Sink>(&mut self, len: usize, out: &mut S) -> Option<()> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        self.copy(bytes, out);
        Some(())
    }

    fn copy<S: Sink>(&self, bytes: &[u8], out: &mut S) {
        let start = out.written().len();
        out.put(bytes);
        if self.flip != 0 {
            out.written()[start..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.rest = self.rest.get(len..)?;
        Some(())
    }

    fn len(&mut self) -> Option<usize> {
        match self.byte()? {
            0xFF => self.array().map(|bytes| u32::from_be_bytes(bytes) as usize),
            len => Some(usize::from(len)),
        }
    }

    /// The bytes up to the next zero, which is consumed.
    fn until_zero(&mut self) -> Option<&'k [u8]> {
        let at = memchr::memchr(self.flip, self.rest)?;
        let (bytes, rest) = self.rest.split_at(at);
        self.rest = &rest[1..];
        Some(bytes)
    }

    /// The bytes of a text up to its next byte that is escaped, and that byte; `None` in its place at the text's end.
    fn until_escaped(&mut self) -> Option<(&'k [u8], Option<u8>)> {
        let at = memchr::memchr2(END ^ self.flip, ESCAPE ^ self.flip, self.rest)?;
        let (bytes, rest) = self.rest.split_at(at);
        self.rest = rest;
        let escaped = match self.byte()? {
            END => None,
            _ => Some(self.byte()?.checked_sub(1).filter(|byte| *byte <= ESCAPE)?),
        };
        Some((bytes, escaped))
    }

    fn escaped<S: Sink>(&mut self, out: &mut S) -> Option<()> {
        loop {
            let (bytes, escaped) = self.until_escaped()?;
            self.copy(bytes, out);
            match escaped {
                Some(byte) => out.put(&[byte]),
                None => return Some(()),
            };
        }
    }

    /// A string as BSON has it: length, text, NUL.
    fn text<S: Sink>(&mut self, out: &mut S) -> Option<()> {
        let start = out.written().len();
        out.put(&[0; 4]);
        self.escaped(out)?;
        out.put(&[0]);
        set_len(out, start, -4)
    }
}

/// Writes the bytes written since `start`, plus `adjust`, into the four bytes at `start`.
fn set_len<S: Sink>(out: &mut S, start: usize, adjust: i32) -> Option<()> {
    let written = out.written();
    let len = i32::try_from(written.len() - start).ok()? + adjust;
    written[start..start + 4].copy_from_slice(&len.to_le_bytes());
    Some(())
}

/// Reads one component: writes the value's BSON bytes and returns its type.
fn read<S: Sink>(
    bytes: &mut Reader<'_>,
    types: &mut BitReader<'_>,
    out: &mut S,
    depth: usize,
) -> Option<Type> {
    let tag = bytes.byte()?;
    Some(match tag {
        tag::MIN_KEY => Type::MinKey,
        tag::UNDEFINED => [Type::Undefined, Type::Missing][types.take(1) as usize],
        tag::NULL => Type::Null,
        tag::MAX_KEY => Type::MaxKey,
        tag::NAN..=tag::INFINITY => {
            let number = number::read(tag, bytes, types)?;
            put_value(out, number);
            number.kind()
        }
        tag::STRING => {
            bytes.text(out)?;
            [Type::String, Type::Symbol][types.take(1) as usize]
        }
        tag::JAVASCRIPT => {
            bytes.text(out)?;
            Type::JavaScript
        }
        tag::OBJECT_ID => {
            bytes.take(12, out)?;
            Type::ObjectId
        }
        tag::FALSE | tag::TRUE => {
            out.put(&[tag - tag::FALSE]);
            Type::Bool
        }
        tag::DATE_TIME => {
            out.put(&(u64::from_be_bytes(bytes.array()?) ^ (1 << 63)).to_le_bytes());
            Type::DateTime
        }
        tag::TIMESTAMP => {
            out.put(&u64::from_be_bytes(bytes.array()?).to_le_bytes());
            Type::Timestamp
        }
        _ => return read_compound(tag, bytes, types, out, depth),
    })
}

fn read_compound<S: Sink>(
    tag: u8,
    bytes: &mut Reader<'_>,
    types: &mut BitReader<'_>,
    out: &mut S,
    depth: usize,
) -> Option<Type> {
    let start = out.written().len();
    Some(match tag {
        tag::DOCUMENT => {
            read_fields(bytes, types, out, depth.checked_sub(1)?)?;
            Type::Document
        }
        tag::ARRAY => {
            read_items(bytes, types, out, depth.checked_sub(1)?)?;
            Type::Array
        }
        tag::BINARY => {
            let len = bytes.len()?;
            out.put(&i32::try_from(len).ok()?.to_le_bytes());
            out.put(&[bytes.byte()?]);
            bytes.take(len, out)?;
            Type::Binary
        }
        tag::REGEX => {
            bytes.escaped(out)?;
            out.put(&[0]);
            bytes.escaped(out)?;
            out.put(&[0]);
            Type::Regex
        }
        tag::DB_POINTER => {
            let len = bytes.len()?;
            out.put(&i32::try_from(len + 1).ok()?.to_le_bytes());
            bytes.take(len, out)?;
            out.put(&[0]);
            bytes.take(12, out)?;
            Type::DbPointer
        }
        tag::CODE_WITH_SCOPE => {
            out.put(&[0; 4]);
            bytes.text(out)?;
            read_fields(bytes, types, out, depth.checked_sub(1)?)?;
            set_len(out, start, 0)?;
            Type::CodeWithScope
        }
        _ => return None,
    })
}

fn read_fields<S: Sink>(
    bytes: &mut Reader<'_>,
    types: &mut BitReader<'_>,
    out: &mut S,
    depth: usize,
) -> Option<()> {
    let start = out.written().len();
    out.put(&[0; 4]);
    while bytes.byte()? != END {
        let kind_at = out.written().len();
        out.put(&[0]);
        let name = bytes.until_zero()?;
        bytes.copy(name, out);
        out.put(&[0]);
        let kind = read(bytes, types, out, depth).filter(|kind| *kind != Type::Missing)?;
        out.written()[kind_at] = kind as u8;
    }
    out.put(&[0]);
    set_len(out, start, 0)
}

fn read_items<S: Sink>(
    bytes: &mut Reader<'_>,
    types: &mut BitReader<'_>,
    out: &mut S,
    depth: usize,
) -> Option<()> {
    let start = out.written().len();
    out.put(&[0; 4]);
    for index in 0u32.. {
        if bytes.rest.first()? ^ bytes.flip == END {
            bytes.skip(1)?;
            break;
        }
        let kind_at = out.written().len();
        out.put(&[0]);
        out.put(crate::decimal_digits(index, &mut [0; 10]));
        out.put(&[0]);
        let kind = read(bytes, types, out, depth).filter(|kind| *kind != Type::Missing)?;
        out.written()[kind_at] = kind as u8;
    }
    out.put(&[0]);
    set_len(out, start, 0)
}

/// Steps over one component without looking at type bits.
fn skip(bytes: &mut Reader<'_>, depth: usize) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    match bytes.byte()? {
        tag::MIN_KEY | tag::UNDEFINED | tag::NULL | tag::MAX_KEY | tag::FALSE | tag::TRUE => Some(()),
        tag @ tag::NAN..=tag::INFINITY => number::skip(tag, bytes),
        tag::STRING | tag::JAVASCRIPT => skip_escaped(bytes),
        tag::OBJECT_ID => bytes.skip(12),
        tag::DATE_TIME | tag::TIMESTAMP => bytes.skip(8),
        tag::DOCUMENT => skip_fields(bytes, depth),
        tag::ARRAY => {
            while bytes.rest.first()? ^ bytes.flip != END {
                skip(bytes, depth)?;
            }
            bytes.skip(1)
        }
        tag::BINARY => {
            let len = bytes.len()?;
            bytes.skip(len + 1)
        }
        tag::REGEX => skip_escaped(bytes).and_then(|()| skip_escaped(bytes)),
        tag::DB_POINTER => {
            let len = bytes.len()?;
            bytes.skip(len + 12)
        }
        tag::CODE_WITH_SCOPE => skip_escaped(bytes).and_then(|()| skip_fields(bytes, depth)),
        _ => None,
    }
}

fn skip_escaped(bytes: &mut Reader<'_>) -> Option<()> {
    while bytes.until_escaped()?.1.is_some() {}
    Some(())
}

fn skip_fields(bytes: &mut Reader<'_>, depth: usize) -> Option<()> {
    while bytes.byte()? != END {
        bytes.until_zero()?;
        skip(bytes, depth)?;
    }
    Some(())
}
