//! Parameters of the cluster on their way to a shard: the config servers keep them, and every shard has them, too.

use sheaf_bson::RawDoc;
use sheaf_errors::Result;

use super::internal::spec;
use crate::args::{Args, Documents};
use crate::command::*;
use crate::commands::admin::keep_newer;
use crate::op::Operation;
use crate::reply::Reply;

/// The command by which routers tell shards.
pub const SET_PARAMETERS: &str = "_shardsvrSetClusterParameter";

/// `{_shardsvrSetClusterParameter: 1, parameters: [<document of config.clusterParameters>, ...]}`: takes over what is newer.
pub struct SetParameters<'a> {
    documents: Documents<'a>,
}

impl<'a> Command<'a, Operation<'a>> for SetParameters<'a> {
    const NAME: &'static str = SET_PARAMETERS;
    const SPEC: Spec = spec("takes over parameters of the cluster");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(SetParameters { documents: args.required_documents("parameters")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let documents: Vec<RawDoc<'_>> = self.documents.iter().collect();
        op.blocking(|| documents.iter().try_for_each(|document| keep_newer(op, *document)))?;
        // Whether it was done now or before.
        op.note_newest_commit();
        Ok(Reply::ok())
    }
}
