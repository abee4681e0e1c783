//! Writing columns.

use sheaf_bson::RawDoc;

use super::objects::Objects;
use super::stream::Stream;
use super::value::kind;

/// A column that grows.
#[derive(Clone, Debug)]
pub struct ColumnWriter {
    /// What is finished.
    bytes: Vec<u8>,
    part: Part,
    count: u32,
}

/// The part of a column that grows.
#[derive(Clone, Debug)]
enum Part {
    Values(Stream),
    Objects(Objects),
}

impl Default for ColumnWriter {
    fn default() -> Self {
        ColumnWriter { bytes: Vec::new(), part: Part::Values(Stream::new()), count: 0 }
    }
}

impl ColumnWriter {
    /// An empty column.
    pub fn new() -> Self {
        ColumnWriter::default()
    }

    /// Bytes of memory beside itself.
    pub fn memory(&self) -> usize {
        let part = match &self.part {
            Part::Values(stream) => stream.memory(),
            Part::Objects(objects) => objects.memory(),
        };
        self.bytes.capacity() + part
    }

    /// How many values it has, missing ones too.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Adds a missing value.
    pub fn skip(&mut self) {
        self.count += 1;
        match &mut self.part {
            Part::Values(stream) => stream.skip(),
            Part::Objects(objects) => {
                if !objects.skip() {
                    self.begin_values().skip();
                }
            }
        }
    }

    /// Adds a value: its type byte, and its bytes.
    pub fn append(&mut self, kind: u8, data: &[u8]) {
        self.count += 1;
        let nested = matches!(kind, kind::DOCUMENT | kind::ARRAY).then(|| RawDoc::new(data));
        if let Some(document) = nested {
            if let Part::Objects(objects) = &mut self.part
                && objects.add(kind, document)
            {
                return;
            }
            if let Some(objects) = Objects::new(kind, document) {
                self.end_part();
                self.part = Part::Objects(objects);
                return;
            }
        }
        match &mut self.part {
            Part::Values(stream) => stream.append(kind, data),
            Part::Objects(_) => self.begin_values().append(kind, data),
        }
    }

    /// Appends the bytes of a binary of subtype 7 with what has been added.
    pub fn finish_into(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        self.part.finish_into(out);
        out.push(kind::NONE);
    }

    /// Adds missing values until there are so many.
    pub fn skip_to(&mut self, count: u32) {
        while self.count < count {
            self.skip();
        }
    }

    fn end_part(&mut self) {
        let part = std::mem::replace(&mut self.part, Part::Values(Stream::new()));
        part.finish_into(&mut self.bytes);
    }

    fn begin_values(&mut self) -> &mut Stream {
        self.end_part();
        match &mut self.part {
            Part::Values(stream) => stream,
            Part::Objects(_) => unreachable!("a part that has ended is followed by values"),
        }
    }
}

impl Part {
    fn finish_into(&self, out: &mut Vec<u8>) {
        match self {
            Part::Values(stream) => stream.finish_into(out),
            Part::Objects(objects) => objects.clone().finish_into(out),
        }
    }
}
