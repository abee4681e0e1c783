//! `validateDBMetadata`.

use sheaf_auth::Target;
use sheaf_bson::RawDoc;
use sheaf_errors::{Result, bail};
use sheaf_front::access::Rights;

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{validateDBMetadata: 1, apiParameters: {...}}`: no stored definition here breaks the stable API.
pub struct ValidateDbMetadata;

impl<'a> Command<'a, Operation<'a>> for ValidateDbMetadata {
    const NAME: &'static str = "validateDBMetadata";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "checks stored definitions against an API version",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand(
            "validate on the collections that it names, else on the database that db names, else on every database",
            may_validate,
        ),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let parameters: RawDoc<'a> = args.required("apiParameters")?;
        if parameters.get("version").and_then(|v| v.as_str()).is_none() {
            bail!(40414, "BSON field 'APIParamsForCmd.version' is missing but a required field");
        }
        args.ignore(&["db", "collection", "collections"]);
        Ok(ValidateDbMetadata)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with_array("apiVersionErrors", |_| {}))
    }
}

fn may_validate(asked: Asked<'_>, rights: &Rights) -> bool {
    let may = |target: Target<'_>| rights.may(target, &[Action::Validate]);
    let text = |field: &str| asked.body.get(field).and_then(|value| value.as_str());
    let Some(db) = text("db") else { return may(Target::AnyNormal) };
    match text("collection") {
        Some(collection) => may(Target::Collection(db, collection)),
        None => may(Target::Database(db)),
    }
}
