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
            doc! { "operatorName": "$in", "specifiedAs": { "a": { "$in": [5] } }, "reason": "no matching value found in array", "consideredValues": [1, 2, [1, 2]] },
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
            doc! { "operatorName": "$size", "specifiedAs": { "a": { "$size": 2 } }, "reason": "type did not match", "consideredValue": 1, "consideredType": "int", "expectedType": "array" },
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
