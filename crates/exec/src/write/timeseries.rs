//! Measurements on their way into buckets, and out of them.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_bson::{Bump, DocBuf, ObjectId, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_expr::Env;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{Cx, Interrupt, Limits};
use sheaf_storage::{Collection, Statement, Write};
use sheaf_timeseries::{Bucket, Measurement, TimeseriesOptions, Unpacker, normalized_meta};

use super::open_buckets::{OpenBuckets, Parts, Tally};
use super::seen::Way;
use super::update::{again, is_conflict, next_record};
use super::{Change, WriteCx};
use crate::find;
use crate::plan::Query;

/// A measurement, and its place among those of a command.
type Placed<'d> = (usize, Measurement<'d>);

/// What puts measurements into a collection of buckets.
pub struct Filling<'f> {
    /// `system.buckets.` and the collection's name.
    pub buckets: &'f Arc<Collection>,
    /// The collection's options.
    pub options: &'f TimeseriesOptions,
    /// Buckets with room, as far as they are known.
    pub open: &'f OpenBuckets,
    /// Makes an `_id`.
    pub new_object_id: &'f dyn Fn() -> ObjectId,
    /// The error to end with.
    pub interrupt: Interrupt<'f>,
}

impl Filling<'_> {
    /// Inserts measurements: those of one meta value together, in order of time. `statement` gives the retryable statement of the
    /// measurement at a place.
    ///
    /// Errors: those of writes.
    pub fn insert(
        &self,
        w: &mut dyn Write,
        measurements: &[Measurement<'_>],
        statement: &dyn Fn(usize) -> Option<Statement>,
    ) -> Result<()> {
        for (meta, rows) in by_meta(measurements, self.options) {
            let mut rows = rows.as_slice();
            while !rows.is_empty() {
                let mut taken = self.fill(w, &meta, rows, statement);
                while is_conflict(&taken) && w.retries_conflicts() {
                    (self.interrupt)()?;
                    taken = self.fill(w, &meta, rows, statement);
                }
                rows = &rows[taken?..];
            }
        }
        w.statement(None);
        Ok(())
    }

    /// Puts as many of the rows into one bucket as it takes, and gives their number.
    fn fill(
        &self,
        w: &mut dyn Write,
        meta: &DocBuf,
        rows: &[Placed<'_>],
        statement: &dyn Fn(usize) -> Option<Statement>,
    ) -> Result<usize> {
        let (_, first) = &rows[0];
        let (mut old, mut tally) = (None, Tally::default());
        if let Some((id, parts)) = self.open.of(self.buckets, meta) {
            let key = self.buckets.record_key(Value::ObjectId(id))?;
            if let Some(stored) = w.read_for_update(self.buckets, &key)? {
                let known = parts.filter(|parts| parts.stored.as_bytes() == stored);
                let stored = DocBuf::from_bytes(stored);
                let bucket = match known {
                    Some(parts) => Some(parts.bucket),
                    None => {
                        tally.reopened = true;
                        Bucket::open(stored.as_raw(), self.options)
                    }
                };
                if let Some(mut bucket) = bucket.filter(|bucket| bucket.meta() == meta) {
                    tally.refusal = bucket.refusal(first, self.options);
                    old = tally.refusal.is_none().then_some((key, stored, bucket));
                }
            }
        }
        let (before, mut bucket) = match old {
            Some((key, stored, bucket)) => (Some((key, stored)), bucket),
            None => (None, Bucket::new((self.new_object_id)(), first.time, meta, self.options)),
        };
        let mut taken = 0;
        for (_, row) in rows {
            if !bucket.has_room(row, self.options) {
                break;
            }
            bucket.add(row.document, self.options);
            taken += 1;
        }
        let new = bucket.to_doc();
        let mut statements = rows[..taken].iter().filter_map(|(at, _)| statement(*at));
        w.statement(statements.next());
        w.joint_statements(statements.collect())?;
        tally.is_new = before.is_none();
        tally.measurements = taken;
        match before {
            Some((key, stored)) => w.update(self.buckets, &key, stored.as_raw(), new.as_raw(), None)?,
            None => w.insert(self.buckets, new.as_raw())?,
        }
        self.open.note(self.buckets, meta, Parts { stored: new, bucket }, &tally);
        Ok(taken)
    }
}

/// The measurements by normalized meta value, in the order of these, and each group in order of time.
fn by_meta<'d>(
    measurements: &[Measurement<'d>],
    options: &TimeseriesOptions,
) -> Vec<(DocBuf, Vec<Placed<'d>>)> {
    let name = options.meta_field.as_deref();
    let mut groups: Vec<(DocBuf, Vec<Placed<'d>>)> = Vec::new();
    // Where those with such a meta value stand, by type and bytes: they are few.
    let mut known: HashMap<Option<(u8, &'d [u8])>, usize> = HashMap::new();
    for (place, one) in measurements.iter().enumerate() {
        let meta = name.and_then(|name| one.document.element(name));
        let at = *known.entry(meta.map(|meta| (meta.as_bytes()[0], meta.data()))).or_insert_with(|| {
            groups.push((normalized_meta(one.meta), Vec::new()));
            groups.len() - 1
        });
        groups[at].1.push((place, *one));
    }
    groups.sort_by(|(meta, _), (other, _)| meta.as_bytes().cmp(other.as_bytes()));
    // The same fields in another order.
    groups.dedup_by(|(meta, rows), (before, together)| {
        let is_same = meta == before;
        if is_same {
            together.append(rows);
        }
        is_same
    });
    for (_, rows) in &mut groups {
        rows.sort_by_key(|(place, one)| (one.time, *place));
    }
    groups
}

/// Takes measurements out of a bucket that is stored under `key`; gives what is left of it and those that went.
///
/// Errors: those of `goes`.
pub fn without(
    bucket: RawDoc<'_>,
    options: &TimeseriesOptions,
    mut goes: impl FnMut(RawDoc<'_>) -> Result<bool>,
) -> Result<(Option<DocBuf>, Vec<DocBuf>)> {
    let mut unpacker = Unpacker::new(&options.time_field, options.meta_field.as_deref());
    unpacker.begin(bucket)?;
    let (mut row, mut gone, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    // A column says in few bytes that a value comes again and again.
    let mut held = sheaf_meter::reserve(0)?;
    while unpacker.next_into(&mut row)? {
        held.grow(row.len() as u64)?;
        let document = DocBuf::from_bytes(row.clone());
        if goes(document.as_raw())? { gone.push(document) } else { kept.push(document) }
    }
    let Some(first) = kept.first() else { return Ok((None, gone)) };
    let Some(Value::ObjectId(id)) = bucket.get("_id") else { return Ok((None, gone)) };
    let first = Measurement::of(first.as_raw(), options)?;
    let meta = DocBuf::build(|out| {
        if let Some(meta) = bucket.element("meta") {
            out.append_element(meta);
        }
    });
    let begin = bucket
        .get("control")
        .and_then(|control| control.as_doc()?.get("min")?.as_doc()?.get(&options.time_field))
        .and_then(|begin| if let Value::DateTime(millis) = begin { Some(millis) } else { None });
    let mut left = Bucket::again(id, begin.unwrap_or(first.time), &meta, options);
    for document in &kept {
        left.add(document.as_raw(), options);
    }
    Ok((Some(left.to_doc()), gone))
}

/// How many measurements a bucket has.
///
/// Errors: those of buckets that are none.
pub fn count_all(bucket: RawDoc<'_>, options: &TimeseriesOptions) -> Result<u64> {
    let mut unpacker = Unpacker::new(&options.time_field, options.meta_field.as_deref());
    unpacker.begin(bucket)?;
    let (mut row, mut count) = (Vec::new(), 0);
    while unpacker.next_into(&mut row)? {
        count += 1;
    }
    Ok(count)
}

/// How many measurements of a bucket match.
///
/// Errors: those of the filter, and of buckets that are none.
pub fn count_matching(
    bucket: RawDoc<'_>,
    options: &TimeseriesOptions,
    matcher: &Matcher,
    now_millis: i64,
) -> Result<u64> {
    let mut unpacker = Unpacker::new(&options.time_field, options.meta_field.as_deref());
    unpacker.begin(bucket)?;
    let (mut row, mut arena, mut count) = (Vec::new(), Bump::new(), 0);
    while unpacker.next_into(&mut row)? {
        arena.reset();
        let env = Env::new(&arena).with_now(now_millis);
        count += u64::from(matcher.matches(RawDoc::new(&row), &env)?);
    }
    Ok(count)
}

/// Deletes measurements that match, of the buckets that `query` finds; gives their number, and the last one of them.
///
/// Errors: those of deletes.
pub fn delete_measurements(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    buckets: &Arc<Collection>,
    options: &TimeseriesOptions,
    query: &Query,
    matcher: &Matcher,
    multi: bool,
) -> Result<(u64, Option<DocBuf>)> {
    let reads = cx.reads(w.view()?);
    let limits = Limits { now_millis: cx.now_millis, ..Limits::default() };
    let mut rows = Cx::new(limits, cx.interrupt);
    let mut executor = find::open(query, buckets, &reads, &mut rows)?;
    cx.seen.go(Way::Plan(executor.plan().clone()));
    let (mut count, mut last) = (0, None);
    let mut all = || -> Result<()> {
        while let Some((key, _)) = next_record(&mut executor, &mut rows)? {
            let attempt = |w: &mut dyn Write| delete_in(w, cx, buckets, options, &key, matcher, multi);
            let mut gone = attempt(w);
            while again(w, cx, &gone) {
                (cx.interrupt)()?;
                gone = attempt(w);
            }
            let mut gone = gone?;
            count += gone.len() as u64;
            last = gone.pop().or(last.take());
            if count > 0 && !multi {
                break;
            }
        }
        Ok(())
    };
    let result = all();
    cx.seen.ran(&mut executor);
    result.map(|()| (count, last))
}

fn delete_in(
    w: &mut dyn Write,
    cx: &WriteCx<'_>,
    buckets: &Arc<Collection>,
    options: &TimeseriesOptions,
    key: &[u8],
    matcher: &Matcher,
    multi: bool,
) -> Result<Vec<DocBuf>> {
    let Some(stored) = w.read_for_update(buckets, key)? else { return Ok(Vec::new()) };
    let stored = DocBuf::from_bytes(stored);
    let mut arena = Bump::new();
    let mut found = false;
    let (left, gone) = without(stored.as_raw(), options, |document| {
        arena.reset();
        let goes =
            (multi || !found) && matcher.matches(document, &Env::new(&arena).with_now(cx.now_millis))?;
        found |= goes;
        Ok(goes)
    })?;
    match gone.last() {
        None => return Ok(gone),
        Some(last) => cx.announce(w, Change::Delete(last.as_raw())),
    }
    match left {
        Some(left) => w.update(buckets, key, stored.as_raw(), left.as_raw(), None)?,
        None => w.delete(buckets, key, stored.as_raw())?,
    }
    Ok(gone)
}
