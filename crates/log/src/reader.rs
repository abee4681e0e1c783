//! Reading entries in order, while others are appended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::entry::{Entry, HEADER_LEN, Header};
use crate::log::Shared;
use crate::recover::Scanner;
use crate::segment::{SEGMENT_HEADER_LEN, Segment};
use crate::{Error, Result};

/// Gives entries one after another; at the end of the log it gives `None`, and later what was appended since.
pub struct Reader {
    shared: Arc<Shared>,
    segment: Option<Segment>,
    scanner: Option<Scanner>,
    /// Index of the entry that `next` gives.
    index: u64,
}

impl Reader {
    pub(crate) fn at_index(shared: Arc<Shared>, index: u64) -> Result<Reader> {
        let mut reader = Reader { shared, segment: None, scanner: None, index };
        reader.open_segment()?;
        let start = reader.segment.as_ref().map_or(index, |s| s.first_index);
        for at in start..index {
            if reader.skip(at)?.is_none() {
                break;
            }
        }
        Ok(reader)
    }

    pub(crate) fn at_time(shared: Arc<Shared>, time: u64) -> Result<Reader> {
        let segments = shared.segments.lock().unwrap_or_else(|p| p.into_inner()).clone();
        // The newest segment that starts before the time holds the first entry at or after it, or ends right before it.
        let start = segments
            .iter()
            .rev()
            .find(|segment| segment.first_entry().is_some_and(|header| header.at.time < time))
            .or(segments.first())
            .map_or(1, |segment| segment.first_index);
        let mut reader = Reader { shared, segment: None, scanner: None, index: start };
        reader.open_segment()?;
        while let Some(header) = reader.peek()? {
            if header.at.time >= time {
                break;
            }
            reader.skip(reader.index)?;
            reader.index += 1;
        }
        Ok(reader)
    }

    /// Index of the entry that [`Reader::next`] gives.
    pub fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn offset(&self) -> u64 {
        self.scanner.as_ref().map_or(SEGMENT_HEADER_LEN, |scanner| scanner.offset)
    }

    pub(crate) fn close(&mut self) {
        self.scanner = None;
    }

    fn open_segment(&mut self) -> Result<()> {
        let segments = self.shared.segments.lock().unwrap_or_else(|p| p.into_inner());
        let first = segments.first().map_or(0, |s| s.first_index);
        if self.index < first {
            return Err(Error::Gone { first });
        }
        let at = segments.iter().rposition(|s| s.first_index <= self.index).unwrap_or(0);
        let segment = segments[at].clone();
        drop(segments);
        self.scanner = Some(Scanner::new(segment.open(false)?, u64::MAX, segment.salt));
        self.segment = Some(segment);
        Ok(())
    }

    /// Goes on to the next file when the one being read was closed by the writer.
    fn ready(&mut self) -> Result<bool> {
        if self.index > self.shared.last_index.load(Ordering::Acquire) {
            return Ok(false);
        }
        let current = self.segment.as_ref().map(|s| s.first_index);
        let moved = {
            let segments = self.shared.segments.lock().unwrap_or_else(|p| p.into_inner());
            segments.iter().rev().any(|s| s.first_index == self.index && Some(s.first_index) != current)
        };
        if moved || self.scanner.is_none() {
            self.open_segment()?;
        }
        let bytes = {
            let segments = self.shared.segments.lock().unwrap_or_else(|p| p.into_inner());
            let first = self.segment.as_ref().map(|s| s.first_index);
            segments.iter().find(|s| Some(s.first_index) == first).map(|s| s.bytes)
        };
        if let (Some(scanner), Some(bytes)) = (&mut self.scanner, bytes) {
            scanner.set_end(bytes);
        }
        Ok(true)
    }

    fn peek(&mut self) -> Result<Option<Header>> {
        if !self.ready()? {
            return Ok(None);
        }
        let Some(scanner) = &mut self.scanner else { return Ok(None) };
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
        if let Some(scanner) = &mut self.scanner {
            scanner.offset += HEADER_LEN as u64 + u64::from(header.length);
        }
        Ok(Some(()))
    }

    fn damaged(&self, what: &str) -> Error {
        let segment = self.segment.as_ref().map_or_else(String::new, Segment::name);
        Error::Damaged { segment, offset: self.offset(), what: what.to_owned() }
    }

    /// The next entry, checked; `None` at the end of the log.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Entry>> {
        if !self.ready()? {
            return Ok(None);
        }
        let Some(scanner) = &mut self.scanner else { return Ok(None) };
        let at = scanner.offset;
        let Some((header, end)) = scanner.entry_at(at)? else {
            return Err(self.damaged("entry is not readable (checksum or length)"));
        };
        if header.at.index != self.index {
            return Err(self.damaged("an entry stands where another belongs"));
        }
        let payload =
            scanner.bytes_at(at + HEADER_LEN as u64, header.length as usize)?.unwrap_or_default().to_vec();
        scanner.offset = end;
        self.index += 1;
        Ok(Some(Entry { at: header.at, payload }))
    }
}
