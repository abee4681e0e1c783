//! Sorting that looks at the clock.

use std::cmp::Ordering;

use sheaf_errors::Result;

/// Runs up to this length are sorted by insertion.
const SHORT: usize = 12;

/// What a sort sets aside is counted from here on.
const COUNTED_BYTES: usize = 256 << 10;

/// Sorts stably. `compare` may fail, and ticks for what a comparison costs; the first failure ends the sort, with the
/// items in some order.
///
/// The standard library's sorts cannot be stopped, and may panic where a comparison that has been told to stop is not
/// consistent with those before.
///
/// Errors: those of `compare`.
pub fn sort_by<T: Copy>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Result<Ordering>) -> Result<()> {
    for run in items.chunks_mut(SHORT) {
        insertion(run, &mut compare)?;
    }
    // The first half of what is merged is set aside.
    let aside = size_of_val(items);
    let _held = if aside >= COUNTED_BYTES { Some(crate::reserve(aside as u64)?) } else { None };
    let mut width = SHORT;
    let mut left = Vec::new();
    while width < items.len() {
        for pair in items.chunks_mut(2 * width) {
            if pair.len() > width {
                merge(pair, width, &mut left, &mut compare)?;
            }
        }
        width *= 2;
    }
    Ok(())
}

/// What the standard library is given to sort at a time: done within a millisecond.
const AT_ONCE: usize = SHORT << 10;

/// Comparisons of numbers between two ticks.
const COMPARED: u32 = 64;

/// Sorts stably by a number, and items of one number by `compare`, as [`sort_by`] does.
///
/// Errors: those of `compare`.
pub fn sort_by_prefix<T: Copy>(
    items: &mut [T],
    prefix: impl Fn(&T) -> u64,
    mut compare: impl FnMut(&T, &T) -> Result<Ordering>,
) -> Result<()> {
    for part in items.chunks_mut(AT_ONCE) {
        crate::tick(part.len() as u32 / 2)?;
        part.sort_by_key(&prefix);
    }
    // Parts that are in order already cost no more than a look.
    let mut compared = 0;
    sort_by(items, |a, b| {
        let order = prefix(a).cmp(&prefix(b));
        if order.is_eq() {
            return compare(a, b);
        }
        compared += 1;
        if compared == COMPARED {
            compared = 0;
            crate::tick(COMPARED / 8)?;
        }
        Ok(order)
    })
}

fn insertion<T: Copy>(run: &mut [T], compare: &mut impl FnMut(&T, &T) -> Result<Ordering>) -> Result<()> {
    for at in 1..run.len() {
        let item = run[at];
        let mut place = at;
        while place > 0 && compare(&run[place - 1], &item)?.is_gt() {
            run[place] = run[place - 1];
            place -= 1;
        }
        run[place] = item;
    }
    Ok(())
}

/// Merges the two sorted parts of `pair`, the first of which is `middle` long.
fn merge<T: Copy>(
    pair: &mut [T],
    middle: usize,
    left: &mut Vec<T>,
    compare: &mut impl FnMut(&T, &T) -> Result<Ordering>,
) -> Result<()> {
    // What is in order already is what sorts meet most.
    if compare(&pair[middle - 1], &pair[middle])?.is_le() {
        return Ok(());
    }
    left.clear();
    left.extend_from_slice(&pair[..middle]);
    let (mut from_left, mut from_right) = (0, middle);
    for at in 0..pair.len() {
        if from_left == left.len() {
            break;
        }
        let take_left = from_right == pair.len() || compare(&left[from_left], &pair[from_right])?.is_le();
        if take_left {
            pair[at] = left[from_left];
            from_left += 1;
        } else {
            pair[at] = pair[from_right];
            from_right += 1;
        }
    }
    Ok(())
}
