use std::sync::Arc;
use std::time::{Duration, Instant};

use sheaf_bson::{Binary, Decimal128, ObjectId, OwnedValue, RawDoc, Regex, Timestamp, Value, doc};
use sheaf_errors::Code;
use sheaf_meter::{Meter, Process};

use crate::{Sandbox, Script};

fn call(code: &str, args: &[Value<'_>]) -> OwnedValue {
    Script::new(code).expect("the code is one").call(RawDoc::EMPTY, args).expect("it does not fail")
}

fn refused(code: &str) -> sheaf_errors::Error {
    Script::new(code).and_then(|script| script.call(RawDoc::EMPTY, &[])).expect_err("it fails")
}

#[test]
fn code_is_a_function_an_expression_or_a_body() {
    let doc = doc! {"x": 5, "y": 10};
    for (code, expected) in [
        ("this.y > this.x", true),
        ("obj.y < obj.x", false),
        ("function() { return this.x == 5 }", true),
        ("function() { return this.x == 5; };  ", true),
        ("() => obj.y === 10", true),
        ("var twice = this.x * 2; return twice == this.y", true),
        ("if (this.x) return false; return true", false),
        ("true", true),
        ("0", false),
        ("'a'", true),
        ("''", false),
        ("null", false),
        ("NaN", false),
        ("({})", true),
        ("function() { return 1 }()", true),
        ("this.x == 5 // a comment", true),
    ] {
        assert_eq!(Script::new(code).unwrap().test(doc.as_raw()).unwrap(), expected, "{code}");
    }
}

#[test]
fn values_survive_a_round_trip() {
    let decimal: Decimal128 = "1.50".parse().unwrap();
    let inner = doc! {"a": 1, "b": 2i64};
    for value in [
        Value::Double(1.5),
        Value::Double(-0.0),
        Value::String("grün\u{0}🌱"),
        Value::Bool(true),
        Value::Null,
        Value::Undefined,
        Value::Int64(i64::MAX),
        Value::Int64(-7),
        Value::Decimal128(decimal),
        Value::ObjectId(ObjectId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255])),
        Value::DateTime(-62_135_596_800_000),
        Value::Timestamp(Timestamp::new(u32::MAX, 7)),
        Value::Binary(Binary { subtype: 4, bytes: &[0xAB; 16] }),
        Value::Binary(Binary { subtype: 0, bytes: &[] }),
        Value::Regex(Regex { pattern: "^a.b$", options: "im" }),
        Value::JavaScript("x"),
        Value::MinKey,
        Value::MaxKey,
        Value::Document(inner.as_raw()),
    ] {
        assert_eq!(call("function(x) { return x }", &[value]), OwnedValue::from(value), "{value:?}");
    }
    // A number by itself comes back as a double; so does an int32 in an array.
    assert_eq!(call("x => x", &[Value::Int32(5)]), OwnedValue::from(Value::Double(5.0)));
}

#[test]
fn what_is_handed_back_unchanged_keeps_its_type() {
    let given = doc! {"a": 1, "b": 2};
    let expected = doc! {"a": 1, "b": 3.0, "c": 1.0};
    let got = call("function(d) { d.b += 1; d.c = 1; return d }", &[Value::Document(given.as_raw())]);
    assert_eq!(got, OwnedValue::from(Value::Document(expected.as_raw())));
}

#[test]
fn the_shell_s_types_are_there() {
    for (code, expected) in [
        ("NumberLong('9223372036854775807').toString()", "NumberLong(\"9223372036854775807\")"),
        ("NumberLong(5) + 1 + ''", "6"),
        ("tojson(NumberInt(3))", "NumberInt(3)"),
        ("tojson({a: [1, 'x'], b: null})", "{\n\t\"a\" : [\n\t\t1,\n\t\t\"x\"\n\t],\n\t\"b\" : null\n}"),
        (
            "tojsononeline({a: ObjectId('0102030405060708090a0bff')})",
            "{ \"a\" : ObjectId(\"0102030405060708090a0bff\") }",
        ),
        ("tojson(ISODate('2020-01-02T03:04:05.678Z'))", "ISODate(\"2020-01-02T03:04:05.678Z\")"),
        ("BinData(0, 'YWJj').hex()", "616263"),
        ("BinData(0, 'YWI=').base64()", "YWI="),
        (
            "UUID('00112233-4455-6677-8899-aabbccddeeff').toString()",
            "UUID(\"00112233-4455-6677-8899-aabbccddeeff\")",
        ),
        ("hex_md5('a')", "0cc175b9c0f1b6a831c399e269772661"),
        ("String(Array.sum([1, 2, 3]))", "6"),
        ("String(Array.avg([1, 2, 3]))", "2"),
        ("String(ObjectId().str.length)", "24"),
        ("tojson(Timestamp(1, 2))", "Timestamp(1, 2)"),
        ("NumberDecimal('1.50').toString()", "NumberDecimal(\"1.50\")"),
    ] {
        assert_eq!(call(code, &[]), OwnedValue::from(Value::String(expected)), "{code}");
    }
}

