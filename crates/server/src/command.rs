//! What a mongod's commands are described with, and entries of its table.

pub use sheaf_front::command::*;

use sheaf_errors::Result;

use crate::args::Args;
use crate::op::Operation;
use crate::reply::Reply;

/// Parses and runs one of a mongod's own commands.
pub type RunOnMongod = for<'a, 'o> fn(&mut Args<'a>, &'o Operation<'a>) -> Result<Reply>;

/// The command as it is going to run: whoever judges it beforehand reads what its parser reads, as its parser does.
///
/// Errors: those of the parser, upon which the command fails.
pub fn parsed<'a, C: Command<'a, Operation<'a>>>(asked: Asked<'a>) -> Result<C> {
    C::parse(&mut asked.args()?)
}

/// What only members of the cluster may do.
pub const INTERNAL: Privileges = Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Internal])]);

/// An entry of the table for a type that implements [`Command`].
#[macro_export]
macro_rules! registered {
    ($command:ty) => {
        sheaf_front::command_entry!($command, Operation)
    };
}
