//! Values on their way into clients' JavaScript and back: what comes back is valid BSON, and goes through unchanged a second time. Code of any text
//! is a function or none.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{MAX_DEPTH, OwnedValue, RawDoc, Value, doc, validate};
use sheaf_fuzz::generate::{Choices, DEPTH};
use sheaf_js::{Sandbox, Script};

/// Functions that end, whatever they are given.
const CODE: &[&str] = &[
    "function(x) { return x }",
    "function(x) { return [x, {x: x}, this] }",
    "function(x) { for (var k in x) { x[k] = x[k] } return x }",
    "function(x) { var y = {}; for (var k in x) { y[k] = x[k] } return y }",
    "function(x) { return tojson(x) }",
    "function(x) { return String(x) + JSON.stringify(x === undefined ? null : Object.keys(Object(x))) }",
    "function(x) { return x == null ? x : x.valueOf() }",
    "function(x) { return {t: typeof x, n: Number(x), b: !!x, s: this.b === x} }",
    "function(x) { if (Array.isArray(x)) { x.push(1); x.reverse(); x.length = Math.min(x.length, 3) } return x }",
    "function(x) { delete Object(x).a; return x }",
];

fn scripts() -> &'static [Script] {
    static SCRIPTS: OnceLock<Vec<Script>> = OnceLock::new();
    SCRIPTS.get_or_init(|| CODE.iter().map(|code| Script::new(code).expect("it is a function")).collect())
}

fuzz_target!(|data: &[u8]| {
    if let Ok(length) = validate(data, MAX_DEPTH) {
        through(Value::Document(RawDoc::new(&data[..length])));
    }
    let mut choices = Choices::new(data);
    while !choices.is_over() {
        choices.refill();
        let value = choices.any(DEPTH);
        through(value.as_value());
    }
    // It is never called: it may have no end.
    if let (Ok(code), Ok(sandbox)) = (std::str::from_utf8(&data[..data.len().min(512)]), Sandbox::new()) {
        if !code.contains('(') && !code.contains('`') {
            _ = sandbox.add(&format!("function() {{ {code} }}"));
        }
    }
});

fn through(value: Value<'_>) {
    let this = doc! { "a": 1, "b": value };
    for (script, code) in scripts().iter().zip(CODE) {
        let Ok(first) = script.call(this.as_raw(), &[value]) else { continue };
        check(&first, code);
        if *code == CODE[0] {
            let second = script.call(this.as_raw(), &[first.as_value()]);
            assert_eq!(second.ok().as_ref(), Some(&first), "{value:?}");
        }
    }
}

fn check(value: &OwnedValue, code: &str) {
    let held = doc! { "v": value.as_value() };
    assert_eq!(validate(held.as_bytes(), 1000), Ok(held.as_bytes().len()), "{code} made {value:?}");
}
