//! Reading columns. The bytes may be anything: what is wrong with them gives an error, and no more memory is taken than one value needs.

use sheaf_bson::{MAX_DEPTH, RawDoc, validate, validate_element};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::Held;

use super::objects::{ARRAYS, DOCUMENTS};
use super::simple8b::{Slot, Words};
use super::value::{self, kind};

/// The control byte of documents that have arrays as single values.
const DOCUMENTS_OF_OLD: u8 = 0xF0;
/// Deepest nesting of a reference document, and of a literal in one of its rows: together they are no deeper than any document may be.
const MAX_INNER_DEPTH: usize = MAX_DEPTH / 2;
/// Most values of a reference document, and most documents and arrays in it.
const MAX_ROWS: usize = 100_000;

fn invalid(what: &str) -> Error {
    Error::new(Code::INVALID_BSON, format!("invalid BSON column: {what}"))
}

/// Where the next control byte stands, and where the column ends.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    at: usize,
    end: usize,
}

impl Cursor {
    fn control(self, bytes: &[u8]) -> Result<u8> {
        let control = bytes.get(self.at).filter(|_| self.at < self.end);
        control.copied().ok_or_else(|| invalid("it has no end"))
    }
}

/// Reads a column's values one by one. It keeps places, not the bytes themselves, which are given to it each time.
#[derive(Debug)]
pub struct ColumnReader {
    cursor: Cursor,
    mode: Mode,
    found: Found,
    /// The document that was built last.
    built: Vec<u8>,
}

#[derive(Debug)]
enum Mode {
    Values(Stream),
    Objects(Objects),
    Ended,
}

/// What was read last.
#[derive(Clone, Copy, Debug)]
enum Found {
    Missing,
    /// The last value of the row.
    Value,
    /// The built document, of this type.
    Built(u8),
}

impl ColumnReader {
    /// Reads what lies between these places of the bytes that will be given.
    pub fn new(at: usize, end: usize) -> Self {
        let mode = Mode::Values(Stream::of(kind::NONE, Place::Built, &[]));
        ColumnReader { cursor: Cursor { at, end }, mode, found: Found::Missing, built: Vec::new() }
    }

    /// Goes to the next value, which may be a missing one; false at the end.
    ///
    /// Errors: `InvalidBSON`.
    #[inline]
    pub fn advance(&mut self, bytes: &[u8]) -> Result<bool> {
        if let Mode::Values(stream) = &mut self.mode
            && let Some(there) = stream.advance(&mut self.cursor, bytes, &self.built, MAX_DEPTH)?
        {
            self.found = if there { Found::Value } else { Found::Missing };
            return Ok(true);
        }
        self.advance_slowly(bytes)
    }

    /// The value that was come to; `None` if it is missing. Type byte, and the value's bytes.
    #[inline]
    pub fn value<'v>(&'v self, bytes: &'v [u8]) -> Option<(u8, &'v [u8])> {
        match (self.found, &self.mode) {
            (Found::Value, Mode::Values(stream)) => Some((stream.kind, stream.data(bytes, &self.built))),
            (Found::Built(kind), _) => Some((kind, &self.built)),
            _ => None,
        }
    }

    fn advance_slowly(&mut self, bytes: &[u8]) -> Result<bool> {
        loop {
            match &mut self.mode {
                Mode::Ended => return Ok(false),
                Mode::Values(stream) => {
                    if let Some(there) = stream.advance(&mut self.cursor, bytes, &self.built, MAX_DEPTH)? {
                        self.found = if there { Found::Value } else { Found::Missing };
                        return Ok(true);
                    }
                    match self.cursor.control(bytes)? {
                        kind::NONE if self.cursor.at + 1 == self.cursor.end => self.mode = Mode::Ended,
                        kind::NONE => return Err(invalid("it ends before its bytes do")),
                        DOCUMENTS_OF_OLD | DOCUMENTS | ARRAYS => {
                            self.mode = Mode::Objects(Objects::begin(&mut self.cursor, bytes)?);
                        }
                        other => return Err(invalid(&format!("no such control byte: {other:#x}"))),
                    }
                }
                Mode::Objects(objects) => match objects.advance(&mut self.cursor, bytes, &mut self.built)? {
                    Some(true) => {
                        self.found = Found::Built(objects.kind);
                        return Ok(true);
                    }
                    Some(false) => {
                        self.found = Found::Missing;
                        return Ok(true);
                    }
                    None => {
                        // The last document can be repeated by what follows.
                        let kind = if let Found::Built(kind) = self.found { kind } else { kind::NONE };
                        self.mode = Mode::Values(Stream::of(kind, Place::Built, &[]));
                    }
                },
            }
        }
    }
}

/// The bytes of a value.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the column.
    Given(usize, usize),
    /// Made of a difference.
    Made([u8; 24], u8),
    /// The document that was built last.
    Built,
}

