//! `abortReshardCollection` and its kin: what is wanted of an operation under way.

use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value, doc};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_storage::Interrupt;
use sheaf_timeseries::buckets_namespace;

use crate::args::Args;
use crate::sharding::conductor::ddl::{DDL, text};
use crate::sharding::conductor::ranges::namespace_of;
use crate::sharding::conductor::wishes::Wish;
use crate::sharding::conductor::{Conductor, uuid_of};

/// How often it is looked whether the operation is over.
const LOOK: Duration = Duration::from_millis(10);

impl Conductor {
    /// `{abortReshardCollection: "garden.plants"}`; returns when nothing of it is left.
    ///
    /// Errors: `NoSuchReshardCollection`; `ReshardCollectionCommitted`, where it is too late.
    pub fn abort_reshard(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.end_of(args, "reshardCollection", Wish::Abort, go_on)
    }

    /// `{abortMoveCollection: "garden.plants"}`.
    ///
    /// Errors: as [`Conductor::abort_reshard`].
    pub fn abort_move_collection(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.end_of(args, "moveCollection", Wish::Abort, go_on)
    }

    /// `{abortUnshardCollection: "garden.plants"}`.
    ///
    /// Errors: as [`Conductor::abort_reshard`].
    pub fn abort_unshard(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.end_of(args, "unshardCollection", Wish::Abort, go_on)
    }

    /// `{commitReshardCollection: "garden.plants"}`: the collection is closed, however much is left to be copied.
    ///
    /// Errors: `NoSuchReshardCollection`; why it could not be.
    pub fn commit_reshard(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        self.end_of(args, "reshardCollection", Wish::Commit, go_on)
    }

    /// `{cleanupReshardCollection: "garden.plants"}`: nothing is left of an operation. Whatever has died, the conductor finishes or takes
    /// back what was begun; this waits for that.
    ///
    /// Errors: those of `go_on`.
    pub fn cleanup_reshard(&self, args: &mut Args<'_>, go_on: Interrupt<'_>) -> Result<DocBuf> {
        match self.end_of(args, "reshardCollection", Wish::Abort, go_on) {
            Err(error)
                if matches!(
                    error.code(),
                    Code::NO_SUCH_RESHARD_COLLECTION | Code::RESHARD_COLLECTION_COMMITTED
                ) =>
            {
                Ok(doc! {})
            }
            done => done,
        }
    }

    fn end_of(&self, args: &mut Args<'_>, command: &str, wish: Wish, go_on: Interrupt<'_>) -> Result<DocBuf> {
        let namespace = namespace_of(args)?;
        args.finish()?;
        self.prepare(go_on)?;
        let begun = |namespace: &str| self.get(DDL, Value::String(namespace));
        let (db, name) = namespace.split_once('.').unwrap_or((&namespace, ""));
        // What has no entry yet is found by the operation alone.
        let buckets = buckets_namespace(db, name);
        let namespace = match begun(&namespace)?.is_none() && begun(&buckets)?.is_some() {
            true => buckets,
            false => namespace,
        };
        let found = || -> Result<Option<DocBuf>> {
            let found = self.get(DDL, Value::String(&namespace))?;
            Ok(found
                .filter(|at| text(at.as_raw(), "op") == "reshard" && text(at.as_raw(), "command") == command))
        };
        let Some(begun) = found()? else {
            bail!(
                Code::NO_SUCH_RESHARD_COLLECTION,
                "Could not find in-progress {command} operation to {} for {namespace}",
                if wish == Wish::Abort { "abort" } else { "commit" }
            );
        };
        let id = uuid_of(begun.as_raw(), "id");
        let is_same = |now: &DocBuf| uuid_of(now.as_raw(), "id") == id;
        while let Some(now) = found()?.filter(&is_same) {
            if wish == Wish::Abort
                && matches!(text(now.as_raw(), "phase"), "entering" | "telling" | "opening")
            {
                return Err(committed(command, &namespace));
            }
            self.wishes.0.lock().insert(namespace.clone(), wish);
            go_on()?;
            self.term()?;
            std::thread::sleep(LOOK);
        }
        self.wishes.forget(&namespace);
        let has_happened = self.has_happened(&namespace, begun.as_raw())?;
        match wish {
            Wish::Abort if has_happened => Err(committed(command, &namespace)),
            Wish::Commit if !has_happened => Err(self.why_not(&namespace, command, id)?),
            _ => Ok(doc! {}),
        }
    }

    /// An operation that is asked for again, as its answer was lost: waits for its end. `None`: none is under way.
    ///
    /// Errors: why it could not be.
    pub(super) fn join(
        &self,
        (namespace, command): (&str, &str),
        is_meant: impl Fn(RawDoc<'_>) -> bool,
        go_on: Interrupt<'_>,
    ) -> Result<Option<DocBuf>> {
        self.prepare(go_on)?;
        let found = || -> Result<Option<DocBuf>> {
            let found = self.get(DDL, Value::String(namespace))?;
            Ok(found
                .filter(|at| text(at.as_raw(), "op") == "reshard" && text(at.as_raw(), "command") == command))
        };
        let Some(begun) = found()?.filter(|begun| is_meant(begun.as_raw())) else { return Ok(None) };
        let id = uuid_of(begun.as_raw(), "id");
        while found()?.is_some_and(|now| uuid_of(now.as_raw(), "id") == id) {
            go_on()?;
            self.term()?;
            std::thread::sleep(LOOK);
        }
        match self.has_happened(namespace, begun.as_raw())? {
            true => Ok(Some(doc! {})),
            false => Err(self.why_not(namespace, command, id)?),
        }
    }

    fn has_happened(&self, namespace: &str, begun: RawDoc<'_>) -> Result<bool> {
        let entry = self.entry(namespace)?;
        Ok(entry.is_some_and(|entry| uuid_of(begun, "uuid") == Some(entry.uuid)))
    }

    /// Why an operation was taken back.
    fn why_not(&self, namespace: &str, command: &str, id: Option<[u8; 16]>) -> Result<Error> {
        let what = format!("{command}.error");
        let is_of = |entry: RawDoc<'_>| {
            let of = entry.get("details").and_then(|details| uuid_of(details.as_doc()?, "reshardUUID"));
            text(entry, "what") == what && of == id
        };
        let noted = self.find("config.changelog", is_of)?;
        let details = noted.first().and_then(|entry| entry.as_raw().get("details")?.as_doc());
        let why = details.map_or("it was given up", |details| text(details, "errmsg"));
        Ok(Error::new(Code::RESHARD_COLLECTION_ABORTED, format!("{command} of {namespace}: {why}")))
    }
}

fn committed(command: &str, namespace: &str) -> Error {
    let text = format!("Can't abort {command} of {namespace}: it has committed already");
    Error::new(Code::RESHARD_COLLECTION_COMMITTED, text)
}
