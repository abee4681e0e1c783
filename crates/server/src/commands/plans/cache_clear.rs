//! `planCacheClear`.

use sheaf_errors::Result;

use super::shape;
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
        args.ignore_rest();
        Ok(PlanCacheClear { collection })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        // Of a collection that does not exist there is nothing to forget, whatever else the command says.
        let Some(collection) = shape::collection(op, self.collection)? else { return Ok(Reply::ok()) };
        let view = op.engine().view()?;
        match shape::named(op, op.body())? {
            Some(shape) => view.plans().forget_shape(collection.uuid, shape.hash),
            None => view.plans().forget(collection.uuid),
        }
        Ok(Reply::ok())
    }
}
