use proptest::prelude::*;
use sheaf_bson::testing::{any_document, any_value};
use sheaf_bson::{ArrayBuf, Binary, Decimal128, DocBuf, ObjectId, OwnedValue, Timestamp, Value, doc};

use super::*;

/// A value or none, as an element of a document gives it.
type Cell = Option<OwnedValue>;

fn element(value: &OwnedValue) -> DocBuf {
    DocBuf::new().with("", value.as_value())
}

fn written(cells: &[Cell]) -> Vec<u8> {
    let mut writer = ColumnWriter::new();
    for cell in cells {
        match cell {
            None => writer.skip(),
            Some(value) => {
                let document = element(value);
                let field = document.as_raw().iter().next().unwrap();
                writer.append(field.as_bytes()[0], field.data());
            }
        }
    }
    assert_eq!(writer.count() as usize, cells.len());
    let mut bytes = Vec::new();
    writer.finish_into(&mut bytes);
    bytes
}

/// A value's type and bytes, or none.
type Raw = Option<(u8, Vec<u8>)>;

fn read(bytes: &[u8]) -> sheaf_errors::Result<Vec<Raw>> {
    let mut reader = ColumnReader::new(0, bytes.len());
    let mut found = Vec::new();
    while reader.advance(bytes)? {
        found.push(reader.value(bytes).map(|(kind, data)| (kind, data.to_vec())));
        if found.len() > 100_000 {
            break;
        }
    }
    Ok(found)
}

fn raw(cell: &Cell) -> Raw {
    let document = element(cell.as_ref()?);
    document.as_raw().iter().next().map(|field| (field.as_bytes()[0], field.data().to_vec()))
}

fn check(cells: &[Cell]) {
    let expected: Vec<_> = cells.iter().map(raw).collect();
    assert_eq!(read(&written(cells)).unwrap(), expected);
}

fn cell<'v>(value: impl Into<Value<'v>>) -> Cell {
    Some(OwnedValue::from(value.into()))
}

/// Rows as sensors give them: small steps, runs, gaps.
fn series() -> impl Strategy<Value = Vec<Cell>> {
    let step = prop_oneof![4 => -3..3i64, 2 => -2000..2000i64, 1 => any::<i64>()];
    let kinds = 0..11usize;
    (kinds, prop::collection::vec((step, 1..30usize, 0..12u8), 1..60)).prop_map(|(kind, steps)| {
        let mut number = 1_700_000_000_000i64;
        let mut cells = Vec::new();
        for (step, times, what) in steps {
            for _ in 0..times {
                number = number.wrapping_add(step);
                let small = number % 1_000_003;
                let value = match (what, kind) {
                    (0, _) => None,
                    (1, _) => cell(f64::NAN),
                    (_, 0) => cell(number),
                    (_, 1) => cell(small as i32),
                    (_, 2) => cell(Value::DateTime(number)),
                    (_, 3) => cell(small as f64 / 10.0),
                    (_, 4) => cell((number as f64).sin()),
                    (2, 5) => cell(-0.0),
                    (_, 5) => cell(small as f64 / 10_000.0),
                    (_, 6) => cell(format!("sensor {small}").as_str()),
                    (_, 7) => cell(Value::Timestamp(Timestamp(number as u64))),
                    (_, 8) => {
                        let mut id = [7; 12];
                        id[..4].copy_from_slice(&(small as u32).to_be_bytes());
                        id[9..].copy_from_slice(&(small as u32).to_be_bytes()[1..]);
                        cell(Value::ObjectId(ObjectId(id)))
                    }
                    (_, 9) => cell(Value::Decimal128(Decimal128(i128::from(number).to_le_bytes()))),
                    (_, _) => cell(Value::Binary(Binary { subtype: 0, bytes: &small.to_be_bytes() })),
                };
                cells.push(value);
            }
        }
        cells
    })
}

