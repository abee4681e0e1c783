//! What is said on a connection over which a copy is fetched.
//!
//! ```text
//! fetching member                        source
//! magic, {set, from, nonce, atLeast, copy?} ->
//!                                 <-     {ok: true, copy, term, index, time, files: [{n, s}, ...]}
//! {fetch: [{f, o}, ...]}          ->     numbers of files, and from where on
//!                                 <-     chunks, one file after another, and a last one of no file
//! {done: true}                    ->     the copy can go
//! ```
//!
//! Documents are BSON. A chunk is `file u32, length u32, offset u64, crc u32` and its bytes; the CRC-32C is over all of it
//! but itself.

use std::io::{self, Read, Write};

use sheaf_bson::{DocBuf, RawDoc};

/// The first word: read as a message's length it would be above the largest allowed.
pub const MAGIC: [u8; 4] = *b"ShCp";

/// Bytes of a chunk, but for a file's last one.
pub const CHUNK_BYTES: usize = 1 << 20;

/// A list of files is never longer.
const DOCUMENT_BYTES_MAX: usize = 64 << 20;

const HEAD: usize = 20;

/// The number of no file: the end.
const END: u32 = u32::MAX;

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub fn write_document(out: &mut impl Write, doc: RawDoc<'_>) -> io::Result<()> {
    out.write_all(doc.as_bytes())?;
    out.flush()
}

pub fn read_document(from: &mut impl Read) -> io::Result<DocBuf> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let len = u32::from_le_bytes(length) as usize;
    if !(5..=DOCUMENT_BYTES_MAX).contains(&len) {
        return Err(bad("a document's length makes no sense"));
    }
    let mut bytes = length.to_vec();
    // What is allocated follows what arrives.
    from.take(len as u64 - 4).read_to_end(&mut bytes)?;
    if bytes.len() != len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    sheaf_bson::validate(&bytes, 20).map_err(|error| bad(&error.to_string()))?;
    Ok(DocBuf::from(RawDoc::new(&bytes)))
}

fn head(file: u32, offset: u64, bytes: &[u8]) -> [u8; HEAD] {
    assert!(bytes.len() <= CHUNK_BYTES, "a chunk of {} bytes", bytes.len());
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&file.to_le_bytes());
    head[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&offset.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..16]), bytes);
    head[16..].copy_from_slice(&crc.to_le_bytes());
    head
}

pub fn write_chunk(out: &mut impl Write, file: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&head(file, offset, bytes))?;
    out.write_all(bytes)
}

pub fn write_end(out: &mut impl Write) -> io::Result<()> {
    write_chunk(out, END, 0, &[])?;
    out.flush()
}

/// Reads a chunk into `bytes`, and gives its file and offset; `None` at the end.
pub fn read_chunk(from: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<Option<(u32, u64)>> {
    let mut found = [0; HEAD];
    from.read_exact(&mut found)?;
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| found[at + i]));
    let offset = u64::from_le_bytes(std::array::from_fn(|i| found[8 + i]));
    let (file, len) = (number(0), number(4) as usize);
    if len > CHUNK_BYTES {
        return Err(bad("a chunk is too long"));
    }
    bytes.resize(len, 0);
    from.read_exact(bytes)?;
    if head(file, offset, bytes) != found {
        return Err(bad("a chunk does not have its checksum"));
    }
    Ok((file != END).then_some((file, offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_back_and_damage_is_seen() {
        let mut wire = Vec::new();
        write_chunk(&mut wire, 3, 77, b"some bytes").unwrap();
        write_end(&mut wire).unwrap();
        let mut bytes = Vec::new();
        let mut from = &wire[..];
        assert_eq!(read_chunk(&mut from, &mut bytes).unwrap(), Some((3, 77)));
        assert_eq!(bytes, b"some bytes");
        assert_eq!(read_chunk(&mut from, &mut bytes).unwrap(), None);
        for at in 0..wire.len() - HEAD {
            let mut damaged = wire.clone();
            damaged[at] ^= 4;
            assert!(read_chunk(&mut &damaged[..], &mut bytes).is_err(), "{at}");
        }
        assert!(read_chunk(&mut &wire[..15], &mut bytes).is_err());
    }

    #[test]
    fn documents_come_back_and_nonsense_is_refused() {
        let doc = sheaf_bson::doc! { "set": "rs", "atLeast": { "t": 1 } };
        let mut wire = Vec::new();
        write_document(&mut wire, doc.as_raw()).unwrap();
        assert_eq!(read_document(&mut &wire[..]).unwrap(), doc);
        assert!(read_document(&mut &wire[..wire.len() - 1]).is_err());
        assert!(read_document(&mut &b"\xff\xff\xff\x7f"[..]).is_err());
        assert!(read_document(&mut &b"\x01\0\0\0\0\0"[..]).is_err());
    }
}
