//! `count`.

use std::sync::Arc;

use sheaf_aggregate::Namespace;
use sheaf_bson::{ArrayBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::explain::{Rows, Top};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_expr::ParseCx;
use sheaf_storage::Uuid;

use super::pipeline::{PipelineCursor, parse};
use super::query::{collated_cx, note_stages, parse_filter};
use sheaf_rows::{Cx, Limits};

use crate::args::{Args, NonNegative, exact_i64};
use crate::command::*;
use crate::commands::ddl::names;
use crate::op::Operation;
use crate::reply::Reply;

/// `{count: "users", query: {...}, limit, skip}`
pub struct Count<'a> {
    pub(super) collection: &'a str,
    query: Option<RawDoc<'a>>,
    /// A negative limit means its absolute value; 0 means no limit.
    limit: Option<u64>,
    skip: u64,
    hint: Value<'a>,
    collation: Option<RawDoc<'a>>,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for Count<'a> {
    const NAME: &'static str = "count";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "counts documents",
        access: Access::Read,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::READ,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Find])]),
        spread: Spread::Targeted,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let count = Count {
            collection: args.collection()?,
            query: args.optional("query")?,
            limit: limit(args.value("limit"))?,
            skip: args.optional::<NonNegative>("skip")?.map_or(0, |n| n.0 as u64),
            hint: args.value("hint"),
            collation: args.optional("collation")?,
            uuid: args.optional("collectionUUID")?,
        };
        args.ignore(&["fields"]);
        Ok(count)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        if op.in_transaction() {
            bail!(
                Code::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
                "Cannot run 'count' in a multi-document transaction."
            );
        }
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let query = self.to_query(op)?;
        let view = op.view()?;
        names::check_uuid(view.catalog(), &namespace, self.uuid)?;
        let Some(collection) = view.collection(&namespace) else {
            sheaf_exec::plan::text::check_collection(query.matcher.as_deref(), &namespace)?;
            return Ok(Reply::ok().with("n", 0));
        };
        let reads = op.reads(view.clone());
        let n = if collection.is_view() {
            self.on_view(op)?
        } else if query.matcher().matches_everything()
            && query.hint == Hint::None
            && !collection.is_oplog()
            && !op.reads_majority()
            && !reads.mixed(collection)?
        {
            // The collection's own counter.
            view.await_decisions(collection)?;
            self.cut(collection.count())
        } else {
            let stop = op.interrupter();
            let interrupt = || stop.check();
            let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
            let mut cx = Cx::new(limits, &interrupt);
            let mut run = sheaf_exec::find::open(&query, collection, &reads, &mut cx)?;
            op.note_plan(run.plan().summary(), run.chosen());
            let n = run.count(&mut cx).map_err(|error| error.context("Executor error during count command"));
            op.metrics().examined((0, 0), run.examined());
            if op.is_profiled() {
                let taken = n.as_ref().copied().unwrap_or(0);
                note_stages(op, &query, &mut run, Rows { taken, changed: 0 }, Top::Count);
            }
            n?
        };
        Ok(match i32::try_from(n) {
            Ok(n) => Reply::ok().with("n", n),
            Err(_) => Reply::ok().with("n", n as i64),
        })
    }
}

/// A negative limit is meant without its sign.
///
/// Errors: `BadValue` for what is no number or has no opposite, `FailedToParse` for one that is not whole.
fn limit(value: Value<'_>) -> Result<Option<u64>> {
    if value.is_nullish() || value.is_missing() {
        return Ok(None);
    }
    if !value.is_number() {
        bail!(Code::BAD_VALUE, "limit value is not a valid number");
    }
    match exact_i64(value, "limit")? {
        i64::MIN => bail!(Code::BAD_VALUE, "limit value for count cannot be min long"),
        limit => Ok(Some(limit.unsigned_abs())),
    }
}

impl Count<'_> {
    /// What its parts are parsed in.
    pub(super) fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        collated_cx(op, &op.namespace(self.collection), self.collation, None)
    }

    /// The query that counts.
    pub(super) fn to_query(&self, op: &Operation<'_>) -> Result<Query> {
        let mut cx = self.parse_cx(op)?.without_now();
        Ok(Query {
            collator: cx.collator().cloned(),
            matcher: Some(Arc::new(parse_filter(self.query, &mut cx)?)),
            skip: self.skip,
            limit: self.limit.filter(|limit| *limit > 0),
            hint: Hint::parse(self.hint)?,
            only_paths: Some(Vec::new()),
            counting: true,
            ..Query::default()
        })
    }

    fn cut(&self, all: u64) -> u64 {
        let left = all.saturating_sub(self.skip);
        match self.limit {
            Some(limit) if limit > 0 => left.min(limit),
            _ => left,
        }
    }

    /// The stages that count.
    pub(super) fn pipeline(&self) -> ArrayBuf {
        ArrayBuf::build(|out| {
            out.document().append("$match", self.query.unwrap_or(RawDoc::EMPTY));
            if self.skip > 0 {
                out.document().append("$skip", self.skip as i64);
            }
            // On a view 0 is refused, unlike elsewhere.
            if let Some(limit) = self.limit {
                out.document().append("$limit", limit as i64);
            }
            out.push_raw_document(doc! { "$count": "count" }.as_bytes());
        })
    }

    fn on_view(&self, op: &Operation<'_>) -> Result<u64> {
        let namespace = Namespace::new(op.db(), self.collection);
        let pipeline = parse(self.pipeline().as_raw(), &namespace, &mut self.parse_cx(op)?)?;
        let mut n = 0;
        PipelineCursor::open(op, &namespace, &pipeline, Hint::parse(self.hint)?, None, false)?.each(
            op,
            |doc| {
                n = doc.get("count").and_then(|v| v.as_exact_i64()).unwrap_or(0) as u64;
                Ok(())
            },
        )?;
        Ok(n)
    }
}
