//! What is left of a document when a blocking stage sets it aside: the value that it is filed under and one value per
//! accumulator. SetAside go through a sorter, which spills them to disk when they outgrow its memory.

use sheaf_bson::{DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::size_of_value;
use sheaf_meter::Held;
use sheaf_query::sort::{Sorted, Sorter};
use sheaf_rows::{Cx, Figures, Scratch, Sort};
use smallvec::SmallVec;

/// The field of the value that a row is filed under.
const FILED_UNDER: &str = "k";
/// The name of a value, and of the place of a value that the document does not have.
const PRESENT: &str = "v";
const MISSING: &str = "-";

/// What a value takes besides its bytes.
const VALUE_BYTES: usize = 24;
/// Rows with more than this are counted by themselves.
const LARGE_BYTES: usize = 64 << 10;

/// SetAside being set aside.
pub(crate) struct SetAside {
    sorter: Sorter,
    buffer: Scratch,
}

impl SetAside {
    pub(crate) fn new(cx: &Cx<'_>) -> SetAside {
        SetAside { sorter: Sort::sorter(None, cx), buffer: Scratch::default() }
    }

    /// Sets a row aside. SetAside come back in the order of `key`; those of equal keys as they were added.
    pub(crate) fn add<'a>(
        &mut self,
        key: &[u8],
        filed_under: Value<'_>,
        values: impl Iterator<Item = Result<Value<'a>>>,
    ) -> Result<()> {
        let values: SmallVec<[Value<'a>; 4]> = values.collect::<Result<_>>()?;
        let room = |value: &Value<'_>| size_of_value(*value) + VALUE_BYTES;
        let room = room(&filed_under) + values.iter().map(room).sum::<usize>();
        let mut out = DocWriter::new(self.buffer.begin(room)?);
        out.append(FILED_UNDER, filed_under);
        for value in values {
            match value {
                Value::Missing => out.append(MISSING, Value::Null),
                value => out.append(PRESENT, value),
            };
        }
        drop(out);
        self.buffer.settle()?;
        let added = self.sorter.add(key, &self.buffer.bytes);
        self.buffer.let_go();
        added
    }

    /// The rows in order; notes what was spilled.
    pub(crate) fn finish(self, figures: &mut Figures) -> Result<Sorted> {
        figures.spilled = self.sorter.spills();
        self.sorter.finish()
    }
}

/// A row that came back, and the account of a large one.
pub(crate) struct AsideRow {
    bytes: Vec<u8>,
    _held: Held,
}

impl AsideRow {
    pub(crate) fn next(sorted: &mut Sorted) -> Result<Option<AsideRow>> {
        let Some(bytes) = sorted.next().transpose()? else { return Ok(None) };
        let is_large = bytes.len() > LARGE_BYTES;
        let _held = if is_large { sheaf_meter::reserve(bytes.len() as u64)? } else { Held::default() };
        Ok(Some(AsideRow { bytes, _held }))
    }

    /// How large it is.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    fn doc(&self) -> RawDoc<'_> {
        RawDoc::new(&self.bytes)
    }

    pub(crate) fn filed_under(&self) -> Value<'_> {
        self.doc().get_or_missing(FILED_UNDER)
    }

    /// The values for the accumulators.
    pub(crate) fn values(&self) -> impl Iterator<Item = Value<'_>> {
        let values = self.doc().iter().skip(1);
        values.map(|element| if element.key() == MISSING { Value::Missing } else { element.value() })
    }
}
