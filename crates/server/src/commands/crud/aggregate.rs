//! `aggregate`.

use sheaf_aggregate::{Namespace, STAGES, stage_entry};
use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::query::Hint;
use sheaf_expr::ParseCx;
use sheaf_front::metrics::Count;
use sheaf_front::sampling::SAMPLE_ID;
use sheaf_storage::Uuid;

use super::change_stream;
use super::find::Find;
use super::pipeline::{PipelineCursor, parse};
use super::query::{METRICS, collated_cx, first_batch};
use super::query_settings;
use super::resume::Resume;
use super::writes::check_writable;
use crate::args::{Args, Array, Flag, Loose, NonNegative, check_collection_name};
use crate::audited;
use crate::command::*;
use crate::commands::ddl::names;
use crate::concern::{ReadConcern, ReadLevel};
use crate::forward;
use crate::op::Operation;
use crate::query_settings::FIELD;
use crate::reply::Reply;

/// `{aggregate: "users", pipeline: [...], cursor: {}}`, or `{aggregate: 1, ...}` without a collection.
pub struct Aggregate<'a> {
    collection: &'a str,
    pub(super) pipeline: RawDoc<'a>,
    batch_size: Option<u64>,
    explain: bool,
    pub(super) hint: Value<'a>,
    /// `None`: as the parameter `allowDiskUseByDefault` says.
    pub(super) allow_disk_use: Option<bool>,
    bypass_validation: bool,
    pub(super) variables: Option<RawDoc<'a>>,
    collation: Option<RawDoc<'a>>,
    uuid: Option<Uuid>,
    resume: Resume<'a>,
    /// Whether the reply is to have figures.
    tells: bool,
}

impl<'a> Command<'a, Operation<'a>> for Aggregate<'a> {
    const NAME: &'static str = "aggregate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "runs a pipeline",
        access: Access::ReadOrWrite(pipeline_writes),
        transaction: Transaction::Allowed,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::BOTH,
        privileges: Privileges::ByCommand(
            "find on the collection unless its first stage reads none, and what each stage needs; bypassDocumentValidation where it writes, if it is asked for",
            super::rights::may_aggregate,
        ),
        spread: Spread::Targeted,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        args.ignore(&[FIELD]);
        Self::parse_as(args, false)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if op.in_transaction() {
            self.check_in_transaction()?;
        }
        if !change_stream::is_opened_by(op.body()) {
            return self.open(op);
        }
        if !matches!(op.read_concern().level, None | Some(ReadLevel::Majority)) {
            bail!(Code::INVALID_OPTIONS, "$changeStream cannot run with a readConcern other than 'majority'");
        }
        if op.node().replica().is_some() {
            // What may yet be rolled back is not told.
            op.read_concern.set(ReadConcern { level: Some(ReadLevel::Majority), ..op.read_concern() });
        }
        self.open(op).map_err(change_stream::labelled)
    }
}

/// Counts the stages that somebody asks for, those of pipelines within stages too.
fn count_stages(pipeline: RawDoc<'_>, counts: &[Count]) {
    for stage in pipeline.values().filter_map(|stage| stage.as_doc()?.iter().next()) {
        if let Ok(at) = STAGES.binary_search_by(|entry| entry.name.cmp(stage.key())) {
            counts[at].add(1);
        }
        let Value::Document(argument) = stage.value() else { continue };
        match stage.key() {
            "$lookup" | "$unionWith" => {
                if let Some(inner) = argument.get("pipeline").and_then(|inner| inner.as_array()) {
                    count_stages(inner, counts);
                }
            }
            "$facet" => argument
                .iter()
                .filter_map(|facet| facet.value().as_array())
                .for_each(|inner| count_stages(inner, counts)),
            _ => {}
        }
    }
}

