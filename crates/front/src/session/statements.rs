//! How many statements a write command has, and by what numbers sessions know them.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Array};

/// Most statements that one write command may have.
const MAX_WRITES: usize = 100_000;

/// The numbers of a write command's statements.
#[derive(Default)]
pub struct StatementIds {
    /// `stmtIds`.
    each: Option<Vec<i32>>,
    /// `stmtId`, from which they are counted up where they are not given one by one.
    first: Option<i32>,
}

impl StatementIds {
    /// Reads both fields.
    ///
    /// Errors: `TypeMismatch`.
    pub fn parse(args: &mut Args<'_>) -> Result<Self> {
        let mut each = None;
        if let Some(Array(ids)) = args.optional("stmtIds")? {
            let int = |id: Value<'_>, at: &str| exact_int(id, args.command(), &format!("stmtIds.{at}"));
            each = Some(ids.iter().map(|id| int(id.value(), id.key())).collect::<Result<_>>()?);
        }
        Ok(StatementIds { each, first: first_statement(args)? })
    }

    /// Checks them against the number of statements.
    ///
    /// Errors: `InvalidLength`, `InvalidOptions`.
    pub fn check(&self, count: usize) -> Result<()> {
        check_count(count)?;
        self.check_length(count)?;
        self.check_one_way("write")
    }

    /// The same for `bulkWrite`, which looks first whether both are given.
    ///
    /// Errors: `InvalidLength`, `InvalidOptions`.
    pub fn check_bulk(&self, count: usize) -> Result<()> {
        check_count(count)?;
        self.check_one_way("bulkWrite")?;
        self.check_length(count)
    }

    fn check_length(&self, count: usize) -> Result<()> {
        match &self.each {
            Some(ids) if ids.len() != count => bail!(
                Code::INVALID_LENGTH,
                "Number of statement ids must match the number of batch entries. Got {} statement ids but {count} operations.",
                ids.len()
            ),
            _ => Ok(()),
        }
    }

    /// With both it would be a guess which statement of an earlier attempt is meant.
    fn check_one_way(&self, command: &str) -> Result<()> {
        if self.each.is_some() && self.first.is_some() {
            bail!(Code::INVALID_OPTIONS, "May not specify both stmtId and stmtIds in {command} command.");
        }
        Ok(())
    }

    /// The number of the statement at this place.
    pub fn at(&self, place: usize) -> i32 {
        let given = self.each.as_ref().and_then(|ids| ids.get(place)).copied();
        given.unwrap_or_else(|| self.first.unwrap_or(0).wrapping_add(place as i32))
    }
}

/// `stmtId`.
///
/// Errors: `TypeMismatch`.
pub fn first_statement(args: &mut Args<'_>) -> Result<Option<i32>> {
    match args.value("stmtId") {
        Value::Missing | Value::Null | Value::Undefined => Ok(None),
        id => exact_int(id, args.command(), "stmtId").map(Some),
    }
}

/// A number that must be an int32: these fields take no other kind of number.
///
/// Errors: `TypeMismatch`.
fn exact_int(value: Value<'_>, command: &str, field: &str) -> Result<i32> {
    match value {
        Value::Int32(n) => Ok(n),
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field '{command}.{field}' is the wrong type '{}', expected type 'int'",
            other.type_name()
        ),
    }
}

/// Checks the number of statements.
fn check_count(count: usize) -> Result<()> {
    if count == 0 || count > MAX_WRITES {
        bail!(
            Code::INVALID_LENGTH,
            "Write batch sizes must be between 1 and {MAX_WRITES}. Got {count} operations."
        );
    }
    Ok(())
}
