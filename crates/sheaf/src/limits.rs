//! Limits that the system sets to the process.

use std::fs;

use rustix::fs::Mode;

/// File descriptors now allowed, from /proc.
pub fn open_files() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// How file descriptors are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// For table files; below 0: as many as there are.
    pub tables: i32,
    /// For connections.
    pub connections: usize,
}

/// For the log, folders, locks, files being written, listeners, links to other members: at least this many, in a process that
/// may have so many.
const FIXED: u64 = 64;
/// So many table files hold terabytes: no limit need be kept.
const TABLES_ENOUGH: u64 = 64 << 10;

impl Descriptors {
    /// Shares out what the process may have, so that no number of connections can take what storage needs.
    pub fn share(limit: Option<u64>) -> Descriptors {
        let Some(limit) = limit else { return Descriptors { tables: -1, connections: usize::MAX } };
        let left = limit - FIXED.min(limit / 2);
        let tables = left * 2 / 5;
        let connections = usize::try_from(left - tables).unwrap_or(usize::MAX);
        let tables = if tables >= TABLES_ENOUGH { -1 } else { tables.max(16) as i32 };
        Descriptors { tables, connections }
    }
}

/// Raises the number of file descriptors to the most that is allowed.
#[allow(unsafe_code)]
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a pointer to a valid `rlimit` that outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// What group and others may not do with the files that the server makes: all of data and users' credentials stands in them.
///
/// Errors: a text for the user.
pub fn close_files(parameters: &[(String, String)]) -> Result<(), String> {
    if let Some(mask) = mask(parameters)? {
        // The owner's bits stay as the system has them.
        let before = rustix::process::umask(Mode::empty());
        rustix::process::umask((before & Mode::RWXU) | Mode::from_raw_mode(mask));
    }
    Ok(())
}

/// The bits of group and others; `None` if the system's are to stay.
fn mask(parameters: &[(String, String)]) -> Result<Option<u32>, String> {
    let value = |name: &str| {
        parameters.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let honours = value("honorSystemUmask").is_some_and(|value| matches!(value, "true" | "1"));
    match value("processUmask").filter(|mask| !mask.is_empty()) {
        None => Ok((!honours).then_some(0o077)),
        Some(_) if honours => Err("BadValue: processUmask needs honorSystemUmask to be false".to_owned()),
        Some(text) => match u32::from_str_radix(text, 8) {
            Ok(mask) if mask <= 0o777 => Ok(Some(mask & 0o077)),
            _ => {
                Err(format!("BadValue: processUmask has to be an octal number of at most 777, not '{text}'"))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_the_owners_unless_parameters_say_otherwise() {
        let of = |list: &[(&str, &str)]| {
            let list: Vec<_> =
                list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            mask(&list)
        };
        assert_eq!(of(&[]), Ok(Some(0o077)));
        assert_eq!(of(&[("honorSystemUmask", "true")]), Ok(None));
        assert_eq!(of(&[("honorSystemUmask", "true"), ("honorSystemUmask", "false")]), Ok(Some(0o077)));
        assert_eq!(of(&[("processUmask", "027")]), Ok(Some(0o027)));
        assert!(of(&[("processUmask", "27"), ("honorSystemUmask", "1")]).is_err());
        assert!(of(&[("processUmask", "9")]).is_err() && of(&[("processUmask", "1000")]).is_err());
    }

    #[test]
    fn descriptors_are_shared_out() {
        assert_eq!(Descriptors::share(None), Descriptors { tables: -1, connections: usize::MAX });
        assert_eq!(Descriptors::share(Some(1 << 20)).tables, -1);
        for limit in [64, 100, 256, 1024, 4096, 64_000] {
            let Descriptors { tables, connections } = Descriptors::share(Some(limit));
            let taken = tables as usize + connections;
            assert!(
                tables >= 12 && connections >= 16 && taken < limit as usize,
                "{limit}: {tables} {connections}"
            );
            assert!(limit < 256 || limit as usize - taken >= 64);
        }
    }
}
