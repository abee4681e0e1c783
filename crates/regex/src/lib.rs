//! Regular expressions that end: PCRE2, whose matches look at the operation's meter and never mistake a limit for an
//! answer.
//!
//! PCRE2 backtracks. A short pattern on a long text can take longer than anybody waits, and it can need more memory than
//! the stack of its compiled code has. So a pattern is compiled up to twice:
//!
//! - For short texts as it is, with a limit on steps that a match uses up within a few milliseconds.
//! - For long texts, and where that limit was hit, with *callouts*: PCRE2 calls us between any two items of the pattern,
//!   and we [tick](sheaf_meter::tick) for what it did since. Where the machine code's stack is exhausted, the same is
//!   interpreted, with memory from the heap, which the operation's account pays.
//!
//! What is compiled is paid by the account of the operation that asked for it, as long as it is kept: thousands of short
//! patterns are a kibibyte or more each.
//!
//! What is still not decided then is an error (51156), never "no match": under `$not`, in a validator, in a `delete`,
//! a wrong answer does harm.
//!
//! This crate exists because the safe wrapper of PCRE2 has neither callouts nor limits; it is the only place with unsafe
//! code for PCRE2, and nothing of it shows outside.

mod code;
mod ffi;
mod scratch;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use code::Code;
use scratch::{Effort, Ended, Scratch};
use sheaf_errors::{Error, Result};
use sheaf_meter::Held;

/// How a pattern is to be read: the letters `i`, `m`, `s` and `x`.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Letters of either case match each other.
    pub caseless: bool,
    /// `^` and `$` match at every line.
    pub multi_line: bool,
    /// A dot matches line breaks as well.
    pub dot_all: bool,
    /// White space and comments in the pattern count for nothing.
    pub extended: bool,
}

/// What is wrong with a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    offset: usize,
    reason: String,
}

impl Invalid {
    /// PCRE2's own words.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCRE2: error compiling pattern at offset {}: {}", self.offset, self.reason)
    }
}

/// Why a pattern was not compiled.
#[derive(Debug)]
pub enum CompileError {
    /// It is none.
    Invalid(Invalid),
    /// The meter says that the operation has to end, or has no memory for it.
    Refused(Error),
}

impl CompileError {
    /// The error for the client; `invalid` words it where the pattern is at fault.
    pub fn into_error(self, invalid: impl FnOnce(&Invalid) -> Error) -> Error {
        match self {
            CompileError::Invalid(what) => invalid(&what),
            CompileError::Refused(error) => error,
        }
    }
}

impl From<Invalid> for CompileError {
    fn from(what: Invalid) -> Self {
        CompileError::Invalid(what)
    }
}

/// A compiled regular expression; a clone is the same one.
#[derive(Clone)]
pub struct Regex(Arc<Programs>);

struct Programs {
    pattern: Box<str>,
    flags: Flags,
    plain: Paid,
    /// The same with callouts; compiled when it is first needed. `None` if with these it is too long for PCRE2.
    watched: OnceLock<Option<Paid>>,
}

/// A program, and the memory for it.
struct Paid {
    code: Code,
    held: Held,
}

impl Paid {
    /// What it takes besides the program itself: the pattern, and what stands around both.
    fn bytes(code: &Code, pattern: &str) -> u64 {
        (size_of::<Programs>() + pattern.len()) as u64 + ALLOCATED_BYTES + code.bytes()
    }
}

/// What PCRE2 allocates beside a program, the machine code's description, is about so large.
const ALLOCATED_BYTES: u64 = 128;

/// What it costs to compile a short pattern, as the meter counts; for each byte of it, one more.
const COMPILE_TICKS: u32 = 200;

/// Texts up to this length are first searched without callouts.
const SHORT_BYTES: usize = 2048;

/// Steps that such a search may take from all its starting points together; they take a few milliseconds.
const SHORT_STEPS: usize = 1_000_000;

/// Steps that a search may take from all its starting points together where callouts do not fit into the program: these
/// are patterns of some 8,000 characters and more, which nobody can interrupt while they run.
const UNWATCHED_STEPS: usize = 20_000_000;

/// Steps that a search may take from each starting point: PCRE2's own default.
const STEPS: u32 = 10_000_000;

/// Memory that an interpreted match may take, one size after the other. With the program, which is counted beside it, it
/// fits into an operation's 96 MB.
const HEAP_BYTES: [u64; 2] = [8 << 20, 95 << 20];

/// Where the groups of a match are, group 0 being the whole match.
#[derive(Clone, Debug, Default)]
pub struct Captures(Vec<Option<(usize, usize)>>);

impl Captures {
    /// The byte range of a group; `None` if it took no part.
    pub fn get(&self, group: usize) -> Option<(usize, usize)> {
        self.0.get(group).copied().flatten()
    }

