//! What a match writes to, kept by each thread for the next one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ptr;

use libc::{c_int, c_void};
use pcre2_sys::{
    PCRE2_ERROR_CALLOUT, PCRE2_ERROR_NOMATCH, PCRE2_NO_JIT, PCRE2_NO_UTF_CHECK, pcre2_get_ovector_pointer_8,
    pcre2_jit_stack_8, pcre2_jit_stack_assign_8, pcre2_jit_stack_create_8, pcre2_jit_stack_free_8,
    pcre2_match_8, pcre2_match_context_8, pcre2_match_context_create_8, pcre2_match_context_free_8,
    pcre2_match_data_8, pcre2_match_data_create_8, pcre2_match_data_free_8, pcre2_set_heap_limit_8,
    pcre2_set_match_limit_8,
};
use sheaf_errors::{Error, Result};

use crate::code::Code;
use crate::ffi::{CalloutBlock, is_limit, message, pcre2_set_callout_8};

/// The stack of machine code: what it begins with, and what it may grow to.
const STACK_BYTES: (usize, usize) = (32 << 10, 1 << 20);

/// Groups for which there is room from the start.
const GROUPS: usize = 16;

/// What a match may use.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Steps from each starting point.
    pub steps: u32,
    /// Memory of an interpreted match.
    pub heap_bytes: u64,
    /// Not as machine code, whose stack is limited.
    pub interpreted: bool,
}

impl Effort {
    /// Machine code, and so many steps. (Where there is none for this machine, it needs a little memory.)
    pub fn steps(steps: u32) -> Self {
        Effort { steps, heap_bytes: 1 << 20, interpreted: false }
    }
}

/// How a match ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Found,
    NotFound,
    /// At one of the limits, with PCRE2's code for it.
    Limit(c_int),
}

/// Match data, match context and stack. They are valid and belong to each other as long as this lives.
pub struct Scratch {
    data: *mut pcre2_match_data_8,
    groups: usize,
    context: *mut pcre2_match_context_8,
    stack: *mut pcre2_jit_stack_8,
}

thread_local! {
    static KEPT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// What the callout of one match knows.
struct Watch {
    at: usize,
    error: Option<Error>,
}

impl Scratch {
    /// This thread's, or a new one, with room for so many groups.
    pub fn take(groups: usize) -> Self {
        let mut scratch = KEPT.take().unwrap_or_else(Self::new);
        if scratch.groups < groups {
            scratch.groups = groups;
            scratch.free_heap();
        }
        scratch
    }

    /// Keeps it for this thread's next match.
    pub fn give_back(self) {
        KEPT.set(Some(self));
    }

    fn new() -> Self {
        // SAFETY: these take no arguments of ours but sizes. The context gets the stack, which lives as long.
        let scratch = unsafe {
            let stack = pcre2_jit_stack_create_8(STACK_BYTES.0, STACK_BYTES.1, ptr::null_mut());
            let context = pcre2_match_context_create_8(ptr::null_mut());
            let data = pcre2_match_data_create_8(GROUPS as u32, ptr::null_mut());
            Scratch { data, groups: GROUPS, context, stack }
        };
        // Without a compiler for this machine there is no stack for its code, either.
        assert!(!scratch.data.is_null() && !scratch.context.is_null(), "no memory for a match");
        if !scratch.stack.is_null() {
            // SAFETY: both are valid; a null callback means that the third argument is the stack itself.
            unsafe { pcre2_jit_stack_assign_8(scratch.context, None, scratch.stack.cast()) };
        }
        scratch
    }

    /// Gives back the memory that an interpreted match took, and makes room for all groups.
    pub fn free_heap(&mut self) {
        // SAFETY: the data are valid and nobody else's; the new ones take their place.
        unsafe {
            pcre2_match_data_free_8(self.data);
            self.data = pcre2_match_data_create_8(self.groups as u32, ptr::null_mut());
        }
        assert!(!self.data.is_null(), "no memory for a match");
    }

    /// The byte range of a group of the match that was found last.
    pub fn range(&self, group: usize, len: usize) -> Option<(usize, usize)> {
        assert!(group < self.groups, "group {group} of {}", self.groups);
        // SAFETY: the data have room for `groups` pairs, and PCRE2 has set those of the pattern's groups.
        let (start, end) = unsafe {
            let pairs = pcre2_get_ovector_pointer_8(self.data);
            (*pairs.add(2 * group), *pairs.add(2 * group + 1))
        };
        // `\K` can put the start behind the end; such a match is empty.
        (start <= len && end <= len).then_some((start.min(end), end))
    }

    /// Searches from the byte `from` on.
    ///
    /// Errors: what the meter said; 51156 for what should not happen.
    pub fn run(&mut self, code: &Code, text: &str, from: usize, effort: Effort) -> Result<Ended> {
        let mut watch = Watch { at: from, error: None };
        let kibibytes = u32::try_from(effort.heap_bytes >> 10).unwrap_or(u32::MAX);
        // SAFETY: code, data and context are valid, the text is UTF-8 (so it need not be checked again) and `from` stands
        // between two of its characters. The data have room for the program's groups. The callout gets `watch`, which
        // outlives the call, and is taken out again behind it.
        let rc = unsafe {
            pcre2_set_match_limit_8(self.context, effort.steps);
            pcre2_set_heap_limit_8(self.context, kibibytes);
            let callout = code.is_watched().then_some(callout as crate::ffi::Callout);
            pcre2_set_callout_8(self.context, callout, ptr::from_mut(&mut watch).cast());
            let options = PCRE2_NO_UTF_CHECK | if effort.interpreted { PCRE2_NO_JIT } else { 0 };
            let rc = pcre2_match_8(
                code.as_ptr(),
                text.as_ptr(),
                text.len(),
                from,
                options,
                self.data,
                self.context,
            );
            pcre2_set_callout_8(self.context, None, ptr::null_mut());
            rc
        };
        match (watch.error, rc) {
            (Some(error), PCRE2_ERROR_CALLOUT) => Err(error),
            (_, PCRE2_ERROR_NOMATCH) => Ok(Ended::NotFound),
            (_, found) if found >= 0 => Ok(Ended::Found),
            (_, limit) if is_limit(limit) => Ok(Ended::Limit(limit)),
            (_, other) => Err(Error::location(
                51156,
                format!("Error occurred while executing the regular expression: {}", message(other)),
            )),
        }
    }
}

/// Called by PCRE2 between two items of a pattern: counts what was done since, and stops the match if the operation
/// has to end.
///
/// # Safety
/// `block` is valid, and `watch` is what [`Scratch::run`] gave.
unsafe extern "C" fn callout(block: *mut CalloutBlock, watch: *mut c_void) -> c_int {
    // SAFETY: PCRE2 calls this during `run`, with a block of its own and the `Watch` on the stack of `run`.
    let (at, watch) = unsafe { ((*block).current_position, &mut *watch.cast::<Watch>()) };
    // An item that runs over the text costs as much as it has passed, forwards or back.
    let passed = at.abs_diff(watch.at) / 64;
    watch.at = at;
    match sheaf_meter::tick(1 + u32::try_from(passed).unwrap_or(u32::MAX - 1)) {
        Ok(()) => 0,
        Err(error) => {
            watch.error = Some(error);
            PCRE2_ERROR_CALLOUT
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: they are valid and nobody else's. Freeing a null stack does nothing.
        unsafe {
            pcre2_match_data_free_8(self.data);
            pcre2_match_context_free_8(self.context);
            pcre2_jit_stack_free_8(self.stack);
        }
    }
}
