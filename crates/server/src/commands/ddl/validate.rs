//! `validate`.

use sheaf_bson::{Binary, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::stats;
use sheaf_exec::write::{self, Validator};
use sheaf_storage::{Collection, Direction, Range, Validation};

use super::re_index;
use crate::args::{Args, Loose};
use crate::command::{Command, Spec};
use crate::op::OpContext;
use crate::reply::Reply;

/// `{validate: "users", full: false, background: false, repair: false, checkBSONConformance: false}`
pub struct Validate<'a> {
    collection: &'a str,
    full: bool,
    repair: bool,
}

impl<'a> Command<'a> for Validate<'a> {
    const NAME: &'static str = "validate";
    const SPEC: Spec = Spec::plain().may_block().help("checks a collection and its indexes");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let flag = |args: &mut Args<'a>, name| -> Result<bool> {
            Ok(args.optional::<Loose>(name)?.is_some_and(|flag| flag.0))
        };
        let full = flag(args, "full")?;
        let background = flag(args, "background")?;
        let repair = flag(args, "repair")?;
        let metadata = flag(args, "metadata")?;
        let fix_multikey = flag(args, "fixMultikey")?;
        let enforce_count = flag(args, "enforceFastCount")?;
        let conformance = flag(args, "checkBSONConformance")?;
        flag(args, "collHash")?;
        // Of old servers; some drivers still send it.
        args.ignore(&["scandata"]);
        let pairs = [
            (background && full, "{ background: true }", "{ full: true }"),
            (background && enforce_count, "{ background: true }", "{ enforceFastCount: true }"),
            (background && repair, "{ background: true }", "{ repair: true }"),
            (enforce_count && repair, "{ enforceFastCount: true }", "{ repair: true }"),
            (conformance && repair, "{ checkBSONConformance: true }", "{ repair: true }"),
            (metadata && full, "{ metadata: true }", "{ full: true }"),
            (metadata && background, "{ metadata: true }", "{ background: true }"),
            (metadata && repair, "{ metadata: true }", "{ repair: true }"),
            (metadata && enforce_count, "{ metadata: true }", "{ enforceFastCount: true }"),
            (metadata && conformance, "{ metadata: true }", "{ checkBSONConformance: true }"),
            (background && fix_multikey, "{ background: true }", "{ fixMultikey: true }"),
        ];
        if let Some((_, one, other)) = pairs.iter().find(|(both, ..)| *both) {
            bail!(
                Code::INVALID_OPTIONS,
                "Running the validate command with both {one} and {other} is not supported."
            );
        }
        Ok(Validate { collection, full, repair })
    }

    fn run(self, op: &OpContext<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        if self.repair && op.node().options.set_name.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "Running the validate command with {{ repair: true }} in read-only or replica set mode is not supported."
            );
        }
        let engine = op.engine();
        let stop = op.interrupter();
        let mut found = engine.validate(&namespace, self.full, &|| stop.check())?;
        let catalog = engine.catalog();
        let Some(collection) = catalog.collection(&namespace) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Collection '{namespace}' does not exist to validate.");
        };
        let mut repaired = false;
        if self.repair && !found.errors.is_empty() && found.invalid_documents == 0 {
            re_index::rebuild(op, collection)?;
            found = engine.validate(&namespace, self.full, &|| stop.check())?;
            repaired = found.errors.is_empty();
        }
        let failing = non_compliant(op, collection)?;
        if failing > 0 {
            found.warnings.push(
                "Detected one or more documents not compliant with the collection's schema. Check logs for log id 5363500."
                    .to_owned(),
            );
        }
        Ok(reply(collection, &found, failing, repaired))
    }
}

/// Documents that fail the collection's validator.
fn non_compliant(op: &OpContext<'_>, collection: &Collection) -> Result<u64> {
    let Some(validator) = Validator::of(collection)? else { return Ok(0) };
    let view = op.view()?;
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    let mut failing = 0;
    let mut seen = 0u64;
    while cursor.next()? {
        seen += 1;
        if seen.is_multiple_of(256) {
            op.check_interrupt()?;
        }
        failing += u64::from(!matches!(validator.check(None, cursor.doc())?, write::Validation::Passed));
    }
    Ok(failing)
}

fn reply(collection: &Collection, found: &Validation, failing: u64, repaired: bool) -> Reply {
    Reply::ok().with_fields(|doc| {
        doc.append("ns", &collection.namespace);
        doc.append("uuid", Value::Binary(Binary { subtype: 4, bytes: collection.uuid.as_bytes() }));
        doc.append("nInvalidDocuments", found.invalid_documents as i64);
        doc.append("nNonCompliantDocuments", failing as i64);
        stats::append_number(doc, "nrecords", found.records);
        doc.append("nIndexes", found.keys_per_index.len() as i32);
        let mut keys = doc.document("keysPerIndex");
        for (name, count) in &found.keys_per_index {
            stats::append_number(&mut keys, name, *count);
        }
        drop(keys);
        let mut details = doc.document("indexDetails");
        for (name, _) in &found.keys_per_index {
            let quoted = format!("index '{name}'");
            let mut index = details.document(name);
            let errors: Vec<&String> = found.errors.iter().filter(|error| error.contains(&quoted)).collect();
            index.append("valid", errors.is_empty());
            if !errors.is_empty() {
                let mut list = index.array("errors");
                errors.iter().for_each(|error| _ = list.push(error.as_str()));
            }
        }
        drop(details);
        doc.append("valid", found.errors.is_empty());
        doc.append("repaired", repaired);
        for (name, texts) in [("warnings", &found.warnings), ("errors", &found.errors)] {
            let mut list = doc.array(name);
            texts.iter().for_each(|text| _ = list.push(text.as_str()));
        }
        for name in ["extraIndexEntries", "missingIndexEntries", "corruptRecords"] {
            drop(doc.array(name));
        }
    })
}
