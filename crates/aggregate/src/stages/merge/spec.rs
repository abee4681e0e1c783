//! What `$merge` is given, as far as it can be told before anything is read that runs.

use std::collections::HashSet;

use sheaf_bson::{RawDoc, Type, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::FieldPath;

use crate::idl::Fields;
use crate::namespace::Namespace;
use crate::outline;

/// What a name says of documents that have matched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Replace,
    KeepExisting,
    Merge,
    Fail,
}

/// `whenNotMatched`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WhenNotMatched {
    Insert,
    Discard,
    Fail,
}

/// What is said of the target and of the modes.
pub(super) struct Spec<'a> {
    pub(super) target: Namespace,
    pub(super) on: Option<Vec<&'a str>>,
    pub(super) variables: Option<RawDoc<'a>>,
    pub(super) matched: Matched<'a>,
    pub(super) not_matched: WhenNotMatched,
}

/// `whenMatched`.
#[derive(Clone, Copy)]
pub(super) enum Matched<'a> {
    Mode(Mode),
    Pipeline(RawDoc<'a>),
}

impl<'a> Spec<'a> {
    /// Errors: `TypeMismatch`, 40414, 40415, `InvalidNamespace`, 51181; those of the fields.
    pub(super) fn read(argument: Value<'a>, database: &str) -> Result<Spec<'a>> {
        let mut target = None;
        let (mut on, mut variables) = (None, None);
        let (mut matched, mut not_matched) = (Matched::Mode(Mode::Merge), WhenNotMatched::Insert);
        match argument {
            Value::String(collection) => target = Some(Namespace::new(database, collection)),
            Value::Document(spec) => {
                for field in spec.iter() {
                    let value = field.value();
                    match field.key() {
                        "into" => target = Some(parse_into(value, database)?),
                        "on" => on = Some(parse_on(value)?),
                        "whenMatched" => matched = parse_matched(value)?,
                        "allowMergeOnNullishValues" if !matches!(value, Value::Bool(_)) => bail!(
                            Code::TYPE_MISMATCH,
                            "Field 'allowMergeOnNullishValues' should be a boolean value, but found: {}",
                            value.type_name()
                        ),
                        "allowMergeOnNullishValues" => {}
                        // A null stands for no field at all.
                        "let" | "whenNotMatched" | "targetCollectionVersion" if value.is_nullish() => {}
                        "let" => variables = Some(document("let", value)?),
                        "whenNotMatched" => not_matched = parse_not_matched(value)?,
                        "targetCollectionVersion" => drop(document("targetCollectionVersion", value)?),
                        other => bail!(40415, "BSON field '$merge.{other}' is an unknown field."),
                    }
                }
            }
            other => bail!(
                Code::TYPE_MISMATCH,
                "$merge requires a string or object argument, but found {}",
                other.type_name()
            ),
        }
        let Some(target) = target else {
            bail!(40414, "BSON field '$merge.into' is missing but a required field");
        };
        if !target.is_valid() {
            bail!(Code::INVALID_NAMESPACE, "Invalid $merge target namespace: '{target}'");
        }
        check_modes(matched, not_matched)?;
        Ok(Spec { target, on, variables, matched, not_matched })
    }
}

fn document<'a>(name: &str, value: Value<'a>) -> Result<RawDoc<'a>> {
    let Value::Document(document) = value else {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field '$merge.{name}' is the wrong type '{}', expected type 'object'",
            value.type_name()
        );
    };
    Ok(document)
}

fn parse_into(value: Value<'_>, database: &str) -> Result<Namespace> {
    match value {
        Value::String("") => bail!(5786800, "$merge 'into' field cannot be an empty string"),
        Value::String(collection) => Ok(Namespace::new(database, collection)),
        Value::Document(spec) => {
            let fields = Fields::new("into", spec, &["db", "coll"])?;
            let text = |name| Ok(fields.optional(name, &[Type::String])?.and_then(|text| text.as_str()));
            let database = text("db")?.unwrap_or(database);
            match text("coll")? {
                Some(collection) if !collection.is_empty() => Ok(Namespace::new(database, collection)),
                _ => bail!(
                    5786801,
                    "$merge 'into' field must specify a 'coll' that is not empty, null or undefined"
                ),
            }
        }
        other => bail!(
            51178,
            "$merge 'into' field  must be either a string or an object, but found {}",
            other.type_name()
        ),
    }
}

