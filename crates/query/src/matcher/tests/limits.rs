//! What a filter may cost, to parse and to match: time that ends, memory that is counted.

use super::*;

/// At some thousand characters the engine gave up, which was read as "no match": `$not` matched then.
#[test]
fn a_limit_of_the_engine_is_no_answer() {
    let matches = |filter: DocBuf, doc: &DocBuf| {
        Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap().matches_doc(doc.as_raw())
    };
    for n in [1000, 9000, 100_000] {
        let doc = doc! { "s": &*("x".repeat(n) + "<script"), "list": [&*"a".repeat(n)] };
        let script = doc! { "$regex": "(.|\\n)*<script" };
        assert_eq!(matches(doc! { "s": &script }, &doc), Ok(true), "{n}");
        assert_eq!(matches(doc! { "s": { "$not": &script } }, &doc), Ok(false), "{n}");
        assert_eq!(
            matches(doc! { "list": { "$elemMatch": { "$not": { "$regex": "^(a|b)*$" } } } }, &doc),
            Ok(false)
        );
    }
    let doc = doc! { "s": &*("a".repeat(5000) + "b") };
    let endless = doc! { "$regex": "^(a+)+$" };
    let schema = doc! { "properties": { "s": { "not": { "pattern": "^(a+)+$" } } } };
    for filter in [
        doc! { "s": &endless },
        doc! { "s": { "$not": &endless } },
        doc! { "$nor": [{ "s": &endless }] },
        doc! { "s": { "$in": [sheaf_bson::Value::Regex(sheaf_bson::Regex { pattern: "^(a+)+$", options: "" })] } },
        doc! { "$jsonSchema": &schema },
    ] {
        assert_eq!(matches(filter, &doc).unwrap_err().code().0, 51156);
    }
}

/// It took one sort of the whole list for each branch: minutes, in which nothing could stop it.
#[test]
fn equalities_of_a_large_or_are_merged_at_once() {
    let filter = DocBuf::build(|filter| {
        let mut list = filter.array("$or");
        for n in (0..200_000).rev() {
            list.document().append("a", n);
        }
        for n in 0..20_000 {
            list.document().append(&format!("p{n}"), 1);
        }
    });
    let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
    for (value, expected) in [(0, true), (199_999, true), (200_000, false)] {
        assert_eq!(matcher.matches_doc(doc! { "a": value }.as_raw()), Ok(expected), "{value}");
    }
    assert_eq!(matcher.matches_doc(doc! { "p7": 1 }.as_raw()), Ok(true));
}

/// Compiling regular expressions took seconds, in which nothing could stop it.
#[test]
fn parsing_can_be_ended() {
    let killed = || Err(sheaf_errors::Error::new(Code::INTERRUPTED, "operation was interrupted"));
    let memory = sheaf_meter::Process::new(u64::MAX, u64::MAX);
    let _meter = sheaf_meter::enter(sheaf_meter::Meter::new(&memory, std::sync::Arc::new(killed)));
    let branches = DocBuf::build(|filter| {
        let mut list = filter.array("$or");
        for n in 0..1000 {
            list.document().append("a", n).document("b").append("$gt", n);
        }
    });
    let schema = DocBuf::build(|filter| {
        let mut schema = filter.document("$jsonSchema");
        let mut properties = schema.document("properties");
        for n in 0..1000 {
            properties.document(&format!("f{n}")).append("bsonType", "int");
        }
    });
    for filter in [regexes(1000), branches, schema] {
        assert_eq!(parse(&filter).unwrap_err().code(), Code::INTERRUPTED);
    }
}

fn regexes(count: usize) -> DocBuf {
    DocBuf::build(|filter| {
        let mut operators = filter.document("a");
        let mut list = operators.array("$in");
        for n in 0..count {
            list.push(Value::Regex(Regex { pattern: &format!("^{n}a*b"), options: "" }));
        }
    })
}

/// 400,000 of them, a message of 8 MB, took half a gigabyte that nobody counted.
#[test]
fn compiled_patterns_belong_to_the_operation() {
    let properties = DocBuf::build(|filter| {
        let mut schema = filter.document("$jsonSchema");
        let mut patterns = schema.document("patternProperties");
        for n in 0..20_000 {
            patterns.document(&format!("^{n}a*b"));
        }
    });
    let process = sheaf_meter::Process::new(64 << 20, 4 << 20);
    let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
    for filter in [regexes(20_000), properties] {
        assert_eq!(parse(&filter).unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
        assert_eq!(process.used(), 0);
    }
    let matcher = parse(&regexes(100)).unwrap();
    assert!(process.used() > 10_000, "{}", process.used());
    drop(matcher);
    assert_eq!(process.used(), 0);
}

#[test]
fn a_filter_that_stays_has_few_patterns_and_nobody_pays_for_it() {
    let process = sheaf_meter::Process::new(64 << 20, 64 << 20);
    let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
    let lasting = |count| Matcher::parse_lasting(regexes(count).as_raw(), Features::None);
    assert_eq!(lasting(20_000).unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
    let few = lasting(100).unwrap();
    assert_eq!(process.used(), 0);
    assert_eq!(few.matches_doc(doc! { "a": "7ab" }.as_raw()), Ok(true));
    // Compiled once more, for a long text.
    assert_eq!(few.matches_doc(doc! { "a": &*"x".repeat(5000) }.as_raw()), Ok(false));
    assert_eq!(process.used(), 0);
}

/// 600,000 of them, a message of 13 MB, took 380 MB that nobody counted.
#[test]
fn large_trees_belong_to_the_operation() {
    let branches = DocBuf::build(|filter| {
        let mut list = filter.array("$or");
        (0..50_000).for_each(|n| _ = list.document().append("a", n));
    });
    let values = DocBuf::build(|filter| {
        let mut operators = filter.document("a");
        let mut list = operators.array("$in");
        (0..100_000).for_each(|n| _ = list.push(n));
    });
    for filter in [branches, values] {
        let process = sheaf_meter::Process::new(64 << 20, 4 << 20);
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
        assert_eq!(parse(&filter).unwrap_err().code(), Code::EXCEEDED_MEMORY_LIMIT);
        assert_eq!(process.used(), 0);
        let process = sheaf_meter::Process::new(64 << 20, 64 << 20);
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::background(&process));
        let matcher = parse(&filter).unwrap();
        assert!(process.used() > 4 << 20, "{}", process.used());
        // It is no compiled pattern, so it may stay.
        let lasting = Matcher::parse_lasting(filter.as_raw(), Features::None).unwrap();
        drop(matcher);
        assert_eq!(process.used(), 0);
        assert_eq!(lasting.matches_doc(doc! { "a": 7 }.as_raw()), Ok(true));
    }
}