/// A row of values, as the writer's.
#[derive(Clone, Copy, Debug)]
struct Stream {
    words: Words,
    kind: u8,
    place: Place,
    wide: i128,
    narrow: i64,
    difference: i64,
    scale: u8,
}

impl Stream {
    /// A row behind a value.
    fn of(kind: u8, place: Place, data: &[u8]) -> Stream {
        let wide = if value::is_wide(kind) { value::wide(kind, data).unwrap_or(0) } else { 0 };
        let narrow = value::narrow(kind, data);
        Stream { words: Words::none(), kind, place, wide, narrow, difference: 0, scale: value::BITS }
    }

    #[inline]
    fn data<'v>(&'v self, bytes: &'v [u8], built: &'v [u8]) -> &'v [u8] {
        match &self.place {
            Place::Given(at, end) => bytes.get(*at..*end).unwrap_or_default(),
            Place::Made(made, len) => &made[..usize::from(*len)],
            Place::Built => built,
        }
    }

    /// Goes to the next value and says whether it is there; `None` where what follows is nothing of this row.
    #[inline]
    fn advance(
        &mut self,
        cursor: &mut Cursor,
        bytes: &[u8],
        built: &[u8],
        max_depth: usize,
    ) -> Result<Option<bool>> {
        loop {
            if let Some(slot) = self.words.next(bytes)? {
                return self.apply(slot, bytes, built).map(Some);
            }
            let control = cursor.control(bytes)?;
            if matches!(control, 0x01..=0x1F | 0x7F | 0xFF) {
                let len = validate_element(&bytes[cursor.at..cursor.end], max_depth)?;
                if bytes[cursor.at + 1] != 0 {
                    return Err(invalid("a literal has a name"));
                }
                let end = cursor.at + len;
                *self = Stream::of(control, Place::Given(cursor.at + 2, end), &bytes[cursor.at + 2..end]);
                cursor.at = end;
                return Ok(Some(true));
            }
            let Some(scale) = value::scale_of(control) else { return Ok(None) };
            let end = cursor.at + 1 + 8 * (usize::from(control & 0x0F) + 1);
            if end >= cursor.end {
                return Err(invalid("words run past its end"));
            }
            self.begin_words(scale, bytes, built)?;
            self.words.go_on(cursor.at + 1, end);
            cursor.at = end;
        }
    }

    fn begin_words(&mut self, scale: u8, bytes: &[u8], built: &[u8]) -> Result<()> {
        self.scale = scale;
        if self.kind == kind::DOUBLE {
            let last = value::double(self.data(bytes, built));
            self.narrow =
                value::double_at(last, scale).ok_or_else(|| invalid("a double is not of its scale"))?;
        } else if scale != value::BITS {
            return Err(invalid("a scale for what is no double"));
        }
        Ok(())
    }

    #[inline]
    fn apply(&mut self, slot: Slot, bytes: &[u8], built: &[u8]) -> Result<bool> {
        let Some(number) = slot.filter(|_| self.kind != kind::NONE) else { return Ok(false) };
        let mut out = [0; 24];
        let made = if value::is_twice(self.kind) {
            self.difference = self.difference.wrapping_add(value::unzigzag(number));
            self.narrow = self.narrow.wrapping_add(self.difference);
            value::put_narrow(self.kind, self.narrow, self.data(bytes, built), &mut out)
        } else if number == 0 {
            return Ok(true);
        } else if value::is_wide(self.kind) {
            self.wide = self.wide.wrapping_add(value::unzigzag_wide(number));
            value::put_wide(self.kind, self.wide, self.data(bytes, built), &mut out)
        } else {
            self.narrow = self.narrow.wrapping_add(value::unzigzag(number));
            if self.kind == kind::DOUBLE {
                out[..8].copy_from_slice(&value::double_of(self.narrow, self.scale).to_le_bytes());
                Some(8)
            } else {
                value::put_narrow(self.kind, self.narrow, &[], &mut out)
            }
        };
        let len = made.ok_or_else(|| invalid("a difference where there can be none"))?;
        self.place = Place::Made(out, len as u8);
        Ok(true)
    }
}

/// Documents whose fields are rows.
#[derive(Debug)]
struct Objects {
    kind: u8,
    steps: Vec<Step>,
    rows: Vec<Stream>,
    /// Where the documents that are being written begin, with their names.
    open: Vec<(usize, usize)>,
    /// The memory of rows and steps, which a few bytes of a column can ask for.
    held: Held,
    /// For how many of them.
    paid: usize,
}

/// What the writing of one document consists of.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A document begins, with this type and a name at this place.
    Open(u8, (usize, usize)),
    /// The next row's value, with a name at this place.
    Row((usize, usize)),
    /// A document ends. An empty one is left out, unless it is one in the reference.
    Close { stays: bool },
}

