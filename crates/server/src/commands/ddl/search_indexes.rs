//! `createSearchIndexes`, `updateSearchIndex`, `dropSearchIndex`, `listSearchIndexes`: they need a search service.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::{Command, Spec};
use crate::op::Operation;
use crate::reply::Reply;

macro_rules! without_search {
    ($($(#[$doc:meta])* $type:ident = $name:literal,)*) => {
        $(
            $(#[$doc])*
            pub struct $type;

            impl<'a> Command<'a, Operation<'a>> for $type {
                const NAME: &'static str = $name;
                const SPEC: Spec = Spec::plain().help("this server has no search service");

                fn parse(args: &mut Args<'a>) -> Result<Self> {
                    args.ignore_rest();
                    Ok($type)
                }

                fn run(self, _: &Operation<'a>) -> Result<Reply> {
                    Err(sheaf_aggregate::stages::search::no_index_service())
                }
            }
        )*
    };
}

without_search!(
    /// `{createSearchIndexes: ..., indexes: [...]}`.
    CreateSearchIndexes = "createSearchIndexes",
    /// `{updateSearchIndex: ..., name: ..., definition: ...}`.
    UpdateSearchIndex = "updateSearchIndex",
    /// `{dropSearchIndex: ..., name: ...}`.
    DropSearchIndex = "dropSearchIndex",
    /// `{listSearchIndexes: ...}`.
    ListSearchIndexes = "listSearchIndexes",
);
