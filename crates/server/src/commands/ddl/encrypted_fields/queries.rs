//! How encrypted fields are searched.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::domain::Domain;
use crate::args::Args;

/// Most kinds of query that one field has.
const KINDS_MAX: usize = 2;

/// `contention` where none is given.
const CONTENTION: i64 = 8;

/// A kind of query with its settings.
pub struct QueryType<'a> {
    kind: Kind,
    min: Value<'a>,
    max: Value<'a>,
    sparsity: Option<i64>,
    precision: Option<i64>,
    trim: Option<i64>,
    contention: Option<i64>,
    text: Text,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Equality,
    Range,
    Substring,
    Suffix,
    Prefix,
}

/// Settings of searches in strings.
#[derive(Default)]
struct Text {
    longest: Option<i64>,
    query_min: Option<i64>,
    query_max: Option<i64>,
    case_sensitive: Option<bool>,
    diacritic_sensitive: Option<bool>,
}

/// Reads an array of kinds.
///
/// Errors: 9783412 and others for combinations that cannot be.
pub fn parse_all(list: RawDoc<'_>) -> Result<Vec<QueryType<'_>>> {
    let mut kinds = Vec::new();
    for element in list.iter() {
        match element.value() {
            Value::Document(one) => kinds.push(QueryType::parse(one)?),
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'create.encryptedFields.fields.queries.{}' is the wrong type '{}', expected type 'object'",
                element.key(),
                other.type_name()
            ),
        }
    }
    Ok(kinds)
}

impl<'a> QueryType<'a> {
    /// Reads one kind.
    pub fn parse(spec: RawDoc<'a>) -> Result<Self> {
        let mut args = Args::of_part("create.encryptedFields.fields.queries", spec)?;
        let kind = match args.required("queryType")? {
            "equality" => Kind::Equality,
            "range" => Kind::Range,
            "substringPreview" => Kind::Substring,
            "suffixPreview" => Kind::Suffix,
            "prefixPreview" => Kind::Prefix,
            other => bail!(
                Code::BAD_VALUE,
                "Enumeration value '{other}' for field 'create.encryptedFields.fields.queries.queryType' is not a valid value."
            ),
        };
        let contention = whole(&mut args, "contention", 0, i64::MAX)?;
        let trim = whole(&mut args, "trimFactor", 0, i64::from(i32::MAX))?;
        let sparsity = whole(&mut args, "sparsity", 1, 8)?;
        let precision = whole(&mut args, "precision", 0, i64::from(i32::MAX))?;
        let (min, max) = (bound(&mut args, "min")?, bound(&mut args, "max")?);
        let most = i64::from(i32::MAX);
        let text = Text {
            longest: whole(&mut args, "strMaxLength", 1, most)?,
            query_min: whole(&mut args, "strMinQueryLength", 1, most)?,
            query_max: whole(&mut args, "strMaxQueryLength", 1, most)?,
            case_sensitive: args.optional("caseSensitive")?,
            diacritic_sensitive: args.optional("diacriticSensitive")?,
        };
        args.finish()?;
        Ok(QueryType { kind, min, max, sparsity, precision, trim, contention, text })
    }

    fn is_text(&self) -> bool {
        matches!(self.kind, Kind::Substring | Kind::Suffix | Kind::Prefix)
    }
}

/// A whole number within bounds; one with a fraction is not cut.
fn whole(args: &mut Args<'_>, name: &'static str, low: i64, high: i64) -> Result<Option<i64>> {
    let value = args.value(name);
    if value.is_missing() || value.is_nullish() {
        return Ok(None);
    }
    if !value.is_number() {
        bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'create.encryptedFields.fields.queries.{name}' is the wrong type '{}', expected types '[long, int, decimal, double]'",
            value.type_name()
        );
    }
    let number = crate::args::exact_i64(value, name)?;
    crate::args::in_range(number, low, high, name).map(Some)
}

/// An end of a range.
fn bound<'a>(args: &mut Args<'a>, name: &str) -> Result<Value<'a>> {
    match args.value(name) {
        value @ (Value::Missing | Value::DateTime(_)) => Ok(value),
        Value::Null | Value::Undefined => Ok(Value::Missing),
        value if value.is_number() => Ok(value),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'create.encryptedFields.fields.queries.{name}' is the wrong type '{}', expected types '[date, decimal, double, int, long]'",
            other.type_name()
        ),
    }
}