fn parse_on(value: Value<'_>) -> Result<Vec<&str>> {
    match value {
        Value::String(field) => Ok(vec![field]),
        Value::Array(items) if items.is_empty() => {
            bail!(51187, "If explicitly specifying $merge 'on', must include at least one field")
        }
        Value::Array(items) => {
            let mut on = Vec::new();
            for item in items.values() {
                sheaf_meter::tick(4)?;
                let Value::String(field) = item else {
                    bail!(
                        51134,
                        "$merge 'on' array elements must be strings, but found {}",
                        item.type_name()
                    );
                };
                on.push(field);
            }
            Ok(on)
        }
        other => bail!(
            51186,
            "$merge 'on' field  must be either a string or an array of strings, but found {}",
            other.type_name()
        ),
    }
}

/// Errors: 31465; those of paths.
pub(super) fn own_paths(on: Vec<&str>) -> Result<Vec<String>> {
    let mut known = HashSet::new();
    for field in &on {
        sheaf_meter::tick(4)?;
        FieldPath::parse(field)?;
        if !known.insert(*field) {
            bail!(31465, "Found a duplicate field '{field}' in $merge 'on'");
        }
    }
    Ok(on.into_iter().map(str::to_owned).collect())
}

fn parse_not_matched(value: Value<'_>) -> Result<WhenNotMatched> {
    match value {
        Value::String("insert") => Ok(WhenNotMatched::Insert),
        Value::String("discard") => Ok(WhenNotMatched::Discard),
        Value::String("fail") => Ok(WhenNotMatched::Fail),
        Value::String(other) => bail!(
            Code::BAD_VALUE,
            "Enumeration value '{other}' for field '$merge.whenNotMatched' is not a valid value."
        ),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '$merge.whenNotMatched' is the wrong type '{}', expected type 'string'",
            other.type_name()
        ),
    }
}

/// Errors: 51191, `BadValue`, `TypeMismatch`.
fn parse_matched(value: Value<'_>) -> Result<Matched<'_>> {
    match value {
        Value::String(name) => match name {
            "replace" => Ok(Matched::Mode(Mode::Replace)),
            "keepExisting" => Ok(Matched::Mode(Mode::KeepExisting)),
            "merge" => Ok(Matched::Mode(Mode::Merge)),
            "fail" => Ok(Matched::Mode(Mode::Fail)),
            other => bail!(
                Code::BAD_VALUE,
                "Enumeration value '{other}' for field 'whenMatched' is not a valid value."
            ),
        },
        Value::Array(_) => Ok(Matched::Pipeline(outline::stages(value)?)),
        other => bail!(
            51191,
            "$merge 'whenMatched' field  must be either a string or an array, but found {}",
            other.type_name()
        ),
    }
}

/// Errors: 51181.
fn check_modes(matched: Matched<'_>, not_matched: WhenNotMatched) -> Result<()> {
    let mode = match matched {
        Matched::Mode(mode @ (Mode::KeepExisting | Mode::Fail)) if not_matched != WhenNotMatched::Insert => {
            mode
        }
        _ => return Ok(()),
    };
    bail!(
        51181,
        "Combination of $merge modes 'whenMatched: {}' and 'whenNotMatched: {}' is not supported",
        mode.name(),
        if not_matched == WhenNotMatched::Fail { "fail" } else { "discard" }
    )
}

impl Mode {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Replace => "replace",
            Mode::KeepExisting => "keepExisting",
            Mode::Merge => "merge",
            Mode::Fail => "fail",
        }
    }
}