impl Objects {
    /// Reads the reference document.
    fn begin(cursor: &mut Cursor, bytes: &[u8]) -> Result<Objects> {
        let control = cursor.control(bytes)?;
        let at = cursor.at + 1;
        let len = validate(&bytes[at..cursor.end], MAX_INNER_DEPTH)?;
        let kind = if control == ARRAYS { kind::ARRAY } else { kind::DOCUMENT };
        let held = sheaf_meter::reserve(0)?;
        let mut objects =
            Objects { kind, steps: Vec::new(), rows: Vec::new(), open: Vec::new(), held, paid: 0 };
        let reference = RawDoc::new(&bytes[at..at + len]);
        objects.read(reference, bytes.as_ptr() as usize, control != DOCUMENTS_OF_OLD)?;
        cursor.at = at + len;
        if objects.rows.is_empty() || cursor.control(bytes)? == kind::NONE {
            return Err(invalid("documents without values"));
        }
        Ok(objects)
    }

    fn read(&mut self, document: RawDoc<'_>, base: usize, arrays: bool) -> Result<()> {
        let place = |part: &[u8]| (part.as_ptr() as usize - base, part.as_ptr() as usize - base + part.len());
        for element in document.iter() {
            if self.rows.len() == MAX_ROWS || self.steps.len() >= 3 * MAX_ROWS {
                return Err(invalid("a reference document with too many values"));
            }
            if self.steps.len() >= self.paid {
                self.hold_more()?;
            }
            let (kind, data) = (element.as_bytes()[0], element.data());
            let name = place(element.key_bytes());
            if kind == kind::DOCUMENT || (kind == kind::ARRAY && arrays) {
                self.steps.push(Step::Open(kind, name));
                let inner = RawDoc::new(data);
                self.read(inner, base, arrays)?;
                self.steps.push(Step::Close { stays: inner.is_empty() });
                continue;
            }
            let (at, end) = place(data);
            self.rows.push(Stream::of(kind, Place::Given(at, end), data));
            self.steps.push(Step::Row(name));
        }
        Ok(())
    }

    /// Accounts for as many rows and steps again.
    fn hold_more(&mut self) -> Result<()> {
        let more = self.paid.max(16);
        self.held.grow((more * (size_of::<Step>() + size_of::<Stream>())) as u64)?;
        self.paid += more;
        Ok(())
    }

    /// Builds the next document; false if it is missing, nothing at the end.
    fn advance(&mut self, cursor: &mut Cursor, bytes: &[u8], built: &mut Vec<u8>) -> Result<Option<bool>> {
        let mut rows = self.rows.iter_mut();
        let Some(mut first) = rows.next() else { return Err(invalid("documents without values")) };
        let Some(mut there) = first.advance(cursor, bytes, &[], MAX_INNER_DEPTH)? else {
            return self.end(cursor, bytes).map(|()| None);
        };
        built.clear();
        built.extend_from_slice(&[0; 4]);
        let mut is_first = true;
        for step in &self.steps {
            match *step {
                Step::Open(kind, (at, end)) => {
                    let begin = built.len();
                    built.push(kind);
                    built.extend_from_slice(&bytes[at..end]);
                    built.extend_from_slice(&[0; 5]);
                    self.open.push((begin, built.len() - 4));
                }
                Step::Close { stays } => {
                    let Some((begin, start)) = self.open.pop() else { continue };
                    if stays || built.len() > start + 4 {
                        close(built, start);
                    } else {
                        built.truncate(begin);
                    }
                }
                Step::Row((at, end)) => {
                    if !std::mem::take(&mut is_first) {
                        let Some(row) = rows.next() else { return Err(invalid("a row is missing")) };
                        let next = row.advance(cursor, bytes, &[], MAX_INNER_DEPTH)?;
                        there = next.ok_or_else(|| invalid("a row ends before others"))?;
                        first = row;
                    }
                    if there {
                        built.push(first.kind);
                        built.extend_from_slice(&bytes[at..end]);
                        built.push(0);
                        built.extend_from_slice(first.data(bytes, &[]));
                    }
                }
            }
        }
        if built.len() == 4 {
            return Ok(Some(false));
        }
        close(built, 0);
        Ok(Some(true))
    }

    /// Leaves the documents: no row has values left.
    fn end(&mut self, cursor: &mut Cursor, bytes: &[u8]) -> Result<()> {
        if cursor.control(bytes)? != kind::NONE {
            return Err(invalid("documents within documents"));
        }
        cursor.at += 1;
        for row in &mut self.rows[1..] {
            if row.words.next(bytes)?.is_some() {
                return Err(invalid("a row ends after others"));
            }
        }
        Ok(())
    }
}

/// Ends the document that begins here.
fn close(built: &mut Vec<u8>, start: usize) {
    built.push(0);
    let len = (built.len() - start) as i32;
    built[start..start + 4].copy_from_slice(&len.to_le_bytes());
}
