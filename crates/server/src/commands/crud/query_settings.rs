//! How queries obey what was set for their shapes.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::shape::QueryShape;

use crate::op::Operation;

/// Has the operation obey what was set for queries of the command's shape.
///
/// Errors: `QueryRejectedBySettings`.
pub fn apply(op: &Operation<'_>, command: RawDoc<'_>) -> Result<()> {
    let known = &op.node().query_settings;
    if !known.any() || matches!(op.db(), "admin" | "config" | "local") {
        return Ok(());
    }
    let Some(shape) = QueryShape::of(op.db(), command) else { return Ok(()) };
    let Some(settings) = known.of(&shape.hash()) else { return Ok(()) };
    let explained = op.command.name == "explain" || command.get("explain").is_some_and(|flag| flag.truthy());
    if settings.rejects() && !explained && !is_exempt(command) {
        if let Some(count) = op.node().front().command_counts.get(shape.command_name()) {
            count.rejected.add(1);
        }
        bail!(Code::QUERY_REJECTED_BY_SETTINGS, "Query rejected by admin query settings");
    }
    op.settings.replace(Some(settings));
    Ok(())
}

/// Whether the pipeline shows what the server does, which is never refused.
fn is_exempt(command: RawDoc<'_>) -> bool {
    let first =
        command.get("pipeline").and_then(|list| list.as_array()?.values().next()?.as_doc()?.iter().next());
    first.is_some_and(|stage| {
        matches!(
            stage.key(),
            "$currentOp"
                | "$listLocalSessions"
                | "$listSessions"
                | "$querySettings"
                | "$queryStats"
                | "$planCacheStats"
        )
    })
}
