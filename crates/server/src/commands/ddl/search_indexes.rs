//! `createSearchIndexes`, `updateSearchIndex`, `dropSearchIndex`, `listSearchIndexes`: they need a search service.

use sheaf_errors::Result;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{createSearchIndexes: ..., indexes: [...]}`.
pub struct CreateSearchIndexes;

impl<'a> Command<'a, Operation<'a>> for CreateSearchIndexes {
    const NAME: &'static str = "createSearchIndexes";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "builds search indexes",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::CreateSearchIndexes])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(CreateSearchIndexes)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Err(sheaf_aggregate::stages::search::no_index_service())
    }
}

/// `{updateSearchIndex: ..., name: ..., definition: ...}`.
pub struct UpdateSearchIndex;

impl<'a> Command<'a, Operation<'a>> for UpdateSearchIndex {
    const NAME: &'static str = "updateSearchIndex";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "changes a search index",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::UpdateSearchIndex])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(UpdateSearchIndex)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Err(sheaf_aggregate::stages::search::no_index_service())
    }
}

/// `{dropSearchIndex: ..., name: ...}`.
pub struct DropSearchIndex;

impl<'a> Command<'a, Operation<'a>> for DropSearchIndex {
    const NAME: &'static str = "dropSearchIndex";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "drops a search index",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::DropSearchIndex])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(DropSearchIndex)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Err(sheaf_aggregate::stages::search::no_index_service())
    }
}

/// `{listSearchIndexes: ...}`.
pub struct ListSearchIndexes;

impl<'a> Command<'a, Operation<'a>> for ListSearchIndexes {
    const NAME: &'static str = "listSearchIndexes";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lists search indexes",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::ListSearchIndexes])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore_rest();
        Ok(ListSearchIndexes)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Err(sheaf_aggregate::stages::search::no_index_service())
    }
}
