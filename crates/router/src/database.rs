//! What stages that run on a router need from the rest of the cluster: other collections, by routed reads and writes.

use std::sync::{Arc, Weak};

use sheaf_aggregate::{
    CollectionSize, Database, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, Probe, SharedDatabase,
    StatsSource,
};
use sheaf_bson::{ArrayBuf, DocBuf, ObjectId, RawDoc, Value, doc};
use sheaf_cluster::{GoOn, Sharded, first_batch};
use sheaf_collation::{Collator, SharedCollator};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_rows::{BoxOperator, Cx};
use sheaf_timeseries::TimeseriesOptions;

use crate::addressed::{Addressed, Placed};
use crate::gather::{self, Gather, Link, Order};
use crate::out;
use crate::probe::RemoteProbe;
use crate::router::Router;
use crate::stats::Source;
use crate::targeting;
use crate::view;

/// The cluster as the stages of one pipeline see it.
#[derive(Clone)]
pub struct ClusterDatabase {
    link: Arc<Link>,
    /// The router, whose cursors have such databases.
    router: Weak<Router>,
    /// `let` and `collation` of the command, which go for all that is read.
    variables: Option<DocBuf>,
    collation: Option<DocBuf>,
    in_transaction: bool,
    bypass_validation: bool,
}

impl ClusterDatabase {
    /// The cluster as a command with this body sees it.
    pub fn new(router: &Arc<Router>, link: Arc<Link>, body: RawDoc<'_>, in_transaction: bool) -> Self {
        let own = |name: &str| body.get(name).and_then(|value| value.as_doc()).map(DocBuf::from);
        let bypass_validation = body.get("bypassDocumentValidation").is_some_and(|flag| flag.truthy());
        ClusterDatabase {
            link,
            router: Arc::downgrade(router),
            variables: own("let"),
            collation: own("collation"),
            in_transaction,
            bypass_validation,
        }
    }

    /// The same with a collation that the command has from its collection.
    #[must_use]
    pub fn collated(mut self, collator: Option<&SharedCollator>) -> Self {
        if let Some(collator) = collator {
            self.collation = Some(collator.to_doc());
        }
        self
    }

    /// The same database, as the operators of pipelines share it.
    pub fn shared(&self) -> SharedDatabase {
        Arc::new(self.clone())
    }

    /// The shards that can have what a pipeline reads of its collection.
    fn targets(&self, placed: &Placed, pipeline: &Pipeline, go_on: GoOn<'_>) -> Result<Vec<Addressed>> {
        let sharded: &Sharded = match placed {
            Placed::Whole(to) => return Ok(vec![to.clone()]),
            Placed::Spread(sharded) => sharded,
        };
        let alike = targeting::compares_bytes(
            sharded.default_collation.as_ref(),
            self.collation.as_ref().map(DocBuf::as_raw),
        );
        let head = pipeline.head();
        let ranges = targeting::ranges_for(sharded.pattern(), head.matcher.map(|matcher| &**matcher), alike);
        targeting::addressed_at(self.link.directory(), sharded, &ranges, self.link.reads_as_of(), go_on)
    }

    /// `let` for what shards run of this pipeline: the command's, and what enclosing stages have set.
    fn variables(&self, pipeline: &Pipeline, cx: &Cx<'_>) -> Option<DocBuf> {
        let set = pipeline.variables().filter_map(|(name, slot)| Some((name, cx.variable(slot)?)));
        let mut set: Vec<(&str, Value<'_>)> = set.collect();
        // The innermost of a name counts.
        let mut seen = std::collections::BTreeSet::new();
        set.reverse();
        set.retain(|(name, _)| seen.insert(*name));
        let own = self.variables.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw);
        if set.is_empty() && own.is_empty() {
            return None;
        }
        Some(DocBuf::build(|out| {
            for field in own.iter().filter(|field| !seen.contains(field.key())) {
                out.append_element(field);
            }
            for (name, value) in &set {
                out.document(name).append("$literal", *value);
            }
        }))
    }

