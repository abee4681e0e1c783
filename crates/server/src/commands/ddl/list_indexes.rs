//! `listIndexes`.

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_storage::Uuid;
use sheaf_timeseries::listed_index;

use super::{listing, names};
use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::timeseries::{measured_buckets, options_of};
use crate::op::Operation;
use crate::reply::Reply;

/// `{listIndexes: "users", cursor: {batchSize: 100}}`
pub struct ListIndexes<'a> {
    target: Target<'a>,
    batch_size: usize,
    /// Whether each index stands in a document of its own, beside what is known of its build.
    wrapped: bool,
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
        let flag = |value: Option<Loose>| value.is_some_and(|flag| flag.0);
        let uuids = flag(args.optional("includeBuildUUIDs")?);
        let wrapped = flag(args.optional("includeIndexBuildInfo")?);
        if uuids && wrapped {
            bail!(
                Code::INVALID_OPTIONS,
                "The includeBuildUUIDs flag and includeBuildIndexInfo flag cannot both be set to true"
            );
        }
        args.optional::<bool>("isTimeseriesNamespace")?;
        Ok(ListIndexes { target, batch_size, wrapped })
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
        if let Some((collection, buckets)) =
            shown.and_then(|c| Some((c, measured_buckets(op, view.catalog(), c)?)))
        {
            let options = options_of(collection)?;
            let ready = buckets.indexes.iter().filter(|index| index.ready);
            let listed = ready.filter_map(|index| listed_index(index.spec.as_raw(), &options));
            let specs = listed.map(|spec| self.shown(spec.as_raw())).collect();
            return Ok(listing::reply(op, &namespace, specs, self.batch_size));
        }
        let collection = names::existing(view.catalog(), &namespace, &missing)?;
        let ready = collection.indexes.iter().filter(|index| index.ready);
        let specs = ready.map(|index| self.shown(index.spec.as_raw())).collect();
        Ok(listing::reply(op, &namespace, specs, self.batch_size))
    }
}

impl ListIndexes<'_> {
    /// An index as the command shows it. Numbers have the types that the reply declares, whatever they were given as.
    fn shown(&self, spec: RawDoc<'_>) -> DocBuf {
        let shown = DocBuf::build(|out| {
            for field in spec.iter() {
                let (name, value) = (field.key(), field.value());
                match (name, value.as_f64()) {
                    ("min" | "max" | "bucketSize", Some(number)) => out.append(name, number),
                    (
                        "bits"
                        | "coarsestIndexedLevel"
                        | "finestIndexedLevel"
                        | "2dsphereIndexVersion"
                        | "textIndexVersion",
                        Some(number),
                    ) => out.append(name, number as i32),
                    _ => out.append_element(field),
                };
            }
        });
        if self.wrapped { DocBuf::new().with("spec", &shown) } else { shown }
    }
}
