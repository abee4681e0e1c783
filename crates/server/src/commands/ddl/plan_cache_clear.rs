//! `planCacheClear`.

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{planCacheClear: "users", query, sort, projection, collation}`
pub struct PlanCacheClear<'a> {
    collection: &'a str,
}

impl<'a> Command<'a, Operation<'a>> for PlanCacheClear<'a> {
    const NAME: &'static str = "planCacheClear";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "forgets the plans of a collection",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::PlanCacheWrite])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let query: Option<RawDoc<'a>> = args.optional("query")?;
        for name in ["sort", "projection", "collation"] {
            let part: Option<RawDoc<'a>> = args.optional(name)?;
            if part.is_some() && query.is_none() {
                bail!(Code::BAD_VALUE, "sort, projection or collation provided without query");
            }
        }
        Ok(PlanCacheClear { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        // One query's plan costs as little to find anew as all of the collection's.
        let view = op.engine().view()?;
        if let Some(collection) = view.catalog().collection(&namespace) {
            super::names::refuse_view(collection)?;
            view.plans().forget(collection.uuid);
        }
        op.metrics().namespace.replace(Some(namespace));
        Ok(Reply::ok())
    }
}
