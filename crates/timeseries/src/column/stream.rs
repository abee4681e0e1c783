//! One row of values of any type on their way into a column: literals, and words of differences between them.

use super::simple8b::Packer;
use super::value::{self, kind};

/// Most words behind one control byte.
const MAX_WORDS: u8 = 16;

/// A literal, or a control byte with its words: what a reader takes at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// How many values stand before it.
    pub(super) values: u32,
    /// Where it begins in the bytes.
    pub(super) at: usize,
}

/// What has been written of a row.
#[derive(Clone, Debug, Default)]
struct Written {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    values: u32,
    /// The control byte that takes further words.
    control: Option<usize>,
    /// What that byte says of the scale.
    code: u8,
}

/// Appends a word behind the control byte, if that takes another one, or behind a new one; whether that was needed.
fn put_word(bytes: &mut Vec<u8>, control: &mut Option<usize>, code: u8, word: u64) -> bool {
    let is_behind = control.filter(|&at| bytes[at] & 0x0F < MAX_WORDS - 1);
    match is_behind {
        Some(at) => bytes[at] += 1,
        None => {
            *control = Some(bytes.len());
            bytes.push(code);
        }
    }
    bytes.extend_from_slice(&word.to_le_bytes());
    is_behind.is_none()
}

impl Written {
    fn word(&mut self, word: u64, values: u32) {
        let at = self.bytes.len();
        if put_word(&mut self.bytes, &mut self.control, self.code, word) {
            self.pieces.push(Piece { values: self.values, at });
        }
        self.values += values;
    }

    fn literal(&mut self, kind: u8, data: &[u8]) {
        self.piece();
        self.bytes.extend_from_slice(&[kind, 0]);
        self.bytes.extend_from_slice(data);
        self.values += 1;
        self.control = None;
    }

    fn piece(&mut self) {
        self.pieces.push(Piece { values: self.values, at: self.bytes.len() });
    }
}

/// A row of values.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    written: Written,
    packer: Packer,
    /// The value before: its type and bytes.
    kind: u8,
    before: Vec<u8>,
    /// That value as a number; `None` if it is none.
    wide: Option<i128>,
    narrow: i64,
    /// The difference that led to it, where differences of differences are kept.
    difference: i64,
    /// The scale of doubles; `None` until one is needed.
    scale: Option<u8>,
    /// Values taken.
    count: u32,
}

impl Stream {
    /// Bytes of memory beside itself.
    pub(super) fn memory(&self) -> usize {
        let written = self.written.bytes.capacity() + self.written.pieces.capacity() * size_of::<Piece>();
        written + self.packer.memory() + self.before.capacity()
    }

    /// An empty row.
    pub(super) fn new() -> Stream {
        Stream {
            written: Written { code: value::control_of(value::BITS), ..Written::default() },
            packer: Packer::default(),
            kind: kind::NONE,
            before: Vec::new(),
            wide: None,
            narrow: 0,
            difference: 0,
            scale: None,
            count: 0,
        }
    }

    /// A row whose first value differs from one that stands elsewhere.
    pub(super) fn behind(kind: u8, data: &[u8]) -> Stream {
        let mut stream = Stream::new();
        stream.remember(kind, data);
        stream
    }

    /// How many values it has.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Adds a missing value.
    pub(super) fn skip(&mut self) {
        self.count += 1;
        self.find_scale();
        let Stream { written, packer, .. } = self;
        packer.push(None, &mut |word, values| written.word(word, values));
    }

    /// Adds a value.
    pub(super) fn append(&mut self, kind: u8, data: &[u8]) {
        self.count += 1;
        if kind == self.kind && self.append_difference(data) {
            return;
        }
        self.flush();
        self.written.literal(kind, data);
        self.packer.reset();
        self.remember(kind, data);
    }

    /// Gives what is still held back.
    pub(super) fn flush(&mut self) {
        let Stream { written, packer, .. } = self;
        packer.flush(&mut |word, values| written.word(word, values));
    }

