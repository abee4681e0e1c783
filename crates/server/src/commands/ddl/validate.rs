//! `validate`.

use sheaf_bson::{Binary, DocWriter, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::stats::append_number;
use sheaf_exec::write::{self, Validator};
use sheaf_storage::{Collection, Direction, Inconsistency, Range, Validation};

use super::re_index;
use crate::args::Args;
use crate::command::*;
use crate::commands::timeseries::{buckets_of, is_buckets, options_of};
use crate::op::Operation;
use crate::reply::Reply;

/// `{validate: "users", full: false, background: false, repair: false, checkBSONConformance: false}`
pub struct Validate<'a> {
    collection: &'a str,
    full: bool,
    background: bool,
    repair: bool,
    metadata: bool,
    fix_multikey: bool,
}

impl<'a> Command<'a, Operation<'a>> for Validate<'a> {
    const NAME: &'static str = "validate";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "checks a collection and its indexes",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::Validate])]),
        spread: Spread::Owners,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let given = args.has("checkBSONConformance");
        // MongoDB takes values of any type here, and knows no unknown fields.
        let mut flag = |name| args.value(name).truthy();
        let [full, background, enforce_count] = ["full", "background", "enforceFastCount"].map(&mut flag);
        let [conformance, repair, metadata] = ["checkBSONConformance", "repair", "metadata"].map(&mut flag);
        let fix_multikey = flag("fixMultikey");
        args.ignore_rest();
        let both = |one: &str, other: &str| -> Result<()> {
            bail!(
                Code::INVALID_OPTIONS,
                "Running the validate command with both {{ {one}: true }} and {{ {other}: true }} is not supported."
            )
        };
        match () {
            () if background && full => both("background", "full")?,
            () if background && enforce_count => both("background", "enforceFastCount")?,
            () if given && !conformance && (full || enforce_count) => bail!(
                Code::INVALID_OPTIONS,
                "Cannot explicitly set 'checkBSONConformance: false' with full validation set."
            ),
            () if background && repair => both("background", "repair")?,
            () if enforce_count && repair => both("enforceFastCount", "repair")?,
            () if conformance && repair => both("checkBSONConformance", "repair")?,
            () if metadata && (background || full || enforce_count || conformance || repair) => bail!(
                Code::INVALID_OPTIONS,
                "Running the validate command with {{ metadata: true }} is not supported with any other options"
            ),
            () => {}
        }
        // Records, counters and BSON are always checked in full depth; `full` adds the indexes' inner order.
        Ok(Validate { collection, full: full || enforce_count, background, repair, metadata, fix_multikey })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let alone = op.node().options.set_name.is_none();
        if self.repair && !alone {
            bail!(
                Code::INVALID_OPTIONS,
                "Running the validate command with {{ repair: true }} can only be performed in standalone mode."
            );
        }
        if self.background && (alone || op.db() == "local") {
            let place = if alone { "in standalone mode" } else { "on unreplicated collections" };
            bail!(
                Code::COMMAND_NOT_SUPPORTED,
                "Running the validate command with {{ background: true }} is not supported {place}"
            );
        }
        self.check(op, &namespace)
    }
}

