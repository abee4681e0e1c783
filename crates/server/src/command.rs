//! The table of a mongod's commands.

pub use sheaf_front::command::{Access, Command, Counter, Description, Secondary, Spec};

use sheaf_errors::Result;

use crate::args::Args;
use crate::op::Operation;
use crate::reply::Reply;

/// A command's entry in the table.
pub struct Registered {
    /// What everybody may know of it.
    pub description: Description,
    /// Parses and runs.
    pub invoke: for<'a, 'o> fn(&mut Args<'a>, &'o Operation<'a>) -> Result<Reply>,
}

impl std::ops::Deref for Registered {
    type Target = Description;

    fn deref(&self) -> &Description {
        &self.description
    }
}

/// An entry of the table for a type that implements [`Command`].
#[macro_export]
macro_rules! registered {
    ($command:ty) => {{
        fn invoke<'a>(
            args: &mut $crate::args::Args<'a>,
            op: &$crate::op::Operation<'a>,
        ) -> sheaf_errors::Result<$crate::reply::Reply> {
            use $crate::command::Command;
            let command = <$command as Command<'a, $crate::op::Operation<'a>>>::parse(args)?;
            args.finish()?;
            command.run(op)
        }
        $crate::command::Registered {
            description: $crate::command::Description {
                name: <$command as $crate::command::Command<'static, $crate::op::Operation<'static>>>::NAME,
                spec: <$command as $crate::command::Command<'static, $crate::op::Operation<'static>>>::SPEC,
            },
            invoke,
        }
    }};
}
