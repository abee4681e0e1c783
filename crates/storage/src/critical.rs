//! Work that must not be left half done.
//!
//! A command that panics becomes an error of that command, and the server goes on. Not where the panic came out of the
//! middle of something that all share: half of a commit group, half of a change of the replication core. What goes on from
//! there may acknowledge what is not there, or leave others waiting for ever; a start, which reads what is on the disk, is
//! sound. So the process ends.

/// Ends the process if a panic leaves it.
pub struct Critical {
    what: &'static str,
    /// It was entered while an earlier panic ran its course.
    panicking: bool,
}

impl Critical {
    /// Begins such work; `what` is named in the log.
    #[inline]
    pub fn enter(what: &'static str) -> Critical {
        Critical { what, panicking: std::thread::panicking() }
    }

    /// What dropping it does, for those that must do it before anything else.
    #[inline]
    pub fn end(&self) {
        if !self.panicking && std::thread::panicking() {
            stop(&format!("a panic in {} has left it half done", self.what));
        }
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}

/// Stops the process with what was seen, where something does not hold that must. A panic ends the command at work and no
/// more, unless it is in [`Critical`] work: others would go on with a state that nobody understands. In this crate's tests it
/// is a panic.
macro_rules! must {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            $crate::critical::broken(format_args!($($seen)+))
        }
    };
}
pub(crate) use must;

/// Stops the process, as [`must`] does: what was seen cannot be.
macro_rules! impossible {
    ($($seen:tt)+) => {
        $crate::critical::broken(format_args!($($seen)+))
    };
}
pub(crate) use impossible;

/// See [`must`].
#[cold]
#[track_caller]
pub(crate) fn broken(seen: std::fmt::Arguments<'_>) -> ! {
    if cfg!(test) {
        panic!("{seen}");
    }
    stop(&format!("{}: {seen}", std::panic::Location::caller()))
}

/// Ends the process at once, saying why in the log and on standard error. What is on the disk stays as it is.
pub fn stop(why: &str) -> ! {
    tracing::error!(why, "the process stops");
    eprintln!("the process stops: {why}");
    std::process::abort()
}
