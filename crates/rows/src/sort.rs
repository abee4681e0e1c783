//! Sorting in memory, and beyond it on disk where that is allowed.

use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::Result;
use sheaf_query::sort::{SortPattern, Sorted, Sorter};

use crate::narrow::Fields;
use crate::{BoxOperator, Cx, Figures, KEPT_BYTES, Operator, Row, Scratch, Step, temporary_runs};

enum State {
    Reading(Option<Sorter>),
    Giving(Sorted),
}

/// Reads all rows, then gives them in order.
pub struct Sort {
    input: BoxOperator,
    pattern: Arc<SortPattern>,
    limit: Option<u64>,
    /// The fields that are read of what it gives, if those are not all.
    fields: Option<Arc<Fields>>,
    state: State,
    /// The document with those fields alone.
    narrow: Scratch,
    key: Scratch,
    figures: Figures,
}

impl Sort {
    /// Sorts by a pattern; with a limit, only the first rows come out.
    pub fn new(input: BoxOperator, pattern: Arc<SortPattern>, limit: Option<u64>) -> Self {
        Sort {
            input,
            pattern,
            limit,
            fields: None,
            state: State::Reading(None),
            narrow: Scratch::default(),
            key: Scratch::default(),
            figures: Figures { sorts: true, ..Figures::default() },
        }
    }

    /// The same knowing that nothing but these fields is read of the documents that it gives: it keeps no others.
    #[must_use]
    pub fn giving_only(self, fields: Option<Arc<Fields>>) -> Self {
        Sort { fields, ..self }
    }

    /// A sorter with this command's memory.
    pub fn sorter(limit: Option<u64>, cx: &Cx<'_>) -> Sorter {
        let runs = cx.limits.allow_disk_use.then(temporary_runs);
        Sorter::new(limit, cx.limits.memory_bytes, runs)
    }

    fn add(&mut self, cx: &Cx<'_>) -> Result<()> {
        let row = self.input.row();
        let document = row.document();
        let metadata = self.input.metadata();
        let of_key = metadata.unwrap_or(RawDoc::EMPTY);
        // Only a large document has a large key.
        let room = if document.len() > KEPT_BYTES { self.pattern.key_room(document, of_key) } else { 0 };
        self.pattern.put_key_bytes(document, of_key, self.key.begin(room)?)?;
        self.key.settle()?;
        self.figures.sorted_rows += 1;
        self.figures.sorted_bytes += document.len() as u64;
        let State::Reading(sorter) = &mut self.state else {
            unreachable!("rows are taken in before the first is given");
        };
        let limit = self.limit;
        let sorter = sorter.get_or_insert_with(|| Sort::sorter(limit, cx));
        if !sorter.wants(&self.key.bytes) {
            self.key.let_go();
            return Ok(());
        }
        let document = match &self.fields {
            Some(fields) => {
                _ = fields.of(document, &mut self.narrow.bytes);
                self.narrow.settle()?;
                RawDoc::new(&self.narrow.bytes)
            }
            None => document,
        };
        let added = sorter.add_parts(&self.key.bytes, &parts_of(row, document, metadata, &mut [0; 17]));
        self.narrow.let_go();
        self.key.let_go();
        self.input.release();
        added
    }

    /// The row being given and its metadata.
    fn given(&self) -> (Row<'_>, Option<RawDoc<'_>>) {
        match &self.state {
            State::Giving(sorted) => read_row(sorted.payload()),
            State::Reading(_) => (Row::default(), None),
        }
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

/// How a row is kept: this and the document;
const DOCUMENT: u8 = 0;
/// this, the length of the record's key as one byte, the key, and the document;
const RECORD: u8 = 1;
/// or this, the lengths of the record's key, the metadata, the index key and its type bits, these, and the document.
const ALL: u8 = 2;

/// The parts of a row as a sort keeps it, of which the first is made in `head`. Rows are many, and mostly there is little besides the
/// document.
fn parts_of<'r>(
    row: Row<'r>,
    document: RawDoc<'r>,
    metadata: Option<RawDoc<'r>>,
    head: &'r mut [u8; 17],
) -> [&'r [u8]; 6] {
    let (key, bits) = row.key.unwrap_or_default();
    let metadata = metadata.map_or(&[][..], |metadata| metadata.as_bytes());
    let plain = metadata.is_empty() && key.is_empty() && bits.is_empty();
    let head: &[u8] = match u8::try_from(row.record.len()) {
        Ok(0) if plain => &[DOCUMENT],
        Ok(length) if plain => {
            head[..2].copy_from_slice(&[RECORD, length]);
            &head[..2]
        }
        _ => {
            head[0] = ALL;
            for (length, part) in head[1..].chunks_exact_mut(4).zip([row.record, metadata, key, bits]) {
                length.copy_from_slice(&(part.len() as u32).to_le_bytes());
            }
            head
        }
    };
    [head, row.record, metadata, key, bits, document.as_bytes()]
}

/// Reads what [`parts_of`] wrote: the row and its metadata.
fn read_row(bytes: &[u8]) -> (Row<'_>, Option<RawDoc<'_>>) {
    let plain = |record, document| (Row { doc: Some(RawDoc::new(document)), record, key: None }, None);
    match bytes {
        [] => (Row::default(), None),
        [DOCUMENT, document @ ..] => plain(&[], document),
        [RECORD, length, rest @ ..] => {
            let (record, document) = rest.split_at(usize::from(*length));
            plain(record, document)
        }
        [_, rest @ ..] => {
            let (lengths, mut rest) = rest.split_at(16);
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
    }
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
            State::Giving(sorted) => {
                if sorted.advance()? {
                    Step::Row
                } else {
                    Step::Eof
                }
            }
        };
        Ok(self.figures.count(step))
    }

    fn row(&self) -> Row<'_> {
        self.given().0
    }

    fn metadata(&self) -> Option<RawDoc<'_>> {
        self.given().1
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
        let (metadata, key) = (Some(metadata.as_raw()), Some((&b"k"[..], &b"bits"[..])));
        let long = [7; 300];
        let rows: [(&[u8], _, _); 6] = [
            (b"key", None, None),
            (b"", None, None),
            (&long, None, None),
            (b"key", metadata, key),
            (b"", metadata, None),
            (b"", None, key),
        ];
        for (record, metadata, key) in rows {
            let row = Row { doc: Some(doc.as_raw()), record, key };
            let bytes = parts_of(row, row.document(), metadata, &mut [0; 17]).concat();
            let (back, with) = read_row(&bytes);
            assert_eq!(back.document(), row.document());
            assert_eq!((back.record, back.key), (row.record, row.key));
            assert_eq!(with, metadata);
        }
    }
}
