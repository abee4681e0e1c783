//! What a filter of measurements says of their buckets.

use std::cmp::Ordering;
use std::sync::Arc;

use sheaf_bson::{DocBuf, ObjectId, OwnedValue, RawDoc, Value};
use sheaf_query::matcher::Matcher;

use crate::filters::{self, SplitFilter};

/// The conditions that read nothing but the meta field, as conditions on buckets, and the rest.
pub(super) fn meta_first(filter: &Arc<Matcher>, meta: &str) -> Option<SplitFilter> {
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for clause in filters::clauses(filter) {
        match sheaf_timeseries::filter_on_meta(clause.as_raw(), meta) {
            Some(moved) => first.push(moved),
            None => rest.push(clause),
        }
    }
    if first.is_empty() {
        return None;
    }
    let rest = if rest.is_empty() { None } else { Some(filters::conjunction(&rest, filter.collator())?) };
    Some((filters::conjunction(&first, filter.collator())?, rest))
}

/// A comparison that each wanted measurement fulfils.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    path: Vec<String>,
    /// Which of the orderings the field's value may have to the constant.
    below: bool,
    equal: bool,
    above: bool,
    value: OwnedValue,
}

/// The comparisons in a filter's conjunction by which buckets can be told apart.
pub(super) fn conditions(filter: &Matcher) -> Vec<Condition> {
    let mut found = Vec::new();
    for clause in filters::clauses(filter) {
        for element in clause.as_raw().iter() {
            let path = element.key();
            if path.starts_with('$') {
                continue;
            }
            match element.value() {
                Value::Document(operators)
                    if operators.iter().next().is_some_and(|op| op.key().starts_with('$')) =>
                {
                    for operator in operators.iter() {
                        found.extend(Condition::of(path, operator.key(), operator.value()));
                    }
                }
                value => found.extend(Condition::of(path, "$eq", value)),
            }
        }
    }
    found
}

impl Condition {
    fn of(path: &str, operator: &str, value: Value<'_>) -> Option<Condition> {
        let (below, equal, above) = match operator {
            "$eq" => (false, true, false),
            "$gt" => (false, false, true),
            "$gte" => (false, true, true),
            "$lt" => (true, false, false),
            "$lte" => (true, true, false),
            _ => return None,
        };
        let tells = match value {
            Value::DateTime(_) | Value::ObjectId(_) => true,
            number => number.is_number() && number.as_f64().is_some_and(|n| !n.is_nan()),
        };
        let path = path.split('.').map(str::to_owned).collect();
        tells.then(|| Condition { path, below, equal, above, value: OwnedValue::from(value) })
    }

    /// Whether a bucket may have a measurement that fulfils it.
    pub(super) fn may_hold(&self, bucket: RawDoc<'_>) -> bool {
        let Some(control) = bucket.get("control").and_then(|control| control.as_doc()) else { return true };
        let side = |name| control.get(name).and_then(|side| side.as_doc()).and_then(|side| self.find(side));
        let (Some(min), Some(max)) = (side("min"), side("max")) else { return true };
        // Arrays are told by their least kinds: only where all values are of one kind, nothing else hides between the bounds.
        let kind = min.kind().order();
        if kind != max.kind().order() || matches!(min, Value::Document(_) | Value::Array(_)) {
            return true;
        }
        let wanted = self.value.as_value();
        if wanted.kind().order() != kind {
            return false;
        }
        let (low, high) = (sheaf_bson::compare(min, wanted), sheaf_bson::compare(max, wanted));
        (self.below && low == Ordering::Less)
            || (self.above && high == Ordering::Greater)
            || (self.equal && low != Ordering::Greater && high != Ordering::Less)
    }

    /// The value at the path, which leads through documents only.
    fn find<'b>(&self, side: RawDoc<'b>) -> Option<Value<'b>> {
        let (last, above) = self.path.split_last()?;
        let mut at = side;
        for part in above {
            at = at.get(part)?.as_doc()?;
        }
        at.get(last)
    }
}

/// The filter of buckets that conditions on the time make; it selects by fields that indexes have.
pub(super) fn of_times(conditions: &[Condition], time: &str, span_seconds: i64) -> Option<Arc<Matcher>> {
    let (min, max) = (format!("control.min.{time}"), format!("control.max.{time}"));
    let span = span_seconds * 1000;
    let (mut from, mut to) = (None, None);
    let mut clauses = Vec::new();
    let mut clause = |path: &str, operator: &str, millis: i64| {
        clauses.push(DocBuf::build(|out| {
            out.document(path).append(operator, Value::DateTime(millis));
        }));
    };
    for condition in conditions.iter().filter(|condition| condition.path == [time]) {
        let Value::DateTime(millis) = condition.value.as_value() else { continue };
        if !condition.below {
            clause(&max, "$gte", millis);
            clause(&min, "$gte", millis.saturating_sub(span));
            from = from.max(Some(millis.saturating_sub(span)));
        }
        if !condition.above {
            clause(&min, "$lte", millis);
            clause(&max, "$lte", millis.saturating_add(span));
            to = Some(to.map_or(millis, |known: i64| known.min(millis)));
        }
    }
    if let (Some(from), Some(to)) = (from, to) {
        clauses.extend(of_ids(from, to));
    }
    if clauses.is_empty() { None } else { filters::conjunction(&clauses, None) }
}

