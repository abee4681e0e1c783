//! Tables: schema, documents that satisfy it, documents that do not; and schemas that are refused.

use sheaf_bson::{DocBuf, Value, doc};

use super::*;

fn schema(of_a: DocBuf) -> Schema {
    Schema::parse(doc! { "properties": { "a": &of_a } }.as_raw())
        .unwrap_or_else(|e| panic!("{of_a:?}: {e:?}"))
}

#[test]
fn keywords_of_one_value() {
    let dec = |text: &str| Value::Decimal128(text.parse().unwrap());
    let table: Vec<(DocBuf, Vec<DocBuf>, Vec<DocBuf>)> = vec![
        (
            doc! { "bsonType": "int" },
            vec![doc! { "a": 1 }, doc! {}],
            vec![doc! { "a": 1i64 }, doc! { "a": [1] }],
        ),
        (doc! { "bsonType": ["int", "array"] }, vec![doc! { "a": [] }], vec![doc! { "a": "x" }]),
        (doc! { "type": "number" }, vec![doc! { "a": 1.5 }, doc! { "a": 1i64 }], vec![doc! { "a": "1" }]),
        (
            doc! { "type": ["boolean", "null"] },
            vec![doc! { "a": true }, doc! { "a": () }],
            vec![doc! { "a": 1 }],
        ),
        (
            doc! { "minimum": 5 },
            vec![doc! { "a": 5.0 }, doc! { "a": "x" }],
            vec![doc! { "a": 4i64 }, doc! { "a": f64::NAN }],
        ),
        (doc! { "minimum": 5, "exclusiveMinimum": true }, vec![doc! { "a": 6 }], vec![doc! { "a": 5 }]),
        (
            doc! { "maximum": 5, "exclusiveMaximum": false },
            vec![doc! { "a": 5 }],
            vec![doc! { "a": dec("5.01") }],
        ),
        (doc! { "multipleOf": 0.1 }, vec![doc! { "a": 0.3 }, doc! { "a": 2 }], vec![doc! { "a": 0.35 }]),
        (
            doc! { "minLength": 2, "maxLength": 3 },
            vec![doc! { "a": "éé" }, doc! { "a": 1 }],
            vec![doc! { "a": "é" }, doc! { "a": "abcd" }],
        ),
        (doc! { "pattern": "^a.c$" }, vec![doc! { "a": "abc" }, doc! { "a": 1 }], vec![doc! { "a": "ab" }]),
        (
            doc! { "enum": [1, "x", { "p": 1, "q": 2 }] },
            vec![doc! { "a": 1.0 }, doc! { "a": { "q": 2, "p": 1 } }],
            vec![doc! { "a": 2 }, doc! { "a": [1] }],
        ),
        (
            doc! { "minItems": 1, "maxItems": 2 },
            vec![doc! { "a": [1] }, doc! { "a": 1 }],
            vec![doc! { "a": [] }, doc! { "a": [1, 2, 3] }],
        ),
        (
            doc! { "uniqueItems": true },
            vec![doc! { "a": [1, 2, "1"] }],
            vec![doc! { "a": [1, 1.0] }, doc! { "a": [{ "p": 1, "q": 2 }, { "q": 2, "p": 1 }] }],
        ),
        (
            doc! { "items": { "bsonType": "int" } },
            vec![doc! { "a": [] }, doc! { "a": [1] }],
            vec![doc! { "a": [1, "x"] }],
        ),
        (
            doc! { "items": [{ "bsonType": "int" }], "additionalItems": { "bsonType": "string" } },
            vec![doc! { "a": [1, "x"] }, doc! { "a": [] }],
            vec![doc! { "a": ["x"] }, doc! { "a": [1, 2] }],
        ),
        (
            doc! { "items": [{}], "additionalItems": false },
            vec![doc! { "a": [1] }],
            vec![doc! { "a": [1, 2] }],
        ),
        (
            doc! { "required": ["b"], "maxProperties": 1 },
            vec![doc! { "a": { "b": 1 } }, doc! { "a": 1 }],
            vec![doc! { "a": {} }, doc! { "a": { "b": 1, "c": 1 } }],
        ),
        (
            doc! { "properties": { "b": { "minimum": 1 } }, "additionalProperties": false },
            vec![doc! { "a": { "b": 1 } }, doc! { "a": {} }],
            vec![doc! { "a": { "b": 0 } }, doc! { "a": { "c": 1 } }],
        ),
        (
            doc! { "patternProperties": { "^s": { "bsonType": "string" } }, "additionalProperties": { "bsonType": "int" } },
            vec![doc! { "a": { "s1": "x", "n": 1 } }],
            vec![doc! { "a": { "s1": 1 } }, doc! { "a": { "n": "x" } }],
        ),
        (
            doc! { "dependencies": { "b": ["c"], "d": { "minProperties": 3 } } },
            vec![doc! { "a": { "c": 1 } }, doc! { "a": { "b": 1, "c": 1 } }],
            vec![doc! { "a": { "b": 1 } }, doc! { "a": { "d": 1 } }],
        ),
        (
            doc! { "anyOf": [{ "bsonType": "int" }, { "minLength": 3 }] },
            vec![doc! { "a": 1 }, doc! { "a": "abc" }, doc! { "a": true }],
            vec![doc! { "a": "ab" }],
        ),
        (
            doc! { "oneOf": [{ "minimum": 3 }, { "maximum": 5 }] },
            vec![doc! { "a": 1 }, doc! { "a": 9 }],
            vec![doc! { "a": 4 }, doc! { "a": "x" }],
        ),
        (
            doc! { "allOf": [{ "minimum": 3 }, { "maximum": 5 }] },
            vec![doc! { "a": 4 }],
            vec![doc! { "a": 9 }],
        ),
        (doc! { "not": { "bsonType": "int" } }, vec![doc! { "a": "x" }, doc! {}], vec![doc! { "a": 1 }]),
    ];
    for (of_a, yes, no) in table {
        let schema = schema(of_a.clone());
        yes.iter().for_each(|doc| assert!(schema.matches(doc.as_raw()).unwrap(), "{of_a:?} on {doc:?}"));
        no.iter().for_each(|doc| {
            assert!(!schema.matches(doc.as_raw()).unwrap(), "{of_a:?} on {doc:?}");
            let failure = schema.failure(doc.as_raw(), &Room::new(false));
            assert!(sheaf_bson::validate(failure.as_bytes(), 100).is_ok());
        });
    }
}

