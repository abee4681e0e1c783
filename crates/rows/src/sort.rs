//! Sorting in memory, and beyond it on disk where that is allowed.

use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_query::sort::{SortPattern, Sorted, Sorter};

use crate::{BoxOperator, Cx, Figures, Operator, Row, Step, let_go, temporary_runs};

enum State {
    Reading(Option<Sorter>),
    Giving(Sorted),
}

/// Reads all rows, then gives them in order.
pub struct Sort {
    input: BoxOperator,
    pattern: Arc<SortPattern>,
    limit: Option<u64>,
    state: State,
    /// The row being given: see [`put_row`].
    current: Vec<u8>,
    buffer: Vec<u8>,
    key: Vec<u8>,
    figures: Figures,
}

impl Sort {
    /// Sorts by a pattern; with a limit, only the first rows come out.
    pub fn new(input: BoxOperator, pattern: Arc<SortPattern>, limit: Option<u64>) -> Self {
        Sort {
            input,
            pattern,
            limit,
            state: State::Reading(None),
            current: Vec::new(),
            buffer: Vec::new(),
            key: Vec::new(),
            figures: Figures::default(),
        }
    }

    /// A sorter with this command's memory.
    pub fn sorter(limit: Option<u64>, cx: &Cx<'_>) -> Sorter {
        let runs = cx.limits.allow_disk_use.then(temporary_runs);
        Sorter::new(limit, cx.limits.memory_bytes, runs)
    }

    fn add(&mut self, cx: &Cx<'_>) -> Result<()> {
        let row = self.input.row();
        self.key.clear();
        let metadata = self.input.metadata();
        self.pattern.put_key_bytes(row.document(), metadata.unwrap_or(RawDoc::EMPTY), &mut self.key)?;
        self.figures.sorted_rows += 1;
        self.figures.sorted_bytes += row.document().len() as u64;
        let State::Reading(sorter) = &mut self.state else {
            unreachable!("rows are taken in before the first is given");
        };
        let limit = self.limit;
        let sorter = sorter.get_or_insert_with(|| Sort::sorter(limit, cx));
        if !sorter.wants(&self.key) {
            return Ok(());
        }
        put_row(row, metadata, &mut self.buffer);
        let added = sorter.add(&self.key, &self.buffer);
        let_go(&mut self.buffer);
        self.input.release();
        added
    }

    /// All has come.
    fn finish(&mut self) -> Result<Step> {
        let State::Reading(sorter) = &mut self.state else {
            unreachable!("the input comes to its end once");
        };
        let Some(sorter) = sorter.take() else { return Ok(Step::Eof) };
        self.figures.spilled = sorter.spills();
        self.state = State::Giving(sorter.finish()?);
        Ok(Step::More)
    }
}

/// Writes a row as a sort keeps it: the lengths of the record's key, the metadata, the index key and its type bits, these,
/// and the document.
fn put_row(row: Row<'_>, metadata: Option<RawDoc<'_>>, out: &mut Vec<u8>) {
    let (key, bits) = row.key.unwrap_or_default();
    let parts = [row.record, metadata.map_or(&[][..], |metadata| metadata.as_bytes()), key, bits];
    out.clear();
    parts.iter().for_each(|part| out.extend_from_slice(&(part.len() as u32).to_le_bytes()));
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(row.document().as_bytes());
}

/// Reads what [`put_row`] wrote: the row and its metadata.
fn read_row(bytes: &[u8]) -> (Row<'_>, Option<RawDoc<'_>>) {
    let Some((lengths, mut rest)) = bytes.split_first_chunk::<16>() else { return (Row::default(), None) };
    let mut parts = [&[][..]; 4];
    for (part, length) in parts.iter_mut().zip(lengths.chunks_exact(4)) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
        (*part, rest) = rest.split_at(length);
    }
    let [record, metadata, key, bits] = parts;
    let key = (!key.is_empty()).then_some((key, bits));
    let metadata = (!metadata.is_empty()).then(|| RawDoc::new(metadata));
    (Row { doc: Some(RawDoc::new(rest)), record, key }, metadata)
}

impl Operator for Sort {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        let step = match &mut self.state {
            State::Reading(_) => match self.input.work(cx)? {
                Step::Row => {
                    self.add(cx)?;
                    Step::More
                }
                Step::More => Step::More,
                Step::Eof => self.finish()?,
            },
            State::Giving(sorted) => match sorted.next() {
                Some(payload) => {
                    self.current = payload?;
                    Step::Row
                }
                None => Step::Eof,
            },
        };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        read_row(&self.current).0
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        read_row(&self.current).1
    }

    fn inputs(&mut self, visit: &mut dyn FnMut(&mut dyn Operator)) {
        visit(&mut self.input);
    }

    fn figures(&mut self) -> Option<&mut Figures> {
        Some(&mut self.figures)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::DocBuf;

    use super::*;

    #[test]
    fn a_row_comes_back_as_it_was_kept() {
        let (doc, metadata) = (DocBuf::new().with("a", 1), DocBuf::new().with("textScore", 1.5));
        for (metadata, key) in [(None, None), (Some(metadata.as_raw()), Some((&b"k"[..], &b"bits"[..])))] {
            let row = Row { doc: Some(doc.as_raw()), record: b"key", key };
            let mut bytes = Vec::new();
            put_row(row, metadata, &mut bytes);
            let (back, with) = read_row(&bytes);
            assert_eq!(back.document(), row.document());
            assert_eq!((back.record, back.key), (row.record, row.key));
            assert_eq!(with, metadata);
        }
    }
}
