//! Updates that leave a document as it is when they are done to it once more.

use sheaf_bson::{RawDoc, Value};

/// The operators by which a document becomes the same however often they are applied.
const SAME: &[&str] =
    &["$set", "$unset", "$setOnInsert", "$min", "$max", "$addToSet", "$pull", "$pullAll", "$currentDate"];

/// Whether an update of many may begin anew when it has been done to some of its documents, by its modification. What inserts is none of
/// these: it might do so on each attempt.
pub fn may_be_done_twice(statement: RawDoc<'_>, modification: &str) -> bool {
    let inserts = statement.get("upsert").is_some_and(|upsert| upsert.truthy());
    let Some(Value::Document(operators)) = statement.get(modification) else { return false };
    // Which element a positional path means may be another one the next time.
    let is_plain = |operator: Value<'_>| {
        operator.as_doc().is_some_and(|fields| fields.iter().all(|field| !field.key().contains('$')))
    };
    !inserts
        && !operators.is_empty()
        && operators.iter().all(|operator| SAME.contains(&operator.key()) && is_plain(operator.value()))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{ArrayBuf, DocBuf, doc};

    use super::*;

    #[test]
    fn what_changes_nothing_the_second_time() {
        let twice =
            |update: DocBuf| may_be_done_twice(doc! { "q": {}, "u": &update, "multi": true }.as_raw(), "u");
        assert!(twice(doc! { "$set": { "a.b": 1 }, "$unset": { "c": 1 }, "$max": { "d": 5 } }));
        assert!(twice(
            doc! { "$addToSet": { "a": 1 }, "$pull": { "b": { "c": 1 } }, "$currentDate": { "d": true } }
        ));
        for update in [
            doc! { "$inc": { "a": 1 } },
            doc! { "$set": { "a": 1 }, "$push": { "b": 1 } },
            doc! { "$set": { "a.$": 1 } },
            doc! { "$set": { "a.$[]": 1 } },
            doc! { "$rename": { "a": "b" } },
            doc! { "$set": 5 },
            doc! { "a": 1 },
            doc! {},
        ] {
            assert!(!twice(update.clone()), "{update:?}");
        }
        let inserts = doc! { "q": {}, "u": { "$set": { "a": 1 } }, "multi": true, "upsert": true };
        assert!(!may_be_done_twice(inserts.as_raw(), "u"));
        let pipeline = ArrayBuf::of([doc! { "$set": { "a": { "$add": ["$a", 1] } } }.as_raw()]);
        let pipeline = doc! { "q": {}, "u": Value::Array(pipeline.as_raw()), "multi": true };
        assert!(!may_be_done_twice(pipeline.as_raw(), "u"));
    }
}
