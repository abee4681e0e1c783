//! Simple-8b as columns have it: words of 64 bits, each a selector and as many numbers as fit.
//!
//! The low four bits select: 1 to 14 give numbers of so many bits, 7 and 8 leave four bits that can select an extension, whose numbers
//! carry a count of zeros that were cut off their end, and 15 repeats the number before. A number of all ones stands for a missing value.

use sheaf_errors::{Code, Result, bail};

/// The selector that repeats.
const REPEAT: u64 = 15;
/// A repeating word stands for a multiple of so many numbers,
const REPEAT_UNIT: u32 = 120;
/// up to this multiple.
const REPEAT_UNITS_MAX: u32 = 16;

/// How a word is laid out.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// The low bits of the word: selector, and extension where there is room for one.
    head: u8,
    /// The first slot's place.
    start: u8,
    /// Bits of the number itself.
    bits: u8,
    /// Bits below it that count zeros.
    zero_bits: u8,
    /// How many zeros one of that count is.
    zero_unit: u8,
    slots: u8,
}

impl Layout {
    const fn plain(selector: u8, bits: u8, slots: u8) -> Layout {
        let start = if selector == 7 || selector == 8 { 8 } else { 4 };
        Layout { head: selector, start, bits, zero_bits: 0, zero_unit: 0, slots }
    }

    const fn extended(selector: u8, extension: u8, bits: u8, slots: u8) -> Layout {
        let zero_bits = if selector == 8 && extension >= 8 { 5 } else { 4 };
        let zero_unit = if selector == 7 { 1 } else { 4 };
        Layout { head: selector | extension << 4, start: 8, bits, zero_bits, zero_unit, slots }
    }

    /// Bits of a slot.
    const fn width(&self) -> u8 {
        self.bits + self.zero_bits
    }

    const fn mask(&self) -> u64 {
        (1 << self.width()) - 1
    }
}

/// The layouts by family, those with the most slots first.
const FAMILIES: [&[Layout]; 4] = [
    &[
        Layout::plain(1, 1, 60),
        Layout::plain(2, 2, 30),
        Layout::plain(3, 3, 20),
        Layout::plain(4, 4, 15),
        Layout::plain(5, 5, 12),
        Layout::plain(6, 6, 10),
        Layout::plain(7, 7, 8),
        Layout::plain(8, 8, 7),
        Layout::plain(9, 10, 6),
        Layout::plain(10, 12, 5),
        Layout::plain(11, 15, 4),
        Layout::plain(12, 20, 3),
        Layout::plain(13, 30, 2),
        Layout::plain(14, 60, 1),
    ],
    &[
        Layout::extended(7, 1, 2, 9),
        Layout::extended(7, 2, 3, 8),
        Layout::extended(7, 3, 4, 7),
        Layout::extended(7, 4, 5, 6),
        Layout::extended(7, 5, 7, 5),
        Layout::extended(7, 6, 10, 4),
        Layout::extended(7, 7, 14, 3),
        Layout::extended(7, 8, 24, 2),
        Layout::extended(7, 9, 52, 1),
    ],
    &[
        Layout::extended(8, 1, 4, 7),
        Layout::extended(8, 2, 5, 6),
        Layout::extended(8, 3, 7, 5),
        Layout::extended(8, 4, 10, 4),
        Layout::extended(8, 5, 14, 3),
        Layout::extended(8, 6, 24, 2),
        Layout::extended(8, 7, 52, 1),
    ],
    &[
        Layout::extended(8, 8, 4, 6),
        Layout::extended(8, 9, 6, 5),
        Layout::extended(8, 10, 9, 4),
        Layout::extended(8, 11, 13, 3),
        Layout::extended(8, 12, 23, 2),
        Layout::extended(8, 13, 51, 1),
    ],
];

