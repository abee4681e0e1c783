//! `configureQueryAnalyzer` on the primary of a replica set.

use sheaf_auth::Target;
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_front::sampling::Configure;

use crate::args::Args;
use crate::command::*;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sampling::{self, ANALYZERS};

/// `{configureQueryAnalyzer: "garden.plants", mode: "full", samplesPerSecond: 5}`.
pub struct ConfigureQueryAnalyzer<'a>(Configure<'a>);

impl<'a> Command<'a, Operation<'a>> for ConfigureQueryAnalyzer<'a> {
    const NAME: &'static str = "configureQueryAnalyzer";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "has a collection's queries sampled",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand("configureQueryAnalyzer on the collection", |asked, rights| {
            let namespace = asked.first().as_str().unwrap_or_default();
            rights.may(Target::of_namespace(namespace), &[Action::ConfigureQueryAnalyzer])
        }),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Configure::parse(args).map(ConfigureQueryAnalyzer)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let (node, wanted) = (op.node(), self.0);
        if node.is_in_cluster() {
            let text = "Cannot run configureQueryAnalyzer command directly against a shardsvr mongod";
            bail!(Code::ILLEGAL_OPERATION, "{text}");
        }
        if node.replica().is_none() {
            bail!(
                Code::ILLEGAL_OPERATION,
                "configureQueryAnalyzer command is not supported on a standalone mongod"
            );
        }
        let catalog = op.catalog();
        let Some(collection) = catalog.collection(wanted.namespace) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {} does not exist", wanted.namespace);
        };
        if collection.is_view() {
            bail!(
                Code::COMMAND_NOT_SUPPORTED_ON_VIEW,
                "Operation not supported for a view: {}",
                wanted.namespace
            );
        }
        let (uuid, now) = (*collection.uuid.as_bytes(), op.now_millis());
        let mut before = None;
        with_writer(op, false, |w| {
            let analyzers = collection_for_write(op, w, ANALYZERS)?;
            let key = analyzers.record_key(Value::String(wanted.namespace))?;
            let found = w.read_for_update(&analyzers, &key)?;
            let old = Configure::of_collection(found.as_deref().map(RawDoc::new), &uuid);
            if let Some(new) = wanted.document(old, &uuid, now) {
                match &found {
                    Some(found) => w.update(&analyzers, &key, RawDoc::new(found), new.as_raw(), None)?,
                    None => w.insert(&analyzers, new.as_raw())?,
                }
            }
            before = old.map(DocBuf::from);
            Ok(())
        })?;
        op.blocking(|| sampling::refresh(node))?;
        Ok(wanted.reply(before.as_ref().map(DocBuf::as_raw)))
    }
}
