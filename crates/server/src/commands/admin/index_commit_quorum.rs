//! `setIndexCommitQuorum`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Array};
use crate::command::*;
use crate::commands::ddl::names;
use crate::op::Operation;
use crate::reply::Reply;

/// `{setIndexCommitQuorum: "users", indexNames: ["email_1"], commitQuorum: "majority"}`
pub struct SetIndexCommitQuorum<'a> {
    collection: &'a str,
    indexes: Vec<&'a str>,
}

impl<'a> Command<'a, Operation<'a>> for SetIndexCommitQuorum<'a> {
    const NAME: &'static str = "setIndexCommitQuorum";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "which members must have built an index before it is used",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::CreateIndex])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let Array(names) = args.required("indexNames")?;
        let mut indexes = Vec::new();
        for name in names.iter() {
            match name.value() {
                Value::String(text) => indexes.push(text),
                other => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'setIndexCommitQuorum.indexNames.{}' is the wrong type '{}', expected type 'string'",
                    name.key(),
                    other.type_name()
                ),
            }
        }
        match args.value("commitQuorum") {
            Value::Missing => return Err(args.missing("commitQuorum")),
            Value::String(_) => {}
            number if number.is_number() => {}
            other => bail!(
                Code::TYPE_MISMATCH,
                "commitQuorum must be a number or a string, but got {}",
                other.type_name()
            ),
        }
        Ok(SetIndexCommitQuorum { collection, indexes })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let catalog = op.catalog();
        let missing = format!("Collection {namespace} does not exist");
        let collection = names::existing(&catalog, &namespace, &missing)?;
        let built = |name: &&&str| collection.index(name).is_some_and(|index| !index.ready);
        if self.indexes.is_empty() || self.indexes.iter().filter(built).count() < self.indexes.len() {
            bail!(
                Code::INDEX_NOT_FOUND,
                "Cannot find an index build on collection '{namespace}' with the provided index names"
            );
        }
        // What a build waits for is settled when it begins.
        bail!(
            Code::COMMAND_NOT_SUPPORTED,
            "The commit quorum of an index build cannot be changed on this server once it has begun"
        )
    }
}