impl<'a> Aggregate<'a> {
    fn check_in_transaction(&self) -> Result<()> {
        let stages = self.pipeline.values().filter_map(|stage| stage.as_doc());
        let names = stages.filter_map(|stage| Some(stage.iter().next()?.key()));
        let entries = names.into_iter().filter_map(stage_entry);
        if let Some(entry) = entries.into_iter().find(|entry| !entry.in_transactions) {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Stage not supported inside of a multi-document transaction: {}",
                entry.name
            );
        }
        Ok(())
    }

    /// Rankings are brought together of plain collections and of views.
    ///
    /// Errors: 10557300, 10557301.
    fn check_fusion(&self, op: &Operation<'_>, namespace: &Namespace) -> Result<()> {
        let first = self.pipeline.values().next().and_then(|stage| stage.as_doc()?.iter().next());
        let code = match first.map(|stage| stage.key()) {
            Some("$rankFusion") => 10557301,
            Some("$scoreFusion") => 10557300,
            _ => return Ok(()),
        };
        let catalog = op.catalog();
        let found = catalog.collection(&namespace.to_string());
        if found.is_some_and(|found| crate::commands::timeseries::buckets_of(&catalog, found).is_some()) {
            bail!(Code(code), "$rankFusion and $scoreFusion are unsupported on timeseries collections");
        }
        Ok(())
    }

    fn open(self, op: &Operation<'a>) -> Result<Reply> {
        op.metrics().tells.set(self.tells);
        let namespace = self.namespace(op);
        op.metrics().namespace.replace(Some(self.cursor_namespace(op)));
        query_settings::apply(op, op.body())?;
        if self.explain {
            return super::explain::aggregate(op, &self, super::explain::Verbosity::QueryPlanner);
        }
        let mut cx = self.parse_cx(op)?;
        let pipeline = parse(self.pipeline, &namespace, &mut cx)?;
        op.front.metrics.parts.aggregates_with_disk.add(u64::from(self.allow_disk_use == Some(true)));
        count_stages(self.pipeline, &op.node().stage_counts);
        self.check_fusion(op, &namespace)?;
        if let Some(target) = pipeline.target_namespace() {
            check_writable(op, &target.collection)?;
        }
        if forward::writes(self.pipeline) && !op.node().is_writable() && op.db() != "local" {
            return forward::to_primary(op);
        }
        names::check_uuid(op.view()?.catalog(), &namespace.to_string(), self.uuid)?;
        if self.resume.is_asked() {
            return self.resumable(op, &namespace);
        }
        let hint = Hint::parse(self.hint)?;
        let target = pipeline.target_namespace().map(ToString::to_string);
        let _audited = target.and_then(|target| audited::Target::of(op, &target));
        let cursor = PipelineCursor::open(
            op,
            &namespace,
            &pipeline,
            hint,
            self.allow_disk_use,
            self.bypass_validation,
        )?;
        let batch_size = self.batch_size.map(|n| n as usize);
        first_batch(op, &self.cursor_namespace(op), Box::new(cursor), batch_size, false, false)
            .map_err(|error| error.context("PlanExecutor error during aggregation"))
    }
}