/// The layout by a word's low eight bits; no slots: no such word.
const BY_HEAD: [Layout; 256] = {
    let mut table = [Layout { head: 0, start: 0, bits: 0, zero_bits: 0, zero_unit: 0, slots: 0 }; 256];
    let mut family = 0;
    while family < FAMILIES.len() {
        let mut at = 0;
        while at < FAMILIES[family].len() {
            let layout = FAMILIES[family][at];
            if layout.start == 8 {
                table[layout.head as usize] = layout;
            } else {
                let mut above = 0;
                while above < 16 {
                    table[layout.head as usize | above << 4] = layout;
                    above += 1;
                }
            }
            at += 1;
        }
        family += 1;
    }
    table
};

/// How many numbers of so many bits a word of each family takes.
const CAPACITY: [[u8; 61]; 4] = {
    let mut table = [[0; 61]; 4];
    let mut family = 0;
    while family < 4 {
        let mut at = FAMILIES[family].len();
        while at > 0 {
            at -= 1;
            let layout = FAMILIES[family][at];
            let mut bits = 0;
            while bits <= layout.bits as usize {
                table[family][bits] = layout.slots;
                bits += 1;
            }
        }
        family += 1;
    }
    table
};

/// More bits than any word has for a number.
const TOO_MANY_BITS: u8 = 61;

/// A number, or nothing for a missing value.
pub(super) type Slot = Option<u128>;

/// A number on its way into a word, with the bits that it takes in each family.
#[derive(Clone, Copy, Debug)]
struct Pending {
    slot: Slot,
    bits: [u8; 4],
}

/// Zeros that a family cuts off this number, as it counts them.
fn zeros(family: usize, number: u128) -> (u32, u32) {
    let trailing = if number == 0 { 0 } else { number.trailing_zeros() };
    match family {
        0 => (0, 0),
        1 => (trailing.min(15), trailing.min(15)),
        2 => ((trailing / 4).min(15), (trailing / 4).min(15) * 4),
        _ => ((trailing / 4).min(31), (trailing / 4).min(31) * 4),
    }
}

impl Pending {
    fn of(slot: Slot) -> Pending {
        let bits = std::array::from_fn(|family| match slot {
            None => 1,
            Some(number) => {
                let rest = number >> zeros(family, number).1;
                // All ones is no number, so that one more must fit.
                let bits = 128 - rest.saturating_add(1).leading_zeros();
                let most = FAMILIES[family].last().map_or(0, |layout| u32::from(layout.bits));
                if bits <= most { bits as u8 } else { TOO_MANY_BITS }
            }
        });
        Pending { slot, bits }
    }

    fn fits_any(&self) -> bool {
        self.bits.iter().any(|&bits| bits < TOO_MANY_BITS)
    }
}

fn capacity(family: usize, bits: u8) -> usize {
    usize::from(CAPACITY[family].get(usize::from(bits)).copied().unwrap_or(0))
}

/// Packs numbers into words, which it gives with the count of what they stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Packer {
    pending: Vec<Pending>,
    /// The most bits of those, by family.
    most: [u8; 4],
    /// The last number of the last word.
    last: Option<Slot>,
    /// How often that comes again.
    repeats: u32,
}

impl Packer {
    /// Bytes of memory beside itself.
    pub(super) fn memory(&self) -> usize {
        self.pending.capacity() * size_of::<Pending>()
    }

    /// Begins anew, behind something that no word repeats.
    pub(super) fn reset(&mut self) {
        *self = Packer::default();
    }

    /// Takes a number; false if no word can hold it.
    pub(super) fn push(&mut self, slot: Slot, word: &mut impl FnMut(u64, u32)) -> bool {
        if self.pending.is_empty() && self.last == Some(slot) {
            self.repeats += 1;
            return true;
        }
        let next = Pending::of(slot);
        if !next.fits_any() {
            return false;
        }
        self.end_repeats(word);
        self.queue(next, word);
        true
    }