#[test]
fn failures_are_the_engine_s_own_words() {
    for (code, beginning) in [
        ("nothing.x", "ReferenceError: nothing is not defined"),
        ("function( {", "SyntaxError"),
        ("throw 'no'", "uncaught exception: \"no\""),
        ("throw 10n", "uncaught exception: 10"),
        ("throw Symbol('x')", "uncaught exception: "),
        ("(function f() { return f() })()", "RangeError: Maximum call stack size exceeded"),
    ] {
        let error = refused(code);
        assert_eq!(error.code(), Code::JS_INTERPRETER_FAILURE, "{code}");
        assert!(error.message().starts_with(beginning), "{code}: {}", error.message());
    }
    for code in ["var a = []; a.length = 4294967295; return a", "var a = []; a[3e9] = 1; return {a: a}"] {
        assert_eq!(refused(code).code(), Code::BSON_OBJECT_TOO_LARGE, "{code}");
    }
    let cycle = refused("var a = {}; a.a = a; return a");
    assert_eq!(cycle.code(), Code(17279));
}

#[test]
fn there_is_no_way_out() {
    for code in [
        "require('fs')",
        "import('fs').then",
        "std.open('/etc/passwd')",
        "os.exec(['ls'])",
        "Deno",
        "process.exit()",
    ] {
        let got = Script::new(code).and_then(|script| script.call(RawDoc::EMPTY, &[]));
        assert!(got.is_err() || code.starts_with("import"), "{code}: {got:?}");
    }
}

#[test]
fn an_endless_loop_ends_with_its_operation() {
    let process = Process::new(4 << 30, 64 << 20);
    let meter = Meter::background(&process);
    for code in [
        "while (true) {}",
        "while (true) { try { while (true) {} } catch (e) {} }",
        "'a'.repeat(40).replace(/(a+)+b/, '')",
        "sleep(60000); return true",
        "try { sleep(60000) } catch (e) {} while (true) {}",
    ] {
        let script = Script::new(code).unwrap();
        let began = Instant::now();
        meter.set_deadline(Some(began + Duration::from_millis(50)));
        let _entered = sheaf_meter::enter(meter.clone());
        let error = script.test(RawDoc::EMPTY).expect_err("time is over");
        assert_eq!(error.code(), Code::MAX_TIME_MS_EXPIRED, "{code}: {error:?}");
    }
}

#[test]
fn an_operation_does_not_wait_for_built_in_functions() {
    let process = Process::new(4 << 30, 64 << 20);
    let meter = Meter::background(&process);
    // Each ends by itself after a minute or two, with a value; between two looks there are 10,000 calls.
    for code in [
        "const a = Array.from({length: 20000}, (_, i) => i); for (let i = 0; i < 5000; i++) a.sort(); return true",
        "const s = 'a'.repeat(1000000); for (let i = 0; i < 9000; i++) s.lastIndexOf('b' + i); return true",
    ] {
        let script = Script::new(code).unwrap();
        meter.set_deadline(Some(Instant::now() + Duration::from_millis(50)));
        let _entered = sheaf_meter::enter(meter.clone());
        let error = script.test(RawDoc::EMPTY).expect_err("time is over");
        assert_eq!(error.code(), Code::MAX_TIME_MS_EXPIRED, "{code}: {error:?}");
        // The next operation of the connection: the sandbox is gone, its function is not waited for.
        meter.set_deadline(None);
        let error = script.test(RawDoc::EMPTY).expect_err("it has no engine");
        assert_eq!(error.code(), Code::JS_INTERPRETER_FAILURE, "{code}: {error:?}");
        assert!(Script::new("true").unwrap().test(RawDoc::EMPTY).unwrap(), "others go on");
    }
}

