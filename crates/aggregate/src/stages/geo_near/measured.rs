//! `$geoNear` over the measurements of a time series: no index has their geometries, so that all are measured and sorted.

use std::sync::Arc;

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;
use sheaf_query::matcher::Matcher;
use sheaf_query::sort::Sorted;
use sheaf_rows::{BoxOperator, Cx, Figures, pull};

use crate::stages::set_aside::{AsideRow, SetAside};

/// Documents with their distances, nearest first.
pub(super) struct Measured {
    rows: Sorted,
    current: Option<AsideRow>,
}

impl Measured {
    /// Measures what is left of the input and has the filter's distances, beginning with the row on which it stands.
    ///
    /// Errors: those of the input and of what is set aside.
    pub(super) fn begin(filter: &Matcher, input: &mut BoxOperator, cx: &mut Cx<'_>) -> Result<Measured> {
        let mut rows = SetAside::new(cx);
        loop {
            measure(filter, input.row().document(), &mut rows)?;
            cx.check_interrupt()?;
            if !pull(input, cx)? {
                break;
            }
        }
        Ok(Measured { rows: rows.finish(&mut Figures::default())?, current: None })
    }

    /// Goes to the next document.
    pub(super) fn advance(&mut self) -> Result<bool> {
        self.current = AsideRow::next(&mut self.rows)?;
        Ok(self.current.is_some())
    }

    /// Drops the document.
    pub(super) fn let_go(&mut self) {
        self.current = None;
    }

    /// The document, its distance and the geometry that is so far away.
    pub(super) fn found(&self) -> Option<(RawDoc<'_>, f64, Value<'_>)> {
        let row = self.current.as_ref()?;
        let mut values = row.values();
        Some((values.next()?.as_doc()?, row.filed_under().as_f64()?, values.next()?))
    }
}

/// Sets a document aside by its distance, if it has a geometry that is neither too near nor too far, and matches.
fn measure(filter: &Matcher, document: RawDoc<'_>, rows: &mut SetAside) -> Result<()> {
    let Some((_, path, near)) = filter.root().near() else { return Ok(()) };
    let near = Arc::clone(near);
    let mut best: Option<(f64, Value<'_>)> = None;
    path.any(document, false, &mut |element, _| {
        if let Some(element) = element
            && let Some(found) = near.nearest(element.value())?
            && best.is_none_or(|(least, _)| found.0 < least)
        {
            best = Some(found);
        }
        Ok(false)
    })?;
    let Some((distance, geometry)) = best.filter(|(distance, _)| near.allows(*distance)) else {
        return Ok(());
    };
    if !filter.matches_doc(document)? {
        return Ok(());
    }
    let values = [Value::Document(document), geometry].map(Ok);
    // Distances are not negative: their bits have their order.
    rows.add(&distance.to_bits().to_be_bytes(), Value::Double(distance), values.into_iter())
}