/// Checks the kinds of query of one field against its type.
pub fn check(kinds: &[QueryType<'_>], bson_type: Option<&str>) -> Result<()> {
    if kinds.is_empty() {
        bail!(9783412, "At least one query type should be specified per field");
    }
    if kinds.len() > KINDS_MAX {
        bail!(9783413, "The number of query types for an encrypted field cannot exceed two");
    }
    if let [one, other] = kinds {
        let ends = |kind| matches!(kind, Kind::Suffix | Kind::Prefix);
        if !ends(one.kind) || !ends(other.kind) || one.kind == other.kind {
            bail!(
                9783414,
                "Multiple query types may only include the suffixPreview and prefixPreview query types"
            );
        }
    }
    let Some(bson_type) = bson_type else {
        bail!(6412601, "Bson type needs to be specified for an indexed field");
    };
    kinds.iter().try_for_each(|query| match query.kind {
        Kind::Equality => check_equality(query, bson_type),
        Kind::Range => check_range(query, bson_type),
        _ => check_text(query, bson_type),
    })?;
    if let [one, other] = kinds {
        check_alike(one, other)?;
    }
    Ok(())
}

/// Two kinds of one field share the settings by which its words are made.
fn check_alike(one: &QueryType<'_>, other: &QueryType<'_>) -> Result<()> {
    let differ = [
        (one.text.case_sensitive != other.text.case_sensitive, "caseSensitive", 9783409),
        (one.text.diacritic_sensitive != other.text.diacritic_sensitive, "diacriticSensitive", 9783410),
        (
            one.contention.unwrap_or(CONTENTION) != other.contention.unwrap_or(CONTENTION),
            "contention",
            9783411,
        ),
    ];
    match differ.iter().find(|(differ, ..)| *differ) {
        Some((_, name, code)) => {
            bail!(Code(*code), "{name} parameter must be the same for all query types of a field")
        }
        None => Ok(()),
    }
}

fn check_equality(query: &QueryType<'_>, bson_type: &str) -> Result<()> {
    let unsupported = [
        "double",
        "decimal",
        "object",
        "array",
        "javascriptWithScope",
        "null",
        "undefined",
        "minKey",
        "maxKey",
    ];
    if unsupported.contains(&bson_type) {
        bail!(6338405, "Type '{bson_type}' is not a supported equality indexed type");
    }
    let given = [
        (query.sparsity.is_some(), "sparsity", 6775205),
        (!query.min.is_missing(), "min", 6775206),
        (!query.max.is_missing(), "max", 6775207),
        (query.trim.is_some(), "trimFactor", 8574104),
    ];
    match given.iter().find(|(given, ..)| *given) {
        Some((_, name, code)) => {
            bail!(Code(*code), "The field '{name}' is not allowed for equality index but is present")
        }
        None => Ok(()),
    }
}

fn check_range(query: &QueryType<'_>, bson_type: &str) -> Result<()> {
    if !matches!(bson_type, "int" | "long" | "double" | "decimal" | "date") {
        bail!(6775201, "Type '{bson_type}' is not a supported range indexed type");
    }
    let (min, max) = (query.min, query.max);
    for (value, name, code) in [(min, "Min", 7018200), (max, "Max", 7018201)] {
        if !value.is_missing() && value.type_name() != bson_type {
            bail!(Code(code), "{name} should have the same type as the field.");
        }
    }
    if !min.is_missing() && !max.is_missing() && sheaf_bson::compare(min, max).is_ge() {
        bail!(6720005, "Min must be less than max.");
    }
    let together = min.is_missing() == max.is_missing() && min.is_missing() == query.precision.is_none();
    let fractions = matches!(bson_type, "double" | "decimal");
    if fractions && !together {
        bail!(6967100, "Precision, min, and max must all be specified together for floating point fields");
    }
    let domain = Domain { bson_type, min, max, precision: query.precision };
    if fractions {
        domain.check_precision()?;
    }
    let Some(trim) = query.trim else { return Ok(()) };
    if query.precision.is_some() && !fractions {
        bail!(8574113, "Precision may only be set when type is double or decimal");
    }
    domain.check_trim(trim, query.sparsity)
}

fn check_text(query: &QueryType<'_>, bson_type: &str) -> Result<()> {
    debug_assert!(query.is_text());
    if bson_type != "string" {
        bail!(9783400, "Type '{bson_type}' is not a supported type for text search: it has to be 'string'");
    }
    let text = &query.text;
    let missing = [
        (text.query_min.is_none(), "strMinQueryLength", 9783402),
        (text.query_max.is_none(), "strMaxQueryLength", 9783403),
        (text.case_sensitive.is_none(), "caseSensitive", 9783404),
        (text.diacritic_sensitive.is_none(), "diacriticSensitive", 9783405),
    ];
    if let Some((_, name, code)) = missing.iter().find(|(missing, ..)| *missing) {
        bail!(Code(*code), "The field '{name}' is missing but required for text search");
    }
    if text.query_min > text.query_max {
        bail!(9783406, "strMinQueryLength must be less than or equal to strMaxQueryLength");
    }
    if query.kind == Kind::Substring {
        let Some(longest) = text.longest else {
            bail!(9783407, "The field 'strMaxLength' is missing but required for text search");
        };
        if text.query_max > Some(longest) {
            bail!(9783408, "strMaxQueryLength must be less than or equal to strMaxLength");
        }
    }
    Ok(())
}