    /// Gives all that is pending.
    pub(super) fn flush(&mut self, word: &mut impl FnMut(u64, u32)) {
        self.end_repeats(word);
        while !self.pending.is_empty() {
            self.emit(word);
        }
    }

    fn queue(&mut self, next: Pending, word: &mut impl FnMut(u64, u32)) {
        while !self.has_room(&next) {
            self.emit(word);
            // What is left may be one run.
            if Some(next.slot) == self.last
                && self.pending.iter().all(|pending| Some(pending.slot) == self.last)
            {
                self.repeats = self.pending.len() as u32 + 1;
                self.pending.clear();
                self.most = [0; 4];
                return;
            }
        }
        for (most, bits) in self.most.iter_mut().zip(next.bits) {
            *most = (*most).max(bits);
        }
        self.pending.push(next);
    }

    fn has_room(&self, next: &Pending) -> bool {
        let count = self.pending.len() + 1;
        (0..4).any(|family| count <= capacity(family, self.most[family].max(next.bits[family])))
    }

    fn end_repeats(&mut self, word: &mut impl FnMut(u64, u32)) {
        let (mut repeats, last) = (std::mem::take(&mut self.repeats), self.last.flatten());
        if repeats == 0 {
            return;
        }
        while repeats >= REPEAT_UNIT {
            let units = (repeats / REPEAT_UNIT).min(REPEAT_UNITS_MAX);
            word(REPEAT | u64::from(units - 1) << 4, units * REPEAT_UNIT);
            repeats -= units * REPEAT_UNIT;
        }
        let next = Pending::of(last);
        for _ in 0..repeats {
            while !self.has_room(&next) {
                self.emit(word);
            }
            for (most, bits) in self.most.iter_mut().zip(next.bits) {
                *most = (*most).max(bits);
            }
            self.pending.push(next);
        }
    }

    /// The layout that takes most of the pending numbers, and more than `least`.
    fn most_slots(&self, family: usize, layouts: &'static [Layout], least: u8) -> Option<&'static Layout> {
        let mut found = None;
        let (mut seen, mut most) = (0, 0);
        // Those with fewer slots first: what a longer one has to take begins with what a shorter one has taken.
        for layout in layouts.iter().rev() {
            let slots = usize::from(layout.slots);
            let Some(further) = self.pending.get(seen..slots) else { break };
            most = further.iter().fold(most, |most, pending| pending.bits[family].max(most));
            seen = slots;
            if most > layout.bits {
                break;
            }
            found = Some(layout);
        }
        found.filter(|layout| layout.slots > least)
    }

    /// Gives one word, with as many of the pending numbers as one can have.
    fn emit(&mut self, word: &mut impl FnMut(u64, u32)) {
        let mut best: Option<(usize, &Layout)> = None;
        for (family, layouts) in FAMILIES.iter().enumerate() {
            let least = best.map_or(0, |(_, best)| best.slots);
            if let Some(layout) = self.most_slots(family, layouts, least) {
                best = Some((family, layout));
            }
        }
        let Some((family, layout)) = best else { return self.pending.clear() };
        let mut made = u64::from(layout.head);
        let slots = usize::from(layout.slots);
        for (at, pending) in self.pending[..slots].iter().enumerate() {
            let raw = match pending.slot {
                None => layout.mask(),
                Some(number) => {
                    let (count, cut) = zeros(family, number);
                    ((number >> cut) as u64) << layout.zero_bits | u64::from(count)
                }
            };
            made |= raw << (usize::from(layout.start) + at * usize::from(layout.width()));
        }
        self.last = Some(self.pending[slots - 1].slot);
        self.pending.drain(..slots);
        self.most = [0; 4];
        for pending in &self.pending {
            for (most, bits) in self.most.iter_mut().zip(pending.bits) {
                *most = (*most).max(bits);
            }
        }
        word(made, slots as u32);
    }
}

/// Takes a row of words apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// Where the next word stands, and where the row ends.
    at: usize,
    end: usize,
    word: u64,
    layout: Layout,
    slot: u8,
    repeats: u32,
    last: Slot,
}

