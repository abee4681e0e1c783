//! Tables: validator, failing document, details.

use sheaf_bson::doc;

use super::*;

fn check(table: &[(DocBuf, DocBuf, DocBuf)]) {
    for (validator, doc, expected) in table {
        let matcher = Matcher::parse(validator.as_raw(), &mut ParseCx::new()).unwrap();
        assert!(!matcher.matches_doc(doc.as_raw()).unwrap(), "{validator:?} must not match {doc:?}");
        let details = validation_error_details(&matcher, doc.as_raw());
        assert_eq!(details, *expected, "{validator:?} on {doc:?}");
    }
}

#[test]
fn query_operators() {
    check(&[
        (
            doc! { "a": { "$gt": 5 } },
            doc! { "a": 3 },
            doc! { "operatorName": "$gt", "specifiedAs": { "a": { "$gt": 5 } }, "reason": "comparison failed", "consideredValue": 3 },
        ),
        (
            doc! { "a": 5 },
            doc! {},
            doc! { "operatorName": "$eq", "specifiedAs": { "a": 5 }, "reason": "field was missing" },
        ),
        (
            doc! { "a": { "$in": [5] } },
            doc! { "a": [1, 2] },
            doc! { "operatorName": "$in", "specifiedAs": { "a": { "$in": [5] } }, "reason": "no matching value found in array", "consideredValues": [1, 2] },
        ),
        (
            doc! { "a": { "$ne": 5 } },
            doc! { "a": 5 },
            doc! { "operatorName": "$ne", "specifiedAs": { "a": { "$ne": 5 } }, "reason": "comparison succeeded", "consideredValue": 5 },
        ),
        (
            doc! { "a": { "$exists": true } },
            doc! {},
            doc! { "operatorName": "$exists", "specifiedAs": { "a": { "$exists": true } }, "reason": "path does not exist" },
        ),
        (
            doc! { "a": { "$type": "string" } },
            doc! { "a": 1 },
            doc! { "operatorName": "$type", "specifiedAs": { "a": { "$type": "string" } }, "reason": "type did not match", "consideredValue": 1, "consideredType": "int" },
        ),
        (
            doc! { "a": { "$size": 2 } },
            doc! { "a": 1 },
            doc! { "operatorName": "$size", "specifiedAs": { "a": { "$size": 2 } }, "reason": "type did not match", "consideredType": "int", "expectedType": "array", "consideredValue": 1 },
        ),
        (
            doc! { "a": 1, "b": 2, "c": 3 },
            doc! { "a": 1, "b": 1 },
            doc! {
                "operatorName": "$and",
                "clausesNotSatisfied": [
                    { "index": 1, "details": { "operatorName": "$eq", "specifiedAs": { "b": 2 }, "reason": "comparison failed", "consideredValue": 1 } },
                    { "index": 2, "details": { "operatorName": "$eq", "specifiedAs": { "c": 3 }, "reason": "field was missing" } }
                ]
            },
        ),
        (
            doc! { "$nor": [{ "a": 1 }, { "a": { "$lt": 0 } }] },
            doc! { "a": 1 },
            doc! {
                "operatorName": "$nor",
                "clausesSatisfied": [
                    { "index": 0, "details": { "operatorName": "$eq", "specifiedAs": { "a": 1 }, "reason": "comparison succeeded", "consideredValue": 1 } }
                ]
            },
        ),
        (
            doc! { "a": { "$not": { "$gt": 1 } } },
            doc! { "a": 2 },
            doc! {
                "operatorName": "$not",
                "details": { "operatorName": "$gt", "specifiedAs": { "a": { "$gt": 1 } }, "reason": "comparison succeeded", "consideredValue": 2 }
            },
        ),
    ]);
}

#[test]
fn what_is_considered() {
    let eleven = || doc! { "a": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] };
    check(&[
        // An array is no value of its own, unless the operator is about arrays.
        (
            doc! { "a": { "$gt": 5 } },
            doc! { "a": [] },
            doc! { "operatorName": "$gt", "specifiedAs": { "a": { "$gt": 5 } }, "reason": "comparison failed", "consideredValues": [] },
        ),
        (
            doc! { "a": { "$mod": [2, 0] } },
            doc! { "a": [] },
            doc! {
                "operatorName": "$mod", "specifiedAs": { "a": { "$mod": [2, 0] } }, "reason": "type did not match",
                "expectedTypes": ["decimal", "double", "int", "long"], "consideredValues": []
            },
        ),
        (
            doc! { "a": { "$all": [1, 3] } },
            doc! { "a": [1, 2] },
            doc! { "operatorName": "$all", "specifiedAs": { "a": { "$all": [1, 3] } }, "reason": "array did not contain all specified values", "consideredValue": [1, 2] },
        ),
        (
            doc! { "a": { "$all": [] } },
            doc! { "a": [1, 2] },
            doc! { "operatorName": "$all", "specifiedAs": { "a": { "$all": [] } }, "reason": "expression always evaluates to false" },
        ),
        (
            doc! { "a": 12 },
            eleven(),
            doc! {
                "operatorName": "$eq", "specifiedAs": { "a": 12 }, "reason": "comparison failed",
                "consideredValues": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "consideredValuesTruncated": true
            },
        ),
        // What is missing is said to be, also where that is what fails.
        (
            doc! { "a": { "$ne": Value::Null } },
            doc! {},
            doc! { "operatorName": "$ne", "specifiedAs": { "a": { "$ne": Value::Null } }, "reason": "field was missing" },
        ),
    ]);
}

