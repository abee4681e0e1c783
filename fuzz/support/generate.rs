//! Arbitrary BSON out of a fuzzer's bytes: every byte is a choice, and when they are used up the smallest
//! choice is made, so that every input ends. What each part of the language looks like is in `language.rs`.

use sheaf_bson::{
    ArrayBuf, Binary, CodeWithScope, Decimal128, DocBuf, ObjectId, OwnedValue, RawDoc, Regex, Timestamp,
    Value,
};

use super::words;

/// Levels of nesting that generated values have at most.
pub const DEPTH: u32 = 5;

/// Values that one input makes at most: repetition must not make documents that take seconds.
const VALUES: u32 = 400;

/// A source of choices.
pub struct Choices<'d> {
    rest: &'d [u8],
    values_left: u32,
    /// Cursors that the replies so far have opened.
    pub cursors: Vec<i64>,
}

impl<'d> Choices<'d> {
    /// Choices from a fuzzer's bytes.
    pub fn new(data: &'d [u8]) -> Self {
        Choices { rest: data, values_left: VALUES, cursors: Vec::new() }
    }

    /// Whether all bytes are used.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Gives the next command as many values as the first had.
    pub fn refill(&mut self) {
        self.values_left = VALUES;
    }

    /// The next byte; 0 when there are no more.
    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `n` (at most 65536). It is 0 when the bytes are used up.
    pub fn below(&mut self, n: usize) -> usize {
        let mut number = usize::from(self.byte());
        if n > 256 {
            number = number << 8 | usize::from(self.byte());
        }
        number % n
    }

    /// True with a chance of `of256` in 256, and false when the bytes are used up.
    pub fn chance(&mut self, of256: u8) -> bool {
        let byte = self.byte();
        byte != 0 && byte <= of256
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// How many of something: mostly few.
    pub fn few(&mut self) -> usize {
        self.pick(&[0, 1, 1, 2, 1, 2, 3, 4])
    }

    /// Whether another value may be made.
    pub fn spend(&mut self) -> bool {
        self.values_left = self.values_left.saturating_sub(1);
        self.values_left > 0
    }

    /// A path or a field name.
    pub fn path(&mut self) -> &'static str {
        if self.chance(128) { self.pick(&words::PATHS[..6]) } else { self.pick(words::PATHS) }
    }

    /// A whole number, mostly small, as any of the types that can hold it.
    pub fn number(&mut self) -> OwnedValue {
        let n = if self.chance(160) { self.pick(&words::INTEGERS[..8]) } else { self.pick(words::INTEGERS) };
        match self.below(8) {
            0..=3 => i32::try_from(n).map_or(Value::Int64(n), Value::Int32).into(),
            4 => Value::Int64(n).into(),
            5 => Value::Double(n as f64).into(),
            6 => Value::Double(self.pick(words::DOUBLES)).into(),
            _ => Value::Decimal128(decimal(self.pick(words::DECIMALS))).into(),
        }
    }

    /// A string.
    pub fn text(&mut self) -> OwnedValue {
        if self.chance(8) {
            return Value::String(&"ab".repeat(self.below(2000))).into();
        }
        Value::String(self.pick(words::TEXTS)).into()
    }

    /// A value without parts.
    pub fn scalar(&mut self) -> OwnedValue {
        let value = match self.below(24) {
            0 => Value::Null,
            1..=6 => return self.number(),
            7..=11 => return self.text(),
            12 => Value::Bool(self.chance(128)),
            13 => Value::DateTime(self.pick(words::INTEGERS)),
            14 => Value::Timestamp(Timestamp(self.pick(words::INTEGERS) as u64)),
            15 => Value::ObjectId(ObjectId([self.byte(); 12])),
            16 => {
                let bytes = [self.byte(); 16];
                let length = self.pick(&[16, 0, 1, 8]);
                let subtype = self.pick(&[0, 4, 3, 5, 6, 7, 8, 9, 128]);
                return Value::Binary(Binary { subtype, bytes: &bytes[..length] }).into();
            }
            17 => {
                let pattern = self.pick(words::TEXTS);
                Value::Regex(Regex { pattern, options: self.pick(&["", "i", "imsx", "u", "q"]) })
            }
            18 => Value::MinKey,
            19 => Value::MaxKey,
            20 => Value::Undefined,
            21 => Value::Symbol(self.pick(words::TEXTS)),
            22 => Value::JavaScript("function() { return true; }"),
            _ => Value::CodeWithScope(CodeWithScope { code: "x", scope: RawDoc::EMPTY }),
        };
        value.into()
    }

    /// Any value.
    pub fn any(&mut self, depth: u32) -> OwnedValue {
        if depth == 0 || !self.spend() {
            return self.scalar();
        }
        match self.below(12) {
            0..=7 => self.scalar(),
            8 | 9 => self.list(|c| c.any(depth - 1)),
            _ => document(&self.fields(depth - 1)),
        }
    }

    /// A document to store, often with a small `_id`.
    pub fn stored(&mut self, depth: u32) -> OwnedValue {
        let mut doc = DocBuf::new();
        if self.chance(200) {
            doc.append("_id", self.below(6) as i32);
        }
        for name in ["a", "b", "c"] {
            if self.chance(128) {
                doc.append(name, self.any(depth.min(3)).as_value());
            }
        }
        if self.chance(40) {
            doc.append(self.path(), self.any(depth.min(3)).as_value());
        }
        document(&doc)
    }

    /// A document of a few paths and any values.
    pub fn fields(&mut self, depth: u32) -> DocBuf {
        let mut doc = DocBuf::new();
        for _ in 0..self.few() {
            let name = self.path();
            doc.append(name, self.any(depth).as_value());
        }
        doc
    }

    /// An array of a few values.
    pub fn list(&mut self, mut item: impl FnMut(&mut Self) -> OwnedValue) -> OwnedValue {
        let items: Vec<OwnedValue> = (0..self.few()).map(|_| item(self)).collect();
        Value::from(&ArrayBuf::of(&items)).into()
    }
}

/// A document as a value.
pub fn document(doc: &DocBuf) -> OwnedValue {
    Value::from(doc).into()
}

fn decimal(text: &str) -> Decimal128 {
    text.parse().expect("the list has decimals")
}
