//! `validateDBMetadata`.

use sheaf_aggregate::{Namespace, Pipeline};
use sheaf_auth::Target;
use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::access::Rights;
use sheaf_storage::{Collection, Index};

use crate::args::{Args, check_collection_name};
use crate::command::*;
use crate::commands::crud::query;
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
        if let Some(db) = self.db {
            check_name(db)?;
        }
        if self.strict {
            let catalog = op.catalog();
            let databases = catalog.databases().filter(|db| self.db.is_none_or(|only| only == *db));
            let all = databases.flat_map(|db| catalog.collections(db));
            for collection in all.filter(|found| self.collection.is_none_or(|only| only == found.name())) {
                op.check_interrupt()?;
                match &collection.view {
                    Some((source, pipeline)) => {
                        check_view(op, collection, source, pipeline.as_raw(), &mut errors)?
                    }
                    None => check(collection, &mut errors),
                }
            }
        }
        Ok(Reply::ok().with_array("apiVersionErrors", |list| {
            for error in &errors {
                list.push(error);
            }
        }))
    }
}

/// Refuses names that no database can have. The name in `db` is no command's database: other codes than there.
///
/// Errors: `InvalidNamespace`, 28539, 13280.
fn check_name(name: &str) -> Result<()> {
    if name.len() > 63 {
        bail!(Code::INVALID_NAMESPACE, "db name must be at most 63 characters, found: {}", name.len());
    }
    if name.contains('\0') {
        bail!(Code::INVALID_NAMESPACE, "database names cannot have embedded null characters");
    }
    if name.is_empty() {
        bail!(28539, "need a valid database name");
    }
    if name.contains(['/', '\\', '.', ' ', '"']) {
        bail!(13280, "invalid db name: {name}");
    }
    Ok(())
}

/// What of a view's pipeline is no part of the stable API.
///
/// Errors: those of memory and time.
fn check_view(
    op: &Operation<'_>,
    view: &Collection,
    source: &str,
    pipeline: RawDoc<'_>,
    errors: &mut Vec<DocBuf>,
) -> Result<()> {
    let mut cx = query::update_cx(op, None)?.with_api_strict(true);
    let db = view.namespace.split('.').next().unwrap_or_default();
    let on = Namespace::new(db, source);
    if let Err(error) = Pipeline::parse_view(pipeline, &on, &mut cx) {
        op.check_interrupt()?;
        errors.push(element(view, error.message()));
    }
    Ok(())
}

/// An entry of `apiVersionErrors`.
fn element(collection: &Collection, message: &str) -> DocBuf {
    DocBuf::build(|error| {
        error.append("ns", collection.namespace.as_str());
        error.append("code", Code::API_STRICT_ERROR.0).append("codeName", "APIStrictError");
        error.append("errmsg", message);
    })
}

/// What of a collection's indexes is no part of the stable API.
fn check(collection: &Collection, errors: &mut Vec<DocBuf>) {
    let text = |index: &Index| {
        let key = index.spec.as_raw().get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
        key.values().any(|kind| kind.as_str() == Some("text"))
    };
    for index in collection.indexes.iter().filter(|index| index.sparse || text(index)) {
        errors.push(element(
            collection,
            &format!("The index with name {} is not allowed in API version 1.", index.name),
        ));
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
