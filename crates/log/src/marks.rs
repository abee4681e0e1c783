//! Where some of a segment's entries begin, so that one is found without reading all that is before it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::lock;
use crate::position::OpTime;
use crate::segment::SEGMENT_HEADER_LEN;

/// Two marks are as far apart at least: a segment of the usual size has about a thousand.
const STEP: u64 = 64 << 10;

/// The beginning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub index: u64,
    pub time: u64,
    pub offset: u64,
}

/// What is known of a segment: its writer notes as it goes, readers where nobody has. All of it can be forgotten.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// In the order of the entries.
    all: Mutex<Vec<Mark>>,
    /// Behind all marks by a step.
    next: AtomicU64,
}

impl Marks {
    /// The writer has put an entry there, behind all others.
    pub fn note(&self, at: OpTime, offset: u64) {
        if offset >= self.next.load(Ordering::Relaxed) {
            self.note_between(0, at, offset);
        }
    }

    /// Another than the writer, who has last told of the byte `told`, stands before this entry; whether that is far enough from there to
    /// be looked at.
    pub fn note_between(&self, told: u64, at: OpTime, offset: u64) -> bool {
        if offset < told + STEP {
            return false;
        }
        let mut all = lock(&self.all);
        let place = all.partition_point(|known| known.offset < offset);
        let before = place.checked_sub(1).map_or(SEGMENT_HEADER_LEN, |place| all[place].offset);
        let is_free = all.get(place).is_none_or(|next| next.offset > offset);
        if before + STEP <= offset && is_free {
            all.insert(place, Mark { index: at.index, time: at.time, offset });
            if place + 1 == all.len() {
                self.next.store(offset + STEP, Ordering::Relaxed);
            }
        }
        true
    }

    /// The nearest mark at or before an entry.
    pub fn before_index(&self, index: u64) -> Option<Mark> {
        let all = lock(&self.all);
        let after = all.partition_point(|mark| mark.index <= index);
        after.checked_sub(1).map(|place| all[place])
    }

    /// The nearest mark before the first entry at or after a time.
    pub fn before_time(&self, time: u64) -> Option<Mark> {
        let all = lock(&self.all);
        let after = all.partition_point(|mark| mark.time < time);
        after.checked_sub(1).map(|place| all[place])
    }

    /// Those before the byte `end`, behind which the segment is cut off. They are others from now on: what a reader has read
    /// before the cut is noted with those that are gone.
    pub fn up_to(&self, end: u64) -> Marks {
        let mut all = lock(&self.all).clone();
        all.retain(|mark| mark.offset < end);
        let next = all.last().map_or(0, |last| last.offset + STEP);
        Marks { all: Mutex::new(all), next: AtomicU64::new(next) }
    }
}