/// The `_id`s of buckets that begin between these times: an `_id` begins with the seconds, and buckets lie in the order of their `_id`s. Of
/// times that 32 bits do not hold an `_id` has a part only, so that nothing is said of times without a bound, or near to those.
fn of_ids(from: i64, to: i64) -> Option<DocBuf> {
    let seconds = |millis: i64| u32::try_from(millis.div_euclid(1000)).ok();
    let id = |seconds: u32, rest: u8| {
        let mut id = ObjectId([rest; 12]);
        id.0[..4].copy_from_slice(&seconds.to_be_bytes());
        Value::ObjectId(id)
    };
    let (from, to) = (seconds(from)?, seconds(to)?);
    Some(DocBuf::build(|out| {
        _ = out.document("_id").append("$gte", id(from, 0)).append("$lte", id(to, 0xFF))
    }))
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;
    use sheaf_expr::ParseCx;

    use super::*;

    fn may_hold(filter: DocBuf, bucket: &DocBuf) -> bool {
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
        conditions(&matcher).iter().all(|condition| condition.may_hold(bucket.as_raw()))
    }

    #[test]
    fn buckets_are_left_out() {
        let bucket = doc! { "control": { "min": { "v": 1, "a": { "b": 3 }, "x": 1 }, "max": { "v": 5, "a": { "b": 4 }, "x": [1] } } };
        for (filter, may) in [
            (doc! { "v": 3 }, true),
            (doc! { "v": 6 }, false),
            (doc! { "v": { "$gt": 5 } }, false),
            (doc! { "v": { "$gte": 5.0 } }, true),
            (doc! { "v": { "$lt": 1 } }, false),
            (doc! { "v": { "$gt": 0, "$lt": 2 } }, true),
            (doc! { "a.b": { "$lte": 2 } }, false),
            (doc! { "x": 7 }, true),
            (doc! { "v": Value::DateTime(1) }, false),
            (doc! { "v": Value::Null }, true),
            (doc! { "w": 1 }, true),
            (doc! { "$or": [{ "v": 9 }] }, true),
        ] {
            assert_eq!(may_hold(filter.clone(), &bucket), may, "{filter:?}");
        }
    }

    #[test]
    fn ids_are_bounded_where_times_are_on_both_sides() {
        let ids = |filter: DocBuf| {
            let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap();
            let buckets = of_times(&conditions(&matcher), "t", 3600)?;
            let clauses = buckets.filter().get("$and")?.as_array()?.values().last()?.as_doc()?;
            let id = clauses.get("_id")?.as_doc()?;
            let seconds = |name: &str| match id.get(name) {
                Some(Value::ObjectId(id)) => u32::from_be_bytes(id.0[..4].try_into().unwrap()),
                other => panic!("{other:?}"),
            };
            Some((seconds("$gte"), seconds("$lte")))
        };
        let at = |seconds: i64| Value::DateTime(seconds * 1000 + 1);
        assert_eq!(ids(doc! { "t": { "$gte": at(10_000), "$lt": at(20_000) } }), Some((6_400, 20_000)));
        assert_eq!(ids(doc! { "t": at(10_000) }), Some((6_400, 10_000)));
        assert_eq!(
            ids(
                doc! { "t": { "$gte": at(9_000), "$gt": at(10_000), "$lte": at(20_000), "$lt": at(30_000) } }
            ),
            Some((6_400, 20_000))
        );
        assert_eq!(ids(doc! { "t": { "$gte": at(10_000) } }), None);
        assert_eq!(ids(doc! { "t": { "$lte": at(10_000) } }), None);
        // Buckets from before the first second may hold measurements of up to an hour later, under any _id.
        assert_eq!(ids(doc! { "t": { "$gte": at(3_599), "$lt": at(20_000) } }), None);
        assert_eq!(ids(doc! { "t": { "$gte": at(10_000), "$lt": at(1 << 32) } }), None);
    }

    #[test]
    fn conditions_on_the_meta_field_go_first() {
        let parse = |filter: DocBuf| Arc::new(Matcher::parse(filter.as_raw(), &mut ParseCx::new()).unwrap());
        let filter =
            parse(doc! { "m.a": 1, "v": 2, "$or": [{ "m": 1 }, { "m.b": { "$exists": true } }], "mm": 1 });
        let (first, rest) = meta_first(&filter, "m").unwrap();
        assert_eq!(
            DocBuf::from(first.filter()),
            doc! { "$and": [{ "meta.a": 1 }, { "$or": [{ "meta": 1 }, { "meta.b": { "$exists": true } }] }] }
        );
        assert_eq!(DocBuf::from(rest.unwrap().filter()), doc! { "$and": [{ "v": 2 }, { "mm": 1 }] });
    }
}
