//! `$rand` and `$meta`.

use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_bson::{Bump, Value};
use sheaf_errors::{Code, Result, bail};

use crate::context::ParseCx;
use crate::expr::{Call, Cx, Expr};
use crate::operator::{Operator, State, custom};

pub(crate) static OPERATORS: &[Operator] = &[
    custom("$rand", parse_rand, rand).impure().serialized(|_, _| Value::Document(sheaf_bson::RawDoc::EMPTY)),
    custom("$meta", parse_meta, meta).impure().serialized(serialize_meta),
];

/// What `$meta` may ask for.
const METADATA: &[&str] = &[
    "textScore",
    "randVal",
    "searchScore",
    "searchHighlights",
    "geoNearDistance",
    "geoNearPoint",
    "recordId",
    "indexKey",
    "sortKey",
    "searchScoreDetails",
    "searchSequenceToken",
    "searchRootDocumentId",
    "timeseriesBucketMinTime",
    "timeseriesBucketMaxTime",
    "vectorSearchScore",
    "score",
    "scoreDetails",
];

fn parse_rand(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let (Value::Document(doc) | Value::Array(doc)) = argument else {
        bail!(10065, "invalid parameter: expected an object ($rand)");
    };
    if !doc.is_empty() {
        bail!(3040501, "$rand does not currently accept arguments");
    }
    let seed = cx.next_seed();
    Ok(Expr::unfolded(op, Vec::new(), State::Random(AtomicU64::new(seed))))
}

/// SplitMix64: one addition per number, so that threads may share the state.
fn rand<'a>(call: &'a Call, _: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::Random(state) = &call.state else { return Ok(Value::Null) };
    let mut bits = state.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^= bits >> 31;
    Ok(Value::Double((bits >> 11) as f64 / (1u64 << 53) as f64))
}

/// Those that API version 1 promises nothing about.
const UNSTABLE: &[&str] =
    &["textScore", "indexKey", "searchScore", "searchHighlights", "score", "scoreDetails"];

fn parse_meta(op: &'static Operator, argument: Value<'_>, cx: &mut ParseCx) -> Result<Expr> {
    let Value::String(name) = argument else {
        bail!(17307, "$meta only supports string arguments");
    };
    if name == "stream" {
        bail!(9692105, "Unsupported argument to $meta: {name}");
    }
    if cx.is_api_strict() && UNSTABLE.contains(&name) {
        bail!(
            Code::API_STRICT_ERROR,
            "Provided apiStrict is true with an unstable parameter: {{$meta: \"{name}\"}}"
        );
    }
    match METADATA.iter().find(|known| **known == name) {
        Some(known) => Ok(Expr::unfolded(op, Vec::new(), State::Metadata(known))),
        None => bail!(17308, "Unsupported argument to $meta: {name}"),
    }
}

fn meta<'a>(call: &'a Call, cx: Cx<'a, '_>) -> Result<Value<'a>> {
    let State::Metadata(name) = &call.state else { return Ok(Value::Missing) };
    Ok(cx.env.metadata(name))
}

fn serialize_meta<'a>(call: &'a Call, _: &'a Bump) -> Value<'a> {
    match &call.state {
        State::Metadata(name) => Value::String(name),
        _ => Value::Missing,
    }
}
