//! The only operation of a `bulkWrite`, as `explain` tells of it.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::write::{Delete, UpdateStatement};

use super::{BulkWrite, Kind, Parsed, delete_of};
use crate::commands::timeseries::{Selected, UpdateParts};
use crate::op::Operation;
use crate::reply::Reply;

/// The only operation of a `bulkWrite` that is explained.
pub enum Only {
    /// An update.
    Update(UpdateStatement),
    /// A delete.
    Delete(Delete),
}

/// The same on measurements.
pub enum OnlyMeasured<'p> {
    /// An update.
    Update(UpdateParts<'p>),
    /// A delete, and whether it is one of many.
    Delete(Selected<'p>, bool),
}

impl<'a> BulkWrite<'a> {
    /// The only operation, with its namespace, for `explain`.
    ///
    /// Errors: `InvalidLength` if there are several, `IllegalOperation` for an insert, which has no plan.
    pub(in crate::commands::crud) fn only(&self, op: &Operation<'_>) -> Result<(&'a str, Only)> {
        let parsed = self.only_parsed()?;
        let (namespace, variables) = (parsed.namespace, self.variables);
        match &parsed.kind {
            Kind::Insert(_) => bail!(Code::ILLEGAL_OPERATION, "Cannot explain an insert of bulkWrite"),
            Kind::Update(update) => {
                Ok((namespace, Only::Update(update.statement(op, namespace, variables)?)))
            }
            Kind::Delete { filter, multi, hint, collation } => {
                let selected = Selected { filter: *filter, variables, collation: *collation, hint: *hint };
                Ok((namespace, Only::Delete(delete_of(op, namespace, &selected, *multi)?)))
            }
        }
    }

    /// What the only operation is to explain where it is about measurements.
    ///
    /// Errors: as [`BulkWrite::only`].
    pub(in crate::commands::crud) fn explain_measured<T>(
        &self,
        is_measured: impl FnOnce(&str, bool) -> Result<Option<T>>,
        explain: impl FnOnce(T, OnlyMeasured<'_>) -> Result<Reply>,
    ) -> Result<Option<Reply>> {
        let parsed = self.only_parsed()?;
        let Some(found) = is_measured(parsed.namespace, parsed.measured)? else { return Ok(None) };
        let variables = self.variables;
        match &parsed.kind {
            Kind::Insert(_) => Ok(None),
            Kind::Update(update) => explain(found, OnlyMeasured::Update(update.parts(variables))).map(Some),
            Kind::Delete { filter, multi, hint, collation } => {
                let selected = Selected { filter: *filter, variables, collation: *collation, hint: *hint };
                explain(found, OnlyMeasured::Delete(selected, *multi)).map(Some)
            }
        }
    }

    fn only_parsed(&self) -> Result<Parsed<'a>> {
        if self.ops.count() != 1 {
            bail!(Code::INVALID_LENGTH, "explained write batches must be of size 1");
        }
        let doc = self.ops.iter().next().unwrap_or(RawDoc::EMPTY);
        self.addressed(doc, Self::parse_op(doc)?)
    }
}
