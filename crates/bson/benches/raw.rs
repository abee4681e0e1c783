//! What every operation does many times: walking, finding, comparing, keys.
#![allow(missing_docs)] // criterion's macro makes public functions

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use sheaf_bson::key::{Decoder, TypeBits, encode};
use sheaf_bson::path::FieldPath;
use sheaf_bson::{
    DocBuf, MAX_DEPTH, ObjectId, Value, compare, compare_docs, doc, hashed_index_value, number, validate,
};

/// Twenty fields of the types that documents mostly have.
fn sample() -> DocBuf {
    DocBuf::build(|writer| {
        writer.append("_id", ObjectId([7; 12]));
        for i in 0..6 {
            writer.append(&format!("count{i}"), i);
            writer.append(&format!("name{i}"), "a name of usual length");
            writer.append(&format!("price{i}"), f64::from(i) + 0.25);
        }
        let mut inner = writer.document("address");
        inner.append("city", "Heidelberg").append("zip", 69115);
    })
}

fn reading(c: &mut Criterion) {
    let doc = sample();
    let (raw, path) = (doc.as_raw(), FieldPath::new("address.zip"));
    c.bench_function("iterate 20 fields", |b| {
        b.iter(|| black_box(raw).iter().map(|e| e.data().len()).sum::<usize>())
    });
    c.bench_function("decode 20 fields", |b| {
        b.iter(|| black_box(raw).iter().filter(|e| matches!(e.value(), Value::Int32(_))).count());
    });
    c.bench_function("get the last of 20 fields", |b| b.iter(|| black_box(raw).get("address").is_some()));
    c.bench_function("path of two names", |b| b.iter(|| path.get(black_box(raw)).is_missing()));
    c.bench_function("validate 20 fields", |b| b.iter(|| validate(black_box(doc.as_bytes()), MAX_DEPTH)));
    c.bench_function("rebuild 20 fields", |b| {
        let mut out = Vec::with_capacity(1024);
        b.iter(|| {
            out.clear();
            let mut writer = sheaf_bson::DocWriter::new(&mut out);
            black_box(raw).iter().for_each(|e| _ = writer.append(e.key(), e.value()));
        });
    });
}

fn comparing(c: &mut Criterion) {
    let (a, b) = (sample(), sample());
    c.bench_function("compare equal documents of 20 fields", |bench| {
        bench.iter(|| compare_docs(black_box(a.as_raw()), black_box(b.as_raw())));
    });
    let decimal = Value::Decimal128("19.99".parse().unwrap_or(sheaf_bson::Decimal128::ZERO));
    for (name, x, y) in [
        ("int32", Value::Int32(1), Value::Int32(2)),
        ("int64 and double", Value::Int64(1), Value::Double(1.5)),
        ("decimal and double", decimal, Value::Double(19.99)),
        ("decimals", decimal, decimal),
    ] {
        c.bench_function(&format!("compare {name}"), |b| b.iter(|| compare(black_box(x), black_box(y))));
    }
    c.bench_function("add decimals", |b| b.iter(|| number::add(black_box(decimal), black_box(decimal))));
    c.bench_function("divide decimals", |b| {
        b.iter(|| number::divide(black_box(decimal), black_box(decimal)))
    });
    c.bench_function("hash for an index", |b| b.iter(|| hashed_index_value(black_box(Value::Int32(7)))));
}

fn keys(c: &mut Criterion) {
    let decimal = Value::Decimal128("19.99".parse().unwrap_or(sheaf_bson::Decimal128::ZERO));
    for (name, value) in [
        ("int32", Value::Int32(123_456)),
        ("ObjectId", Value::ObjectId(ObjectId([7; 12]))),
        ("string", Value::String("a name of usual length")),
        ("double", Value::Double(19.99)),
        ("decimal", decimal),
        ("date", Value::DateTime(1_700_000_000_000)),
    ] {
        let (mut out, mut types) = (Vec::with_capacity(64), TypeBits::new());
        c.bench_function(&format!("encode {name}"), |b| {
            b.iter(|| {
                out.clear();
                types.clear();
                encode(black_box(value), false, &mut out, &mut types);
            });
        });
        let (key, bits) = (out.clone(), types.as_bytes().to_vec());
        c.bench_function(&format!("decode {name}"), |b| {
            b.iter(|| Decoder::new(black_box(&key), &bits).next_value(false).is_some());
        });
    }
    let nested = doc! { "a": [1, 2, { "b": "x" }], "c": 2.5 };
    let (mut out, mut types) = (Vec::with_capacity(128), TypeBits::new());
    c.bench_function("encode nested document", |b| {
        b.iter(|| {
            out.clear();
            encode(black_box(Value::from(&nested)), true, &mut out, &mut types);
            types.clear();
        });
    });
}

criterion_group!(benches, reading, comparing, keys);
criterion_main!(benches);
