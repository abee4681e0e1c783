//! A compiled program.
#![allow(unsafe_code)]

use std::ptr;

use pcre2_sys::{
    PCRE2_AUTO_CALLOUT, PCRE2_CASELESS, PCRE2_DOTALL, PCRE2_EXTENDED, PCRE2_INFO_CAPTURECOUNT,
    PCRE2_INFO_JITSIZE, PCRE2_INFO_SIZE, PCRE2_JIT_COMPLETE, PCRE2_MULTILINE, PCRE2_NEVER_BACKSLASH_C,
    PCRE2_UTF, pcre2_code_8, pcre2_code_free_8, pcre2_compile_8, pcre2_jit_compile_8, pcre2_pattern_info_8,
};

use crate::{Flags, Invalid, ffi};

/// A program, with machine code if there is a compiler for this machine.
pub struct Code {
    code: *mut pcre2_code_8,
    groups: usize,
    watched: bool,
}

// SAFETY: PCRE2 does not change a program after it was compiled (and compiled to machine code, which `compile` does
// before anybody else sees it), so threads may share it. What a match needs to write is in its match data and context.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Compiles a pattern; `watched` with callouts between its items.
    pub fn compile(pattern: &str, flags: Flags, watched: bool) -> Result<Self, Invalid> {
        // `\C` would match a part of a character, and then matches would end within one.
        let mut options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
        for (set, option) in [
            (flags.caseless, PCRE2_CASELESS),
            (flags.multi_line, PCRE2_MULTILINE),
            (flags.dot_all, PCRE2_DOTALL),
            (flags.extended, PCRE2_EXTENDED),
            (watched, PCRE2_AUTO_CALLOUT),
        ] {
            if set {
                options |= option;
            }
        }
        let (mut error, mut offset) = (0, 0);
        // SAFETY: the pattern is valid for its length, which is given; the two results are ours.
        let code = unsafe {
            pcre2_compile_8(
                pattern.as_ptr(),
                pattern.len(),
                options,
                &mut error,
                &mut offset,
                ptr::null_mut(),
            )
        };
        if code.is_null() {
            return Err(Invalid { offset, reason: ffi::message(error) });
        }
        // SAFETY: the program is valid, and nobody else knows it yet. Without machine code (its compilation failed, or there
        // is no compiler for this machine) a program is interpreted.
        unsafe { pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE) };
        // It is freed also where what follows fails.
        let mut compiled = Code { code, groups: 1, watched };
        // SAFETY: this piece of information is a `uint32_t`.
        let captures: u32 = unsafe { compiled.info(PCRE2_INFO_CAPTURECOUNT) };
        compiled.groups += captures as usize;
        Ok(compiled)
    }

    /// A piece of information about the program.
    ///
    /// # Safety
    /// PCRE2 writes a `T` for `what`.
    unsafe fn info<T: Default>(&self, what: u32) -> T {
        let mut value = T::default();
        // SAFETY: the program is valid, and by the caller's word there is room for what is written.
        let known = unsafe { pcre2_pattern_info_8(self.code, what, ptr::from_mut(&mut value).cast()) };
        assert_eq!(known, 0, "the program tells of itself ({what})");
        value
    }

    /// Bytes of the program and its machine code.
    pub fn bytes(&self) -> u64 {
        // SAFETY: both pieces of information are a `size_t`.
        let (program, machine): (usize, usize) =
            unsafe { (self.info(PCRE2_INFO_SIZE), self.info(PCRE2_INFO_JITSIZE)) };
        (program + machine) as u64
    }

    /// The number of groups, the whole match included.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Whether it has callouts.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    pub fn as_ptr(&self) -> *const pcre2_code_8 {
        self.code
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: it was made by `pcre2_compile`, and nobody else has it.
        unsafe { pcre2_code_free_8(self.code) }
    }
}