#[test]
fn the_document_itself_is_an_object() {
    let check =
        |schema: DocBuf| Schema::parse(schema.as_raw()).unwrap().matches(doc! { "a": 1 }.as_raw()).unwrap();
    assert!(check(doc! { "bsonType": "object" }));
    assert!(!check(doc! { "bsonType": "string" }));
    assert!(check(doc! { "enum": [{ "a": 1 }] }));
    // Nothing but an object can be asked of a document; the rest is read, and has no effect.
    assert!(!check(doc! { "enum": [1, "x"] }));
    assert!(!check(doc! { "allOf": [{ "type": "string" }] }));
    assert!(check(doc! { "not": { "bsonType": "string" }, "pattern": "(", "minimum": 5 }));
    assert!(check(doc! {}));
}

#[test]
fn names_with_dots_are_paths() {
    let holds =
        |schema: DocBuf, doc: DocBuf| Schema::parse(schema.as_raw()).unwrap().matches(doc.as_raw()).unwrap();
    let inner = || doc! { "a": { "b": 1 } };
    let list = || doc! { "a": [{ "b": "x" }, { "b": 1 }] };
    let number = || doc! { "properties": { "a.b": { "bsonType": "int" } } };
    assert!(holds(number(), inner()) && holds(number(), list()) && holds(number(), doc! { "a": 1 }));
    assert!(!holds(number(), doc! { "a": { "b": "x" } }));
    assert!(holds(doc! { "required": ["a.b"] }, inner()) && !holds(doc! { "required": ["a.c"] }, inner()));
    let together = || doc! { "dependencies": { "a.b": ["a.c"] } };
    assert!(!holds(together(), inner()) && holds(together(), doc! { "a": { "b": 1, "c": 1 } }));
    // Which properties are additional goes by their own names.
    assert!(!holds(doc! { "properties": { "a.b": {} }, "additionalProperties": false }, inner()));
}