#[test]
fn geometries() {
    let square = doc! { "$box": [[0, 0], [5, 5]] };
    let within = || doc! { "a": { "$geoWithin": &square } };
    let error = |reason: &str, considered: DocBuf| {
        let mut details = DocBuf::build(|out| {
            out.append("operatorName", "$geoWithin")
                .append("specifiedAs", &within())
                .append("reason", reason);
        });
        details = DocBuf::build(|out| {
            out.append_all(details.as_raw()).append_all(considered.as_raw());
        });
        details
    };
    let outside = "none of the considered geometries were contained within the expression\u{2019}s geometry";
    let none = "could not find a valid geometry at the given path";
    check(&[
        (within(), doc! { "a": [6, 6] }, error(outside, doc! { "consideredValues": [6, 6] })),
        (
            within(),
            doc! { "a": { "type": "Point", "coordinates": [6, 6] } },
            error(outside, doc! { "consideredValue": { "type": "Point", "coordinates": [6, 6] } }),
        ),
        (within(), doc! { "a": "x" }, error(none, doc! { "consideredValue": "x" })),
        (within(), doc! {}, error("field was missing", doc! {})),
        (
            doc! { "a": { "$not": { "$geoWithin": &square } } },
            doc! { "a": [1, 2] },
            doc! {
                "operatorName": "$not",
                "details": {
                    "operatorName": "$geoWithin", "specifiedAs": { "a": { "$geoWithin": &square } },
                    "reason": "at least one of considered geometries was contained within the expression\u{2019}s geometry",
                    "consideredValues": [1, 2]
                }
            },
        ),
    ]);
}

#[test]
fn an_expression_that_fails_says_so() {
    let validator = doc! { "$expr": { "$gt": [{ "$divide": [1, "$a"] }, 0] } };
    let matcher = Matcher::parse(validator.as_raw(), &mut ParseCx::new()).unwrap();
    let details = validation_error_details(&matcher, doc! { "a": 0 }.as_raw());
    assert_eq!(
        details,
        doc! {
            "operatorName": "$expr", "specifiedAs": &validator, "reason": "failed to evaluate aggregation expression",
            "details": { "code": 2, "codeName": "BadValue", "errmsg": "can't $divide by zero" }
        }
    );
}

#[test]
fn the_error_names_the_document() {
    let matcher = Matcher::parse(doc! { "a": 1 }.as_raw(), &mut ParseCx::new()).unwrap();
    let error = validation_error(&matcher, doc! { "_id": 7 }.as_raw());
    assert_eq!((error.code().0, error.message()), (121, "Document failed validation"));
    let info = RawDoc::new(error.err_info().unwrap());
    assert_eq!(info.get("failingDocumentId").and_then(|id| id.as_exact_i64()), Some(7));
    assert!(info.get("details").is_some());
}

#[test]
fn json_schema() {
    let student = doc! { "$jsonSchema": {
        "bsonType": "object",
        "title": "Student Object Validation",
        "required": ["address", "name"],
        "properties": {
            "gpa": { "bsonType": ["double"], "description": "'gpa' must be a double if the field exists" },
            "year": { "minimum": 2017, "maximum": 3017 },
            "tags": { "items": { "bsonType": "string" } }
        }
    } };
    check(&[(
        student,
        doc! { "_id": 1, "gpa": 3, "year": 2000, "name": "x", "tags": ["a", 2] },
        doc! {
            "operatorName": "$jsonSchema",
            "title": "Student Object Validation",
            "schemaRulesNotSatisfied": [
                { "operatorName": "properties", "propertiesNotSatisfied": [
                    { "propertyName": "gpa", "description": "'gpa' must be a double if the field exists", "details": [
                        { "operatorName": "bsonType", "specifiedAs": { "bsonType": ["double"] }, "reason": "type did not match", "consideredValue": 3, "consideredType": "int" }
                    ] },
                    { "propertyName": "year", "details": [
                        { "operatorName": "minimum", "specifiedAs": { "minimum": 2017 }, "reason": "comparison failed", "consideredValue": 2000 }
                    ] },
                    { "propertyName": "tags", "details": [
                        { "operatorName": "items", "reason": "At least one item did not match the sub-schema", "itemIndex": 1, "details": [
                            { "operatorName": "bsonType", "specifiedAs": { "bsonType": "string" }, "reason": "type did not match", "consideredValue": 2, "consideredType": "int" }
                        ] }
                    ] }
                ] },
                { "operatorName": "required", "specifiedAs": { "required": ["address", "name"] }, "missingProperties": ["address"] }
            ]
        },
    )]);
}

