//! Any bytes as a message: parsing returns, allocates no more than the bytes can account for, and what it
//! accepts means the same when it is written again. Compressed messages likewise.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use libfuzzer_sys::fuzz_target;
use sheaf_wire::{
    Compressor, Flags, HEADER_LEN, Header, OpCode, OpMsg, OpQuery, REPLY_HEAD, Request, checksum_matches,
    compress, decompress, finish_msg, parse,
};

/// The system's allocator, with the most that was held at once.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// State of a decompressor, and texts of errors.
const OVERHEAD: usize = 512 * 1024;

/// What a byte of input can become: zstd repeats 128 KiB for four bytes.
const LARGEST_RATIO: usize = 40_000;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    any_message(rest);
    let opcode = [OpCode::Msg, OpCode::Query, OpCode::Compressed, OpCode::Msg][usize::from(mode & 3)];
    let mut message = vec![0; HEADER_LEN];
    message.extend_from_slice(rest);
    if opcode == OpCode::Msg && mode & 4 != 0 && message.len() >= HEADER_LEN + 4 {
        // With a checksum that is right.
        message[HEADER_LEN] |= Flags::CHECKSUM_PRESENT as u8;
        let length = message.len() as u32 + 4;
        Header { length, request_id: 1, response_to: 0, opcode }.write(&mut message);
        let flags = u32::from_le_bytes([message[16], message[17], message[18], message[19]]);
        let mut whole = message.clone();
        let body = message[REPLY_HEAD.min(message.len())..].to_vec();
        whole.truncate(REPLY_HEAD);
        whole.resize(REPLY_HEAD, 0);
        whole.extend_from_slice(&body);
        finish_msg(&mut whole, 1, 0, flags);
        assert!(checksum_matches(&whole));
        any_message(&whole);
    }
    let length = message.len() as u32;
    Header { length, request_id: 1, response_to: 0, opcode }.write(&mut message);
    any_message(&message);
    if opcode != OpCode::Compressed {
        for compressor in [Compressor::Noop, Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
            compressed(&message, compressor, *mode);
        }
    }
});

/// Parses whatever it is, and measures.
fn any_message(bytes: &[u8]) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let _ = Header::parse(bytes);
    let parsed = parse(bytes);
    let unpacked = decompress(bytes);
    let took = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    // A vector that grows holds its old and its new memory for a moment.
    let claimed = bytes.get(20..24).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    let bound = OVERHEAD + 3 * claimed.min(bytes.len().saturating_mul(LARGEST_RATIO));
    assert!(took <= bound, "{took} bytes for a message of {} that claims {claimed}", bytes.len());
    if let Ok((message, compressor)) = unpacked {
        let again = compress(&message, compressor, 6).expect("compression works");
        assert_eq!(decompress(&again), Ok((message, compressor)));
    }
    match parsed {
        Ok(Request::Msg(message)) => written_again(&message),
        Ok(Request::Query(query)) => query_written_again(&query),
        Err(_) => {}
    }
}

fn written_again(message: &OpMsg<'_>) {
    let (sequences, count) = message.sequences();
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(message.body.as_bytes());
    for sequence in &sequences[..count] {
        bytes.push(1);
        let size = 4 + sequence.name.len() + 1 + sequence.bytes.len();
        bytes.extend_from_slice(&(size as i32).to_le_bytes());
        bytes.extend_from_slice(sequence.name.as_bytes());
        bytes.push(0);
        sequence.iter().for_each(|document| bytes.extend_from_slice(document.as_bytes()));
    }
    finish_msg(&mut bytes, message.header.request_id, message.header.response_to, message.flags.0);
    let Ok(Request::Msg(again)) = parse(&bytes) else { panic!("{message:?} can't be written again") };
    assert_eq!(again.body.as_bytes(), message.body.as_bytes());
    assert_eq!(again.flags, message.flags);
    let (others, other_count) = again.sequences();
    assert_eq!(count, other_count);
    for (one, other) in sequences.iter().zip(&others) {
        assert_eq!((one.name, one.bytes), (other.name, other.bytes));
    }
}

fn query_written_again(query: &OpQuery<'_>) {
    let mut bytes = vec![0; HEADER_LEN + 4];
    bytes.extend_from_slice(query.namespace.as_bytes());
    bytes.extend_from_slice(&[0; 1 + 8]);
    bytes.extend_from_slice(query.body.as_bytes());
    let length = bytes.len() as u32;
    Header { length, ..query.header }.write(&mut bytes);
    let Ok(Request::Query(again)) = parse(&bytes) else { panic!("{query:?} can't be written again") };
    assert_eq!(again.namespace, query.namespace);
    let wrapped = query.body.iter().next().is_some_and(|first| matches!(first.key(), "query" | "$query"));
    assert!(wrapped || again.body.as_bytes() == query.body.as_bytes());
}

/// A message packed and unpacked is the same; with one byte changed it is anything but a panic.
fn compressed(message: &[u8], compressor: Compressor, change: u8) {
    let mut packed = compress(message, compressor, u32::from(change % 10)).expect("compression works");
    assert_eq!(decompress(&packed).expect("what was packed").0, message);
    let at = HEADER_LEN + usize::from(change) % (packed.len() - HEADER_LEN);
    packed[at] ^= change | 1;
    any_message(&packed);
}