impl Words {
    /// No words, behind a value from which repeating words would count.
    pub(super) fn none() -> Words {
        Words { at: 0, end: 0, word: 0, layout: BY_HEAD[0], slot: 0, repeats: 0, last: Some(0) }
    }

    /// Goes on with the words from `at` to `end`; what the last ones ended with may be repeated.
    pub(super) fn go_on(&mut self, at: usize, end: usize) {
        (self.at, self.end) = (at, end);
    }

    /// The next number; nothing at the end of the row.
    ///
    /// Errors: `InvalidBSON` for a selector that does not exist.
    #[inline]
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<Option<Slot>> {
        if self.repeats > 0 {
            self.repeats -= 1;
            return Ok(Some(self.last));
        }
        if self.slot == self.layout.slots {
            if self.at >= self.end {
                return Ok(None);
            }
            let Some(word) = bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) else {
                bail!(Code::INVALID_BSON, "invalid BSON column: words run past its end");
            };
            self.at += 8;
            self.word = u64::from_le_bytes(*word);
            self.slot = 0;
            self.layout = BY_HEAD[(self.word & 0xFF) as usize];
            if self.word & 15 == REPEAT {
                self.repeats = ((self.word >> 4 & 15) as u32 + 1) * REPEAT_UNIT - 1;
                return Ok(Some(self.last));
            }
            if self.layout.slots == 0 {
                bail!(Code::INVALID_BSON, "invalid BSON column: no such selector: {}", self.word & 0xFF);
            }
        }
        let layout = &self.layout;
        let raw = self.word >> (u32::from(layout.start) + u32::from(self.slot) * u32::from(layout.width()))
            & layout.mask();
        self.slot += 1;
        self.last = if raw == layout.mask() {
            None
        } else if layout.zero_bits == 0 {
            Some(u128::from(raw))
        } else {
            let count = raw & ((1 << layout.zero_bits) - 1);
            Some(u128::from(raw >> layout.zero_bits) << (count as u32 * u32::from(layout.zero_unit)))
        };
        Ok(Some(self.last))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_fill_a_word() {
        for (family, layouts) in FAMILIES.iter().enumerate() {
            for layout in *layouts {
                let end = u32::from(layout.start) + u32::from(layout.slots) * u32::from(layout.width());
                assert!(end <= 64 && end + u32::from(layout.width()) > 64, "{family} {layout:?}");
            }
        }
    }

    fn slot() -> impl Strategy<Value = Slot> {
        prop_oneof![
            2 => Just(None),
            6 => (0..4u128).prop_map(Some),
            4 => (any::<u64>(), 4..64u32).prop_map(|(n, cut)| Some(u128::from(n >> cut))),
            2 => (any::<u16>(), 0..112u32).prop_map(|(n, by)| Some(u128::from(n) << by)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(runs in prop::collection::vec((slot(), 1..400usize), 0..40), short in any::<bool>()) {
            let numbers: Vec<Slot> =
                runs.iter().flat_map(|(slot, count)| std::iter::repeat_n(*slot, if short { count % 3 } else { *count })).collect();
            let (mut packer, mut bytes, mut counted) = (Packer::default(), Vec::new(), 0);
            let mut word = |word: u64, count: u32| {
                bytes.extend_from_slice(&word.to_le_bytes());
                counted += count as usize;
            };
            for slot in &numbers {
                prop_assert!(packer.push(*slot, &mut word));
            }
            packer.flush(&mut word);
            prop_assert_eq!(counted, numbers.len());
            let mut words = Words::none();
            words.go_on(0, bytes.len());
            let mut found = Vec::new();
            while let Some(slot) = words.next(&bytes).unwrap() {
                found.push(slot);
            }
            prop_assert_eq!(found, numbers);
        }
    }
}
