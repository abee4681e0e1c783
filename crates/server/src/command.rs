//! What a mongod's commands are described with, and entries of its table.

pub use sheaf_front::command::*;

use sheaf_errors::Result;

use crate::args::Args;
use crate::op::Operation;
use crate::reply::Reply;

/// Parses and runs one of a mongod's own commands.
pub type RunOnMongod = for<'a, 'o> fn(&mut Args<'a>, &'o Operation<'a>) -> Result<Reply>;

/// What only members of the cluster may do.
pub const INTERNAL: Privileges = Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Internal])]);

/// An entry of the table for a type that implements [`Command`].
#[macro_export]
macro_rules! registered {
    ($command:ty) => {
        sheaf_front::command_entry!($command, Operation)
    };
}
