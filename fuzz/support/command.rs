//! Arbitrary commands: the fields that each command has, filled with what belongs there or not.

use sheaf_bson::{Binary, DocBuf, OwnedValue, Timestamp, Value};

use super::generate::{Choices, DEPTH, document};
use super::language::{Kind, seldom};
use super::words;

/// The value of a command's first field.
#[derive(Clone, Copy)]
enum First {
    Collection,
    One,
    Namespace,
    Cursor,
    Command,
    List(Kind),
}

/// A command's name, its first field, its other fields.
type Known = (&'static str, First, &'static [(&'static str, Kind)]);

/// Commands that are never run: they stop the server or all writers.
const NEVER: &[&str] = &["shutdown", "fsyncUnlock", "configureFailPoint"];

/// One command, to be run on some database. `registered` are the names that the server knows.
pub fn arbitrary(choices: &mut Choices<'_>, registered: &[&'static str]) -> DocBuf {
    choices.refill();
    let known: Vec<_> = COMMANDS.iter().filter(|(name, ..)| registered.contains(name)).collect();
    let mut body = DocBuf::new();
    if choices.chance(40) {
        let name = choices.pick(registered);
        if !NEVER.contains(&name) {
            bare(choices, name, &mut body);
        }
    }
    if body.as_raw().is_empty() {
        let often = choices.chance(190);
        let (mut name, mut first, mut fields) =
            *choices.pick(if often { &known[..known.len().min(19)] } else { &known });
        if name == "getMore" && choices.cursors.is_empty() {
            (name, first, fields) = ("find", First::Collection, SMALL_BATCH);
        }
        put(choices, name, first, fields, DEPTH, &mut body);
    }
    generic(choices, &mut body);
    body
}

/// A command without a description here.
fn bare(choices: &mut Choices<'_>, name: &str, body: &mut DocBuf) {
    let collection = choices.chance(100);
    let kind = if collection { Kind::Collection } else { Kind::Number };
    body.append(name, choices.of(kind, 1).as_value());
    for _ in 0..choices.few() {
        body.append(choices.pick(words::STRAY_FIELDS), choices.any(2).as_value());
    }
}

fn put(
    choices: &mut Choices<'_>,
    name: &str,
    first: First,
    fields: &[(&str, Kind)],
    depth: u32,
    body: &mut DocBuf,
) {
    let value: OwnedValue = match first {
        _ if choices.chance(4) => choices.any(2),
        First::Collection => Value::String(choices.collection()).into(),
        First::One => Value::Int32(1).into(),
        First::Namespace => Value::String(&format!("t.{}", choices.collection())).into(),
        First::Cursor => Value::Int64(cursor(choices)).into(),
        First::Command => {
            let mut inner = DocBuf::new();
            let (name, first, fields) = choices.pick(&COMMANDS[..8]);
            put(choices, name, first, fields, depth - 1, &mut inner);
            document(&inner)
        }
        First::List(kind) => choices.list(|c| c.of(kind, depth - 1)),
    };
    body.append(name, value.as_value());
    for (field, kind) in fields {
        let needed = *kind == Kind::Bit || words::NEEDED.contains(field) && *kind != Kind::Number;
        if if needed { !choices.chance(6) } else { choices.chance(seldom(fields.len())) } {
            body.append(field, choices.of(*kind, depth).as_value());
        }
    }
    if name == "killCursors" {
        let ids: Vec<i64> = (0..choices.few()).map(|_| cursor(choices)).collect();
        body.append("cursors", &sheaf_bson::ArrayBuf::of(ids));
    }
    if choices.chance(8) {
        body.append(choices.pick(words::STRAY_FIELDS), choices.any(2).as_value());
    }
}

fn cursor(choices: &mut Choices<'_>) -> i64 {
    let open = choices.cursors.clone();
    match open.as_slice() {
        [] => 0,
        open => open[choices.below(open.len())],
    }
}

/// `$db`, session fields, concerns and limits.
fn generic(choices: &mut Choices<'_>, body: &mut DocBuf) {
    let name = body.as_raw().iter().next().map_or(String::new(), |first| first.key().to_owned());
    let usual = if NEEDS_ADMIN.contains(&name.as_str()) { "admin" } else { "t" };
    body.append("$db", if choices.chance(12) { choices.pick(words::DATABASES) } else { usual });
    session(choices, &name, body);
    if choices.chance(6) {
        body.append("readConcern", choices.of(Kind::Fields(READ_CONCERN), 2).as_value());
    }
    if choices.chance(6) {
        body.append("writeConcern", choices.of(Kind::Fields(WRITE_CONCERN), 2).as_value());
    }
    if choices.chance(4) {
        body.append("$readPreference", choices.of(Kind::Fields(READ_PREFERENCE), 2).as_value());
    }
    if choices.chance(4) {
        body.append("apiVersion", choices.pick(&["1", "2", ""]));
        body.append("apiStrict", choices.chance(200));
        body.append("apiDeprecationErrors", choices.chance(128));
    }
    if choices.chance(4) {
        let time = DocBuf::new().with("clusterTime", Value::Timestamp(Timestamp(choices.below(256) as u64)));
        body.append("$clusterTime", &time);
    }
    // Every command may have to wait for a transaction of another session, which nobody would end.
    // A getMore takes no locks, and the field means something else there.
    if name != "getMore" || choices.chance(20) {
        body.append("maxTimeMS", 30 + choices.below(3) as i32);
    }
}

/// `lsid` and `txnNumber`: none, a session, a retryable write, a transaction's statement, or a mix.
fn session(choices: &mut Choices<'_>, name: &str, body: &mut DocBuf) {
    let ends = matches!(name, "commitTransaction" | "abortTransaction");
    let sort = match ends && !choices.chance(20) {
        true => 3,
        false => choices.pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 4]),
    };
    let lsid = {
        let bytes = [u8::from(choices.chance(40)); 16];
        DocBuf::new().with("id", Value::Binary(Binary { subtype: 4, bytes: &bytes }))
    };
    let mixed = sort == 4;
    let wanted = |choices: &mut Choices<'_>, least| if mixed { choices.chance(128) } else { sort >= least };
    if wanted(choices, 1) {
        body.append("lsid", &lsid);
    }
    if wanted(choices, 2) {
        body.append("txnNumber", choices.pick(&[1i64, 1, 1, 1, 2, 3, 0, -1]));
    }
    if wanted(choices, 3) {
        body.append("autocommit", mixed && choices.chance(128));
        if choices.chance(if ends { 6 } else { 140 }) {
            body.append("startTransaction", true);
        }
    }
}