impl Validate<'_> {
    /// Validates what has this name.
    fn check(&self, op: &Operation<'_>, namespace: &str) -> Result<Reply> {
        let engine = op.engine();
        let stop = op.interrupter();
        let catalog = engine.catalog();
        let Some(collection) = catalog.collection(namespace) else {
            bail!(Code::NAMESPACE_NOT_FOUND, "Collection '{namespace}' does not exist to validate.");
        };
        if let Some(buckets) = buckets_of(&catalog, collection) {
            op.check_behind(buckets)?;
            return self.check(op, &buckets.namespace);
        }
        if collection.is_view() {
            bail!(Code::COMMAND_NOT_SUPPORTED_ON_VIEW, "Cannot validate a view");
        }
        let mut report = Report { mode: self.repair_mode(), ..Report::default() };
        if self.metadata {
            return Ok(report.reply(collection));
        }
        let mut found = engine.validate(namespace, self.full, &|| stop.check())?;
        // What indexes lack can be built anew from the documents; documents themselves cannot.
        if self.repair && !found.index_errors.is_empty() {
            re_index::rebuild(op, collection)?;
            report.repaired = Some((found.extra_count, found.missing_count));
            found = engine.validate(namespace, self.full, &|| stop.check())?;
            found.warnings.extend(repairs(report.repaired.unwrap_or_default()));
        }
        if found.unreadable > 0 {
            // What follows reads all documents.
            report.found = Some(found);
            return Ok(report.reply(collection));
        }
        report.non_compliant = non_compliant(op, collection)?;
        if report.non_compliant > 0 {
            found.warnings.push(
                "Detected one or more documents not compliant with the collection's schema. Check logs for log id 5363500."
                    .to_owned(),
            );
        }
        let faulty = faulty_buckets(op, collection)?;
        if faulty > 0 {
            report.non_compliant += faulty;
            found.warnings.push(
                "Detected one or more documents in this collection incompatible with time-series specifications. For more info, see logs with log id 6698300."
                    .to_owned(),
            );
        }
        if found.invalid_documents > 0 {
            let about = doc! { "namespace": namespace, "invalidDocuments": found.invalid_documents as i64 };
            crate::log::error(
                "STORAGE",
                crate::log::ids::DOCUMENT_CORRUPT,
                &op.client().context(),
                "Document corruption details",
                Some(about),
            );
        }
        report.found = Some(found);
        Ok(report.reply(collection))
    }

    fn repair_mode(&self) -> &'static str {
        match (self.repair, self.fix_multikey) {
            (true, _) => "FixErrors",
            // Which paths hold arrays is noted before a document is written, so there is nothing to adjust.
            (false, true) => "AdjustMultikey",
            (false, false) => "None",
        }
    }
}

fn repairs((extra, missing): (u64, u64)) -> Vec<String> {
    let mut texts = Vec::new();
    if extra > 0 {
        texts.push(format!("Removed {extra} extra index entries."));
    }
    if missing > 0 {
        texts.push(format!("Inserted {missing} missing index entries."));
    }
    texts
}

/// Documents that fail the collection's validator.
fn non_compliant(op: &Operation<'_>, collection: &Collection) -> Result<u64> {
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
        if !matches!(validator.check(None, cursor.doc())?, write::Validation::Passed) {
            failing += 1;
            let about = doc! { "namespace": &collection.namespace, "id": cursor.doc().get_or_missing("_id") };
            let text = "Document is not compliant with the collection's schema";
            crate::log::warning(
                "STORAGE",
                crate::log::ids::DOCUMENT_NOT_COMPLIANT,
                &op.client().context(),
                text,
                Some(about),
            );
        }
    }
    Ok(failing)
}

/// Buckets of measurements whose parts contradict each other, each named in the log.
fn faulty_buckets(op: &Operation<'_>, collection: &Collection) -> Result<u64> {
    if !is_buckets(collection) {
        return Ok(0);
    }
    let options = options_of(collection)?;
    let view = op.view()?;
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward)?;
    let mut faulty = 0;
    while cursor.next()? {
        op.check_interrupt()?;
        let Some(reason) = sheaf_timeseries::fault(cursor.doc(), &options) else { continue };
        faulty += 1;
        let id = cursor.doc().get_or_missing("_id");
        let about = doc! { "namespace": &collection.namespace, "id": id, "reason": &reason };
        crate::log::warning(
            "STORAGE",
            crate::log::ids::BUCKET_NOT_COMPLIANT,
            &op.client().context(),
            "Document is not compliant with time-series specifications",
            Some(about),
        );
    }
    Ok(faulty)
}

/// What is answered.
#[derive(Default)]
struct Report {
    mode: &'static str,
    /// Nothing with `metadata: true`.
    found: Option<Validation>,
    non_compliant: u64,
    /// Entries removed and inserted.
    repaired: Option<(u64, u64)>,
}

