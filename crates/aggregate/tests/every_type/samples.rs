//! One value of each BSON type, and what the manual says of its type.

use sheaf_bson::{
    Binary, CodeWithScope, DbPointer, DocBuf, ObjectId, RawDoc, Regex, Timestamp, Value, array, doc,
};

/// A value and its type.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The alias of `$type`.
    pub name: &'static str,
    pub number: i32,
    /// Where it stands in the order of comparison: types with one rank compare by their values, which are equal here.
    pub rank: i32,
    pub value: Value<'static>,
}

impl Sample {
    pub fn is_number(&self) -> bool {
        self.rank == NUMBERS
    }

    pub fn is_nullish(&self) -> bool {
        matches!(self.name, "missing" | "undefined" | "null")
    }

    /// `{_id: 1, v: the value}`.
    pub fn document(&self) -> DocBuf {
        let document = doc! { "_id": 1 };
        if self.name == "missing" { document } else { document.with("v", self.value) }
    }
}

pub const NUMBERS: i32 = 10;

fn kept(document: DocBuf) -> RawDoc<'static> {
    Box::leak(Box::new(document)).as_raw()
}

pub fn samples() -> Vec<Sample> {
    let five = "5".parse().expect("a decimal");
    let elements: &'static sheaf_bson::ArrayBuf = Box::leak(Box::new(array![77]));
    let list: [(&str, i32, i32, Value<'static>); 22] = [
        ("missing", 0, 0, Value::Missing),
        ("minKey", -1, -1, Value::MinKey),
        ("undefined", 6, 0, Value::Undefined),
        ("null", 10, 5, Value::Null),
        ("int", 16, NUMBERS, Value::Int32(5)),
        ("long", 18, NUMBERS, Value::Int64(5)),
        ("double", 1, NUMBERS, Value::Double(5.0)),
        ("decimal", 19, NUMBERS, Value::Decimal128(five)),
        ("string", 2, 15, Value::String("a")),
        ("symbol", 14, 15, Value::Symbol("a")),
        ("object", 3, 20, Value::Document(kept(doc! { "a": 1 }))),
        ("array", 4, 25, Value::Array(elements.as_raw())),
        ("binData", 5, 30, Value::Binary(Binary { subtype: 0, bytes: b"ab" })),
        ("objectId", 7, 35, Value::ObjectId(ObjectId([7; 12]))),
        ("bool", 8, 40, Value::Bool(true)),
        ("date", 9, 45, Value::DateTime(5)),
        ("timestamp", 17, 47, Value::Timestamp(Timestamp(5))),
        ("regex", 11, 50, Value::Regex(Regex { pattern: "a", options: "" })),
        ("dbPointer", 12, 55, Value::DbPointer(DbPointer { namespace: "a.b", id: ObjectId([7; 12]) })),
        ("javascript", 13, 60, Value::JavaScript("a")),
        ("javascriptWithScope", 15, 65, {
            Value::CodeWithScope(CodeWithScope { code: "a", scope: kept(doc! { "x": 1 }) })
        }),
        ("maxKey", 127, 127, Value::MaxKey),
    ];
    list.map(|(name, number, rank, value)| Sample { name, number, rank, value }).to_vec()
}
