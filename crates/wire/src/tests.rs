use proptest::prelude::*;
use sheaf_bson::{RawDoc, doc};

use super::*;

fn msg(body: &[u8], sequences: &[(&str, &[&[u8]])], flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(body);
    for (name, documents) in sequences {
        bytes.push(1);
        let size = 4 + name.len() + 1 + documents.iter().map(|d| d.len()).sum::<usize>();
        bytes.extend_from_slice(&(size as i32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        documents.iter().for_each(|d| bytes.extend_from_slice(d));
    }
    finish_msg(&mut bytes, 7, 0, flags);
    bytes
}

fn parsed(bytes: &[u8]) -> OpMsg<'_> {
    match parse(bytes) {
        Ok(Request::Msg(msg)) => msg,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_with_sequences() {
    let body = doc! { "insert": "c", "$db": "t" };
    let (one, two) = (doc! { "_id": 1 }, doc! { "_id": 2 });
    let bytes = msg(body.as_bytes(), &[("documents", &[one.as_bytes(), two.as_bytes()])], 0);
    let message = parsed(&bytes);
    assert_eq!(message.body, body.as_raw());
    let (sequences, count) = message.sequences();
    assert_eq!((count, sequences[0].name), (1, "documents"));
    assert_eq!(sequences[0].iter().collect::<Vec<RawDoc<'_>>>(), [one.as_raw(), two.as_raw()]);
}

#[test]
fn sections_that_contradict_each_other() {
    let body = doc! { "insert": "c", "documents": [] };
    let one = doc! { "_id": 1 };
    let code = |bytes: &[u8]| match parse(bytes) {
        Err(WireError::Answer(error)) => error.code().0,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(&msg(body.as_bytes(), &[("documents", &[one.as_bytes()])], 0)), 40433);
    assert_eq!(code(&msg(body.as_bytes(), &[("x", &[]), ("x", &[])], 0)), 40431);
    let mut twice = msg(body.as_bytes(), &[], 0);
    twice.push(0);
    twice.extend_from_slice(body.as_bytes());
    finish_msg(&mut twice, 1, 0, 0);
    assert_eq!(code(&twice), 40430);
}

#[test]
fn checksums_are_verified() {
    let body = doc! { "ping": 1, "$db": "t" };
    let mut bytes = msg(body.as_bytes(), &[], Flags::CHECKSUM_PRESENT);
    assert!(parsed(&bytes).flags.checksum_present());
    let at = bytes.len() - 8;
    bytes[at] ^= 1;
    assert!(matches!(parse(&bytes), Err(WireError::Close(_))));
}

#[test]
fn lengths_are_checked_before_they_are_believed() {
    for length in [0i32, 15, -1, 48_000_001 + (4 << 20), i32::MAX, i32::MIN] {
        let mut head = [0u8; 16];
        head[..4].copy_from_slice(&length.to_le_bytes());
        assert!(Header::parse(&head).is_err(), "{length}");
    }
    // The largest message of a client, with what a router adds for each of 100,000 statements.
    let mut head = [0u8; 16];
    let largest: i32 = 48_000_000 + 100_000 * (12 + 17) + (64 << 10);
    head[..4].copy_from_slice(&largest.to_le_bytes());
    head[12..].copy_from_slice(&2013i32.to_le_bytes());
    assert!(Header::parse(&head).is_ok());
}

#[test]
fn a_bomb_is_refused() {
    let body = doc! { "ping": 1, "pad": &*"x".repeat(1 << 20), "$db": "t" };
    for compressor in [Compressor::Zlib, Compressor::Zstd, Compressor::Snappy, Compressor::Noop] {
        let mut packed = compress(&msg(body.as_bytes(), &[], 0), compressor, 6).unwrap();
        // Claim less than there is, then more.
        for claim in [100i32, 47_000_000] {
            packed[20..24].copy_from_slice(&claim.to_le_bytes());
            assert!(matches!(decompress(&packed), Err(WireError::Close(_))), "{compressor:?} {claim}");
        }
    }
}

#[test]
fn a_window_larger_than_the_message_is_refused() {
    use std::io::Write;
    // A stream that says nothing of its size, so that its frame asks for the whole window.
    let pack = |window_log: u32| {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(window_log).unwrap();
        encoder.write_all(b"\0\0\0\0").unwrap();
        encoder.flush().unwrap();
        let data = encoder.finish().unwrap();
        let mut message = vec![0; HEADER_LEN];
        message.extend_from_slice(&2013i32.to_le_bytes());
        message.extend_from_slice(&4i32.to_le_bytes());
        message.push(3);
        message.extend_from_slice(&data);
        let length = message.len() as u32;
        Header { length, request_id: 1, response_to: 0, opcode: OpCode::Compressed }.write(&mut message);
        message
    };
    assert!(decompress(&pack(23)).is_ok());
    assert!(matches!(decompress(&pack(27)), Err(WireError::Close(_))));
}

#[test]
fn old_query() {
    let body = doc! { "isMaster": 1 };
    let mut bytes = vec![0; 20];
    bytes.extend_from_slice(b"admin.$cmd\0");
    bytes.extend_from_slice(&[0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
    bytes.extend_from_slice(body.as_bytes());
    let length = bytes.len() as u32;
    Header { length, request_id: 1, response_to: 0, opcode: OpCode::Query }.write(&mut bytes);
    let Ok(Request::Query(query)) = parse(&bytes) else { panic!() };
    assert_eq!((query.command_db(), query.body), (Some("admin"), body.as_raw()));
}

proptest! {
    #[test]
    fn compression_is_undone(text in ".{0,4000}", which in 0usize..4) {
        let compressor = [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd][which];
        let bytes = msg(doc! { "x": &text }.as_bytes(), &[], 0);
        let packed = compress(&bytes, compressor, 6).unwrap();
        prop_assert_eq!(decompress(&packed).unwrap(), (bytes, compressor));
    }

    #[test]
    fn noise_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 16..400), opcode in prop::sample::select(vec![2013, 2004, 2012])) {
        let length = bytes.len() as i32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[12..16].copy_from_slice(&i32::to_le_bytes(opcode));
        let _ = parse(&bytes);
        let _ = decompress(&bytes);
    }

    #[test]
    fn a_flipped_byte_never_panics(at in 16usize..90, to in any::<u8>()) {
        let one = doc! { "_id": 1, "a": ["x", { "y": 2.5 }] };
        let mut bytes = msg(doc! { "insert": "c", "$db": "t" }.as_bytes(), &[("documents", &[one.as_bytes()])], 0);
        if at < bytes.len() { bytes[at] = to; }
        let _ = parse(&bytes);
    }
}