impl<'a> Aggregate<'a> {
    /// What its pipeline is parsed in.
    pub(super) fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        collated_cx(op, &self.namespace(op).to_string(), self.collation, self.variables)
    }

    /// Parses; the command inside `explain` needs no `cursor`.
    pub(super) fn parse_as(args: &mut Args<'a>, explained: bool) -> Result<Self> {
        let bypass = args.optional::<Loose>("bypassDocumentValidation")?;
        let allow_disk_use = args.optional::<Flag>("allowDiskUse")?;
        let collection = match args.own_value() {
            Value::String("") => return Err(args.empty_name()),
            Value::String(name) => {
                check_collection_name(name)?;
                name
            }
            number if number.as_exact_i64() == Some(1) => "",
            number if number.is_number() => {
                bail!(
                    Code::BAD_VALUE,
                    "Invalid command format: the 'aggregate' field must specify a collection name or 1"
                )
            }
            other => bail!(Code::INVALID_NAMESPACE, "collection name has invalid type {}", other.type_name()),
        };
        let pipeline = match args.value("pipeline") {
            Value::Array(stages) => stages,
            Value::Missing => {
                bail!(40414, "BSON field 'aggregate.pipeline' is missing but a required field")
            }
            _ => bail!(Code::TYPE_MISMATCH, "'pipeline' option must be specified as an array"),
        };
        let explain = match args.value("explain") {
            Value::Missing => false,
            Value::Bool(flag) => flag,
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'aggregate.explain' is the wrong type '{}', expected type 'bool'",
                other.type_name()
            ),
        };
        if explain && args.body().get("writeConcern").is_some() {
            bail!(Code::FAILED_TO_PARSE, "Aggregation explain does not support the 'writeConcern' option");
        }
        let cursor: Option<RawDoc<'a>> = match args.value("cursor") {
            Value::Missing => None,
            Value::Document(doc) => Some(doc),
            _ => bail!(Code::TYPE_MISMATCH, "cursor field must be missing or an object"),
        };
        if cursor.is_none() && !explain && !explained {
            bail!(
                Code::FAILED_TO_PARSE,
                "The 'cursor' option is required, except for aggregate with the explain argument"
            );
        }
        let batch_size = match cursor {
            Some(cursor) => {
                let mut options = Args::of_part("aggregate.cursor", cursor)?;
                let size = options.optional::<NonNegative>("batchSize")?.map(|n| n.0 as u64);
                options.finish()?;
                size
            }
            None => None,
        };
        let aggregate = Aggregate {
            collection,
            pipeline,
            batch_size,
            explain,
            hint: args.value("hint"),
            allow_disk_use: allow_disk_use.map(|flag| flag.0),
            bypass_validation: bypass.is_some_and(|flag| flag.0),
            variables: args.optional("let")?,
            collation: args.optional("collation")?,
            uuid: args.optional("collectionUUID")?,
            resume: Resume::parse(args)?,
            tells: args.optional::<bool>(METRICS)?.unwrap_or(false),
        };
        args.optional::<Uuid>(SAMPLE_ID)?;
        if aggregate.uuid.is_some() && collection.is_empty() {
            bail!(4928901, "collectionUUID is not supported for a collectionless aggregation");
        }
        check_internal(args)?;
        aggregate.check_resume(args)?;
        Ok(aggregate)
    }

    /// Errors: those of tokens; `FailedToParse` on the log, whose reads have tokens of another kind.
    fn check_resume(&self, args: &Args<'a>) -> Result<()> {
        if self.resume.is_asked() && is_oplog(args.body(), self.collection) {
            bail!(
                Code::FAILED_TO_PARSE,
                "$_requestResumeToken must not be set for the oplog namespace local.oplog.rs"
            );
        }
        self.resume.check(self.hint, None)
    }

    /// A pipeline that somebody else can go on with, as its filters alone can be.
    ///
    /// Errors: `CommandNotSupported` for other stages, `InvalidPipelineOperator` for views.
    fn resumable(&self, op: &Operation<'_>, namespace: &Namespace) -> Result<Reply> {
        let name = namespace.to_string();
        if op.view()?.collection(&name).is_some_and(|collection| collection.is_view()) {
            bail!(
                Code::INVALID_PIPELINE_OPERATOR,
                "Option $_requestResumeToken not supported in aggregation."
            );
        }
        let filter = |stage: Value<'a>| stage.as_doc()?.get("$match")?.as_doc();
        let Some(filters) = self.pipeline.values().map(filter).collect::<Option<Vec<_>>>() else {
            bail!(Code::COMMAND_NOT_SUPPORTED, "resume tokens are of pipelines of $match stages only");
        };
        let all = DocBuf::build(|out| match &filters[..] {
            [] => {}
            filters => {
                let mut list = out.array("$and");
                filters.iter().for_each(|filter| _ = list.push(*filter));
            }
        });
        let find = Find::of_pipeline(self.collection, all.as_raw(), self.hint, self.resume);
        let find = find.with(self.batch_size, self.collation, self.variables);
        let query = find.query(op)?;
        find.scan(op, &name, &query)
    }

    /// What the pipeline runs on.
    pub(super) fn namespace(&self, op: &Operation<'_>) -> Namespace {
        Namespace::new(op.db(), self.collection)
    }

    fn cursor_namespace(&self, op: &Operation<'_>) -> String {
        op.namespace(if self.collection.is_empty() { "$cmd.aggregate" } else { self.collection })
    }
}

