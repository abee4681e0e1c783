//! `listIndexes`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Uuid;
use sheaf_timeseries::listed_index;

use super::{listing, names};
use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::timeseries::{buckets_of, options_of};
use crate::op::Operation;
use crate::reply::Reply;

/// `{listIndexes: "users", cursor: {batchSize: 100}}`
pub struct ListIndexes<'a> {
    target: Target<'a>,
    batch_size: usize,
}

/// The collection, by name or UUID.
enum Target<'a> {
    Name(&'a str),
    Uuid(Uuid),
}

impl<'a> Command<'a, Operation<'a>> for ListIndexes<'a> {
    const NAME: &'static str = "listIndexes";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lists a collection's indexes",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Collection, &[Action::ListIndexes])]),
        spread: Spread::AnyOwner,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let target = match args.own_value() {
            Value::Binary(binary) if binary.subtype == 4 => match Uuid::from_slice(binary.bytes) {
                Ok(uuid) => Target::Uuid(uuid),
                Err(_) => bail!(Code::INVALID_UUID, "uuid must be a 16-byte binary field with UUID subtype"),
            },
            _ => Target::Name(args.collection()?),
        };
        let batch_size = listing::batch_size(args)?;
        args.optional::<Loose>("includeBuildUUIDs")?;
        args.optional::<Loose>("includeIndexBuildInfo")?;
        args.ignore(&["isTimeseriesNamespace"]);
        Ok(ListIndexes { target, batch_size })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let view = op.view()?;
        let namespace = match self.target {
            Target::Name(name) => op.namespace(name),
            Target::Uuid(uuid) => match view.catalog().by_uuid(&uuid) {
                Some(collection) if collection.db() == op.db() => collection.namespace.clone(),
                _ => bail!(Code::NAMESPACE_NOT_FOUND, "Unable to resolve {uuid}"),
            },
        };
        op.metrics().namespace.replace(Some(namespace.clone()));
        let missing = format!("ns does not exist: {namespace}");
        let shown = view.catalog().collection(&namespace);
        if let Some((collection, buckets)) = shown.and_then(|c| Some((c, buckets_of(view.catalog(), c)?))) {
            let options = options_of(collection)?;
            let ready = buckets.indexes.iter().filter(|index| index.ready);
            let specs = ready.filter_map(|index| listed_index(index.spec.as_raw(), &options)).collect();
            return Ok(listing::reply(op, &namespace, specs, self.batch_size));
        }
        let collection = names::existing(view.catalog(), &namespace, &missing)?;
        let ready = collection.indexes.iter().filter(|index| index.ready);
        let specs = ready.map(|index| index.spec.clone()).collect();
        Ok(listing::reply(op, &namespace, specs, self.batch_size))
    }
}
