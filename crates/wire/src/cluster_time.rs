//! `$clusterTime`, which every message within a cluster and every reply of a set has.

use sheaf_bson::{DocWriter, Timestamp};

/// The whole element, with the signature of a server that has no keys and without the time: nothing else of it ever differs.
const ELEMENT: &[u8; 102] = b"\x03$clusterTime\0\x58\0\0\0\
    \x11clusterTime\0\0\0\0\0\0\0\0\0\
    \x03signature\0\x33\0\0\0\
    \x05hash\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \x12keyId\0\0\0\0\0\0\0\0\0\0\0";

/// Where the time stands in it.
const TIME_AT: usize = 31;

/// Adds `$clusterTime`, with the signature of a server that has no keys.
pub fn append_cluster_time(body: &mut DocWriter<'_, Vec<u8>>, time: Timestamp) {
    let mut element = *ELEMENT;
    element[TIME_AT..TIME_AT + 8].copy_from_slice(&time.0.to_le_bytes());
    body.append_raw_elements(&element);
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{Binary, DocBuf, Value, doc};

    use super::*;

    #[test]
    fn it_is_what_would_be_built() {
        let time = Timestamp::new(0x0102_0304, 0x0506_0708);
        let told = DocBuf::build(|body| append_cluster_time(body, time));
        let hash = Value::Binary(Binary { subtype: 0, bytes: &[0; 20] });
        let built = doc! {
            "$clusterTime": { "clusterTime": Value::Timestamp(time), "signature": { "hash": hash, "keyId": 0i64 } }
        };
        assert_eq!(told, built);
        assert_eq!(sheaf_bson::validate(told.as_bytes(), 8).ok(), Some(told.as_bytes().len()));
    }
}