fn is_oplog(body: RawDoc<'_>, collection: &str) -> bool {
    collection == "oplog.rs" && body.get("$db").and_then(|db| db.as_str()) == Some("local")
}

/// What routers and members say to each other. It has no effect here, where a router says it in its own way; who says it says it well.
///
/// Errors: `TypeMismatch`, 40414, 40415, `BadValue`, `FailedToParse`; `CommandNotSupported` for what would have an effect.
fn check_internal(args: &mut Args<'_>) -> Result<()> {
    let mut flag =
        |name: &str| -> Result<Option<bool>> { Ok(args.optional::<Flag>(name)?.map(|flag| flag.0)) };
    let from_router = flag("fromMongos")?.or(flag("fromRouter")?);
    let needs_merge = flag("needsMerge")?;
    flag("isMapReduceCommand")?;
    let resharding = flag("$_requestReshardingResumeToken")?;
    if needs_merge.is_some() && from_router.is_none() {
        bail!(Code::FAILED_TO_PARSE, "Cannot specify 'needsMerge' without 'fromRouter'");
    }
    if resharding == Some(true) {
        let collection = args.own_value().as_str().unwrap_or_default();
        if !is_oplog(args.body(), collection) {
            bail!(
                Code::FAILED_TO_PARSE,
                "$_requestReshardingResumeToken must only be set for the oplog namespace, not {collection}"
            );
        }
        bail!(Code::COMMAND_NOT_SUPPORTED, "there are no resume tokens of the oplog");
    }
    match args.optional::<RawDoc<'_>>("exchange")? {
        None => Ok(()),
        Some(exchange) => check_exchange(exchange),
    }
}

/// How a pipeline's documents would be shared out to several cursors.
fn check_exchange(exchange: RawDoc<'_>) -> Result<()> {
    let mut spec = Args::of_part("aggregate.exchange", exchange)?;
    let policy: &str = spec.required("policy")?;
    if !matches!(policy, "broadcast" | "roundrobin" | "keyRange") {
        bail!(
            Code::BAD_VALUE,
            "Enumeration value '{policy}' for field 'aggregate.exchange.policy' is not a valid value."
        );
    }
    for name in ["consumers", "bufferSize"] {
        match spec.value(name) {
            Value::Int32(_) => {}
            Value::Missing | Value::Null if name == "consumers" => return Err(spec.missing(name)),
            Value::Missing | Value::Null => {}
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'aggregate.exchange.{name}' is the wrong type '{}', expected type 'int'",
                other.type_name()
            ),
        }
    }
    spec.optional::<bool>("orderPreserving")?;
    spec.optional::<RawDoc<'_>>("key")?;
    spec.optional::<Array<'_>>("boundaries")?;
    spec.optional::<Array<'_>>("consumerIds")?;
    spec.finish()?;
    bail!(Code::COMMAND_NOT_SUPPORTED, "a pipeline has one cursor here, and exchanges nothing");
}

/// Whether the command's pipeline ends with a stage that writes.
fn pipeline_writes(body: RawDoc<'_>) -> bool {
    body.get("pipeline").and_then(|stages| stages.as_array()).is_some_and(crate::forward::writes)
}
