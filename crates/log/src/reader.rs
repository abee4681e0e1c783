//! Reading entries in order, while others are appended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::damage::Damage;
use crate::entry::{Entry, HEADER_LEN, Header};
use crate::lock::lock;
use crate::marks::Marks;
use crate::recover::{Scanner, Source};
use crate::segment::{SEGMENT_HEADER_LEN, Segment};
use crate::shared::{Shared, first_index};
use crate::{Error, Result};

/// Gives entries one after another; at the end of the log it gives `None`, and later what was appended since. It has no file
/// of its own: all readers share a few.
pub struct Reader {
    shared: Arc<Shared>,
    /// Where it reads.
    place: Option<Place>,
    /// Index of the entry that `next` gives.
    index: u64,
}

struct Place {
    /// That of [`Segment::id`].
    id: u64,
    name: String,
    scanner: Scanner,
    /// What is known of the segment, and from where on this reader has told of it.
    marks: Arc<Marks>,
    marked: u64,
}

impl Place {
    /// It stands before this entry.
    fn mark(&mut self, header: &Header) {
        let offset = self.scanner.offset;
        if self.marks.note_between(self.marked, header.at, offset) {
            self.marked = offset;
        }
    }
}

impl Reader {
    pub(crate) fn at_index(shared: Arc<Shared>, index: u64) -> Result<Reader> {
        let mut reader = Reader { shared, place: None, index };
        reader.find_place()?;
        Ok(reader)
    }

    pub(crate) fn at_time(shared: Arc<Shared>, time: u64) -> Result<Reader> {
        loop {
            let cuts = shared.cuts.load(Ordering::Acquire);
            let reader = Reader::near_time(shared.clone(), time);
            // What was found, or not understood, may have been cut off meanwhile.
            if shared.cuts.load(Ordering::Acquire) == cuts {
                return reader;
            }
        }
    }

    fn near_time(shared: Arc<Shared>, time: u64) -> Result<Reader> {
        let segments = lock(&shared.segments).clone();
        // The newest segment that starts before the time holds the first entry at or after it, or ends right before it.
        let (mut before, mut not_before) = (0, segments.len());
        while before < not_before {
            let middle = before.midpoint(not_before);
            let starts_before = match shared.first_entry(&segments[middle]) {
                Ok(header) => header.is_some_and(|header| header.at.time < time),
                // The oldest ones are being removed.
                Err(Error::Gone { .. }) => true,
                Err(error) => return Err(error),
            };
            if starts_before {
                before = middle + 1;
            } else {
                not_before = middle;
            }
        }
        let segment = &segments[before.saturating_sub(1)];
        let start = segment.marks.before_time(time).map_or(segment.first_index, |mark| mark.index);
        let mut reader = Reader { shared, place: None, index: start };
        reader.find_place()?;
        while let Some(header) = reader.peek()? {
            if header.at.time >= time {
                break;
            }
            reader.skip(reader.index)?;
            reader.index += 1;
        }
        reader.rest();
        Ok(reader)
    }

    /// Index of the entry that [`Reader::next`] gives.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Nothing more is read for a while: memory is given back.
    pub fn rest(&mut self) {
        if let Some(place) = &mut self.place {
            place.scanner.rest();
        }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.place.as_ref().map_or(SEGMENT_HEADER_LEN, |place| place.scanner.offset)
    }

    /// Goes to the entry `index`, or to the log's end before it.
    fn find_place(&mut self) -> Result<()> {
        self.place = None;
        let segment = {
            let segments = lock(&self.shared.segments);
            let first = first_index(&segments);
            if self.index < first {
                return Err(Error::Gone { first });
            }
            let at = segments.iter().rposition(|s| s.first_index <= self.index);
            let at = at.expect("the oldest segment begins before what is not gone");
            segments[at].clone()
        };
        self.enter(&segment);
        let mut first = segment.first_index;
        if let (Some(mark), Some(place)) = (segment.marks.before_index(self.index), &mut self.place) {
            first = mark.index;
            place.scanner.offset = mark.offset;
        }
        for at in first..self.index {
            if self.skip(at)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Goes to the beginning of a segment.
    fn enter(&mut self, segment: &Segment) {
        let source = Source::Log(self.shared.clone(), segment.id);
        let scanner = Scanner::new(source, segment.bytes, segment.salt);
        let marked = scanner.offset;
        let marks = segment.marks.clone();
        self.place = Some(Place { id: segment.id, name: segment.name(), scanner, marks, marked });
    }

    /// Goes on to the next file when the one being read was closed by the writer.
    fn ready(&mut self) -> Result<bool> {
        if self.index > self.shared.last_index.load(Ordering::Acquire) {
            self.rest();
            return Ok(false);
        }
        let next = {
            let segments = lock(&self.shared.segments);
            let current = self.place.as_mut().and_then(|place| {
                let at = segments.iter().rposition(|segment| segment.id == place.id)?;
                place.scanner.set_end(segments[at].bytes);
                Some(at)
            });
            match current {
                Some(at) => segments.get(at + 1).filter(|next| next.first_index == self.index).cloned(),
                None => {
                    self.place = None;
                    None
                }
            }
        };
        match next {
            Some(next) => self.enter(&next),
            // It was removed, or cut off.
            None if self.place.is_none() => self.find_place()?,
            None => {}
        }
        Ok(true)
    }

    fn peek(&mut self) -> Result<Option<Header>> {
        if !self.ready()? {
            return Ok(None);
        }
        let Some(Place { scanner, .. }) = &mut self.place else { return Ok(None) };
        let at = scanner.offset;
        match scanner.head_at(at)? {
            Some((_, None)) => Err(self.damaged("the head of an entry is not readable")),
            head => Ok(head.and_then(|(_, header)| header)),
        }
    }

    /// Passes over the entry `index`, trusting its length.
    fn skip(&mut self, index: u64) -> Result<Option<()>> {
        let wanted = std::mem::replace(&mut self.index, index);
        let header = self.peek();
        self.index = wanted;
        let Some(header) = header? else { return Ok(None) };
        if header.at.index != index {
            return Err(self.damaged("an entry stands where another belongs"));
        }
        if let Some(place) = &mut self.place {
            place.mark(&header);
            place.scanner.offset += HEADER_LEN as u64 + u64::from(header.length);
        }
        Ok(Some(()))
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged(Damage {
            segment: self.place.as_ref().map_or_else(String::new, |place| place.name.clone()),
            offset: self.offset(),
            entry: self.index,
            term: None,
            what: what.to_owned(),
        })
    }

    /// The next entry, checked; `None` at the end of the log.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Entry>> {
        if !self.ready()? {
            return Ok(None);
        }
        let Some(place) = &mut self.place else { return Ok(None) };
        let at = place.scanner.offset;
        let Some((header, end)) = place.scanner.entry_at(at)? else {
            return Err(self.damaged("entry is not readable (checksum or length)"));
        };
        if header.at.index != self.index {
            return Err(self.damaged("an entry stands where another belongs"));
        }
        place.mark(&header);
        let scanner = &mut place.scanner;
        let Some(payload) = scanner.bytes_at(at + HEADER_LEN as u64, header.length as usize)? else {
            return Err(self.damaged("an entry ends behind its segment"));
        };
        let payload = payload.to_vec();
        scanner.offset = end;
        self.index += 1;
        Ok(Some(Entry { at: header.at, payload }))
    }
}
