//! One value of any BSON type, borrowed from bytes that stand elsewhere.

use crate::raw::RawDoc;

/// A BSON value. It is `Copy` and borrows: strings, documents and arrays point into the document
/// that they came from, or into the arena in which an expression computed them.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// No value at all: an absent field, or the result of an expression that yields nothing.
    /// It sorts before everything but MinKey in expressions, and like null in queries and sorts.
    Missing,
    /// Type 255.
    MinKey,
    /// Type 6, deprecated.
    Undefined,
    /// Type 10.
    Null,
    /// Type 16.
    Int32(i32),
    /// Type 18.
    Int64(i64),
    /// Type 1.
    Double(f64),
    /// Type 19.
    Decimal128(Decimal128),
    /// Type 2.
    String(&'a str),
    /// Type 14, deprecated; compares equal to the string.
    Symbol(&'a str),
    /// Type 3.
    Document(RawDoc<'a>),
    /// Type 4: a document with keys "0", "1", ...
    Array(RawDoc<'a>),
    /// Type 5.
    Binary(Binary<'a>),
    /// Type 7.
    ObjectId(ObjectId),
    /// Type 8.
    Bool(bool),
    /// Type 9: milliseconds since 1970-01-01 UTC.
    DateTime(i64),
    /// Type 17.
    Timestamp(Timestamp),
    /// Type 11.
    Regex(Regex<'a>),
    /// Type 12, deprecated.
    DbPointer(DbPointer<'a>),
    /// Type 13.
    JavaScript(&'a str),
    /// Type 15, deprecated.
    CodeWithScope(CodeWithScope<'a>),
    /// Type 127.
    MaxKey,
}

/// IEEE 754-2008 decimal128 in BID form, little-endian, as BSON keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Decimal128(pub [u8; 16]);

/// Twelve bytes: time, process, counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ObjectId(pub [u8; 12]);

/// Seconds in the high 32 bits, an ordinal in the low ones; ordered as unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// From seconds since the epoch and ordinal.
    pub fn new(seconds: u32, increment: u32) -> Self {
        Timestamp((u64::from(seconds) << 32) | u64::from(increment))
    }
    /// Seconds since the epoch.
    pub fn seconds(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// The ordinal within the second.
    pub fn increment(self) -> u32 {
        self.0 as u32
    }
}

/// Binary data with its subtype.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binary<'a> {
    /// 0 generic, 3 and 4 UUID, 5 MD5, ...
    pub subtype: u8,
    /// The payload (subtype 2 keeps its inner length here).
    pub bytes: &'a [u8],
}

/// A regular expression literal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regex<'a> {
    /// The pattern, without slashes.
    pub pattern: &'a str,
    /// Option letters, in the order they came.
    pub options: &'a str,
}

/// The deprecated DBPointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DbPointer<'a> {
    /// Namespace it points into.
    pub namespace: &'a str,
    /// `_id` it points at.
    pub id: ObjectId,
}

/// JavaScript code with variables.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CodeWithScope<'a> {
    /// The code.
    pub code: &'a str,
    /// Its variables.
    pub scope: RawDoc<'a>,
}

/// The BSON types, by type byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Type {
    Missing = 0x00,
    Double = 0x01,
    String = 0x02,
    Document = 0x03,
    Array = 0x04,
    Binary = 0x05,
    Undefined = 0x06,
    ObjectId = 0x07,
    Bool = 0x08,
    DateTime = 0x09,
    Null = 0x0A,
    Regex = 0x0B,
    DbPointer = 0x0C,
    JavaScript = 0x0D,
    Symbol = 0x0E,
    CodeWithScope = 0x0F,
    Int32 = 0x10,
    Timestamp = 0x11,
    Int64 = 0x12,
    Decimal128 = 0x13,
    MaxKey = 0x7F,
    MinKey = 0xFF,
}

const TYPES: &[(Type, &str, i32)] = &[
    (Type::Double, "double", 1),
    (Type::String, "string", 2),
    (Type::Document, "object", 3),
    (Type::Array, "array", 4),
    (Type::Binary, "binData", 5),
    (Type::Undefined, "undefined", 6),
    (Type::ObjectId, "objectId", 7),
    (Type::Bool, "bool", 8),
    (Type::DateTime, "date", 9),
    (Type::Null, "null", 10),
    (Type::Regex, "regex", 11),
    (Type::DbPointer, "dbPointer", 12),
    (Type::JavaScript, "javascript", 13),
    (Type::Symbol, "symbol", 14),
    (Type::CodeWithScope, "javascriptWithScope", 15),
    (Type::Int32, "int", 16),
    (Type::Timestamp, "timestamp", 17),
    (Type::Int64, "long", 18),
    (Type::Decimal128, "decimal", 19),
    (Type::MaxKey, "maxKey", 127),
    (Type::MinKey, "minKey", -1),
];

/// [`TYPES`] by type byte: elements are asked for their type too often to search for it.
const BY_BYTE: [Option<Type>; 256] = {
    let mut table = [None; 256];
    let mut at = 0;
    while at < TYPES.len() {
        table[TYPES[at].0 as usize] = Some(TYPES[at].0);
        at += 1;
    }
    table
};

impl Type {
    /// The type of a BSON type byte; `None` for a byte that BSON does not know.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Type> {
        BY_BYTE[usize::from(byte)]
    }

    /// The alias that `$type` takes and gives: `"double"`, `"int"`, ... and `"missing"`.
    pub fn name(self) -> &'static str {
        TYPES.iter().find(|(t, ..)| *t == self).map_or("missing", |(_, name, _)| name)
    }

    /// The type of an alias (`"number"` is no single type and gives `None`).
    pub fn from_name(name: &str) -> Option<Type> {
        TYPES.iter().find(|(_, n, _)| *n == name).map(|(t, ..)| *t)
    }

    /// The number that `$type` takes (-1 for MinKey, 0 for missing).
    pub fn number(self) -> i32 {
        TYPES.iter().find(|(t, ..)| *t == self).map_or(0, |(_, _, n)| *n)
    }

    /// The type of a `$type` number.
    pub fn from_number(number: i32) -> Option<Type> {
        TYPES.iter().find(|(_, _, n)| *n == number).map(|(t, ..)| *t)
    }

    /// The place of the type in MongoDB's order between types; types with equal places (all
    /// numbers; strings and symbols) compare by value. Missing and undefined share the first
    /// place after MinKey.
    #[inline]
    pub fn order(self) -> u8 {
        match self {
            Type::MinKey => 0,
            Type::Missing | Type::Undefined => 1,
            Type::Null => 5,
            Type::Double | Type::Int32 | Type::Int64 | Type::Decimal128 => 10,
            Type::String | Type::Symbol => 15,
            Type::Document => 20,
            Type::Array => 25,
            Type::Binary => 30,
            Type::ObjectId => 35,
            Type::Bool => 40,
            Type::DateTime => 45,
            Type::Timestamp => 47,
            Type::Regex => 50,
            Type::DbPointer => 55,
            Type::JavaScript => 60,
            Type::CodeWithScope => 65,
            Type::MaxKey => 127,
        }
    }
}

impl<'a> Value<'a> {
    /// The value's type.
    #[inline]
    pub fn kind(&self) -> Type {
        match self {
            Value::Missing => Type::Missing,
            Value::MinKey => Type::MinKey,
            Value::Undefined => Type::Undefined,
            Value::Null => Type::Null,
            Value::Int32(_) => Type::Int32,
            Value::Int64(_) => Type::Int64,
            Value::Double(_) => Type::Double,
            Value::Decimal128(_) => Type::Decimal128,
            Value::String(_) => Type::String,
            Value::Symbol(_) => Type::Symbol,
            Value::Document(_) => Type::Document,
            Value::Array(_) => Type::Array,
            Value::Binary(_) => Type::Binary,
            Value::ObjectId(_) => Type::ObjectId,
            Value::Bool(_) => Type::Bool,
            Value::DateTime(_) => Type::DateTime,
            Value::Timestamp(_) => Type::Timestamp,
            Value::Regex(_) => Type::Regex,
            Value::DbPointer(_) => Type::DbPointer,
            Value::JavaScript(_) => Type::JavaScript,
            Value::CodeWithScope(_) => Type::CodeWithScope,
            Value::MaxKey => Type::MaxKey,
        }
    }

    /// The type's alias, for error messages.
    pub fn type_name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether it is [`Value::Missing`].
    #[inline]
    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing)
    }

    /// Null, undefined or missing: what most expressions treat alike.
    #[inline]
    pub fn is_nullish(&self) -> bool {
        matches!(self, Value::Missing | Value::Null | Value::Undefined)
    }

    /// int32, int64, double or decimal128.
    #[inline]
    pub fn is_number(&self) -> bool {
        matches!(self, Value::Int32(_) | Value::Int64(_) | Value::Double(_) | Value::Decimal128(_))
    }

    /// The text of a string; `None` for everything else, symbols included.
    pub fn as_str(&self) -> Option<&'a str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// The embedded document.
    pub fn as_doc(&self) -> Option<RawDoc<'a>> {
        if let Value::Document(doc) = self { Some(*doc) } else { None }
    }

    /// The array.
    pub fn as_array(&self) -> Option<RawDoc<'a>> {
        if let Value::Array(array) = self { Some(*array) } else { None }
    }

    /// The boolean; `None` for other types (see [`Value::truthy`] for MongoDB's coercion).
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(b) = self { Some(*b) } else { None }
    }

    /// MongoDB's coercion to boolean: false, numeric zero, null, undefined and missing are false;
    /// NaN and everything else are true.
    pub fn truthy(&self) -> bool {
        match self {
            Value::Missing | Value::Null | Value::Undefined => false,
            Value::Bool(b) => *b,
            Value::Int32(n) => *n != 0,
            Value::Int64(n) => *n != 0,
            Value::Double(n) => *n != 0.0,
            Value::Decimal128(n) => !n.is_zero(),
            _ => true,
        }
    }

    /// The integer that a number stands for exactly, if it does and fits: `3`, `NumberLong(3)`,
    /// `3.0`; not `3.5`, NaN or a string.
    pub fn as_exact_i64(&self) -> Option<i64> {
        match self {
            Value::Int32(n) => Some(i64::from(*n)),
            Value::Int64(n) => Some(*n),
            Value::Double(n) => {
                let whole = n.trunc();
                (whole == *n && (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(n))
                    .then_some(whole as i64)
            }
            Value::Decimal128(n) => n.to_i64_exact(),
            _ => None,
        }
    }

    /// The nearest double of a number; `None` for other types.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int32(n) => Some(f64::from(*n)),
            Value::Int64(n) => Some(*n as f64),
            Value::Double(n) => Some(*n),
            Value::Decimal128(n) => Some(n.to_f64()),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($t:ty => |$x:ident| $e:expr),* $(,)?) => {
        $(impl<'a> From<$t> for Value<'a> { fn from($x: $t) -> Self { $e } })*
    };
}

from! {
    i32 => |x| Value::Int32(x),
    i64 => |x| Value::Int64(x),
    f64 => |x| Value::Double(x),
    bool => |x| Value::Bool(x),
    &'a str => |x| Value::String(x),
    &'a String => |x| Value::String(x),
    RawDoc<'a> => |x| Value::Document(x),
    ObjectId => |x| Value::ObjectId(x),
    Timestamp => |x| Value::Timestamp(x),
    Decimal128 => |x| Value::Decimal128(x),
    Binary<'a> => |x| Value::Binary(x),
    Regex<'a> => |x| Value::Regex(x),
    &'a crate::DocBuf => |x| Value::Document(x.as_raw()),
    &'a crate::ArrayBuf => |x| Value::Array(x.as_raw()),
    () => |_x| Value::Null,
}