/// A find that mostly leaves a cursor open.
const SMALL_BATCH: &[(&str, Kind)] = &[("batchSize", Kind::Bit), ("singleBatch", Kind::Bool)];

const NEEDS_ADMIN: &[&str] = &[
    "renameCollection",
    "bulkWrite",
    "listDatabases",
    "commitTransaction",
    "abortTransaction",
    "getParameter",
    "setParameter",
    "currentOp",
    "killOp",
    "getLog",
    "fsync",
    "replSetGetStatus",
    "setDefaultRWConcern",
    "getDefaultRWConcern",
    "killAllSessions",
    "killAllSessionsByPattern",
    "top",
    "setFeatureCompatibilityVersion",
];

const READ_CONCERN: &[(&str, Kind)] = &[
    ("level", Kind::OneOf(&["local", "majority", "snapshot", "available", "linearizable", "x"])),
    ("afterClusterTime", Kind::Any),
    ("atClusterTime", Kind::Any),
];

const WRITE_CONCERN: &[(&str, Kind)] = &[
    ("w", Kind::Either(&Kind::OneOf(&["majority", "x"]), &Kind::Number)),
    ("j", Kind::Bool),
    ("wtimeout", Kind::Number),
];

const READ_PREFERENCE: &[(&str, Kind)] = &[
    ("mode", Kind::OneOf(&["primary", "secondary", "nearest", "x"])),
    ("tags", Kind::List(&Kind::Any)),
    ("maxStalenessSeconds", Kind::Number),
];