#[test]
fn sleep_takes_its_time_and_one_number() {
    let began = Instant::now();
    assert!(
        Script::new("sleep(20); sleep(0); sleep(-1); sleep(NaN); return true")
            .unwrap()
            .test(RawDoc::EMPTY)
            .unwrap()
    );
    assert!(began.elapsed() >= Duration::from_millis(20));
    for code in ["sleep()", "sleep('1')", "sleep(1, 2)"] {
        let error = Script::new(code).unwrap().test(RawDoc::EMPTY).expect_err("no number");
        assert!(
            error.message().contains("sleep takes a single numeric argument -- sleep(milliseconds)"),
            "{error:?}"
        );
    }
}

#[test]
fn memory_is_paid_for_and_bounded() {
    let process = Process::new(1 << 30, 100 << 20);
    let meter = Meter::background(&process);
    let _entered = sheaf_meter::enter(meter);
    let script =
        Script::new("function(n) { return Array.from({length: n}, (_, i) => 'x' + i).length }").unwrap();
    let before = process.used();
    // More than it has at first.
    let got = script.call(RawDoc::EMPTY, &[Value::Int32(200_000)]).expect("there is enough");
    assert_eq!(got, OwnedValue::from(Value::Double(200_000.0)));
    assert!(process.used() > before, "what it takes is paid");
    let error = script.call(RawDoc::EMPTY, &[Value::Int32(50_000_000)]).expect_err("that is too much");
    assert_eq!(error.code(), Code::EXCEEDED_MEMORY_LIMIT, "{error:?}");
    drop(script);
    assert_eq!(process.used(), 0);
}

#[test]
fn emitted_pairs_are_as_they_were_then() {
    let sandbox = Sandbox::of_map().unwrap();
    sandbox.set_global("f", Value::Int32(3)).unwrap();
    let map = sandbox
        .add("function() { var v = {n: this.x * f}; emit(this.k, v); v.n = 0; emit('end', v) }")
        .unwrap();
    map.call(doc! {"k": "a", "x": 2}.as_raw(), &[]).unwrap();
    let pairs = sandbox.take_emitted();
    let shown: Vec<_> =
        pairs.iter().map(|(key, value)| format!("{:?} {:?}", key.as_value(), value.as_value())).collect();
    assert_eq!(pairs.len(), 2, "{shown:?}");
    assert_eq!(pairs[0].0, OwnedValue::from(Value::String("a")));
    assert_eq!(pairs[0].1, OwnedValue::from(Value::Document(doc! {"n": 6.0}.as_raw())));
    assert!(sandbox.take_emitted().is_empty());
    let _: Arc<Sandbox> = sandbox;
}

#[test]
fn what_is_emitted_is_paid_for_and_bounded() {
    let process = Process::new(1 << 30, 64 << 20);
    let meter = Meter::background(&process);
    let _entered = sheaf_meter::enter(meter);
    let sandbox = Sandbox::of_map().unwrap();
    let map = sandbox
        .add("function() { let s = 'x'.repeat(1e6); for (let i = 0; i < this.n; i++) { try { emit(i, s) } catch (e) {} } }")
        .unwrap();
    let before = process.used();
    map.call(doc! {"n": 20}.as_raw(), &[]).unwrap();
    assert!(process.used() > before + 20_000_000, "{} bytes", process.used() - before);
    drop(sandbox.take_emitted());
    assert_eq!(process.used(), before);
    // It cannot catch that.
    let error = map.call(doc! {"n": 1_000_000_000}.as_raw(), &[]).expect_err("that is too much");
    assert_eq!(error.code(), Code::EXCEEDED_MEMORY_LIMIT, "{error:?}");

    let unknown = Script::new("function() { emit(1, 2) }").unwrap().call(RawDoc::EMPTY, &[]);
    let error = unknown.expect_err("it is no map function");
    assert!(error.message().contains("emit is not defined"), "{error:?}");
}
