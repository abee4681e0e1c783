//! Validation returns for any bytes; what it accepts can be walked, printed, compared, and built
//! again to the same bytes.
#![no_main]

use std::hash::DefaultHasher;

use libfuzzer_sys::fuzz_target;
use sheaf_bson::json::{Style, to_json};
use sheaf_bson::{
    CodeWithScope, DocBuf, MAX_DEPTH, RawDoc, Value, compare_docs, hash_value, hashed_index_value, validate,
};

fuzz_target!(|data: &[u8]| {
    let Ok(len) = validate(data, MAX_DEPTH) else { return };
    let doc = RawDoc::new(&data[..len]);
    assert_eq!(doc.len(), len);
    assert_eq!(rebuilt(doc).as_bytes(), doc.as_bytes());
    assert!(compare_docs(doc, rebuilt(doc).as_raw()).is_eq());
    let _ = format!("{doc:?}");
    for style in [Style::Canonical, Style::Relaxed, Style::Log] {
        let _ = to_json(doc, style);
    }
    hash_value(Value::Document(doc), &mut DefaultHasher::new());
    let _ = hashed_index_value(Value::Document(doc));
});

/// The document decoded and written again, value by value.
fn rebuilt(doc: RawDoc<'_>) -> DocBuf {
    DocBuf::build(|writer| {
        for element in doc.iter() {
            match element.value() {
                Value::Document(inner) => {
                    writer.append(element.key(), Value::Document(rebuilt(inner).as_raw()))
                }
                // Not renumbered: an array's keys are kept as they came.
                Value::Array(inner) => writer.append(element.key(), Value::Array(rebuilt(inner).as_raw())),
                Value::CodeWithScope(code) => {
                    let scope = rebuilt(code.scope);
                    let code = CodeWithScope { code: code.code, scope: scope.as_raw() };
                    writer.append(element.key(), Value::CodeWithScope(code))
                }
                value => writer.append(element.key(), value),
            };
        }
    })
}
