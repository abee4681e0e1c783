//! Values of every BSON type, their ends and their odd ones among them, under short names.

use sheaf_bson::{Binary, CodeWithScope, DbPointer, ObjectId, OwnedValue, Value, doc};

use crate::notation;

/// Those that the notation of scripts has: a name, or what it stands for if it is long.
const WRITTEN: &[&str] = &[
    "undefined",
    "null",
    "0",
    "5",
    "-3",
    "maxInt = 2147483647",
    "minInt = -2147483648",
    "long 5 = NumberLong(5)",
    "maxLong = NumberLong(9223372036854775807)",
    "minLong = NumberLong(-9223372036854775808)",
    "1.0",
    "2.5",
    "-0.0",
    "1e300",
    "NaN",
    "Infinity",
    "-Infinity",
    "dec 0 = NumberDecimal(\"0\")",
    "dec 5 = NumberDecimal(\"5\")",
    "dec 2.5 = NumberDecimal(\"2.5\")",
    "dec -0 = NumberDecimal(\"-0\")",
    "dec NaN = NumberDecimal(\"NaN\")",
    "dec Infinity = NumberDecimal(\"Infinity\")",
    "dec -Infinity = NumberDecimal(\"-Infinity\")",
    "dec 34 digits = NumberDecimal(\"1.234567890123456789012345678901234\")",
    "\"\"",
    "\"abc\"",
    "\"5\"",
    "\"a\\0b\"",
    "\"äß日\"",
    "{}",
    "{a: 1}",
    "{$a: 1}",
    "{\"a.b\": 1}",
    "[]",
    "[1, \"abc\", null]",
    "[3, 1, 2]",
    "[[1]]",
    "[{a: 1}]",
    "empty bin = HexData(0, \"\")",
    "bin = HexData(0, \"6162\")",
    "old bin = HexData(2, \"020000006162\")",
    "uuid = HexData(4, \"00112233445566778899aabbccddeeff\")",
    "md5 = HexData(5, \"00112233445566778899aabbccddeeff\")",
    "encrypted = HexData(6, \"0101\")",
    "vector = HexData(9, \"030001ff\")",
    "id = ObjectId(\"5f0102030405060708090a0b\")",
    "false",
    "true",
    "epoch = Date(0)",
    "before = Date(-1)",
    "a date = Date(1706670245678)",
    "last date = Date(9223372036854775807)",
    "first date = Date(-9223372036854775808)",
    "ts 0 = Timestamp(0, 0)",
    "ts = Timestamp(5, 1)",
    "/a/i",
    "code = Code(\"abc\")",
    "symbol = Symbol(\"abc\")",
    "MinKey",
    "MaxKey",
];

/// A value and its name.
pub struct Named {
    pub name: String,
    pub value: OwnedValue,
}

impl Named {
    pub fn value(&self) -> Value<'_> {
        self.value.as_value()
    }
}

/// All of them; the first is missing.
pub fn values() -> Vec<Named> {
    let named =
        |name: &str, value: Value<'_>| Named { name: name.to_owned(), value: OwnedValue::from(value) };
    let mut all = vec![named("missing", Value::Missing)];
    for text in WRITTEN {
        let (name, text) = text.split_once(" = ").unwrap_or((text, text));
        all.push(Named { name: name.to_owned(), value: notation::read(text).0 });
    }
    let scope = doc! { "x": 1 };
    all.push(named(
        "code with scope",
        Value::CodeWithScope(CodeWithScope { code: "abc", scope: scope.as_raw() }),
    ));
    all.push(named("pointer", Value::DbPointer(DbPointer { namespace: "a.b", id: ObjectId([7; 12]) })));
    // A vector of floats has a length that is no multiple of four here.
    all.push(named("bad vector", Value::Binary(Binary { subtype: 9, bytes: &[0x27, 0, 1] })));
    all
}