#[test]
fn multiples_of_extremes() {
    let dec = |text: &str| Value::Decimal128(text.parse().unwrap());
    let holds = |of: Value<'_>, value: Value<'_>| {
        schema(doc! { "multipleOf": of }).matches(doc! { "a": value }.as_raw()).unwrap()
    };
    assert!(holds(dec("1E-500"), Value::Int32(3)) && holds(dec("1E-500"), dec("3E-500")));
    assert!(!holds(Value::Double(f64::NAN), Value::Int32(0)));
    assert!(holds(Value::Double(f64::INFINITY), Value::Int32(0)));
    assert!(!holds(Value::Double(f64::INFINITY), Value::Int32(3)));
}

#[test]
fn the_first_of_several_errors() {
    let table: &[(DocBuf, i32)] = &[
        // Unknown keywords come first, then what is said to people, then types, then the rest.
        (doc! { "title": 1, "foo": 1 }, 9),
        (doc! { "title": 1, "type": "object", "bsonType": "object" }, 14),
        (doc! { "pattern": 1, "type": "nonsense" }, 2),
        (doc! { "minLength": -1, "pattern": 1 }, 14),
        (doc! { "multipleOf": "x", "minLength": -1 }, 9),
        (doc! { "maximum": "x", "multipleOf": 0 }, 9),
        (doc! { "allOf": [], "required": [1] }, 14),
        (doc! { "enum": 1, "allOf": [] }, 2),
        (doc! { "properties": { "a": 1 }, "required": [] }, 9),
        (doc! { "minItems": -1, "exclusiveMaximum": 1 }, 9),
        (doc! { "bsonType": ["integer", 1] }, 9),
        (doc! { "bsonType": [1, "integer"] }, 14),
        (doc! { "patternProperties": { "(": { "foo": 1 } } }, 9),
        (doc! { "patternProperties": { "(": {}, "x": 1 } }, 2),
    ];
    for (schema, code) in table {
        assert_eq!(Schema::parse(schema.as_raw()).unwrap_err().code().0, *code, "{schema:?}");
    }
}

#[test]
fn refused() {
    let table: &[(DocBuf, i32)] = &[
        (doc! { "foo": 1 }, 9),
        (doc! { "$ref": "x" }, 9),
        (doc! { "format": "date" }, 9),
        (doc! { "type": "object", "bsonType": "object" }, 9),
        (doc! { "type": "integer" }, 9),
        (doc! { "type": "nonsense" }, 2),
        (doc! { "bsonType": "nonsense" }, 2),
        (doc! { "bsonType": 2 }, 14),
        (doc! { "minimum": "x" }, 14),
        (doc! { "exclusiveMinimum": true }, 9),
        (doc! { "minimum": 1, "exclusiveMinimum": 1 }, 14),
        (doc! { "multipleOf": 0 }, 9),
        (doc! { "minLength": -1 }, 9),
        (doc! { "minLength": 1.5 }, 9),
        (doc! { "pattern": 1 }, 14),
        (doc! { "properties": 1 }, 14),
        (doc! { "properties": { "a": 1 } }, 14),
        (doc! { "required": [] }, 9),
        (doc! { "required": ["a", "a"] }, 9),
        (doc! { "required": [1] }, 14),
        (doc! { "enum": [] }, 9),
        (doc! { "enum": [1, 1.0] }, 9),
        (doc! { "allOf": [] }, 2),
        (doc! { "allOf": 1 }, 14),
        (doc! { "additionalProperties": 1 }, 14),
        (doc! { "items": 1 }, 14),
        (doc! { "uniqueItems": 1 }, 14),
        (doc! { "dependencies": { "a": 1 } }, 14),
        (doc! { "dependencies": { "title": 1 } }, 14),
        (doc! { "dependencies": { "a": "x" } }, 14),
        (doc! { "dependencies": { "a": [] } }, 9),
        (doc! { "multipleOf": -0.0 }, 9),
        (doc! { "title": 1 }, 14),
    ];
    for (schema, code) in table {
        assert_eq!(Schema::parse(schema.as_raw()).unwrap_err().code().0, *code, "{schema:?}");
    }
}

fn blob(kind: u8, of: u8) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend([7; 16]);
    bytes.push(of);
    bytes.extend([1, 2, 3]);
    bytes
}