    /// Has all shards that need it run a command about one namespace, and gives their first answer as a document.
    fn ask_one(
        &self,
        ns: &Namespace,
        key: Option<RawDoc<'_>>,
        command: &DocBuf,
        writes: bool,
        go_on: GoOn<'_>,
    ) -> Result<DocBuf> {
        self.link.until_fresh(ns, writes, go_on, |placed| {
            let to = match placed {
                Placed::Whole(to) => to.clone(),
                Placed::Spread(sharded) => {
                    let key = key.map(|document| sharded.pattern().key_of(document)).transpose()?;
                    let owner = match &key {
                        Some(key) => sharded.table.owner(key),
                        None => sharded.table.chunks()[0].shard(),
                    };
                    self.link.addressed(sharded, owner, go_on)?
                }
            };
            let answer = self.link.ask_each(&[to], &ns.database, command, writes, go_on)?.swap_remove(0)?;
            let reply = answer.reply();
            match first_write_error(reply) {
                Some(error) => Err(error),
                None => Ok(DocBuf::from(reply)),
            }
        })
    }

    /// What `listIndexes` says of a collection.
    fn indexes(&self, namespace: &Namespace) -> Result<Vec<DocBuf>> {
        let command = doc! { "listIndexes": &*namespace.collection, "cursor": { "batchSize": 1000 } };
        Ok(first_batch(self.ask_one(namespace, None, &command, false, &sheaf_meter::check)?.as_raw()))
    }

