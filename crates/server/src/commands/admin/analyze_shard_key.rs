//! `analyzeShardKey` on a member of a replica set.

use std::sync::Arc;

use sheaf_aggregate::{Database, Namespace, Pipeline};
use sheaf_auth::Target;
use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_front::params::Parameters;
use sheaf_front::request::Interrupter;
use sheaf_rows::{BoxOperator, Cx};

use crate::args::Args;
use crate::command::*;
use crate::commands::crud::pipeline;
use crate::op::Operation;
use crate::reply::Reply;
use crate::sampling;
use crate::shard_key::{Analysis, Ground};

/// `{analyzeShardKey: "garden.plants", key: {name: 1}}`.
pub struct AnalyzeShardKey<'a>(Analysis<'a>);

impl<'a> Command<'a, Operation<'a>> for AnalyzeShardKey<'a> {
    const NAME: &'static str = "analyzeShardKey";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "tells how well a shard key would spread a collection",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand("analyzeShardKey on the collection", |asked, rights| {
            let namespace = asked.first().as_str().unwrap_or_default();
            rights.may(Target::of_namespace(namespace), &[Action::AnalyzeShardKey])
        }),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Analysis::parse(args).map(AnalyzeShardKey)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if op.node().is_in_cluster() {
            // What routers have sampled is with the config servers.
            bail!(
                Code::ILLEGAL_OPERATION,
                "Cannot run analyzeShardKey command directly against a shardsvr mongod"
            );
        }
        if op.node().replica().is_none() {
            bail!(Code::ILLEGAL_OPERATION, "analyzeShardKey command is not supported on a standalone mongod");
        }
        op.blocking(|| self.0.run(&OnSet { op }))
    }
}

/// The set that this member belongs to.
struct OnSet<'o, 'a> {
    op: &'o Operation<'a>,
}

impl Ground for OnSet<'_, '_> {
    fn database(&self) -> Result<Box<dyn Database>> {
        Ok(Box::new(pipeline::database(self.op, None, false)?))
    }

    fn identity(&self, namespace: &Namespace) -> Result<([u8; 16], Option<DocBuf>)> {
        let catalog = self.op.catalog();
        let Some(collection) = catalog.collection(&namespace.to_string()) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} does not exist");
        };
        if collection.is_view() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Operation not supported for a view: {namespace}");
        }
        let collation = collection.options.as_raw().get("collation").and_then(|collation| collation.as_doc());
        let is_other = |collation: &RawDoc<'_>| {
            collation
                .get("locale")
                .and_then(|locale| locale.as_str())
                .is_some_and(|locale| locale != "simple")
        };
        Ok((*collection.uuid.as_bytes(), collation.filter(is_other).map(DocBuf::from)))
    }

    fn indexes(&self, namespace: &Namespace) -> Result<Vec<DocBuf>> {
        let catalog = self.op.catalog();
        let indexes = catalog.collection(&namespace.to_string()).map(|collection| &collection.indexes);
        let ready = indexes.into_iter().flatten().filter(|index| index.ready);
        Ok(ready.map(|index| index.spec.clone()).collect())
    }

    fn is_spread(&self, _: &Namespace) -> Result<bool> {
        Ok(false)
    }

    /// A secondary has none of its own.
    fn write_samples(&self) -> Result<()> {
        let node = self.op.node();
        if node.is_writable() { sampling::write(node) } else { Ok(()) }
    }

    fn noted(&self, collection: &str, filter: &DocBuf, cx: &mut Cx<'_>) -> Result<BoxOperator> {
        let namespace = Namespace::new("config", collection);
        let stages = ArrayBuf::of(&[doc! { "$match": filter.as_raw() }]);
        let mut parse = ParseCx::new().with_now(self.op.now_millis());
        let pipeline = Arc::new(Pipeline::parse(stages.as_raw(), &namespace, &mut parse)?);
        parse.finish()?;
        self.database()?.run(&namespace, &pipeline, cx)
    }

    fn parameters(&self) -> &Parameters {
        &self.op.front.parameters
    }

    fn interrupter(&self) -> Interrupter<'_> {
        self.op.interrupter()
    }

    fn now_millis(&self) -> i64 {
        self.op.now_millis()
    }
}
