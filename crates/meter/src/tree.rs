//! The memory of what clients' language is parsed to: filters, updates, expressions, pipelines.
//!
//! A tree may be a dozen times as large as the bytes that it is made from. Parsers say what they are about to add
//! ([`grow`]), and whoever keeps the tree has it counted ([`growing`]). That costs two additions for each node: nothing is
//! taken from an account before a tree is larger than [`FREE_BYTES`].

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use sheaf_errors::Result;

use crate::account::Held;
use crate::current::reserve;

/// Trees up to this size are not counted, and larger ones in steps of it.
const FREE_BYTES: u64 = 64 << 10;

/// More than any account has, and far from where sums overflow.
const TOO_MUCH: u64 = 1 << 48;

/// Allocators round up, and keep books.
pub const ALLOCATION: usize = 16;

thread_local! {
    /// How large the tree is that is being parsed.
    static GROWN: Cell<u64> = const { Cell::new(0) };
    /// Where more is to be taken from the account. Nothing is counted while nobody parses.
    static TAKEN: Cell<u64> = const { Cell::new(u64::MAX) };
    /// What was taken for it.
    static HELD: RefCell<Held> = const { RefCell::new(Held::none()) };
}

/// Says that the tree which is being parsed needs so many bytes more. Whoever adds many nodes at once says so before.
///
/// Errors: `ExceededMemoryLimit`.
#[inline]
pub fn grow(bytes: usize) -> Result<()> {
    let grown = GROWN.get().saturating_add(bytes as u64);
    GROWN.set(grown);
    if grown < TAKEN.get() { Ok(()) } else { take(grown) }
}

#[cold]
fn take(grown: u64) -> Result<()> {
    if TAKEN.get() == u64::MAX {
        return Ok(());
    }
    let upto = grown.min(TOO_MUCH) + FREE_BYTES;
    HELD.with(|held| {
        let mut held = held.borrow_mut();
        if TAKEN.replace(FREE_BYTES + 1) == FREE_BYTES {
            *held = reserve(0)?;
        }
        held.set(upto)
    })?;
    TAKEN.set(upto);
    Ok(())
}

/// Runs a parser, and gives with its tree the memory that the tree has of the operation's account; nothing for a small one.
/// Where the parser is part of another one the memory is the other's.
///
/// Errors: the parser's; `ExceededMemoryLimit`.
pub fn growing<T>(parse: impl FnOnce() -> Result<T>) -> Result<(T, Held)> {
    if TAKEN.get() != u64::MAX {
        return Ok((parse()?, Held::none()));
    }
    GROWN.set(0);
    TAKEN.set(FREE_BYTES);
    let outermost = Outermost { not_send: PhantomData };
    let tree = parse()?;
    let mut held = if TAKEN.get() > FREE_BYTES { HELD.take() } else { Held::none() };
    held.shrink(held.bytes().saturating_sub(GROWN.get()));
    drop(outermost);
    Ok((tree, held))
}

/// The parser that is not part of another one is at work; when it ends without a tree, its memory goes back.
struct Outermost {
    not_send: PhantomData<*const ()>,
}

impl Drop for Outermost {
    fn drop(&mut self) {
        if TAKEN.replace(u64::MAX) > FREE_BYTES {
            drop(HELD.take());
        }
    }
}
