//! What the bindings of PCRE2 lack: callouts. And its messages.
#![allow(unsafe_code)]

use libc::{c_int, c_void};
use pcre2_sys::{
    PCRE2_ERROR_DEPTHLIMIT, PCRE2_ERROR_HEAPLIMIT, PCRE2_ERROR_JIT_STACKLIMIT, PCRE2_ERROR_MATCHLIMIT,
    PCRE2_ERROR_NOMEMORY, pcre2_get_error_message_8, pcre2_match_context_8,
};

/// `pcre2_callout_block`, as far as we read it; later versions only add to its end.
#[repr(C)]
pub struct CalloutBlock {
    pub version: u32,
    pub callout_number: u32,
    pub capture_top: u32,
    pub capture_last: u32,
    pub offset_vector: *mut usize,
    pub mark: *const u8,
    pub subject: *const u8,
    pub subject_length: usize,
    pub start_match: usize,
    pub current_position: usize,
}

pub type Callout = unsafe extern "C" fn(*mut CalloutBlock, *mut c_void) -> c_int;

unsafe extern "C" {
    pub fn pcre2_set_callout_8(
        context: *mut pcre2_match_context_8,
        callout: Option<Callout>,
        data: *mut c_void,
    ) -> c_int;
}

/// Whether a match ended with this code because it needed more memory than it was given.
pub fn is_memory_limit(code: c_int) -> bool {
    matches!(code, PCRE2_ERROR_JIT_STACKLIMIT | PCRE2_ERROR_HEAPLIMIT | PCRE2_ERROR_NOMEMORY)
}

/// Whether it ended because of any limit.
pub fn is_limit(code: c_int) -> bool {
    is_memory_limit(code) || matches!(code, PCRE2_ERROR_MATCHLIMIT | PCRE2_ERROR_DEPTHLIMIT)
}

/// PCRE2's words for one of its codes.
pub fn message(code: c_int) -> String {
    let mut text = [0u8; 256];
    // SAFETY: the buffer is as long as we say; PCRE2 writes at most that much, and ends it with a zero.
    let length = unsafe { pcre2_get_error_message_8(code, text.as_mut_ptr(), text.len()) };
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..length]).into_owned()
}
