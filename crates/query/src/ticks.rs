//! Going through many, and reading much: each step is counted by the operation's meter, which may end it.

use sheaf_errors::Result;

/// Whether all items pass; stops at the first that does not, or fails.
pub(crate) fn try_all<T>(
    items: impl IntoIterator<Item = T>,
    mut passes: impl FnMut(T) -> Result<bool>,
) -> Result<bool> {
    for item in items {
        sheaf_meter::tick(1)?;
        if !passes(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether any item passes; stops at the first that does, or fails.
pub(crate) fn try_any<T>(
    items: impl IntoIterator<Item = T>,
    mut passes: impl FnMut(T) -> Result<bool>,
) -> Result<bool> {
    Ok(!try_all(items, |item| passes(item).map(|passes| !passes))?)
}

/// Counts the work of reading this many bytes once, quickly.
pub(crate) fn tick_for(bytes: usize) -> Result<()> {
    sheaf_meter::tick(1 + u32::try_from(bytes >> 10).unwrap_or(u32::MAX >> 1))
}
