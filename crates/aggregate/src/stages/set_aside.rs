//! What is left of a document when a blocking stage sets it aside: the value that it is filed under and one value per
//! accumulator. SetAside go through a sorter, which spills them to disk when they outgrow its memory.

use sheaf_bson::{DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_query::sort::{Sorted, Sorter};

use sheaf_rows::{Cx, Figures, Sort};

/// The field of the value that a row is filed under.
const FILED_UNDER: &str = "k";
/// The name of a value, and of the place of a value that the document does not have.
const PRESENT: &str = "v";
const MISSING: &str = "-";

/// SetAside being set aside.
pub(crate) struct SetAside {
    sorter: Sorter,
    buffer: Vec<u8>,
}

impl SetAside {
    pub(crate) fn new(cx: &Cx<'_>) -> SetAside {
        SetAside { sorter: Sort::sorter(None, cx), buffer: Vec::new() }
    }

    /// Sets a row aside. SetAside come back in the order of `key`; those of equal keys as they were added.
    pub(crate) fn add<'a>(
        &mut self,
        key: &[u8],
        filed_under: Value<'_>,
        values: impl Iterator<Item = Result<Value<'a>>>,
    ) -> Result<()> {
        self.buffer.clear();
        let mut out = DocWriter::new(&mut self.buffer);
        out.append(FILED_UNDER, filed_under);
        for value in values {
            match value? {
                Value::Missing => out.append(MISSING, Value::Null),
                value => out.append(PRESENT, value),
            };
        }
        drop(out);
        self.sorter.add(key, &self.buffer)
    }

    /// The rows in order; notes what was spilled.
    pub(crate) fn finish(self, figures: &mut Figures) -> Result<Sorted> {
        figures.spilled = self.sorter.spills();
        self.sorter.finish()
    }
}

/// A row that came back.
pub(crate) struct AsideRow(Vec<u8>);

impl AsideRow {
    pub(crate) fn next(sorted: &mut Sorted) -> Result<Option<AsideRow>> {
        Ok(sorted.next().transpose()?.map(AsideRow))
    }

    fn doc(&self) -> RawDoc<'_> {
        RawDoc::new(&self.0)
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