const HINT: Kind = Kind::Either(&Kind::Keys, &Kind::OneOf(&["_id_", "a_1", "x"]));
const LET: Kind = Kind::Fields(&[("x", Kind::Expr), ("y", Kind::Expr)]);

const UPDATE: &[(&str, Kind)] = &[
    ("q", Kind::Filter),
    ("u", Kind::Update),
    ("multi", Kind::Bool),
    ("upsert", Kind::Bool),
    ("arrayFilters", Kind::ArrayFilters),
    ("hint", HINT),
    ("collation", Kind::Collation),
    ("c", LET),
    ("sort", Kind::Sort),
];

const DELETE: &[(&str, Kind)] =
    &[("q", Kind::Filter), ("limit", Kind::Bit), ("hint", HINT), ("collation", Kind::Collation)];

const CURSOR: Kind = Kind::Fields(&[("batchSize", Kind::Number)]);

const INDEX: &[(&str, Kind)] = &[
    ("key", Kind::Keys),
    ("name", Kind::OneOf(&["a_1", "x", "_id_", ""])),
    ("unique", Kind::Bool),
    ("sparse", Kind::Bool),
    ("partialFilterExpression", Kind::Filter),
    ("expireAfterSeconds", Kind::Number),
    ("hidden", Kind::Bool),
    ("collation", Kind::Collation),
    ("wildcardProjection", Kind::Projection),
    ("v", Kind::Number),
    ("weights", Kind::Any),
    ("background", Kind::Bool),
];

const COLL_MOD_INDEX: &[(&str, Kind)] = &[
    ("keyPattern", Kind::Keys),
    ("name", Kind::OneOf(&["a_1", "x", "_id_", ""])),
    ("expireAfterSeconds", Kind::Number),
    ("hidden", Kind::Bool),
    ("prepareUnique", Kind::Bool),
    ("unique", Kind::Bool),
];

const VALIDATOR: Kind = Kind::Either(&Kind::Filter, &Kind::Fields(&[("$jsonSchema", Kind::Schema)]));

const BULK: Kind = Kind::Either(
    &Kind::Fields(&[("insert", Kind::Bit), ("document", Kind::Stored)]),
    &Kind::Either(
        &Kind::Fields(&[
            ("update", Kind::Bit),
            ("filter", Kind::Filter),
            ("updateMods", Kind::Update),
            ("multi", Kind::Bool),
            ("upsert", Kind::Bool),
            ("arrayFilters", Kind::ArrayFilters),
            ("hint", HINT),
            ("collation", Kind::Collation),
        ]),
        &Kind::Fields(&[
            ("delete", Kind::Bit),
            ("filter", Kind::Filter),
            ("multi", Kind::Bool),
            ("hint", HINT),
        ]),
    ),
);

