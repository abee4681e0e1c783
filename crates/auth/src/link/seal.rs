//! Records: the pieces in which a sealed connection's bytes travel.
//!
//! `length u32, bytes, code`: the code is an HMAC-SHA-256, cut to 16 bytes, over the record's number, its length and its bytes.

use ctutils::CtEq;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The most that one record carries: nothing of it is read before all of it is there.
pub const RECORD_BYTES: usize = 128 << 10;

/// Bytes before the record's own.
pub const HEAD_BYTES: usize = 4;

/// Bytes after them.
pub const CODE_BYTES: usize = 16;

/// What is wrong with bytes that are no record of this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged;

/// One direction of a connection, at its beginning or at its end: the key, and how many records there were.
#[derive(Clone)]
struct Direction {
    mac: Hmac<Sha256>,
    number: u64,
}

impl Direction {
    fn code(&self, length: &[u8], bytes: &[u8]) -> [u8; CODE_BYTES] {
        let mut mac = self.mac.clone();
        mac.update(&self.number.to_le_bytes());
        mac.update(length);
        mac.update(bytes);
        let whole = mac.finalize().into_bytes();
        std::array::from_fn(|at| whole[at])
    }
}

/// Seals what one side sends.
pub struct Sealer(Direction);

impl Sealer {
    pub(super) fn new(key: [u8; 32]) -> Sealer {
        let mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length");
        Sealer(Direction { mac, number: 0 })
    }

    pub(super) fn into_opener(self) -> Opener {
        Opener(self.0)
    }

    /// Adds these bytes to what is sent, in as many records as they need.
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.chunks(RECORD_BYTES) {
            let length = (piece.len() as u32).to_le_bytes();
            out.extend_from_slice(&length);
            out.extend_from_slice(piece);
            out.extend_from_slice(&self.0.code(&length, piece));
            self.0.number += 1;
        }
    }
}

/// Opens what the other side has sent.
pub struct Opener(Direction);

impl Opener {
    /// The bytes of the first record, and how many bytes it is long; `None` if it has not come as a whole.
    ///
    /// Errors: it is none that the other side has sent next. Nothing that follows can be believed.
    pub fn open<'b>(&mut self, received: &'b [u8]) -> Result<Option<(&'b [u8], usize)>, Forged> {
        let Some((length, rest)) = received.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if !(1..=RECORD_BYTES).contains(&bytes) {
            return Err(Forged);
        }
        let Some((record, rest)) = rest.split_at_checked(bytes) else { return Ok(None) };
        let Some(code) = rest.first_chunk::<CODE_BYTES>() else { return Ok(None) };
        if !code.as_slice().ct_eq(self.0.code(length, record).as_slice()).to_bool() {
            return Err(Forged);
        }
        self.0.number += 1;
        Ok(Some((record, HEAD_BYTES + bytes + CODE_BYTES)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opened(mut sent: &[u8]) -> Result<Vec<u8>, Forged> {
        let (mut opener, mut all) = (Sealer::new([7; 32]).into_opener(), Vec::new());
        while let Some((bytes, length)) = opener.open(sent)? {
            all.extend_from_slice(bytes);
            sent = &sent[length..];
        }
        Ok(all)
    }

    fn records(pieces: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut sealer = Sealer::new([7; 32]);
        let seal = |piece: &Vec<u8>| {
            let mut record = Vec::new();
            sealer.seal(piece, &mut record);
            record
        };
        pieces.iter().map(seal).collect()
    }

    #[test]
    fn what_is_long_goes_in_several_records() {
        let long = vec![3; 3 * RECORD_BYTES + 1];
        let mut sent = Vec::new();
        Sealer::new([7; 32]).seal(&long, &mut sent);
        assert_eq!(sent.len(), long.len() + 4 * (HEAD_BYTES + CODE_BYTES));
        assert_eq!(opened(&sent).unwrap(), long);
    }

    proptest! {
        #[test]
        fn nothing_but_what_was_sent_comes_out(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..40), 2..6),
            at in any::<prop::sample::Index>(),
            bit in 0u8..8,
            how in 0u8..4,
        ) {
            let mut sent = records(&pieces);
            let all: Vec<u8> = pieces.concat();
            prop_assert_eq!(opened(&sent.concat()).unwrap(), all.clone());
            let number = at.index(sent.len());
            match how {
                // Altered, left out, played again, in another order.
                0 => {
                    let byte = at.index(sent[number].len());
                    sent[number][byte] ^= 1 << bit;
                }
                1 => drop(sent.remove(number)),
                2 => sent.insert(number, sent[number].clone()),
                _ => {
                    let other = (number + 1) % sent.len();
                    sent.swap(number, other);
                }
            }
            // A beginning may come out, never anything else.
            let read = opened(&sent.concat());
            prop_assert!(read.is_err() || all.starts_with(&read.unwrap()));
        }
    }
}