impl Report {
    fn reply(&self, collection: &Collection) -> Reply {
        let nothing = Validation::default();
        let found = self.found.as_ref().unwrap_or(&nothing);
        Reply::ok().with_fields(|doc| {
            doc.append("valid", found.is_valid());
            doc.append("repaired", self.repaired.is_some());
            doc.append("repairMode", self.mode);
            doc.append("ns", &collection.namespace);
            doc.append("uuid", Value::Binary(Binary { subtype: 4, bytes: collection.uuid.as_bytes() }));
            write_texts(doc, found);
            write_entries(doc, "extraIndexEntries", collection, &found.extra);
            write_entries(doc, "missingIndexEntries", collection, &found.missing);
            if self.found.is_some() {
                append_number(doc, "nInvalidDocuments", found.invalid_documents);
                append_number(doc, "nNonCompliantDocuments", self.non_compliant);
                append_number(doc, "nrecords", found.records);
            }
            let mut records = doc.array("corruptRecords");
            for key in &found.corrupt_records {
                records.push(record_id(collection, key));
            }
            drop(records);
            write_indexes(doc, collection, found);
            if let Some((removed, inserted)) = self.repaired {
                append_number(doc, "numRemovedCorruptRecords", 0);
                append_number(doc, "numRemovedExtraIndexEntries", removed);
                append_number(doc, "numInsertedMissingIndexEntries", inserted);
                append_number(doc, "numDocumentsMovedToLostAndFound", 0);
                append_number(doc, "numOutdatedMissingIndexEntry", 0);
            }
            if !found.is_valid() {
                doc.append(
                    "advice",
                    "A corrupt namespace has been detected. See http://dochub.mongodb.org/core/data-recovery for recovery steps.",
                );
            }
        })
    }
}

type Doc<'w> = DocWriter<'w, Vec<u8>>;

/// `warnings` and `errors`; an index with errors of its own is named in the latter.
fn write_texts(doc: &mut Doc<'_>, found: &Validation) {
    let mut warnings = doc.array("warnings");
    found.warnings.iter().for_each(|text| _ = warnings.push(text.as_str()));
    drop(warnings);
    let mut errors = doc.array("errors");
    found.errors.iter().for_each(|text| _ = errors.push(text.as_str()));
    for (name, _) in &found.keys_per_index {
        if found.index_errors.iter().any(|(index, _)| index == name) {
            errors.push(format!("Found errors in {name}").as_str());
        }
    }
}

/// A record's number in a capped collection; elsewhere records are known by the key of their `_id`.
fn record_id<'k>(collection: &Collection, key: &'k [u8]) -> Value<'k> {
    match key.first_chunk::<8>() {
        Some(number) if collection.capped.is_some() => Value::Int64(i64::from_be_bytes(*number)),
        _ => Value::Binary(Binary { subtype: 0, bytes: key }),
    }
}

fn write_entries(doc: &mut Doc<'_>, name: &str, collection: &Collection, entries: &[Inconsistency]) {
    let mut list = doc.array(name);
    for entry in entries {
        let mut out = list.document();
        out.append("indexName", &entry.index);
        out.append("recordId", record_id(collection, &entry.record_key));
        if let Some(id) = &entry.id {
            out.append("idKey", id);
        }
        out.append("indexKey", &entry.key);
    }
}

fn write_indexes(doc: &mut Doc<'_>, collection: &Collection, found: &Validation) {
    // The order of a clustered collection's records is no index of MongoDB's.
    let counts =
        |name: &str| collection.index(name).is_none_or(|of| of.spec.as_raw().element("clustered").is_none());
    let counted = || found.keys_per_index.iter().filter(|(name, _)| counts(name));
    doc.append("nIndexes", counted().count() as i32);
    let mut keys = doc.document("keysPerIndex");
    for (name, count) in counted() {
        append_number(&mut keys, name, *count);
    }
    drop(keys);
    let mut details = doc.document("indexDetails");
    for (name, _) in counted() {
        let errors: Vec<&str> = found
            .index_errors
            .iter()
            .filter(|(index, _)| index == name)
            .map(|(_, text)| text.as_str())
            .collect();
        let mut index = details.document(name);
        index.append("valid", errors.is_empty());
        if let Some(of) = collection.index(name) {
            index.append("spec", &of.spec);
        }
        if !errors.is_empty() {
            let mut list = index.array("errors");
            errors.iter().for_each(|text| _ = list.push(*text));
        }
    }
}
