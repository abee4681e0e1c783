//! Contents that cost little to make, that a compressor can do much or nothing with, and their checksums.

use super::mix;

/// Contents are made and checked in lines of eight words, so that the processor works on eight at a time.
const LINE: usize = 64;
const LANES: usize = LINE / 8;
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;
/// What stands in the compressible part. All of it alike, so that any compressor finds it.
const FILLER: &[u8; LINE] = b"A line that repeats itself, so that every compressor finds it.. ";

/// Fills a buffer with bytes that follow from the seed. `compressible` is the part, from 0 to 1, that a compressor should
/// be able to remove.
pub fn fill(seed: u64, compressible: f64, out: &mut [u8]) {
    let base = mix(seed);
    let mut lines = out.chunks_exact_mut(LINE);
    let mut counter = base;
    // Which lines are filler is decided by a running sum, so that every part of the body has its share of them.
    let (mut debt, part) = (0.0, compressible.clamp(0.0, 1.0));
    for line in &mut lines {
        debt += part;
        if debt >= 1.0 {
            debt -= 1.0;
            line.copy_from_slice(FILLER);
        } else {
            put_line(counter, line);
        }
        counter = counter.wrapping_add(STEP.wrapping_mul(LANES as u64));
    }
    let rest = lines.into_remainder();
    if !rest.is_empty() {
        let mut line = [0; LINE];
        put_line(counter, &mut line);
        let length = rest.len();
        rest.copy_from_slice(&line[..length]);
    }
}

/// One line of noise. A multiplication and two shifts per word are enough to be incompressible.
#[inline]
fn put_line(counter: u64, line: &mut [u8]) {
    for (lane, word) in line.chunks_exact_mut(8).enumerate() {
        let mut z = counter.wrapping_add(STEP.wrapping_mul(lane as u64));
        z = (z ^ (z >> 32)).wrapping_mul(MULTIPLIER);
        word.copy_from_slice(&(z ^ (z >> 29)).to_le_bytes());
    }
}

/// Printable characters that follow from the seed, for values that are text.
pub fn fill_text(seed: u64, out: &mut [u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";
    let mut counter = mix(seed);
    for chunk in out.chunks_mut(8) {
        counter = counter.wrapping_add(STEP);
        let mut bits = mix(counter);
        for byte in chunk {
            *byte = ALPHABET[(bits & 63) as usize];
            bits >>= 6;
        }
    }
}

/// A checksum of 64 bits: each word changes one of eight lanes by a bijection, so that no change of a single word can
/// go unseen, and others only by a chance of 2^-64.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; LANES];
    for (lane, state) in lanes.iter_mut().enumerate() {
        *state = mix(seed.wrapping_add(lane as u64));
    }
    let mut lines = bytes.chunks_exact(LINE);
    for line in &mut lines {
        absorb(&mut lanes, line);
    }
    let rest = lines.remainder();
    if !rest.is_empty() {
        let mut line = [0; LINE];
        line[..rest.len()].copy_from_slice(rest);
        absorb(&mut lanes, &line);
    }
    // The length tells a short body from the same one with zeros behind it.
    lanes.iter().fold(bytes.len() as u64, |sum, &lane| mix(sum.rotate_left(23) ^ lane))
}

#[inline]
fn absorb(lanes: &mut [u64; LANES], line: &[u8]) {
    for (state, word) in lanes.iter_mut().zip(line.chunks_exact(8)) {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        *state = (*state ^ u64::from_le_bytes(bytes)).wrapping_mul(MULTIPLIER).rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn made(seed: u64, compressible: f64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fill(seed, compressible, &mut bytes);
        bytes
    }

    fn deflated(bytes: &[u8]) -> usize {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap().len()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_others() {
        for length in [0, 1, 63, 64, 65, 16_384] {
            assert_eq!(made(5, 0.0, length), made(5, 0.0, length));
        }
        let firsts: std::collections::BTreeSet<Vec<u8>> =
            (0..10_000).map(|seed| made(seed, 0.0, 16)).collect();
        assert_eq!(firsts.len(), 10_000);
        // Shorter bodies are not told apart from the head of longer ones by their bytes, but by their checksums.
        assert_eq!(made(5, 0.0, 100), made(5, 0.0, 200)[..100]);
    }

    #[test]
    fn compressors_remove_what_they_should() {
        let whole = 1 << 18;
        for (part, least, most) in [(0.0, 0.99, 1.01), (0.5, 0.48, 0.56), (0.9, 0.08, 0.16)] {
            let left = deflated(&made(1, part, whole)) as f64 / whole as f64;
            assert!((least..most).contains(&left), "{part}: {left}");
        }
        let many: Vec<u8> = (0..100).flat_map(|seed| made(seed, 0.0, 2048)).collect();
        assert!(deflated(&many) > many.len() * 99 / 100, "bodies of different seeds share something");
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        for length in [1usize, 64, 100] {
            let mut bytes = made(3, 0.3, length);
            let right = checksum(9, &bytes);
            for bit in 0..length * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(checksum(9, &bytes), right, "{length} {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(checksum(9, &bytes), right);
            assert_ne!(checksum(10, &bytes), right);
        }
    }

    #[test]
    fn exchanged_words_and_lengths_are_seen() {
        let mut bytes = made(3, 0.0, 256);
        let right = checksum(0, &bytes);
        bytes.swap(8, 72);
        assert_ne!(checksum(0, &bytes), right);
        assert_ne!(checksum(0, &[0; 64]), checksum(0, &[0; 65]));
        assert_ne!(checksum(0, &[]), checksum(0, &[0]));
    }

    #[test]
    fn text_is_text() {
        let mut text = [0; 100];
        fill_text(7, &mut text);
        assert!(text.iter().all(|b| b.is_ascii() && !b.is_ascii_control()));
        let mut other = [0; 100];
        fill_text(8, &mut other);
        assert_ne!(text, other);
    }
}