/// Documents that are much alike.
fn alike() -> impl Strategy<Value = Vec<Cell>> {
    let shapes = prop::collection::vec((0..9u8, 0..50i32, 1..20usize), 1..30);
    shapes.prop_map(|shapes| {
        let mut cells = Vec::new();
        for (shape, n, times) in shapes {
            let document = match shape {
                0 => doc! { "a": n, "b": { "x": f64::from(n) / 10.0, "y": [n, 2] } },
                1 => doc! { "a": n, "b": { "x": 1.5, "y": [n] }, "c": "late" },
                2 => doc! { "b": { "y": [1, n, 3] } },
                3 => doc! { "a": n, "e": {}, "b": { "x": 1 } },
                4 => doc! { "b": 1, "a": n },
                5 => doc! { "a": Value::Null, "b": { "x": "text", "z": { "deep": n } } },
                6 => doc! {},
                7 => doc! { "e": { "f": {} } },
                _ => {
                    cells.push(None);
                    doc! { "a": n }
                }
            };
            for _ in 0..times {
                cells.push(if shape % 4 == 1 && times % 5 == 0 {
                    cell(&sheaf_bson::ArrayBuf::of([document.as_raw()]))
                } else {
                    cell(&document)
                });
            }
        }
        cells
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn series_come_back(cells in series()) {
        check(&cells);
    }

    #[test]
    fn alike_documents_come_back(cells in alike()) {
        check(&cells);
    }

    #[test]
    fn any_values_come_back(cells in prop::collection::vec((prop::option::of(any_value()), 1..5usize), 0..40)) {
        let cells: Vec<Cell> =
            cells.into_iter().flat_map(|(cell, times)| std::iter::repeat_n(cell, times)).collect();
        check(&cells);
    }

    #[test]
    fn any_documents_come_back(documents in prop::collection::vec(any_document(), 0..12)) {
        let cells: Vec<Cell> = documents.iter().chain(documents.iter()).map(cell).collect();
        check(&cells);
    }

    /// Whatever the bytes are, reading ends, and gives well-formed values.
    #[test]
    fn forged_columns_give_errors(cells in prop_oneof![series(), alike()], cuts in prop::collection::vec((any::<u16>(), any::<u8>()), 1..6)) {
        let mut bytes = written(&cells[..cells.len().min(60)]);
        for (at, byte) in cuts {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(found) = read(&bytes) {
            for (kind, data) in found.into_iter().flatten().take(2000) {
                let mut whole = vec![kind, 0];
                whole.extend_from_slice(&data);
                prop_assert_eq!(sheaf_bson::validate_element(&whole, sheaf_bson::MAX_DEPTH).unwrap(), whole.len());
            }
        }
    }
}

/// Documents of any depth that can be stored come back.
#[test]
fn deep_documents() {
    let mut nested = doc! { "x": 1 };
    let mut cells = Vec::new();
    for depth in 2..sheaf_bson::MAX_STORED_DEPTH {
        nested = doc! { "a": &nested };
        if depth % 20 == 0 {
            cells.extend([cell(&nested), cell(&nested)]);
        }
    }
    check(&cells);
}

#[test]
fn words_are_as_specified() {
    // 1, then four times one more: a literal, and one word of four numbers of 15 bits.
    let cells: Vec<Cell> = (1..6).map(cell).collect();
    let word = 11u64 | 2 << 4 | 2 << 19 | 2 << 34 | 2 << 49;
    let mut expected = vec![0x10, 0, 1, 0, 0, 0, 0x80];
    expected.extend_from_slice(&word.to_le_bytes());
    expected.push(0);
    assert_eq!(written(&cells), expected);
    assert_eq!(written(&[]), [0]);
}

#[test]
fn constant_columns_are_short() {
    let cells = vec![cell("the same text each time, and longer than sixteen bytes"); 1000];
    let bytes = written(&cells);
    assert!(bytes.len() < 120, "{}", bytes.len());
    check(&cells);
    let times: Vec<Cell> = (0..1000).map(|n| cell(Value::DateTime(1_700_000_000_000 + n * 1000))).collect();
    assert!(written(&times).len() < 80);
}

#[test]
fn documents_of_many_fields_are_read_back() {
    for most in [999, 1_001, 150_000] {
        let list = |first: i32| {
            let list = ArrayBuf::build(|out| (first..first + most).for_each(|at| _ = out.push(at)));
            cell(Value::Array(list.as_raw()))
        };
        check(&[list(0), None, list(7), cell(1), list(9)]);
    }
    // Each has fields of its own.
    let wide = |from: i32| {
        let document =
            DocBuf::build(|out| (from..from + 700).for_each(|at| _ = out.append(&at.to_string(), at)));
        cell(document.as_raw())
    };
    check(&(0..6).map(|at| wide(at * 700)).collect::<Vec<_>>());
}

#[test]
fn memory_is_known() {
    let mut writer = ColumnWriter::new();
    let list = ArrayBuf::build(|out| (0..500).for_each(|at| _ = out.push(at)));
    let before = writer.memory();
    writer.append(4, list.as_raw().as_bytes());
    assert!(before < 100 && writer.memory() > 500 * 200, "{before} {}", writer.memory());
}