    /// Plans questions for documents by a field that has an index; `None` where reading all is the only way.
    fn plan_questions(
        &self,
        namespace: &Namespace,
        field: &str,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<RemoteProbe>> {
        // What is asked about a collection is not asked as of another time.
        if self.in_transaction || self.link.reads_as_of().is_some() {
            return Ok(None);
        }
        let own =
            self.collation.as_ref().map_or(Ok(None), |collation| Collator::parse(collation.as_raw()))?;
        if own.as_ref() != collator {
            return Ok(None);
        }
        let helps = |index: &DocBuf| {
            let index = index.as_raw();
            let first = index.get("key").and_then(|key| key.as_doc()).and_then(|key| key.iter().next());
            let whole = ["partialFilterExpression", "sparse", "hidden", "weights"];
            first.is_some_and(|first| first.key() == field && first.value().as_f64().is_some())
                && whole.iter().all(|option| index.get(option).is_none())
                && compares_as(index, collator)
        };
        if !self.indexes(namespace)?.iter().any(helps) {
            return Ok(None);
        }
        let size = self.size(namespace)?;
        // Without a word of its own a collection would compare by its default.
        let collation = self.collation.clone().unwrap_or_else(|| doc! { "locale": "simple" });
        let database = Arc::new(ClusterDatabase { collation: Some(collation), ..self.clone() });
        Ok(Some(RemoteProbe::new(database, namespace.clone(), field, collator.cloned(), size)))
    }

    /// How large a collection is, on all shards.
    fn size(&self, namespace: &Namespace) -> Result<CollectionSize> {
        let go_on: GoOn<'_> = &sheaf_meter::check;
        let command = doc! { "collStats": &*namespace.collection };
        self.link.until_fresh(namespace, false, go_on, |placed| {
            let to = self.targets(placed, &Pipeline::default(), go_on)?;
            let mut size = CollectionSize { documents: 0, bytes: 0 };
            for answer in self.link.ask_each(&to, &namespace.database, &command, false, go_on)? {
                let answer = answer?;
                let number = |name: &str| answer.reply().get(name).and_then(|number| number.as_exact_i64());
                size.documents += number("count").unwrap_or(0).max(0) as u64;
                size.bytes += number("size").unwrap_or(0).max(0) as u64;
            }
            Ok(size)
        })
    }

    fn run_on(
        &self,
        namespace: &Namespace,
        pipeline: &Arc<Pipeline>,
        cx: &mut Cx<'_>,
    ) -> Result<BoxOperator> {
        let variables = self.variables(pipeline, cx);
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let (remotes, done) = self.link.until_fresh(namespace, false, &go_on, |placed| {
            let to = self.targets(placed, pipeline, &go_on)?;
            let done = pipeline.leading(to.len() == 1);
            let command = DocBuf::build(|out| {
                out.append("aggregate", &*namespace.collection);
                out.append("pipeline", Value::Array(pipeline.first(done).as_raw()));
                drop(out.document("cursor"));
                if let Some(variables) = &variables {
                    out.append("let", variables.as_raw());
                }
                if let Some(collation) = &self.collation {
                    out.append("collation", collation.as_raw());
                }
            });
            let answers = self.link.ask_each(&to, &namespace.database, &command, false, &go_on)?;
            Ok((gather::opened(self.link.abandoned(), &to, answers)?, done))
        })?;
        let rows = Gather::new(self.link.clone(), remotes, Order::None);
        Ok(pipeline.open_from(done, Box::new(rows), &self.shared()))
    }

    fn refuse_in_transaction(&self, stage: &str) -> Result<()> {
        if self.in_transaction {
            bail!(Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION, "{stage} cannot be used in a transaction");
        }
        Ok(())
    }
}

/// Whether an index compares strings like this.
fn compares_as(index: RawDoc<'_>, collator: Option<&SharedCollator>) -> bool {
    let own = index.get("collation").and_then(|collation| collation.as_doc());
    // One that cannot be read is no index that vouches for anything.
    own.map_or(Ok(None), Collator::parse).is_ok_and(|own| own.as_ref() == collator)
}

/// The first entry of `writeErrors`.
pub fn first_write_error(reply: RawDoc<'_>) -> Option<Error> {
    let errors = reply.get("writeErrors").and_then(|errors| errors.as_array())?;
    let error = errors.values().next()?.as_doc()?;
    let code = error.get("code").and_then(|code| code.as_exact_i64()).unwrap_or(1) as i32;
    let text = error.get("errmsg").and_then(|text| text.as_str()).unwrap_or_default();
    Some(Error::new(Code(code), text))
}

impl Database for ClusterDatabase {
    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, cx: &mut Cx<'_>) -> Result<BoxOperator> {
        if pipeline.has_own_source() {
            return Ok(pipeline.open_own(&self.shared()));
        }
        match self.run_on(namespace, pipeline, cx) {
            Err(error) => match view::resolved(&error) {
                Some(view) if view.namespace == namespace.to_string() => {
                    let on = Namespace::new(&*namespace.database, view.collection);
                    let user_roles = self.link.rights().user_roles();
                    let system =
                        sheaf_expr::SystemVariables { cluster_clock: None, user_roles, stored: None };
                    let parse = sheaf_expr::ParseCx::new().with_system(system);
                    let mut parse = parse.with_collator(pipeline.collator().cloned());
                    let below = Pipeline::parse_view(view.stages.as_raw(), &on, &mut parse)?;
                    parse.finish()?;
                    self.run(&on, &Arc::new(below.followed_by(pipeline)?), cx)
                }
                _ => Err(error),
            },
            run => run,
        }
    }

