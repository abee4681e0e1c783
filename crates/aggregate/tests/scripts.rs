//! Scripts of pipelines over collections in memory.
#![allow(missing_docs)]

#[path = "../../query/tests/support/text.rs"]
mod text;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, Mutex};

use sheaf_aggregate::{
    CollectionSize, Database, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, Probe, SharedDatabase,
    StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value, compare};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;
use sheaf_rows::{BoxOperator, Cx, Documents, Limits, Operator, Row, Step, pull};

/// Collections in memory. Fields named in `indexed` can be found by equality.
#[derive(Default)]
struct Contents {
    collections: Mutex<BTreeMap<String, Vec<DocBuf>>>,
    indexed: Mutex<Vec<String>>,
    ids: AtomicU8,
    random: AtomicU64,
}

/// A handle to them.
#[derive(Clone, Default)]
struct Memory(Arc<Contents>);

impl Memory {
    fn documents(&self, namespace: &Namespace) -> Vec<DocBuf> {
        self.0.collections.lock().unwrap().get(&namespace.collection).cloned().unwrap_or_default()
    }
}

/// Looks through all documents for each question.
struct Searching {
    documents: Vec<DocBuf>,
    field: String,
    found: Documents,
}

impl Operator for Searching {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.found.work(cx)
    }

    fn row(&self) -> Row<'_> {
        self.found.row()
    }

    fn inputs(&mut self, _visit: &mut dyn FnMut(&mut dyn Operator)) {}
}

impl Probe for Searching {
    fn find(&mut self, value: Value<'_>, _cx: &mut Cx<'_>) -> Result<()> {
        let filter = DocBuf::new().with(&self.field, &DocBuf::new().with("$eq", value));
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let matches = |document: &&DocBuf| matcher.matches_doc(document.as_raw()).unwrap();
        self.found = Documents::new(self.documents.iter().filter(matches).cloned().collect());
        Ok(())
    }

    fn size(&self) -> CollectionSize {
        let bytes = self.documents.iter().map(|document| document.as_bytes().len() as u64).sum();
        CollectionSize { documents: self.documents.len() as u64, bytes }
    }
}

impl Database for Memory {
    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &mut Cx<'_>) -> Result<BoxOperator> {
        let database: SharedDatabase = Arc::new(self.clone());
        Ok(pipeline.open(Box::new(Documents::new(self.documents(namespace))), &database))
    }

    fn prepare_equal(
        &self,
        namespace: &Namespace,
        field: &str,
        _: Option<&sheaf_collation::SharedCollator>,
    ) -> Result<Option<Box<dyn Probe>>> {
        if !self.0.indexed.lock().unwrap().iter().any(|indexed| indexed == field) {
            return Ok(None);
        }
        let (documents, found) = (self.documents(namespace), Documents::new(Vec::new()));
        Ok(Some(Box::new(Searching { documents, field: field.to_owned(), found })))
    }

    fn stats(
        &self,
        source: StatsSource,
        namespace: &Namespace,
        spec: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<Vec<DocBuf>> {
        Ok(vec![DocBuf::new().with("stats", &format!("{source:?} {namespace}")).with("spec", spec)])
    }

    fn begin_out(
        &self,
        namespace: &Namespace,
        _timeseries: Option<&sheaf_timeseries::TimeseriesOptions>,
        _cx: &Cx<'_>,
    ) -> Result<Box<dyn OutWriter>> {
        Ok(Box::new(Writer {
            memory: self.clone(),
            target: namespace.collection.clone(),
            documents: Vec::new(),
        }))
    }

    fn merge_index(
        &self,
        _namespace: &Namespace,
        on: &[String],
        _collator: Option<&SharedCollator>,
    ) -> Result<Option<MergeIndex>> {
        let unique = on == ["_id"] || self.0.indexed.lock().unwrap().as_slice() == on;
        Ok(unique.then_some(MergeIndex { sparse: true }))
    }

    fn find_merge_target(
        &self,
        namespace: &Namespace,
        key: RawDoc<'_>,
        collator: Option<&SharedCollator>,
        _cx: &mut Cx<'_>,
    ) -> Result<Option<DocBuf>> {
        let matcher = Matcher::parse(key, &mut ParseCx::new().with_collator(collator.cloned()))?;
        Ok(self
            .documents(namespace)
            .into_iter()
            .find(|document| matcher.matches_doc(document.as_raw()).unwrap()))
    }

    fn merge_write(
        &self,
        namespace: &Namespace,
        write: MergeWrite,
        old: Option<RawDoc<'_>>,
        document: RawDoc<'_>,
        _cx: &mut Cx<'_>,
    ) -> Result<bool> {
        let mut collections = self.0.collections.lock().unwrap();
        let documents = collections.entry(namespace.collection.clone()).or_default();
        let id = document.get_or_missing("_id");
        let place = documents.iter().position(|d| compare(d.as_raw().get_or_missing("_id"), id).is_eq());
        match (write, place) {
            (MergeWrite::Insert, Some(_)) => return Err(Error::new(Code::DUPLICATE_KEY, "duplicate key")),
            (MergeWrite::Insert, None) => documents.push(DocBuf::from(document)),
            (MergeWrite::Replace, Some(place)) => {
                assert_eq!(old, Some(documents[place].as_raw()));
                documents[place] = DocBuf::from(document);
            }
            (MergeWrite::Replace, None) => return Ok(false),
        }
        Ok(true)
    }

    fn new_object_id(&self) -> ObjectId {
        ObjectId([self.0.ids.fetch_add(1, Relaxed) + 1; 12])
    }

    fn random(&self) -> u64 {
        let step = |n: u64| n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let before = self.0.random.fetch_update(Relaxed, Relaxed, |n| Some(step(n)));
        step(before.expect("it is always updated"))
    }
}

