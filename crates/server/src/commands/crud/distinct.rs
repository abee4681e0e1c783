//! `distinct`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use sheaf_aggregate::Namespace;
use sheaf_bson::{ArrayBuf, DocBuf, Element, MAX_DOCUMENT_SIZE, OwnedValue, RawDoc, Value};
use sheaf_collation::{SharedCollator, compare_by, key_of};
use sheaf_errors::{Result, bail};
use sheaf_exec::explain::{Rows, Top};
use sheaf_exec::plan::Query;
use sheaf_exec::plan::query::Hint;
use sheaf_exec::run::Reads;
use sheaf_expr::ParseCx;
use sheaf_meter::Held;
use sheaf_query::path::Path;
use sheaf_storage::{Collection, Uuid};

use super::pipeline::{PipelineCursor, parse};
use super::query::{collated_cx, note_stages, parse_filter};
use super::query_settings;
use sheaf_rows::{Cx, Limits};

use crate::args::Args;
use crate::command::*;
use crate::commands::ddl::names;
use crate::op::Operation;
use crate::query_settings::FIELD;
use crate::reply::Reply;

/// `{distinct: "users", key: "country", query: {...}}`
pub struct Distinct<'a> {
    pub(super) collection: &'a str,
    key: &'a str,
    query: Option<RawDoc<'a>>,
    hint: Value<'a>,
    collation: Option<RawDoc<'a>>,
    uuid: Option<Uuid>,
}

impl<'a> Command<'a, Operation<'a>> for Distinct<'a> {
    const NAME: &'static str = "distinct";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lists the distinct values of a field",
        access: Access::Read,
        transaction: Transaction::Allowed,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
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
        let distinct = Distinct {
            collection: args.collection()?,
            key: args.required("key")?,
            query: args.optional("query")?,
            hint: args.value("hint"),
            collation: args.optional("collation")?,
            uuid: args.optional("collectionUUID")?,
        };
        args.ignore(&[FIELD]);
        if distinct.key.contains('\0') {
            bail!(31032, "Key field cannot contain an embedded null byte");
        }
        Ok(distinct)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        query_settings::apply(op, op.body())?;
        let query = self.to_query(op)?;
        let view = op.view()?;
        names::check_uuid(view.catalog(), &namespace, self.uuid)?;
        let mut values = Values::new(self.key, query.collator.clone());
        let of_view = view.collection(&namespace).is_some_and(|found| found.is_view());
        if let Some(collection) = view.collection(&namespace) {
            if collection.is_view() {
                self.on_view(op, &mut values)?;
            } else {
                let stop = op.interrupter();
                let interrupt = || stop.check();
                let limits = Limits { now_millis: op.now_millis(), ..Limits::default() };
                let mut cx = Cx::new(limits, &interrupt);
                let reads = op.reads(view.clone());
                let mut run = sheaf_exec::find::open(&query, collection, &reads, &mut cx)?;
                op.note_plan(run.plan().summary(), run.chosen());
                let (from_keys, elements) = (run.plan().gives_keys(), run.plan().gives_elements());
                let mut take = || -> Result<()> {
                    while run
                        .advance(&mut cx)
                        .map_err(|error| error.context("Executor error during distinct command"))?
                    {
                        let doc = run.plan_row().doc.unwrap_or(RawDoc::EMPTY);
                        if elements {
                            let value = doc.get_or_missing(self.key);
                            let is_there =
                                !value.is_nullish() || self.has(value, op, collection, &reads, &mut cx)?;
                            if is_there {
                                values.add_element(value)?;
                            }
                            continue;
                        }
                        let is_null = from_keys && values.is_null(doc)?;
                        if !is_null || self.has(Value::Null, op, collection, &reads, &mut cx)? {
                            values.add(doc)?;
                        }
                    }
                    Ok(())
                };
                let taken = take();
                op.metrics().examined((0, 0), run.examined());
                if op.is_profiled() {
                    note_stages(op, &query, &mut run, Rows::default(), Top::Find);
                }
                taken?;
            }
        } else {
            sheaf_exec::plan::text::check_collection(query.matcher.as_deref(), &namespace)?;
        }
        // MongoDB groups them, and gives the groups in order.
        values.list.sort_by(|a, b| compare_by(query.collator.as_ref(), a.as_value(), b.as_value()));
        let mut reply = Reply::with_capacity(values.bytes + 64).with_array("values", |out| {
            for value in &values.list {
                out.push(value.as_value());
            }
        });
        if let Some(time) = op.at_cluster_time() {
            reply.append("atClusterTime", time);
        }
        // On a view the reply is made of an aggregation's by hand.
        Ok(if of_view { reply.with_int_ok() } else { reply })
    }
}

