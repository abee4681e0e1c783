//! OP_COMPRESSED.

use std::io::{Read, Write};

use crate::WireError;
use crate::header::{ADDED_ON_THE_WAY, HEADER_LEN, Header, MAX_MESSAGE_SIZE, OpCode};

/// Bytes between the header and the compressed ones: opcode, size, compressor.
const PREFIX_LEN: usize = 4 + 4 + 1;

/// How a message is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compressor {
    /// 0: not at all.
    Noop,
    /// 1.
    Snappy,
    /// 2.
    Zlib,
    /// 3.
    Zstd,
}

impl Compressor {
    /// By its name in `hello`.
    pub fn from_name(name: &str) -> Option<Compressor> {
        match name {
            "snappy" => Some(Compressor::Snappy),
            "zlib" => Some(Compressor::Zlib),
            "zstd" => Some(Compressor::Zstd),
            _ => None,
        }
    }

    /// Its name in `hello`.
    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    fn from_id(id: u8) -> Option<Compressor> {
        Some(match id {
            0 => Compressor::Noop,
            1 => Compressor::Snappy,
            2 => Compressor::Zlib,
            3 => Compressor::Zstd,
            _ => return None,
        })
    }

    fn id(self) -> u8 {
        match self {
            Compressor::Noop => 0,
            Compressor::Snappy => 1,
            Compressor::Zlib => 2,
            Compressor::Zstd => 3,
        }
    }
}

/// Undoes OP_COMPRESSED: gives the message that was wrapped, with a header of its own, and how it
/// was compressed. The output never grows past what the message claims, nor the claim past the
/// limit of messages; a claim that the input can't fill allocates only what was really produced.
pub fn decompress(bytes: &[u8]) -> Result<(Vec<u8>, Compressor), WireError> {
    let header = Header::parse(bytes)?;
    let Some(prefix) = bytes.get(HEADER_LEN..HEADER_LEN + PREFIX_LEN) else {
        return Err(WireError::close("OP_COMPRESSED is cut short"));
    };
    let int = |at: usize| i32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    let opcode = OpCode::from_number(int(0));
    if matches!(opcode, OpCode::Compressed | OpCode::Reply) {
        return Err(WireError::close(format!("compressed message holds opcode {}", opcode.number())));
    }
    let claimed = match usize::try_from(int(4)) {
        Ok(size) if size <= MAX_MESSAGE_SIZE + ADDED_ON_THE_WAY - HEADER_LEN => size,
        _ => return Err(WireError::close("Decompressed message would be larger than maximum message size")),
    };
    let Some(compressor) = Compressor::from_id(prefix[8]) else {
        return Err(WireError::close(format!("unknown compressor {}", prefix[8])));
    };
    let data = &bytes[HEADER_LEN + PREFIX_LEN..];
    let mut out = vec![0; HEADER_LEN];
    inflate(compressor, data, claimed, &mut out)
        .map_err(|error| WireError::close(format!("cannot decompress message: {error}")))?;
    if out.len() != HEADER_LEN + claimed {
        return Err(WireError::close("Decompressing message returned less data than expected"));
    }
    let length = out.len() as u32;
    Header { length, opcode, ..header }.write(&mut out);
    Ok((out, compressor))
}

fn inflate(compressor: Compressor, data: &[u8], claimed: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
    // Read one byte more than was claimed, so that a longer stream is noticed and refused.
    let limit = claimed as u64 + 1;
    match compressor {
        Compressor::Noop => out.extend_from_slice(data),
        Compressor::Snappy => {
            let real = snap::raw::decompress_len(data)?;
            // Snappy can't shrink by more than about 1:21; a larger claim is a lie.
            if real != claimed || real / 64 > data.len() {
                return Err(std::io::Error::other("snappy length does not match"));
            }
            out.resize(HEADER_LEN + real, 0);
            let n = snap::raw::Decoder::new().decompress(data, &mut out[HEADER_LEN..])?;
            out.truncate(HEADER_LEN + n);
        }
        Compressor::Zlib => {
            flate2::read::ZlibDecoder::new(data).take(limit).read_to_end(out)?;
        }
        Compressor::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(data)?;
            // A frame of a few bytes may ask for a window of 128 MiB, which is allocated at once.
            decoder.window_log_max(zstd_window_log(claimed))?;
            decoder.take(limit).read_to_end(out)?;
        }
    }
    Ok(())
}

/// The largest window, as a power of two, that a frame with this much content is allowed: what the
/// content fills, but at least the 8 MiB that the format asks every decoder to provide.
fn zstd_window_log(content: usize) -> u32 {
    content.next_power_of_two().trailing_zeros().max(23)
}

/// Wraps a finished message (not OP_COMPRESSED itself) as OP_COMPRESSED.
///
/// ```
/// use sheaf_bson::doc;
/// use sheaf_wire::{Compressor, REPLY_HEAD, compress, decompress, finish_msg};
///
/// let mut message = vec![0; REPLY_HEAD];
/// message.extend_from_slice(doc! { "ok": 1.0 }.as_bytes());
/// finish_msg(&mut message, 7, 6, 0);
/// let wrapped = compress(&message, Compressor::Snappy, 6)?;
/// assert_eq!(decompress(&wrapped), Ok((message, Compressor::Snappy)));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn compress(message: &[u8], compressor: Compressor, zlib_level: u32) -> std::io::Result<Vec<u8>> {
    let Ok(header) = Header::parse(message) else { return Ok(message.to_vec()) };
    let body = &message[HEADER_LEN..];
    let mut out = Vec::with_capacity(HEADER_LEN + PREFIX_LEN + body.len() / 2 + 64);
    out.resize(HEADER_LEN, 0);
    out.extend_from_slice(&header.opcode.number().to_le_bytes());
    out.extend_from_slice(&(body.len() as i32).to_le_bytes());
    out.push(compressor.id());
    match compressor {
        Compressor::Noop => out.extend_from_slice(body),
        Compressor::Snappy => out.extend(snap::raw::Encoder::new().compress_vec(body)?),
        Compressor::Zlib => {
            let level = flate2::Compression::new(zlib_level.min(9));
            let mut encoder = flate2::write::ZlibEncoder::new(&mut out, level);
            encoder.write_all(body)?;
            encoder.finish()?;
        }
        Compressor::Zstd => out.extend(zstd::bulk::compress(body, 0)?),
    }
    let length = out.len() as u32;
    Header { length, opcode: OpCode::Compressed, ..header }.write(&mut out);
    Ok(out)
}