struct Writer {
    memory: Memory,
    target: String,
    documents: Vec<DocBuf>,
}

impl OutWriter for Writer {
    fn write(&mut self, document: DocBuf, _cx: &Cx<'_>) -> Result<()> {
        self.documents.push(document);
        Ok(())
    }

    fn finish(&mut self, _cx: &Cx<'_>) -> Result<()> {
        let mut collections = self.memory.0.collections.lock().unwrap();
        collections.insert(self.target.clone(), std::mem::take(&mut self.documents));
        Ok(())
    }
}

fn pipeline(memory: &Memory, collection: &str, stages: &str, sorted: bool) -> Result<String> {
    let stages = text::parse(stages);
    let Value::Array(stages) = stages.as_value() else { panic!("a pipeline is an array") };
    let namespace = match collection {
        "admin" => Namespace::new("admin", ""),
        "1" => Namespace::new("test", ""),
        collection => Namespace::new("test", collection),
    };
    let mut cx = ParseCx::new().with_now(0);
    let parsed = Pipeline::parse(stages, &namespace, &mut cx)?;
    cx.finish()?;
    let database: SharedDatabase = Arc::new(memory.clone());
    let mut run = parsed.open(Box::new(Documents::new(memory.documents(&namespace))), &database);
    let limits = Limits { memory_bytes: 1 << 20, allow_disk_use: false, now_millis: 0 };
    let go_on = || Ok(());
    let mut cx = Cx::new(limits, &go_on);
    let mut lines = Vec::new();
    while pull(&mut run, &mut cx)? {
        let document = run.row().document();
        let valid = sheaf_bson::validate(document.as_bytes(), sheaf_bson::MAX_DEPTH);
        assert_eq!(valid, Ok(document.as_bytes().len()));
        lines.push(text::show(document));
    }
    assert!(!pull(&mut run, &mut cx)?, "what has ended goes on");
    if sorted {
        lines.sort();
    }
    if lines.is_empty() {
        lines.push("(nothing)".into());
    }
    Ok(lines.join("\n"))
}

/// A case: `index <field>`, `<collection> insert <document>`, `<collection> aggregate <pipeline>`, `<collection> group
/// <pipeline>` (output sorted, for stages without an order), `<collection> find`.
fn run(case: &str) -> String {
    let memory = Memory::default();
    let mut output = String::new();
    for line in case.lines() {
        let (collection, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (command, argument) = rest.split_once(' ').unwrap_or((rest, ""));
        if collection == "index" {
            memory.0.indexed.lock().unwrap().push(command.to_owned());
            continue;
        }
        match command {
            "insert" => {
                let document = text::parse_doc(argument);
                memory.0.collections.lock().unwrap().entry(collection.to_owned()).or_default().push(document);
                continue;
            }
            "aggregate" | "group" => {
                let result = pipeline(&memory, collection, argument, command == "group");
                output += &result.unwrap_or_else(|error| {
                    format!("Error: {} ({}): {}", error.code().name(), error.code().0, error.message())
                });
            }
            "find" => {
                let documents = memory.documents(&Namespace::new("test", collection));
                output += &documents.iter().map(|d| text::show(d.as_raw())).collect::<Vec<_>>().join("\n");
            }
            other => panic!("unknown command {other}"),
        }
        output.push('\n');
    }
    output
}

#[test]
fn scripts() {
    text::run_scripts("tests/scripts", run);
}

/// The scripts' folder holds what they say it holds: an empty collection gives nothing.
#[test]
fn an_empty_collection_gives_nothing() {
    assert_eq!(run("c aggregate []"), "(nothing)\n");
}
