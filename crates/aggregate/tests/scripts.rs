//! Scripts of pipelines over collections in memory.
#![allow(missing_docs)]

#[path = "../../query/tests/support/text.rs"]
mod text;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_aggregate::{
    BoxSource, Database, Documents, MergeIndex, MergeWrite, Namespace, OutWriter, Pipeline, RunCx,
    RunOptions, StatsSource,
};
use sheaf_bson::{DocBuf, ObjectId, RawDoc, Value, compare};
use sheaf_errors::{Code, Error, Result};
use sheaf_expr::ParseCx;
use sheaf_query::matcher::Matcher;

/// Collections in memory. Fields named in `indexed` can be found by equality.
#[derive(Default)]
struct Memory {
    collections: RefCell<BTreeMap<String, Vec<DocBuf>>>,
    indexed: RefCell<Vec<String>>,
    ids: Cell<u8>,
    random: Cell<u64>,
}

impl Memory {
    fn documents(&self, namespace: &Namespace) -> Vec<DocBuf> {
        self.collections.borrow().get(&namespace.collection).cloned().unwrap_or_default()
    }
}

impl Database for Memory {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn check_interrupt(&self) -> Result<()> {
        Ok(())
    }

    fn run(&self, namespace: &Namespace, pipeline: &Arc<Pipeline>, _cx: &RunCx<'_>) -> Result<BoxSource> {
        Ok(pipeline.open(Box::new(Documents::new(self.documents(namespace)))))
    }

    fn can_find_equal(&self, _namespace: &Namespace, field: &str) -> Result<bool> {
        Ok(self.indexed.borrow().iter().any(|indexed| indexed == field))
    }

    fn find_equal(&self, namespace: &Namespace, field: &str, value: Value<'_>) -> Result<Vec<DocBuf>> {
        let filter = DocBuf::new().with(field, &DocBuf::new().with("$eq", value));
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let documents = self.documents(namespace);
        Ok(documents.into_iter().filter(|document| matcher.matches_doc(document.as_raw()).unwrap()).collect())
    }

    fn stats(&self, source: StatsSource, namespace: &Namespace, spec: RawDoc<'_>) -> Result<Vec<DocBuf>> {
        Ok(vec![DocBuf::new().with("stats", &format!("{source:?} {namespace}")).with("spec", spec)])
    }

    fn begin_out(&self, namespace: &Namespace, _spec: Value<'_>) -> Result<Box<dyn OutWriter>> {
        Ok(Box::new(Writer { target: namespace.collection.clone(), documents: Vec::new() }))
    }

    fn merge_index(&self, _namespace: &Namespace, on: &[String]) -> Result<Option<MergeIndex>> {
        let unique = on == ["_id"] || self.indexed.borrow().as_slice() == on;
        Ok(unique.then_some(MergeIndex { sparse: true }))
    }

    fn find_merge_target(&self, namespace: &Namespace, key: RawDoc<'_>) -> Result<Option<DocBuf>> {
        let matcher = Matcher::parse(key, &mut ParseCx::new())?;
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
    ) -> Result<bool> {
        let mut collections = self.collections.borrow_mut();
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

    fn sort_runs(&self) -> Result<Option<Box<dyn sheaf_query::sort::Runs + Send>>> {
        Ok(None)
    }

    fn new_object_id(&self) -> ObjectId {
        self.ids.set(self.ids.get() + 1);
        ObjectId([self.ids.get(); 12])
    }

    fn random(&self) -> u64 {
        let next =
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random.set(next);
        next
    }
}

struct Writer {
    target: String,
    documents: Vec<DocBuf>,
}

impl OutWriter for Writer {
    fn write(&mut self, _database: &dyn Database, document: DocBuf) -> Result<()> {
        self.documents.push(document);
        Ok(())
    }

    fn finish(&mut self, database: &dyn Database) -> Result<()> {
        let memory = database.as_any().downcast_ref::<Memory>().unwrap();
        memory.collections.borrow_mut().insert(self.target.clone(), std::mem::take(&mut self.documents));
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
    let input: BoxSource = Box::new(Documents::new(memory.documents(&namespace)));
    let mut source = parsed.open(input);
    let options = RunOptions { stage_memory_bytes: 1 << 20, allow_disk_use: false, now_millis: 0 };
    let mut cx = RunCx::new(memory, options);
    let mut lines = Vec::new();
    while let Some(document) = source.next(&mut cx)? {
        let valid = sheaf_bson::validate(document.as_bytes(), sheaf_bson::MAX_DEPTH);
        assert_eq!(valid, Ok(document.as_bytes().len()));
        lines.push(text::show(document.as_raw()));
    }
    assert!(source.next(&mut cx)?.is_none(), "a source that ended goes on");
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
            memory.indexed.borrow_mut().push(command.to_owned());
            continue;
        }
        match command {
            "insert" => {
                let document = text::parse_doc(argument);
                memory.collections.borrow_mut().entry(collection.to_owned()).or_default().push(document);
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
    text::run_scripts(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts"), run);
}

/// The scripts' folder holds what they say it holds: an empty collection gives nothing.
#[test]
fn an_empty_collection_gives_nothing() {
    assert_eq!(run("c aggregate []"), "(nothing)\n");
}
