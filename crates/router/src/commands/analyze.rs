//! `analyzeShardKey`: how well a key would spread a collection.

use sheaf_aggregate::{Database, Namespace};
use sheaf_bson::{DocBuf, doc};
use sheaf_cluster::first_batch;
use sheaf_errors::{Code, Result, bail};
use sheaf_front::args::Args;
use sheaf_front::command::*;
use sheaf_front::params::Parameters;
use sheaf_front::reply::Reply;
use sheaf_front::request::Interrupter;
use sheaf_rows::{BoxOperator, Cx};
use sheaf_server::shard_key::{Analysis, Ground};

use super::shards;
use crate::addressed::Placed;
use crate::database::ClusterDatabase;
use crate::forward::{self, Body};
use crate::merged::link;
use crate::op::Operation;
use crate::route::until_fresh;
use crate::sampling::Named;
use crate::stats::Source;

/// `{analyzeShardKey: "garden.plants", key: {name: 1}}`.
pub struct AnalyzeShardKey<'a>(Analysis<'a>);

impl<'a> Command<'a, Operation<'a>> for AnalyzeShardKey<'a> {
    const NAME: &'static str = "analyzeShardKey";
    const SPEC: Spec = Spec {
        concerns: Concerns::NONE,
        ..shards::spec(&[], "tells how well a shard key would spread a collection", Access::None)
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Analysis::parse(args).map(AnalyzeShardKey)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        op.blocking(|| self.0.run(&OnShards { op }))
    }
}

/// The cluster's shards.
struct OnShards<'o, 'a> {
    op: &'o Operation<'a>,
}

impl Ground for OnShards<'_, '_> {
    fn database(&self) -> Result<Box<dyn Database>> {
        let op = self.op;
        Ok(Box::new(ClusterDatabase::new(op.router, link(op), op.body(), false)))
    }

    fn identity(&self, namespace: &Namespace) -> Result<([u8; 16], Option<DocBuf>)> {
        let op = self.op;
        match op.router.named(&namespace.database, &namespace.collection, &|| op.check_interrupt())? {
            Named::Collection { uuid, collation } => Ok((uuid, collation)),
            Named::View { .. } => {
                bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Operation not supported for a view: {namespace}")
            }
            Named::Nothing => bail!(Code::NAMESPACE_NOT_FOUND, "Namespace {namespace} does not exist"),
        }
    }

    fn indexes(&self, namespace: &Namespace) -> Result<Vec<DocBuf>> {
        let (op, db) = (self.op, &*namespace.database);
        let list = doc! { "listIndexes": &*namespace.collection, "cursor": { "batchSize": 1000 } };
        until_fresh(op, db, &namespace.collection, false, |placed| {
            let to = match placed {
                Placed::Whole(to) => to.clone(),
                Placed::Spread(sharded) => op.addressed(sharded, sharded.table.chunks()[0].shard())?,
            };
            let answer = forward::ask(op, &to, &Body { db, body: list.as_raw() })?;
            Ok(first_batch(answer.reply()))
        })
    }

    fn is_spread(&self, namespace: &Namespace) -> Result<bool> {
        until_fresh(self.op, &namespace.database, &namespace.collection, false, |placed| {
            Ok(matches!(placed, Placed::Spread(_)))
        })
    }

    fn write_samples(&self) -> Result<()> {
        self.op.router.write_samples(&|| self.op.check_interrupt())
    }

    fn noted(&self, collection: &str, filter: &DocBuf, cx: &mut Cx<'_>) -> Result<BoxOperator> {
        let link = link(self.op);
        let source = Source { router: self.op.router, link: &link };
        let find = doc! { "find": collection, "filter": filter.as_raw() };
        Ok(Box::new(source.of_config(&find, cx)?))
    }

    fn parameters(&self) -> &Parameters {
        &self.op.router.parameters
    }

    fn interrupter(&self) -> Interrupter<'_> {
        self.op.interrupter()
    }

    fn now_millis(&self) -> i64 {
        self.op.now_millis()
    }
}