#[test]
fn encrypted_fields() {
    let holds = |keyword: DocBuf, subtype: u8, bytes: &[u8]| {
        let value = Value::Binary(sheaf_bson::Binary { subtype, bytes });
        schema(keyword).matches(doc! { "a": value }.as_raw()).unwrap()
    };
    let any = || doc! { "encrypt": {} };
    let text = || doc! { "encrypt": { "bsonType": ["string", "date"] } };
    assert!(holds(any(), 6, &[]) && holds(any(), 6, &blob(1, 2)));
    assert!(!holds(any(), 0, &blob(1, 2)));
    assert!(!schema(any()).matches(doc! { "a": {} }.as_raw()).unwrap());
    assert!(
        !schema(any())
            .matches(doc! { "a": [Value::Binary(sheaf_bson::Binary { subtype: 6, bytes: &[] })] }.as_raw())
            .unwrap()
    );
    assert!(schema(any()).matches(doc! {}.as_raw()).unwrap());
    assert!(holds(text(), 6, &blob(1, 2)) && holds(text(), 6, &blob(2, 9)));
    // Another type, a placeholder, and what has no header.
    assert!(!holds(text(), 6, &blob(1, 16)) && !holds(text(), 6, &blob(0, 2)) && !holds(text(), 6, &[1]));
    let number = doc! { "encrypt": { "bsonType": "number" } };
    assert!(holds(number, 6, &blob(1, 18)));
    // A whole document is never encrypted.
    assert!(!Schema::parse(any().as_raw()).unwrap().matches(doc! {}.as_raw()).unwrap());
}

#[test]
fn encryption_is_checked() {
    let random = "AEAD_AES_256_CBC_HMAC_SHA_512-Random";
    let id = |subtype, bytes| Value::Binary(sheaf_bson::Binary { subtype, bytes });
    let long = "/a".repeat(1001);
    let refused = [
        (doc! { "encrypt": 5 }, 14),
        (doc! { "encrypt": {}, "type": "object" }, 9),
        (doc! { "encrypt": {}, "bsonType": "binData" }, 9),
        (doc! { "encrypt": {}, "encryptMetadata": { "algorithm": random } }, 9),
        (doc! { "encrypt": { "keyIdx": "/a" } }, 40415),
        (doc! { "encrypt": { "bsonType": 5 } }, 14),
        (doc! { "encrypt": { "bsonType": "Stringx" } }, 2),
        (doc! { "encrypt": { "algorithm": "x" } }, 2),
        (doc! { "encrypt": { "algorithm": 1 } }, 14),
        (doc! { "encrypt": { "keyId": 1 } }, 51085),
        (doc! { "encrypt": { "keyId": ["x"] } }, 51088),
        (doc! { "encrypt": { "keyId": [id(6, &[0; 16])] } }, 51084),
        (doc! { "encrypt": { "keyId": [id(4, &[0; 15])] } }, 207),
        (doc! { "encrypt": { "keyId": "" } }, 51064),
        (doc! { "encrypt": { "keyId": "a" } }, 51065),
        (doc! { "encrypt": { "keyId": "/a~b" } }, 51063),
        (doc! { "encryptMetadata": { "keyId": &*long } }, 51067),
        (doc! { "encryptMetadata": {} }, 9),
        (doc! { "encryptMetadata": 5 }, 14),
        (doc! { "encryptMetadata": { "bsonType": "int" } }, 40415),
    ];
    for (keywords, code) in refused {
        let whole = doc! { "properties": { "a": &keywords } };
        assert_eq!(Schema::parse(whole.as_raw()).unwrap_err().code().0, code, "{keywords:?}");
    }
    let good = doc! { "encrypt": { "bsonType": "int", "algorithm": random, "keyId": [id(4, &[0; 16])] } };
    let metadata = doc! { "encryptMetadata": { "algorithm": random, "keyId": "/a~1b/~0" } };
    for keywords in [good, metadata] {
        let whole = doc! { "properties": { "a": &keywords } };
        assert!(Schema::parse(whole.as_raw()).is_ok());
        assert_eq!(Schema::parse_without_encryption(whole.as_raw()).unwrap_err().code().0, 224);
    }
}
