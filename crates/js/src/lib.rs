//! JavaScript for `$where`, `$function`, `$accumulator` and `mapReduce`: clients' functions, run in sandboxes.
//!
//! A [`Function`] is a client's code in a sandbox of its own: a QuickJS runtime without modules, files, sockets or timers, with BSON's types and
//! the helpers of MongoDB's shell (`prelude.js`). A sandbox belongs to what has asked for it (a filter, an expression, a command) and
//! goes with it, so that functions of different operations share nothing. It is locked while it runs; whoever evaluates one filter on several threads
//! takes turns.
//!
//! - **Time.** The engine asks the operation's meter every few thousand steps, so `maxTimeMS`, `killOp` and a client that goes away end a function within
//!   milliseconds, also in an endless loop; the function cannot catch that. Where each step is long (a sort, a comparison of long strings) the engine looks
//!   late: then the operation ends without the function, which is left behind on its thread ([`worker`]).
//! - **Memory.** A sandbox has a limit, which the operation's account has paid for. A call that runs out of it is made again with four times as much, as long as
//!   the account has it and it is not above [`MAX_HEAP_BYTES`]. (A function that is called again must not mind: it can only see its own globals.)
//! - **Values.** Documents and values become objects of JavaScript and back ([`to_js`], [`from_js`]). Numbers come back as doubles, but a field of a
//!   document that is handed back with the value that it came with keeps its type, as in MongoDB.

#![forbid(unsafe_code)]

mod brief;
mod emitted;
mod from_js;
mod places;
mod sandbox;
mod source;
#[cfg(test)]
mod tests;
mod to_js;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};

pub use emitted::Emitted;
pub use sandbox::{Function, Sandbox, Script};

/// A sandbox has at most so much memory, in bytes.
pub const MAX_HEAP_BYTES: usize = 512 << 20;

/// Whether the server runs JavaScript (`--noscripting`, `security.javascriptEnabled`).
static ENABLED: AtomicBool = AtomicBool::new(true);

/// Says once, at the start, whether the server runs JavaScript.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Whether the server runs JavaScript.
pub fn is_enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}
