//! Cursors over lists that are made at once: `listCollections`, `listIndexes`.

use std::collections::VecDeque;

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::{Features, Matcher};

use crate::args::{Args, NonNegative, refuse_twice};
use crate::cursors::{Batch, Filled, MAX_BATCH_BYTES, ServerCursor};
use crate::op::Operation;
use crate::reply::Reply;

/// The entries that no batch has brought yet.
struct ListCursor(VecDeque<DocBuf>);

impl ServerCursor for ListCursor {
    fn fill(&mut self, _: &Operation<'_>, batch: &mut Batch<'_>) -> Result<Filled> {
        while let Some(entry) = self.0.front() {
            if batch.is_full() || !batch.fits(entry.as_bytes().len()) {
                return Ok(Filled::More);
            }
            batch.push(entry.as_bytes());
            self.0.pop_front();
        }
        Ok(Filled::Exhausted)
    }
}

/// Reads `cursor: {batchSize: n}`; without one everything goes into the first batch.
pub fn batch_size(args: &mut Args<'_>) -> Result<usize> {
    let Some(cursor) = args.optional::<RawDoc<'_>>("cursor")? else { return Ok(usize::MAX) };
    refuse_twice(cursor, "cursor")?;
    let mut size = usize::MAX;
    for field in cursor.iter() {
        if field.key() != "batchSize" {
            bail!(40415, "BSON field '{}.cursor.{}' is an unknown field.", args.command(), field.key());
        }
        let at = format!("{}.cursor", args.command());
        let at = crate::args::At::new(&at, "batchSize");
        if let Some(NonNegative(n)) = crate::args::FromValue::from_value(field.value(), &at)? {
            size = usize::try_from(n).unwrap_or(usize::MAX);
        }
    }
    Ok(size)
}

/// Answers with the first entries; the others wait for `getMore`.
pub fn reply(op: &Operation<'_>, namespace: &str, entries: Vec<DocBuf>, batch_size: usize) -> Reply {
    let mut rest = VecDeque::from(entries);
    let mut first = Vec::new();
    let mut bytes = 0;
    while let Some(entry) = rest.front() {
        bytes += entry.as_bytes().len();
        if first.len() >= batch_size || (!first.is_empty() && bytes > MAX_BATCH_BYTES) {
            break;
        }
        first.extend(rest.pop_front());
    }
    let id = match rest.is_empty() {
        true => 0,
        false => op.keep(namespace, false, Box::new(ListCursor(rest))),
    };
    op.metrics().cursor_id.set((id != 0).then_some(id));
    op.metrics().cursor_exhausted.set(id == 0);
    op.metrics().returned.set(Some(first.len() as u64));
    Reply::with_capacity(bytes + 256).with_document("cursor", |cursor| {
        cursor.append("id", id);
        cursor.append("ns", namespace);
        let mut batch = cursor.array("firstBatch");
        for entry in &first {
            batch.push(entry);
        }
    })
}

/// Parses the filter of what is listed, which no index serves.
///
/// Errors: those of filters; 5626500 for an order by distance, `BadValue` for `$text`.
pub fn parse_filter(filter: Option<RawDoc<'_>>, cx: &mut ParseCx) -> Result<Matcher> {
    let matcher = Matcher::parse_with(filter.unwrap_or(RawDoc::EMPTY), Features::Pipeline, cx)?;
    if matcher.has_text() {
        bail!(Code::BAD_VALUE, "$text is not allowed in this context");
    }
    cx.finish_as("Failed to optimize expression")?;
    Ok(matcher)
}
