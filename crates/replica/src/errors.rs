//! What the driver does about an error, which is all that tells errors apart here.
//!
//! - **Try again** ([`keep_trying`]): what the set has ordered, and what this member must not forget, is waited for as long as the
//!   disk does not take it. A connection is made anew.
//! - **Tell**: the client whose command it is (a [`sheaf_errors::Error`] out of [`crate::Replica`]), the core about a member that cannot
//!   be reached ([`Lost`]), the other end of a link about what is wrong with it (`receiving`).
//! - **Stop the process**: where core, driver and disk contradict each other. These are assertions, and threads and locks
//!   of this crate are [`sheaf_storage::critical`].

use std::io;
use std::time::Duration;

use sheaf_errors::{Code, Error, Result};

/// Repeats an attempt until it succeeds. `failed` tells of each failure.
pub(crate) fn keep_trying<T>(
    pause: Duration,
    failed: impl Fn(&Error),
    mut attempt: impl FnMut() -> Result<T>,
) -> T {
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => failed(&error),
        }
        std::thread::sleep(pause);
    }
}

/// What the end of a connection to a member tells of that member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Nothing: silence may be the network's.
    Silence,
    /// Nobody is there: a connection that is refused or reset tells so, and the core hears of it.
    Member,
}

impl Lost {
    /// What this error tells.
    pub fn by(error: &io::Error) -> Lost {
        match error.kind() {
            io::ErrorKind::TimedOut => Lost::Silence,
            _ => Lost::Member,
        }
    }
}

/// The error of a member that has no configuration yet.
pub fn not_yet_initialized() -> Error {
    Error::new(Code::NOT_YET_INITIALIZED, "no replset config has been received")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_fails_is_tried_until_it_does_not() {
        let (told, mut left) = (Cell::new(0), 3);
        let value = keep_trying(
            Duration::ZERO,
            |_| told.set(told.get() + 1),
            || {
                left -= 1;
                if left > 0 { Err(Error::new(Code::OUT_OF_DISK_SPACE, "full")) } else { Ok(7) }
            },
        );
        assert_eq!((value, told.get()), (7, 2));
    }

    #[test]
    fn silence_tells_nothing_of_a_member() {
        assert_eq!(Lost::by(&io::ErrorKind::TimedOut.into()), Lost::Silence);
        assert_eq!(Lost::by(&io::ErrorKind::ConnectionRefused.into()), Lost::Member);
        assert_eq!(Lost::by(&io::ErrorKind::ConnectionReset.into()), Lost::Member);
    }
}
