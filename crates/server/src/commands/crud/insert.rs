//! `insert`.

use sheaf_errors::{Code, Result, bail};
use sheaf_exec::write::{Validator, prepare_insert};
use sheaf_storage::{Collection, Write};
use sheaf_timeseries::split_buckets;

use super::told::note_keys;
use super::writes::{
    StatementOutcomes, WriteFields, check_writable, collection_for_write, with_cx, with_writer,
};
use crate::args::{Args, Documents};
use crate::command::*;
use crate::commands::timeseries::{
    buckets_to_fill, check_sound_bucket, insert_all, is_measured, says_measured,
};
use crate::op::Operation;
use crate::reply::Reply;

/// Documents that are inserted on the connection's own task.
const SHORT_BATCH: usize = 64;

/// `{insert: "users", documents: [...], ordered: true}`
pub struct Insert<'a> {
    collection: &'a str,
    documents: Documents<'a>,
    fields: WriteFields,
}

impl<'a> Command<'a, Operation<'a>> for Insert<'a> {
    const NAME: &'static str = "insert";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "inserts documents",
        access: Access::Write,
        transaction: Transaction::AllowedOrRetryable,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Collection, &[Action::Insert]),
            Privilege::on(Resource::Collection, &[Action::BypassDocumentValidation])
                .if_asked("bypassDocumentValidation", |asked| asked.bypasses_validation()),
        ]),
        spread: Spread::Targeted,
        counter: Counter::Insert,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(Insert {
            collection: args.collection()?,
            documents: args.required_documents("documents")?,
            fields: WriteFields::parse(args)?,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let count = self.documents.count();
        self.fields.statements.check(count)?;
        let namespace = op.namespace(self.collection);
        // Buckets as they are: what mongorestore writes, once it has made the collection.
        let whole_buckets = split_buckets(&namespace).is_some() && !says_measured(op);
        if !whole_buckets {
            check_writable(op, self.collection)?;
        }
        if let Some(reply) = self.fields.mismatch(op, &namespace)? {
            return Ok(reply);
        }
        let mut inserted = 0u64;
        let result = with_writer(op, count <= SHORT_BATCH, |w| {
            let written = w.written_keys();
            let mut insert_measured = |w: &mut dyn Write, measured: &Collection| {
                let counted = std::cell::Cell::new(0);
                let outcome = with_cx(op, self.fields.bypass, |cx| {
                    insert_all(op, w, &cx, measured, &self.fields, self.documents.iter(), &counted)
                });
                inserted = counted.get();
                outcome
            };
            let collection = match whole_buckets {
                true => buckets_to_fill(w, &namespace),
                false => collection_for_write(op, w, &namespace),
            };
            let collection = match collection {
                Err(error) if error.code() == Code::COMMAND_NOT_SUPPORTED_ON_VIEW => {
                    match w.collection(&namespace)?.filter(|view| view.is_timeseries()) {
                        Some(view) => return insert_measured(w, &view),
                        None => return Err(error),
                    }
                }
                Ok(buckets) if is_measured(op, &buckets) => return insert_measured(w, &buckets),
                collection => collection?,
            };
            self.fields.check_collection(op, &collection)?;
            if count > 1 {
                w.reserve(self.documents.iter().map(|doc| doc.len()).sum());
            }
            let validator = if self.fields.bypass.validation { None } else { Validator::of(&collection)? };
            with_cx(op, self.fields.bypass, |cx| {
                let counted = std::cell::Cell::new(0u64);
                let outcome = StatementOutcomes::each(
                    op,
                    &self.fields,
                    self.documents.iter(),
                    w,
                    |w, _, doc| {
                        let prepared = prepare_insert(doc, cx.new_object_id, cx.empty_timestamp())?;
                        let doc = prepared.as_ref().map_or(doc, |prepared| prepared.as_raw());
                        if whole_buckets {
                            check_sound_bucket(&collection, doc)?;
                        }
                        if let Some(validator) = &validator {
                            validator.enforce(None, doc, cx.report)?;
                        }
                        w.insert(&collection, doc)?;
                        counted.set(counted.get() + 1);
                        Ok(None)
                    },
                    |_, _| counted.set(counted.get() + 1),
                );
                inserted = counted.get();
                note_keys(op.metrics(), written, w);
                outcome
            })
        });
        op.metrics().inserted.set(Some(inserted));
        op.metrics().namespace.replace(Some(namespace));
        let outcome = result?;
        op.metrics().failed.replace(outcome.last_error().cloned());
        let Ok(n) = i32::try_from(inserted) else { bail!(1, "too many documents") };
        let mut reply = Reply::ok().with("n", n);
        if !op.generic.write_concern.is_some_and(|concern| concern.unacknowledged()) {
            outcome.write(&mut reply);
        }
        Ok(reply)
    }
}
