//! What stages and operators with named arguments take.

use super::language::Kind;

/// The argument of `$currentDate` for one field.
pub const CURRENT_DATE: &[(&str, Kind)] = &[("$type", Kind::OneOf(&["date", "timestamp", "x"]))];

/// The modifiers of `$push`.
pub const PUSH: &[(&str, Kind)] = &[
    ("$each", Kind::List(&Kind::Any)),
    ("$position", Kind::Number),
    ("$slice", Kind::Number),
    ("$sort", Kind::Either(&Kind::Sort, &Kind::Number)),
];

/// The argument of accumulators that keep several values.
pub const N_ARGUMENTS: &[(&str, Kind)] =
    &[("n", Kind::Number), ("input", Kind::Expr), ("output", Kind::Expr), ("sortBy", Kind::Sort)];

/// The stages of update pipelines, and one that is none.
pub const UPDATE_STAGES: &[(&str, Kind)] = &[
    ("$set", Kind::ExprFields),
    ("$addFields", Kind::ExprFields),
    ("$unset", Kind::Either(&Kind::Path, &Kind::List(&Kind::Path))),
    ("$project", Kind::Projection),
    ("$replaceWith", Kind::Expr),
    ("$replaceRoot", Kind::Fields(&[("newRoot", Kind::Expr)])),
    ("$match", Kind::Filter),
];

/// The arguments of stages.
pub const STAGES: &[(&str, Kind)] = &[
    ("$addFields", Kind::ExprFields),
    ("$set", Kind::ExprFields),
    (
        "$bucket",
        Kind::Fields(&[
            ("groupBy", Kind::Expr),
            ("boundaries", Kind::List(&Kind::Number)),
            ("default", Kind::Any),
            ("output", Kind::Accumulators),
        ]),
    ),
    (
        "$bucketAuto",
        Kind::Fields(&[
            ("groupBy", Kind::Expr),
            ("buckets", Kind::Number),
            ("output", Kind::Accumulators),
            ("granularity", Kind::OneOf(&["R5", "R80", "1-2-5", "E192", "POWERSOF2", "E6", "x"])),
        ]),
    ),
    (
        "$collStats",
        Kind::Fields(&[
            ("count", Kind::Fields(&[])),
            ("storageStats", Kind::Fields(&[("scale", Kind::Number)])),
            ("latencyStats", Kind::Fields(&[("histograms", Kind::Bool)])),
            ("queryExecStats", Kind::Fields(&[])),
        ]),
    ),
    ("$count", Kind::Text),
    (
        "$currentOp",
        Kind::Fields(&[("allUsers", Kind::Bool), ("idleConnections", Kind::Bool), ("localOps", Kind::Bool)]),
    ),
    ("$documents", Kind::Either(&Kind::StoredList, &Kind::Expr)),
    ("$facet", Kind::Fields(&[("x", Kind::Pipeline), ("y", Kind::Pipeline)])),
    (
        "$graphLookup",
        Kind::Fields(&[
            ("from", Kind::Collection),
            ("startWith", Kind::Expr),
            ("connectFromField", Kind::Path),
            ("connectToField", Kind::Path),
            ("as", Kind::Path),
            ("maxDepth", Kind::Number),
            ("depthField", Kind::Path),
            ("restrictSearchWithMatch", Kind::Filter),
        ]),
    ),
    ("$group", Kind::Group),
    ("$indexStats", Kind::Fields(&[])),
    ("$limit", Kind::Number),
    ("$skip", Kind::Number),
    ("$listLocalSessions", Kind::Fields(&[("allUsers", Kind::Bool)])),
    (
        "$lookup",
        Kind::Fields(&[
            ("from", Kind::Collection),
            ("localField", Kind::Path),
            ("foreignField", Kind::Path),
            ("let", Kind::Fields(&[("x", Kind::Expr), ("y", Kind::Expr)])),
            ("pipeline", Kind::Pipeline),
            ("as", Kind::Path),
        ]),
    ),
    ("$match", Kind::Filter),
    (
        "$merge",
        Kind::Either(
            &Kind::Collection,
            &Kind::Fields(&[
                ("into", Kind::Collection),
                ("on", Kind::Either(&Kind::Path, &Kind::List(&Kind::Path))),
                (
                    "whenMatched",
                    Kind::Either(
                        &Kind::OneOf(&["replace", "merge", "keepExisting", "fail"]),
                        &Kind::Pipeline,
                    ),
                ),
                ("whenNotMatched", Kind::OneOf(&["insert", "discard", "fail"])),
                ("let", Kind::Fields(&[("x", Kind::Expr)])),
            ]),
        ),
    ),
    (
        "$out",
        Kind::Either(
            &Kind::Collection,
            &Kind::Fields(&[("db", Kind::OneOf(&["t", "u", ""])), ("coll", Kind::Collection)]),
        ),
    ),
    ("$project", Kind::Projection),
    ("$redact", Kind::Expr),
    ("$replaceRoot", Kind::Fields(&[("newRoot", Kind::Expr)])),
    ("$replaceWith", Kind::Expr),
    ("$sample", Kind::Fields(&[("size", Kind::Number)])),
    ("$sort", Kind::Sort),
    ("$sortByCount", Kind::Expr),
    (
        "$unionWith",
        Kind::Either(
            &Kind::Collection,
            &Kind::Fields(&[("coll", Kind::Collection), ("pipeline", Kind::Pipeline)]),
        ),
    ),
    ("$unset", Kind::Either(&Kind::Path, &Kind::List(&Kind::Path))),
    (
        "$unwind",
        Kind::Either(
            &Kind::FieldPath,
            &Kind::Fields(&[
                ("path", Kind::FieldPath),
                ("includeArrayIndex", Kind::Path),
                ("preserveNullAndEmptyArrays", Kind::Bool),
            ]),
        ),
    ),
];