#[test]
fn schemas_of_arrays_and_properties() {
    let text = || doc! { "bsonType": "string", "title": "T" };
    let mismatch = || doc! { "operatorName": "bsonType", "specifiedAs": { "bsonType": "string" }, "reason": "type did not match", "consideredValue": 1, "consideredType": "int" };
    let failing = |keywords: DocBuf, of_a: DocBuf| {
        let validator = doc! { "$jsonSchema": { "properties": { "a": &keywords } } };
        let details = doc! {
            "operatorName": "$jsonSchema",
            "schemaRulesNotSatisfied": [{ "operatorName": "properties", "propertiesNotSatisfied": [{ "propertyName": "a", "details": [&of_a] }] }]
        };
        (validator, details)
    };
    let table = [
        (
            doc! { "minItems": 3 },
            doc! { "a": ["x", 1] },
            doc! { "operatorName": "minItems", "specifiedAs": { "minItems": 3 }, "reason": "array did not match specified length", "consideredValue": ["x", 1], "numberOfItems": 2 },
        ),
        (
            doc! { "items": &text() },
            doc! { "a": ["x", 1] },
            doc! { "operatorName": "items", "title": "T", "reason": "At least one item did not match the sub-schema", "itemIndex": 1, "details": [&mismatch()] },
        ),
        (
            doc! { "items": [&text(), &text()] },
            doc! { "a": ["x", 1] },
            doc! { "operatorName": "items", "details": [{ "itemIndex": 1i64, "details": [&mismatch()] }] },
        ),
        (
            doc! { "additionalProperties": &text() },
            doc! { "a": { "b": 1 } },
            doc! { "operatorName": "additionalProperties", "title": "T", "reason": "at least one additional property did not match the subschema", "failingProperty": "b", "details": [&mismatch()] },
        ),
        (
            doc! { "patternProperties": { "c": &text(), "^b": &text() } },
            doc! { "a": { "b": 1, "b2": 1, "c": 1 } },
            doc! { "operatorName": "patternProperties", "details": [
                { "propertyName": "c", "title": "T", "regexMatched": "c", "details": [&mismatch()] },
                { "propertyName": "b", "title": "T", "regexMatched": "^b", "details": [&mismatch()] }
            ] },
        ),
    ];
    for (keywords, doc, of_a) in table {
        let (validator, details) = failing(keywords, of_a);
        check(&[(validator, doc, details)]);
    }
}

#[test]
fn an_explanation_has_its_limits() {
    let info = |validator: DocBuf, doc: DocBuf| {
        let matcher = Matcher::parse(validator.as_raw(), &mut ParseCx::new()).unwrap();
        failure_info(&matcher, doc.as_raw())
    };
    // A clause that repeats the value, and seven that do.
    let text = "x".repeat(2 << 20);
    let clause = doc! { "a": { "$lt": "a" } };
    let one = info(clause.clone(), doc! { "_id": 1, "a": &*text });
    assert!(one.as_raw().get("truncated").is_none());
    assert!(one.as_bytes().len() > text.len());
    let seven = doc! { "$and": [&clause, &clause, &clause, &clause, &clause, &clause, &clause] };
    let brief = info(seven, doc! { "_id": 1, "a": &*text });
    let brief_clause = doc! { "operatorName": "$lt", "reason": "comparison failed" };
    let list = sheaf_bson::ArrayBuf::of(
        (0i32..7).map(|index| doc! { "index": index, "details": &brief_clause }).collect::<Vec<_>>().iter(),
    );
    let details = doc! { "operatorName": "$and", "clausesNotSatisfied": &list };
    assert_eq!(brief, doc! { "failingDocumentId": 1, "truncated": true, "details": &details });
    let mut deep = doc! { "a": 1 };
    for _ in 0..65 {
        deep = doc! { "$and": [&deep] };
    }
    assert_eq!(
        info(deep, doc! { "_id": 1, "a": 2 }),
        doc! { "reason": "generated error was too deeply nested", "truncated": true }
    );
}