/// Commands, their first field and their others. The first eight can be explained.
const COMMANDS: &[Known] = &[
    (
        "find",
        First::Collection,
        &[
            ("filter", Kind::Filter),
            ("sort", Kind::Sort),
            ("projection", Kind::Projection),
            ("hint", HINT),
            ("skip", Kind::Number),
            ("limit", Kind::Number),
            ("batchSize", Kind::Number),
            ("singleBatch", Kind::Bool),
            ("max", Kind::Stored),
            ("min", Kind::Stored),
            ("returnKey", Kind::Bool),
            ("showRecordId", Kind::Bool),
            ("tailable", Kind::Bool),
            ("awaitData", Kind::Bool),
            ("allowDiskUse", Kind::Bool),
            ("collation", Kind::Collation),
            ("let", LET),
        ],
    ),
    (
        "aggregate",
        First::Collection,
        &[
            ("pipeline", Kind::Pipeline),
            ("cursor", CURSOR),
            ("explain", Kind::Bool),
            ("allowDiskUse", Kind::Bool),
            ("hint", HINT),
            ("collation", Kind::Collation),
            ("let", LET),
            ("bypassDocumentValidation", Kind::Bool),
        ],
    ),
    (
        "update",
        First::Collection,
        &[
            ("updates", Kind::List(&Kind::Fields(UPDATE))),
            ("ordered", Kind::Bool),
            ("bypassDocumentValidation", Kind::Bool),
            ("let", LET),
        ],
    ),
    (
        "delete",
        First::Collection,
        &[("deletes", Kind::List(&Kind::Fields(DELETE))), ("ordered", Kind::Bool), ("let", LET)],
    ),
    (
        "findAndModify",
        First::Collection,
        &[
            ("query", Kind::Filter),
            ("update", Kind::Update),
            ("sort", Kind::Sort),
            ("remove", Kind::Bool),
            ("new", Kind::Bool),
            ("upsert", Kind::Bool),
            ("fields", Kind::Projection),
            ("arrayFilters", Kind::ArrayFilters),
            ("hint", HINT),
            ("collation", Kind::Collation),
            ("let", LET),
        ],
    ),
    (
        "count",
        First::Collection,
        &[
            ("query", Kind::Filter),
            ("limit", Kind::Number),
            ("skip", Kind::Number),
            ("hint", HINT),
            ("collation", Kind::Collation),
        ],
    ),
    (
        "distinct",
        First::Collection,
        &[("key", Kind::Path), ("query", Kind::Filter), ("collation", Kind::Collation), ("hint", HINT)],
    ),
    (
        "insert",
        First::Collection,
        &[("documents", Kind::StoredList), ("ordered", Kind::Bool), ("bypassDocumentValidation", Kind::Bool)],
    ),
    (
        "explain",
        First::Command,
        &[("verbosity", Kind::OneOf(&["queryPlanner", "executionStats", "allPlansExecution", "x"]))],
    ),
    ("getMore", First::Cursor, &[("collection", Kind::Collection), ("batchSize", Kind::Number)]),
    ("killCursors", First::Collection, &[]),
    (
        "bulkWrite",
        First::One,
        &[
            ("ops", Kind::List(&BULK)),
            ("nsInfo", Kind::List(&Kind::Fields(&[("ns", Kind::OneOf(&["t.c", "t.d", "x", "u.c"]))]))),
            ("ordered", Kind::Bool),
            ("errorsOnly", Kind::Bool),
            ("cursor", CURSOR),
            ("let", LET),
        ],
    ),
    (
        "create",
        First::Collection,
        &[
            ("capped", Kind::Bool),
            ("size", Kind::Number),
            ("max", Kind::Number),
            ("validator", VALIDATOR),
            ("validationLevel", Kind::OneOf(&["off", "strict", "moderate"])),
            ("validationAction", Kind::OneOf(&["error", "warn", "errorAndLog"])),
            ("collation", Kind::Collation),
            ("timeseries", Kind::Any),
            ("clusteredIndex", Kind::Fields(INDEX)),
            ("expireAfterSeconds", Kind::Number),
            ("storageEngine", Kind::Any),
            ("indexOptionDefaults", Kind::Any),
        ],
    ),
    (
        "createIndexes",
        First::Collection,
        &[("indexes", Kind::List(&Kind::Fields(INDEX))), ("commitQuorum", Kind::Any)],
    ),
    ("dropIndexes", First::Collection, &[("index", Kind::Either(&HINT, &Kind::List(&Kind::Text)))]),
    ("listIndexes", First::Collection, &[("cursor", CURSOR)]),
    (
        "collMod",
        First::Collection,
        &[
            ("index", Kind::Fields(COLL_MOD_INDEX)),
            ("validator", VALIDATOR),
            ("validationLevel", Kind::OneOf(&["off", "strict", "moderate"])),
            ("validationAction", Kind::OneOf(&["error", "warn"])),
            ("cappedSize", Kind::Number),
            ("cappedMax", Kind::Number),
            ("dryRun", Kind::Bool),
        ],
    ),
    (
        "create",
        First::Collection,
        &[("viewOn", Kind::Collection), ("pipeline", Kind::Pipeline), ("collation", Kind::Collation)],
    ),
    ("create", First::Collection, &[("capped", Kind::Bool), ("size", Kind::Number), ("max", Kind::Number)]),
    ("collMod", First::Collection, &[("viewOn", Kind::Collection), ("pipeline", Kind::Pipeline)]),
    ("drop", First::Collection, &[]),
    ("dropDatabase", First::One, &[]),
    (
        "renameCollection",
        First::Namespace,
        &[("to", Kind::OneOf(&["t.c", "t.d", "u.c", "x", "t."])), ("dropTarget", Kind::Bool)],
    ),
    ("convertToCapped", First::Collection, &[("size", Kind::Number)]),
    (
        "cloneCollectionAsCapped",
        First::Collection,
        &[("toCollection", Kind::Collection), ("size", Kind::Number)],
    ),
    (
        "listCollections",
        First::One,
        &[("filter", Kind::Filter), ("nameOnly", Kind::Bool), ("cursor", CURSOR)],
    ),
    ("listDatabases", First::One, &[("filter", Kind::Filter), ("nameOnly", Kind::Bool)]),
    ("collStats", First::Collection, &[("scale", Kind::Number)]),
    ("dbStats", First::One, &[("scale", Kind::Number), ("freeStorage", Kind::Number)]),
    (
        "dataSize",
        First::Namespace,
        &[("keyPattern", Kind::Keys), ("min", Kind::Stored), ("max", Kind::Stored), ("estimate", Kind::Bool)],
    ),
    (
        "validate",
        First::Collection,
        &[("full", Kind::Bool), ("metadata", Kind::Bool), ("repair", Kind::Bool)],
    ),
    ("compact", First::Collection, &[("force", Kind::Bool), ("dryRun", Kind::Bool)]),
    ("commitTransaction", First::One, &[]),
    ("abortTransaction", First::One, &[]),
    ("killSessions", First::List(Kind::Fields(&[("id", Kind::Any)])), &[]),
    ("endSessions", First::List(Kind::Fields(&[("id", Kind::Any)])), &[]),
    ("currentOp", First::One, &[("$all", Kind::Bool), ("$ownOps", Kind::Bool), ("a", Kind::Any)]),
    ("killOp", First::One, &[("op", Kind::Number)]),
    ("serverStatus", First::One, &[("metrics", Kind::Number), ("locks", Kind::Any)]),
    (
        "getParameter",
        First::One,
        &[("logLevel", Kind::Any), ("allParameters", Kind::Bool), ("foo", Kind::Any)],
    ),
    (
        "setParameter",
        First::One,
        &[("ttlMonitorSleepSecs", Kind::Any), ("cursorTimeoutMillis", Kind::Any), ("foo", Kind::Any)],
    ),
    (
        "hello",
        First::One,
        &[
            ("client", Kind::Any),
            ("compression", Kind::List(&Kind::Text)),
            ("saslSupportedMechs", Kind::Any),
            ("helloOk", Kind::Bool),
        ],
    ),
    (
        "profile",
        First::One,
        &[("slowms", Kind::Number), ("sampleRate", Kind::Number), ("filter", Kind::Filter)],
    ),
    ("getLog", First::One, &[]),
    ("connectionStatus", First::One, &[("showPrivileges", Kind::Bool)]),
    ("listCommands", First::One, &[]),
    ("buildInfo", First::One, &[]),
    ("ping", First::One, &[]),
];