    /// Appends the bytes, with what is still held back: the row itself can go on as if nothing had been asked.
    pub(super) fn finish_into(&self, out: &mut Vec<u8>) {
        let mut control = self.written.control.map(|at| out.len() + at);
        out.extend_from_slice(&self.written.bytes);
        self.packer.clone().flush(&mut |word, _| _ = put_word(out, &mut control, self.written.code, word));
    }

    /// The bytes so far, and the pieces of which they consist.
    pub(super) fn written(&self) -> (&[u8], &[Piece]) {
        (&self.written.bytes, &self.written.pieces)
    }

    fn remember(&mut self, kind: u8, data: &[u8]) {
        self.kind = kind;
        self.before.clear();
        self.before.extend_from_slice(data);
        self.difference = 0;
        self.scale = None;
        if value::is_wide(kind) {
            self.wide = value::wide(kind, data);
        } else {
            self.narrow = value::narrow(kind, data);
        }
        self.written.code = value::control_of(value::BITS);
    }

    /// Adds a value of the same type as a difference; false if there is none that a word could hold.
    fn append_difference(&mut self, data: &[u8]) -> bool {
        match self.kind {
            kind::DOUBLE => self.append_double(data),
            kind if value::is_twice(kind) => self.append_twice(data),
            _ if self.before == data => self.push(0),
            kind if value::is_wide(kind) => self.append_wide(data),
            kind if value::has_differences(kind) => {
                let number = value::narrow(kind, data);
                let fits = self.push(value::zigzag(number.wrapping_sub(self.narrow)));
                if fits {
                    self.narrow = number;
                    self.before.copy_from_slice(data);
                }
                fits
            }
            _ => false,
        }
    }

    fn push(&mut self, number: u128) -> bool {
        let Stream { written, packer, .. } = self;
        packer.push(Some(number), &mut |word, values| written.word(word, values))
    }

    fn append_twice(&mut self, data: &[u8]) -> bool {
        if self.kind == kind::OBJECT_ID && self.before[4..9] != data[4..9] {
            return false;
        }
        let number = value::narrow(self.kind, data);
        let difference = number.wrapping_sub(self.narrow);
        let fits = self.push(value::zigzag(difference.wrapping_sub(self.difference)));
        if fits {
            (self.narrow, self.difference) = (number, difference);
            self.before.copy_from_slice(data);
        }
        fits
    }

    fn append_wide(&mut self, data: &[u8]) -> bool {
        let same_form =
            self.kind != kind::BINARY || (self.before.len() == data.len() && self.before[..5] == data[..5]);
        let (true, Some(last), Some(number)) = (same_form, self.wide, value::wide(self.kind, data)) else {
            return false;
        };
        let fits = self.push(value::zigzag_wide(number.wrapping_sub(last)));
        if fits {
            self.wide = Some(number);
            self.before.clear();
            self.before.extend_from_slice(data);
        }
        fits
    }

    fn append_double(&mut self, data: &[u8]) -> bool {
        let (last, next) = (value::double(&self.before), value::double(data));
        let stays = self.scale.filter(|&scale| scale != value::BITS);
        let scale = match stays {
            Some(scale) if value::double_at(next, scale).is_some() => scale,
            _ => value::common_scale(last, next),
        };
        if self.scale != Some(scale) {
            self.flush();
            self.rescale(scale);
        }
        let Some(number) = value::double_at(next, scale) else { return false };
        let fits = self.push(value::zigzag(number.wrapping_sub(self.narrow)));
        if fits {
            self.narrow = number;
            self.before.copy_from_slice(data);
        }
        fits
    }

    /// Words of another scale stand behind a control byte of their own.
    fn rescale(&mut self, scale: u8) {
        self.scale = Some(scale);
        self.narrow = value::double_at(value::double(&self.before), scale).unwrap_or_default();
        self.written.control = None;
        self.written.code = value::control_of(scale);
    }

    /// Finds a scale for the double before, if there is one and it has none.
    fn find_scale(&mut self) {
        if self.kind == kind::DOUBLE && self.scale.is_none() {
            let last = value::double(&self.before);
            self.rescale(value::common_scale(last, last));
        }
    }
}
