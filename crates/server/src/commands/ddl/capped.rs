//! `convertToCapped` and `cloneCollectionAsCapped`.

use sheaf_errors::{Code, Result, bail};
use sheaf_exec::ddl::collection_options::check_capped_size;
use sheaf_storage::Collection;
use sheaf_timeseries::BUCKETS_PREFIX;

use super::names;
use crate::args::{Args, safe_i64};
use crate::audited;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// What the name of a copy has beside the collection's own: as much room as it takes.
const COPY_NAME: &str = "tmp00000.convertToCapped.";

/// `{convertToCapped: "events", size: 1048576}`
pub struct ConvertToCapped<'a> {
    collection: &'a str,
    size: i64,
}

/// A capped collection needs a size; what is no number counts as zero.
///
/// Errors: `InvalidOptions`.
fn capped_size(args: &mut Args<'_>) -> Result<i64> {
    let size = safe_i64(args.value("size")).unwrap_or(0);
    if size <= 0 {
        bail!(Code::INVALID_OPTIONS, "Capped collection size must be greater than zero");
    }
    Ok(size)
}

impl<'a> Command<'a, Operation<'a>> for ConvertToCapped<'a> {
    const NAME: &'static str = "convertToCapped";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "makes a collection capped",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::ConvertToCapped])]),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let collection = args.collection()?;
        let size = capped_size(args)?;
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(ConvertToCapped { collection, size })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let namespace = op.namespace(self.collection);
        op.metrics().namespace.replace(Some(namespace.clone()));
        let catalog = op.catalog();
        let missing = format!("source collection {namespace} does not exist");
        let collection = names::existing(&catalog, &namespace, &missing)?;
        if collection.name().starts_with(BUCKETS_PREFIX) {
            bail!(Code::ILLEGAL_OPERATION, "Cannot convert a time-series collection to capped: {namespace}");
        }
        check_capped_size(self.size)?;
        if self.collection.starts_with(BUCKETS_PREFIX) {
            bail!(Code::ILLEGAL_OPERATION, "cannot convert the buckets {namespace} to a capped collection");
        }
        if self.collection.starts_with("system.") {
            bail!(Code::BAD_VALUE, "cannot convert system collection {namespace} to a capped collection");
        }
        // The copy that takes its place has a longer name in MongoDB.
        names::check_new_name(&format!("{namespace}{COPY_NAME}"))?;
        let stop = op.interrupter();
        let check = |now: &Collection| op.check_plain(now);
        let _audited = audited::Target::of(op, &namespace);
        let position = op.engine().convert_to_capped(&namespace, self.size, &check, &|| stop.check())?;
        op.note_commit(position);
        Ok(Reply::ok())
    }
}

/// `{cloneCollectionAsCapped: "events", toCollection: "recent", size: 1048576}`
pub struct CloneCollectionAsCapped<'a> {
    from: &'a str,
    to: &'a str,
    size: i64,
}

impl<'a> Command<'a, Operation<'a>> for CloneCollectionAsCapped<'a> {
    const NAME: &'static str = "cloneCollectionAsCapped";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "copies a collection into a capped one",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[
            Privilege::on(Resource::Collection, &[Action::Find]),
            Privilege::on(
                Resource::CollectionIn("toCollection"),
                &[Action::Insert, Action::CreateIndex, Action::ConvertToCapped],
            ),
        ]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let from = args.collection()?;
        let to = args.required("toCollection")?;
        let size = capped_size(args)?;
        // One of the commands of which MongoDB does not check the fields.
        args.ignore_rest();
        Ok(CloneCollectionAsCapped { from, to, size })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let (from, to) = (op.namespace(self.from), op.namespace(self.to));
        names::check_new_name(&to)?;
        let catalog = op.catalog();
        names::existing(&catalog, &from, &format!("source collection {from} does not exist"))?;
        if catalog.collection(&to).is_some() {
            bail!(
                Code::NAMESPACE_EXISTS,
                "cloneCollectionAsCapped failed - destination collection {to} already exists. source collection: {from}"
            );
        }
        check_capped_size(self.size)?;
        let stop = op.interrupter();
        let _audited = audited::Target::of(op, &to);
        let position = op.engine().clone_as_capped(&from, &to, self.size, &|| stop.check())?;
        op.note_commit(position);
        Ok(Reply::ok())
    }
}
