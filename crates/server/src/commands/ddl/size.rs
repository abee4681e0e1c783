//! Sizes for the commands that report them.

use sheaf_bson::DocWriter;
use sheaf_storage::{Collection, Engine};

/// Appends a number as MongoDB does where it picks the smallest type: int32 while it is below 2^30.
pub fn append_number(doc: &mut DocWriter<'_, Vec<u8>>, key: &str, n: u64) {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    match i32::try_from(n) {
        Ok(small) if small < 1 << 30 => doc.append(key, small),
        _ => doc.append(key, n),
    };
}

/// Bytes that a collection's records take. What is only in memory yet counts with its plain size.
pub fn storage_bytes(engine: &Engine, collection: &Collection) -> u64 {
    match engine.storage_bytes(collection) {
        0 => collection.data_bytes(),
        bytes => bytes,
    }
}

/// Bytes that all indexes of a collection take.
pub fn index_bytes(engine: &Engine, collection: &Collection) -> u64 {
    collection.indexes.iter().map(|index| engine.index_bytes(index)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::{DocBuf, Value};

    #[test]
    fn small_numbers_are_int32() {
        for (n, is_long) in [(0, false), ((1 << 30) - 1, false), (1 << 30, true), (u64::MAX, true)] {
            let doc = DocBuf::build(|doc| append_number(doc, "n", n));
            assert_eq!(matches!(doc.as_raw().get("n"), Some(Value::Int64(_))), is_long, "{n}");
        }
    }
}