impl Distinct<'_> {
    /// What its parts are parsed in.
    pub(super) fn parse_cx(&self, op: &Operation<'_>) -> Result<ParseCx> {
        collated_cx(op, &op.namespace(self.collection), self.collation, None)
    }

    /// The query that finds the documents.
    pub(super) fn to_query(&self, op: &Operation<'_>) -> Result<Query> {
        let mut cx = self.parse_cx(op)?.without_now();
        Ok(Query {
            collator: cx.collator().cloned(),
            matcher: Some(Arc::new(parse_filter(self.query, &mut cx)?)),
            hint: Hint::parse(self.hint)?,
            distinct: Some(self.key.to_owned()),
            unwinds: true,
            ..Query::default()
        })
    }

    /// Whether some document that matches has the field with null in it, or with undefined: an index holds null for documents that lack
    /// the field, and undefined for empty arrays.
    fn has(
        &self,
        value: Value<'_>,
        op: &Operation<'_>,
        collection: &Arc<Collection>,
        reads: &Reads,
        cx: &mut Cx<'_>,
    ) -> Result<bool> {
        let both = DocBuf::build(|out| {
            let mut parts = out.array("$and");
            parts.push(self.query.unwrap_or(RawDoc::EMPTY));
            parts.document().document(self.key).append("$type", value.kind() as i32);
        });
        let matcher = parse_filter(Some(both.as_raw()), &mut self.parse_cx(op)?)?;
        let collator = self.parse_cx(op)?.collator().cloned();
        let query = Query { limit: Some(1), collator, ..Query::filtered(matcher) };
        sheaf_exec::find::open(&query, collection, reads, cx)?.advance(cx)
    }

    /// The stages that find the documents.
    pub(super) fn pipeline(&self) -> ArrayBuf {
        ArrayBuf::build(|out| {
            out.document().append("$match", self.query.unwrap_or(RawDoc::EMPTY));
        })
    }

    fn on_view(&self, op: &Operation<'_>, values: &mut Values) -> Result<()> {
        let namespace = Namespace::new(op.db(), self.collection);
        let pipeline = parse(self.pipeline().as_raw(), &namespace, &mut self.parse_cx(op)?)?;
        PipelineCursor::open(op, &namespace, &pipeline, Hint::parse(self.hint)?, None, false)?
            .each(op, |doc| values.add(doc))
    }
}

/// The values found, each once, in the order in which they came.
struct Values {
    path: Path,
    seen: HashSet<OwnedValue, ahash::RandomState>,
    list: Vec<OwnedValue>,
    collator: Option<SharedCollator>,
    bytes: usize,
    /// The account of both lists, where they are large.
    held: Held,
}

impl Values {
    fn new(key: &str, collator: Option<SharedCollator>) -> Self {
        let (seen, list) = (HashSet::default(), Vec::new());
        Values { collator, path: Path::new(key), seen, list, bytes: 0, held: Held::default() }
    }

    /// Whether the document has null at the path.
    fn is_null(&self, doc: RawDoc<'_>) -> Result<bool> {
        let nullish = |element: Element<'_>| element.value().is_nullish();
        self.path.any(doc, true, &mut |element, _| Ok(element.is_none_or(nullish)))
    }

    fn add(&mut self, doc: RawDoc<'_>) -> Result<()> {
        let Values { path, seen, list, collator, bytes, held } = self;
        let mut arrays: Option<BTreeSet<*const u8>> = None;
        path.any(doc, true, &mut |element, _| {
            if let Some(element) = element {
                let value = element.value();
                // An array at the path's end counts by its elements; it follows them as itself.
                let whole = matches!(value, Value::Array(_)) && {
                    let ends = match &mut arrays {
                        Some(known) => known,
                        none => none.insert(arrays_at_end(doc, path)?),
                    };
                    ends.contains(&element.data().as_ptr())
                };
                if element.data().len() > LARGE_BYTES {
                    count(held, *bytes + element.data().len(), list.len())?;
                }
                if !whole && seen.insert(key_of(collator.as_ref(), value)) {
                    *bytes += element.data().len() + 12;
                    list.push(OwnedValue::from(value));
                }
            }
            Ok(false)
        })?;
        self.check_size()
    }

    /// Adds the key of an array's element.
    fn add_element(&mut self, value: Value<'_>) -> Result<()> {
        if self.seen.insert(key_of(self.collator.as_ref(), value)) {
            let value = OwnedValue::from(value);
            self.bytes += DocBuf::new().with("", &value).as_bytes().len() + 6;
            self.list.push(value);
        }
        self.check_size()
    }

    fn check_size(&mut self) -> Result<()> {
        if self.bytes > MAX_DOCUMENT_SIZE {
            bail!(17217, "distinct too big, 16mb cap");
        }
        count(&mut self.held, self.bytes, self.list.len())
    }
}

/// Values with more than this are counted before they are taken, and all together in steps of it.
const LARGE_BYTES: usize = 64 << 10;

/// What a value takes in both lists besides its bytes.
const VALUE_BYTES: usize = 128;

/// Counts values with so many bytes: each is among those that were seen, and in the list.
fn count(held: &mut Held, bytes: usize, values: usize) -> Result<()> {
    let bytes = 2 * bytes + values * VALUE_BYTES;
    if bytes as u64 <= held.bytes().max(LARGE_BYTES as u64) {
        return Ok(());
    }
    let bytes = bytes.next_multiple_of(LARGE_BYTES) as u64;
    if held.bytes() == 0 {
        *held = sheaf_meter::reserve(bytes)?;
        return Ok(());
    }
    held.set(bytes)
}

/// Where the values begin that the path itself leads to, as opposed to elements of arrays at its end.
fn arrays_at_end(doc: RawDoc<'_>, path: &Path) -> Result<BTreeSet<*const u8>> {
    let mut ends = BTreeSet::new();
    path.any(doc, false, &mut |element, _| {
        ends.extend(element.map(|element| element.data().as_ptr()));
        Ok(false)
    })?;
    Ok(ends)
}