    fn prepare_equal(
        &self,
        namespace: &Namespace,
        field: &str,
        collator: Option<&SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>> {
        match self.plan_questions(namespace, field, collator) {
            Ok(probe) => Ok(probe.map(|probe| Box::new(probe) as Box<dyn Probe>)),
            // A view, for one: it is read as a whole, and that says what is wrong where something is.
            Err(_) => {
                sheaf_meter::check()?;
                Ok(None)
            }
        }
    }

    fn stats(
        &self,
        source: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        let Some(router) = self.router.upgrade() else {
            bail!(Code::INTERRUPTED_AT_SHUTDOWN, "this router is about to end")
        };
        Source { router: &router, link: &self.link }.documents(source, namespace, spec, cx)
    }

    fn begin_out(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
        cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>> {
        self.refuse_in_transaction("$out")?;
        out::begin(&self.link, target, timeseries, self.bypass_validation, cx)
    }

    fn merge_index(
        &self,
        namespace: &Namespace,
        on: &[String],
        collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>> {
        if collator.is_none() && on.len() == 1 && on[0] == "_id" {
            return Ok(Some(MergeIndex { sparse: false }));
        }
        if collator.is_none()
            && let Some(key) = self.link.shard_key(namespace, &sheaf_meter::check)?
            && on.iter().any(|path| path == "_id")
            && on.iter().all(|path| path == "_id" || key.contains(path))
            && key.iter().all(|field| on.contains(field))
        {
            // The shard key says which shard, and that has each `_id` once.
            return Ok(Some(MergeIndex { sparse: false }));
        }
        let indexes = match self.indexes(namespace) {
            Ok(indexes) => indexes,
            Err(error) if error.code() == Code::NAMESPACE_NOT_FOUND => {
                return Ok((on.len() == 1 && on[0] == "_id").then_some(MergeIndex { sparse: false }));
            }
            Err(error) => return Err(error),
        };
        let fits = |index: &RawDoc<'_>| {
            let key = index.get("key").and_then(|key| key.as_doc()).unwrap_or(RawDoc::EMPTY);
            let unique = index.get("unique").is_some_and(|unique| unique.truthy());
            (unique || index.get("name").and_then(|name| name.as_str()) == Some("_id_"))
                && compares_as(*index, collator)
                && index.get("partialFilterExpression").is_none()
                && key.count() == on.len()
                && key.iter().all(|field| on.iter().any(|path| path == field.key()))
        };
        let found = indexes.iter().map(DocBuf::as_raw).find(fits);
        Ok(found
            .map(|index| MergeIndex { sparse: index.get("sparse").is_some_and(|sparse| sparse.truthy()) }))
    }

    fn find_merge_target(
        &self,
        namespace: &Namespace,
        key: RawDoc<'_>,
        collator: Option<&SharedCollator>,
        cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        let filter = DocBuf::build(|out| {
            for element in key.iter() {
                out.document(element.key()).append("$eq", element.value());
            }
        });
        let stages = ArrayBuf::of(&[doc! { "$match": filter.as_raw() }, doc! { "$limit": 1i64 }]);
        let mut parse = sheaf_expr::ParseCx::new().with_collator(collator.cloned());
        let pipeline = Arc::new(Pipeline::parse(stages.as_raw(), namespace, &mut parse)?);
        let mut run = self.run(namespace, &pipeline, cx)?;
        Ok(sheaf_rows::pull(&mut run, cx)?.then(|| DocBuf::from(run.row().document())))
    }

    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<bool> {
        self.refuse_in_transaction("$merge")?;
        let interrupt = cx.interrupt();
        let go_on = || interrupt();
        let bypass = self.bypass_validation;
        let (MergeWrite::Replace, Some(old)) = (write, old) else {
            let documents = ArrayBuf::of([document]);
            let insert = doc! {
                "insert": &*namespace.collection, "documents": Value::Array(documents.as_raw()),
                "bypassDocumentValidation": bypass
            };
            self.ask_one(namespace, Some(document), &insert, true, &go_on)?;
            return Ok(true);
        };
        // Only what was read is replaced: all of it, in its order.
        let same = doc! { "$eq": ["$$ROOT", { "$literal": old }] };
        let query = DocBuf::new().with("_id", old.get_or_missing("_id")).with("$expr", same.as_raw());
        let update = doc! { "q": query.as_raw(), "u": document };
        let updates = ArrayBuf::of([update.as_raw()]);
        let command = doc! {
            "update": &*namespace.collection, "updates": Value::Array(updates.as_raw()),
            "bypassDocumentValidation": bypass
        };
        let reply = self.ask_one(namespace, Some(old), &command, true, &go_on)?;
        Ok(reply.as_raw().get("n").and_then(|n| n.as_exact_i64()).unwrap_or(0) > 0)
    }

    fn new_object_id(&self) -> ObjectId {
        sheaf_front::front::new_object_id()
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}
