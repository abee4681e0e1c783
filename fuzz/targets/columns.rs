//! Any bytes as a column of a time-series bucket: reading ends, with an error or with well-formed values, and what is read can be written and
//! comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{MAX_DEPTH, validate_element};
use sheaf_timeseries::{ColumnReader, ColumnWriter};

/// More values of one column are not looked at: a word may stand for two thousand.
const MOST: usize = 5000;

type Cell = Option<(u8, Vec<u8>)>;

fn read(bytes: &[u8]) -> (Vec<Cell>, bool) {
    let mut reader = ColumnReader::new(0, bytes.len());
    let mut cells = Vec::new();
    while cells.len() < MOST {
        match reader.advance(bytes) {
            Ok(true) => cells.push(reader.value(bytes).map(|(kind, data)| (kind, data.to_vec()))),
            Ok(false) => return (cells, true),
            Err(_) => break,
        }
    }
    (cells, false)
}

fuzz_target!(|data: &[u8]| {
    let (cells, _) = read(data);
    let mut writer = ColumnWriter::new();
    for cell in &cells {
        let Some((kind, data)) = cell else {
            writer.skip();
            continue;
        };
        let mut element = vec![*kind, 0];
        element.extend_from_slice(data);
        assert_eq!(validate_element(&element, MAX_DEPTH), Ok(element.len()));
        writer.append(*kind, data);
    }
    let mut finished = Vec::new();
    writer.finish_into(&mut finished);
    let (again, ended) = read(&finished);
    assert!(ended || cells.len() == MOST);
    assert_eq!(again, cells);
});
