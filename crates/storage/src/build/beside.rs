//! Items that one thread makes while another takes them.

use std::sync::mpsc::sync_channel;

use sheaf_errors::{Code, Error, Result};

use super::item::{Lengths, lengths, read_lengths};

/// So many bytes are handed over at a time, or one item.
const BLOCK_BYTES: usize = 256 << 10;

/// So many blocks wait to be taken, while one is filled and one is being taken: three of the largest documents are 48 MB.
const AHEAD: usize = 1;

/// Takes an item: a key and a value.
pub(super) type Give<'g> = &'g mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// Has a thread of this name make items, and hands them over to `each` in their order on this one. Where no thread can be had, this one
/// makes them. Both work for the operation of whoever calls.
///
/// Errors: those of `each`; those of `make`.
pub(super) fn beside(
    name: &str,
    mut make: impl FnMut(Give<'_>) -> Result<()> + Send,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let done = std::thread::scope(|scope| {
        let meter = sheaf_meter::current();
        let (give, blocks) = sync_channel::<Block>(AHEAD);
        let make = &mut make;
        let work = move || {
            let _metered = meter.map(sheaf_meter::enter);
            let mut block = Block::default();
            make(&mut |key, value| {
                block.push(key, value);
                if block.0.len() < BLOCK_BYTES || give.send(std::mem::take(&mut block)).is_ok() {
                    return Ok(());
                }
                // Whoever took them says why no more are wanted.
                Err(Error::new(Code::INTERRUPTED, "nobody takes what is made"))
            })?;
            let _ = give.send(block);
            Ok(())
        };
        let making = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()?;
        for block in blocks {
            if let Err(error) = block.items().try_for_each(|(key, value)| each(key, value)) {
                return Some(Err(error));
            }
        }
        Some(making.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    done.unwrap_or_else(|| make(&mut each))
}

/// Items one behind the other, each with its lengths.
#[derive(Default)]
struct Block(Vec<u8>);

impl Block {
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let size = size_of::<Lengths>() + key.len() + value.len();
        if self.0.is_empty() {
            self.0.reserve(BLOCK_BYTES + size);
        }
        self.0.extend_from_slice(&lengths(key, value));
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }

    fn items(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut left = &self.0[..];
        std::iter::from_fn(move || {
            let (lengths, rest) = left.split_first_chunk()?;
            let (key_len, value_len) = read_lengths(lengths);
            let (key, rest) = rest.split_at(key_len);
            let (value, rest) = rest.split_at(value_len);
            left = rest;
            Some((key, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(give: Give<'_>, count: u32) -> Result<()> {
        (0..count).try_for_each(|n| give(&n.to_be_bytes(), &vec![7; n as usize % 300]))
    }

    #[test]
    fn items_come_whole_and_in_order() {
        let mut expected = 0;
        let each = |key: &[u8], value: &[u8]| {
            assert_eq!((key, value.len()), (&u32::to_be_bytes(expected)[..], expected as usize % 300));
            expected += 1;
            Ok(())
        };
        beside("test", |give| numbers(give, 20_000), each).unwrap();
        assert_eq!(expected, 20_000);
    }

    #[test]
    fn either_side_ends_it() {
        let refused = |_: &[u8], _: &[u8]| Err(Error::new(Code::BAD_VALUE, "enough"));
        let error = beside("test", |give| numbers(give, 1_000_000), refused).unwrap_err();
        assert_eq!(error.code(), Code::BAD_VALUE);
        let mut seen = 0;
        let make = |give: Give<'_>| {
            numbers(give, 5000)?;
            Err(Error::new(Code::OUT_OF_DISK_SPACE, "full"))
        };
        let error = beside("test", make, |_, _| {
            seen += 1;
            Ok(())
        });
        assert_eq!(error.unwrap_err().code(), Code::OUT_OF_DISK_SPACE);
        assert!(seen > 0);
    }
}
