//! `validateDBMetadata`.

use sheaf_auth::Target;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result};
use sheaf_front::access::Rights;
use sheaf_storage::{Collection, Index};

use crate::args::{Args, check_collection_name};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{validateDBMetadata: 1, apiParameters: {version: "1", strict: true}, db: "shop", collection: "users"}`
pub struct ValidateDbMetadata<'a> {
    db: Option<&'a str>,
    collection: Option<&'a str>,
    /// Whether anything is asked that a stored definition could break.
    strict: bool,
}

impl<'a> Command<'a, Operation<'a>> for ValidateDbMetadata<'a> {
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
        let mut parameters = Args::of_part("APIParamsForCmd", args.required("apiParameters")?)?;
        let version: &str = parameters.required("version")?;
        let strict = parameters.strict_bool("strict")? == Some(true);
        parameters.strict_bool("deprecationErrors")?;
        parameters.finish()?;
        let db = args.optional("db")?;
        let collection = args.optional("collection")?;
        if let Some(collection) = collection {
            check_collection_name(collection)?;
        }
        args.ignore(&["collections"]);
        Ok(ValidateDbMetadata { db, collection, strict: strict && version == "1" })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut errors = Vec::new();
        if self.strict {
            let catalog = op.catalog();
            let databases = catalog.databases().filter(|db| self.db.is_none_or(|only| only == *db));
            let all = databases.flat_map(|db| catalog.collections(db));
            for collection in all.filter(|found| self.collection.is_none_or(|only| only == found.name())) {
                op.check_interrupt()?;
                check(collection, &mut errors);
            }
        }
        Ok(Reply::ok().with_array("apiVersionErrors", |list| {
            for error in &errors {
                list.push(error);
            }
        }))
    }
}

/// What of a collection's indexes is no part of the stable API.
fn check(collection: &Collection, errors: &mut Vec<DocBuf>) {
    let text = |index: &Index| {
        let key = index.spec.as_raw().get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
        key.values().any(|kind| kind.as_str() == Some("text"))
    };
    for index in collection.indexes.iter().filter(|index| index.sparse || text(index)) {
        let code = Code::API_STRICT_ERROR;
        errors.push(DocBuf::build(|error| {
            error.append("ns", collection.namespace.as_str());
            error.append("code", code.0).append("codeName", "APIStrictError");
            let message = format!("The index with name {} is not allowed in API version 1.", index.name);
            error.append("errmsg", message.as_str());
        }));
    }
}

fn may_validate(asked: Asked<'_>, rights: &Rights) -> bool {
    let may = |target: Target<'_>| rights.may(target, &[Action::Validate]);
    // What cannot be parsed fails.
    let Ok(ValidateDbMetadata { db, collection, .. }) = parsed(asked) else { return true };
    let Some(db) = db else { return may(Target::AnyNormal) };
    match collection {
        Some(collection) => may(Target::Collection(db, collection)),
        None => may(Target::Database(db)),
    }
}
