//! `filemd5`: the sum of a GridFS file's bytes.

use std::sync::Arc;

use md5::{Digest, Md5};
use sheaf_auth::Target;
use sheaf_bson::{RawDoc, Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::plan::query::{Hint, Query};
use sheaf_rows::{Cx, Limits};

use crate::args::Args;
use crate::command::*;
use crate::commands::crud::query::{parse_cx, parse_filter, set_sort};
use crate::op::Operation;
use crate::reply::Reply;

/// `{filemd5: ObjectId("..."), root: "fs"}`
pub struct FileMd5<'a> {
    file: Value<'a>,
    root: &'a str,
    partial: bool,
}

impl<'a> Command<'a, Operation<'a>> for FileMd5<'a> {
    const NAME: &'static str = "filemd5";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "the MD5 sum of a GridFS file",
        access: Access::Read,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::ByCommand("find on the chunks of the root that it names", |asked, rights| {
            // What cannot be parsed fails.
            let Ok(FileMd5 { root, .. }) = parsed(asked) else { return true };
            rights.may(Target::Collection(asked.db, &format!("{root}.chunks")), &[Action::Find])
        }),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: true,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let file = args.own_value();
        let root = args.value("root").as_str().filter(|root| !root.is_empty()).unwrap_or("fs");
        let partial = args.value("partialOk").truthy();
        if !args.value("md5state").is_missing() {
            bail!(Code::COMMAND_NOT_SUPPORTED, "filemd5 cannot go on with the state of another server's sum");
        }
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(FileMd5 { file, root, partial })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(&format!("{}.chunks", self.root));
        op.metrics().namespace.replace(Some(namespace.clone()));
        let mut hash = Md5::new();
        let mut chunks = 0i32;
        let view = op.view()?;
        if let Some(collection) = view.collection(&namespace).filter(|found| !found.is_view()) {
            let mut query = self.query(op)?;
            set_sort(&mut query, Some(doc! { "files_id": 1, "n": 1 }.as_raw()))?;
            let reads = op.reads(view.clone());
            let stop = op.interrupter();
            let interrupt = || stop.check();
            let mut cx = Cx::new(Limits { now_millis: op.now_millis(), ..Limits::default() }, &interrupt);
            let mut run = sheaf_exec::find::open(&query, collection, &reads, &mut cx)?;
            while run.advance(&mut cx)? {
                let chunk = run.plan_row().doc.unwrap_or(RawDoc::EMPTY);
                let Some(bytes) = self.bytes_of(chunk, chunks)? else { break };
                hash.update(bytes);
                chunks += 1;
            }
        }
        let sum: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Reply::ok().with("numChunks", chunks).with("md5", &sum))
    }
}

impl FileMd5<'_> {
    fn query(&self, op: &Operation<'_>) -> Result<Query> {
        let filter = doc! { "files_id": self.file };
        let matcher = parse_filter(Some(filter.as_raw()), &mut parse_cx(op, None)?)?;
        Ok(Query { matcher: Some(Arc::new(matcher)), hint: Hint::None, ..Query::default() })
    }

    /// The bytes of the chunk that has to come now; `None` ends the file where a part of it is enough.
    fn bytes_of<'d>(&self, chunk: RawDoc<'d>, n: i32) -> Result<Option<&'d [u8]>> {
        let at = chunk.get_or_missing("n");
        if at.as_exact_i64() != Some(i64::from(n)) {
            if self.partial {
                return Ok(None);
            }
            bail!(10040, "chunks out of order: should have chunk {n} and has {}", sheaf_bson::value_text(at));
        }
        match chunk.get_or_missing("data") {
            Value::Binary(data) => Ok(Some(data.bytes)),
            other => bail!(
                50847,
                "The element that calls binDataClean() must be type of BinData, but type of {} was found.",
                other.type_name()
            ),
        }
    }
}
