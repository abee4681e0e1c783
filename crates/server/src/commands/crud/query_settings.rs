//! How queries obey what was set for their shapes.

use std::sync::Arc;

use sheaf_bson::RawDoc;
use sheaf_errors::{Result, bail};
use sheaf_exec::plan::settings::Settings;

use crate::op::Operation;
use crate::query_settings::FIELD;

/// Has the operation obey what was set for queries of the command's shape. A router that knows says it: what it asks of shards has
/// another shape than what it was asked for.
///
/// Errors: `QueryRejectedBySettings`; 40415, if a client says what only routers may: those of the cluster, where it is known who that is.
pub fn apply(op: &Operation<'_>, command: RawDoc<'_>) -> Result<()> {
    if let Some(told) = op.body().get(FIELD) {
        if !from_router(op) {
            bail!(40415, "BSON field '{}.{FIELD}' is an unknown field.", op.command.name);
        }
        let told = told.as_doc().filter(|told| !told.is_empty());
        op.settings.replace(told.map(|told| Arc::new(Settings::read(told))));
        return Ok(());
    }
    let known = &op.node().query_settings;
    if known.any() {
        let explains = op.command.name == "explain";
        op.settings.replace(known.obeyed(op.node().front(), op.db(), command, explains)?);
    }
    Ok(())
}

fn from_router(op: &Operation<'_>) -> bool {
    op.generic.shard_version.is_some() && op.node().sharding().is_some() && op.request.rights.are_everything()
}
