//! A role's commands, together with those of every server.

use std::collections::HashMap;

use sheaf_errors::Result;

use super::Description;
use crate::args::Args;
use crate::reply::Reply;
use crate::request::Request;
use crate::role::Found;

/// Parses and runs a command of every server.
pub type RunOnFront = for<'a> fn(&mut Args<'a>, &Request<'a>) -> Result<Reply>;

/// A command in a list of commands: what everybody may know of it, and how to run it.
pub struct Entry<R> {
    /// What everybody may know of it.
    pub description: Description,
    /// Parses and runs.
    pub run: R,
}

/// How to run a command that was found.
#[derive(Clone, Copy)]
pub enum Run<R> {
    /// The command is every server's.
    Front(RunOnFront),
    /// The command is the role's own.
    Role(R),
}

/// A role's commands, together with those of every server. `R` is how the role's own are run.
pub struct Table<R> {
    commands: Vec<(&'static Description, Run<R>)>,
    places: HashMap<&'static str, usize, ahash::RandomState>,
}

impl<R: Copy + 'static> Table<R> {
    /// The commands of every server, and these of the role, which may run one of the former in its own way.
    ///
    /// Panics: a name stands twice.
    pub fn new(role: &[&'static [Entry<R>]]) -> Table<R> {
        let is_own =
            |name: &str| role.iter().any(|group| group.iter().any(|entry| entry.description.name == name));
        let front = crate::commands::COMMANDS.iter().filter(|entry| !is_own(entry.description.name));
        let front = front.map(|entry| (&entry.description, Run::Front(entry.run)));
        let own = role.iter().flat_map(|group| group.iter());
        let commands: Vec<_> =
            front.chain(own.map(|entry| (&entry.description, Run::Role(entry.run)))).collect();
        let mut places = HashMap::default();
        for (at, (command, _)) in commands.iter().enumerate() {
            for name in command.spec.aliases.iter().chain([&command.name]) {
                assert!(places.insert(*name, at).is_none(), "command {name} stands twice in the table");
            }
        }
        Table { commands, places }
    }

    /// The command of this name or alias.
    pub fn find(&self, name: &str) -> Option<Found> {
        let at = *self.places.get(name)?;
        Some(Found { command: self.commands[at].0, at })
    }

    /// How to run the command at this place.
    pub fn at(&self, place: usize) -> Run<R> {
        self.commands[place].1
    }

    /// Every command once, in no particular order.
    pub fn all(&self) -> impl Iterator<Item = &'static Description> + '_ {
        self.commands.iter().map(|(description, _)| *description)
    }
}

/// An [`Entry`] for a type that implements [`Command`](super::Command): of every server, or of the role whose commands run with
/// `$op`.
#[macro_export]
macro_rules! command_entry {
    ($command:ty, $op:ident) => {{
        fn run<'a>(
            args: &mut $crate::args::Args<'a>,
            op: &$op<'a>,
        ) -> sheaf_errors::Result<$crate::reply::Reply> {
            let command = <$command as $crate::command::Command<'a, $op<'a>>>::parse(args)?;
            args.finish()?;
            $crate::command::Command::run(command, op)
        }
        $crate::command::Entry {
            description: $crate::command::Description {
                name: <$command as $crate::command::Command<'static, $op<'static>>>::NAME,
                spec: <$command as $crate::command::Command<'static, $op<'static>>>::SPEC,
            },
            run,
        }
    }};
}