    /// The number of groups, the whole match included.
    #[expect(clippy::len_without_is_empty, reason = "there is always the whole match")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Regex {
    /// Compiles a pattern. The memory is the operation's, until the last clone is dropped.
    pub fn new(pattern: &str, flags: Flags) -> Result<Self, CompileError> {
        let cost = COMPILE_TICKS.saturating_add(u32::try_from(pattern.len()).unwrap_or(u32::MAX));
        sheaf_meter::tick(cost).map_err(CompileError::Refused)?;
        let code = Code::compile(pattern, flags, false)?;
        let held = sheaf_meter::reserve(Paid::bytes(&code, pattern)).map_err(CompileError::Refused)?;
        let plain = Paid { code, held };
        Ok(Regex(Arc::new(Programs { pattern: pattern.into(), flags, plain, watched: OnceLock::new() })))
    }

    /// Whether the pattern is found in a text.
    ///
    /// Errors: 51156 where that cannot be decided within the limits; what the meter says.
    pub fn is_match(&self, text: &str) -> Result<bool> {
        self.search(text, 0, |_| ()).map(|found| found.is_some())
    }

    /// The first match at or after the byte `from`, as a byte range.
    ///
    /// Errors: like [`Regex::is_match`].
    pub fn find_at(&self, text: &str, from: usize) -> Result<Option<(usize, usize)>> {
        let found = self.search(text, from, |scratch| scratch.range(0, text.len()))?;
        Ok(found.flatten())
    }

    /// The first match at or after the byte `from`, with its groups.
    ///
    /// Errors: like [`Regex::is_match`].
    pub fn captures_at(&self, text: &str, from: usize) -> Result<Option<Captures>> {
        let groups = self.0.plain.code.groups();
        self.search(text, from, |scratch| {
            Captures((0..groups).map(|group| scratch.range(group, text.len())).collect())
        })
    }

    fn search<T>(&self, text: &str, from: usize, read: impl FnOnce(&Scratch) -> T) -> Result<Option<T>> {
        assert!(text.is_char_boundary(from), "a search begins at a character: {from}");
        let mut scratch = Scratch::take(self.0.plain.code.groups());
        let found = self.run(&mut scratch, text, from);
        let found = found.map(|found| found.then(|| read(&scratch)));
        scratch.give_back();
        found
    }

    fn run(&self, scratch: &mut Scratch, text: &str, from: usize) -> Result<bool> {
        if text.len() <= SHORT_BYTES {
            sheaf_meter::tick(1 + text.len() as u32 / 64)?;
            let steps = (SHORT_STEPS / text.len().max(16)) as u32;
            match scratch.run(&self.0.plain.code, text, from, Effort::steps(steps))? {
                Ended::Found => return Ok(true),
                Ended::NotFound => return Ok(false),
                Ended::Limit(_) => {}
            }
        }
        let Some(watched) = self.watched()? else { return self.run_unwatched(scratch, text, from) };
        let mut last = match scratch.run(watched, text, from, Effort::steps(STEPS))? {
            Ended::Found => return Ok(true),
            Ended::NotFound => return Ok(false),
            Ended::Limit(code) => code,
        };
        // Steps are counted alike, so only what lacked memory is tried again.
        for heap_bytes in HEAP_BYTES {
            if !ffi::is_memory_limit(last) {
                break;
            }
            let _held = sheaf_meter::reserve(heap_bytes)?;
            let effort = Effort { steps: STEPS, heap_bytes, interpreted: true };
            let ended = scratch.run(watched, text, from, effort);
            // What an interpreted match took stays with its match data, which is thrown away for it.
            scratch.free_heap();
            match ended? {
                Ended::Found => return Ok(true),
                Ended::NotFound => return Ok(false),
                Ended::Limit(code) => last = code,
            }
        }
        Err(undecided(last))
    }

    /// A search that the meter cannot look at while it runs, so it may take few steps and pays for them before.
    fn run_unwatched(&self, scratch: &mut Scratch, text: &str, from: usize) -> Result<bool> {
        sheaf_meter::tick(1 + text.len() as u32 / 64)?;
        let steps = (UNWATCHED_STEPS / text.len().max(16)) as u32;
        match scratch.run(&self.0.plain.code, text, from, Effort::steps(steps))? {
            Ended::Found => Ok(true),
            Ended::NotFound => Ok(false),
            Ended::Limit(code) => Err(undecided(code)),
        }
    }

    /// The program with callouts; `None` if there is none because callouts make it too long.
    fn watched(&self) -> Result<Option<&Code>> {
        let Programs { pattern, flags, plain, watched } = &*self.0;
        if let Some(watched) = watched.get() {
            return Ok(watched.as_ref().map(|watched| &watched.code));
        }
        let watched_now = match Code::compile(pattern, *flags, true) {
            Ok(code) => {
                // It lives as long as the plain one, which may be longer than the operation that needs it now.
                let held = plain.held.beside(Paid::bytes(&code, pattern))?;
                Some(Paid { code, held })
            }
            Err(_) => None,
        };
        Ok(watched.get_or_init(|| watched_now).as_ref().map(|watched| &watched.code))
    }
}

fn undecided(code: i32) -> Error {
    let reason = ffi::message(code);
    Error::location(51156, format!("Error occurred while executing the regular expression: {reason}"))
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.0.pattern)
    }
}
