use sheaf_bson::doc;

use super::*;

#[test]
fn errors_are_those_of_generated_parsers() {
    let body = doc! { "find": "c", "filter": 1, "limit": -1, "odd": true };
    let mut args = Args::of_document("find", body.as_raw()).unwrap();
    assert_eq!(args.collection().unwrap(), "c");
    let error = args.optional::<RawDoc<'_>>("filter").unwrap_err();
    assert_eq!(error.message(), "BSON field 'find.filter' is the wrong type 'int', expected type 'object'");
    let error = args.optional::<NonNegative>("limit").unwrap_err();
    assert_eq!(
        (error.code().0, error.message()),
        (2, "BSON field 'limit' value must be >= 0, actual value '-1'")
    );
    let error = args.required::<i64>("gone").unwrap_err();
    assert_eq!(error.code().0, 40414);
    let error = args.finish().unwrap_err();
    assert_eq!((error.code().0, error.message()), (40415, "BSON field 'find.odd' is an unknown field."));
}

#[test]
fn parts_have_no_name_of_their_own() {
    let body = doc! { "odd": 1, "q": {} };
    let mut args = Args::of_part("update.updates", body.as_raw()).unwrap();
    args.required::<RawDoc<'_>>("q").unwrap();
    let error = args.finish().unwrap_err();
    assert_eq!(
        (error.code().0, error.message()),
        (40415, "BSON field 'update.updates.odd' is an unknown field.")
    );
}

#[test]
fn twice_is_refused() {
    let body = doc! { "find": "c", "limit": 1, "limit": 2 };
    assert_eq!(Args::of_document("find", body.as_raw()).err().unwrap().code().0, 40413);
    // Of very many, too.
    let mut body = doc! { "find": "c" };
    for n in 0..200_000 {
        body.append(&format!("{n:06}"), n);
    }
    assert!(Args::of_document("find", body.as_raw()).is_ok());
    body.append("000007", 1);
    assert_eq!(Args::of_document("find", body.as_raw()).err().unwrap().code().0, 40413);
}

#[test]
fn integers_are_taken_from_any_number() {
    let body = doc! { "x": 1, "a": 2.9, "b": 3i64, "c": f64::NAN, "d": 1e300, "e": () };
    let mut args = Args::of_document("x", body.as_raw()).unwrap();
    assert_eq!(args.optional::<i64>("a").unwrap(), Some(2));
    assert_eq!(args.optional::<i32>("b").unwrap(), Some(3));
    assert_eq!(args.optional::<i64>("c").unwrap(), Some(0));
    assert_eq!(args.optional::<i64>("d").unwrap(), Some(i64::MAX));
    assert_eq!(args.optional::<i64>("e").unwrap(), None);
}

#[test]
fn names() {
    assert!(check_db_name("app").is_ok());
    for bad in ["", "a.b", "a b", "a$b", "a/b"] {
        assert_eq!(check_db_name(bad).unwrap_err().code(), Code::INVALID_NAMESPACE, "{bad}");
    }
}
