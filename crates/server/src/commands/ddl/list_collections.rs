//! `listCollections`.

use sheaf_auth::Target;
use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;
use sheaf_storage::{Catalog, Collection, Uuid};

use super::listing;
use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::crud::query;
use crate::commands::timeseries::listed_options;
use crate::op::Operation;
use crate::reply::Reply;

/// `{listCollections: 1, filter: {...}, nameOnly: false, cursor: {batchSize: n}}`
pub struct ListCollections<'a> {
    filter: Option<RawDoc<'a>>,
    name_only: bool,
    authorized: bool,
    batch_size: usize,
}

/// Whether more is shown than the names of what the user may read anyway.
fn shows_more_than_own_names(asked: Asked<'_>) -> bool {
    !(asked.is_true("nameOnly") && asked.is_true("authorizedCollections"))
}

impl<'a> Command<'a, Operation<'a>> for ListCollections<'a> {
    const NAME: &'static str = "listCollections";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "lists the collections of a database",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::OptIn,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: true,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Database, &[Action::ListCollections])
            .if_asked("not both nameOnly and authorizedCollections", shows_more_than_own_names)]),
        spread: Spread::PrimaryShard,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let filter = args.optional("filter")?;
        let name_only = args.optional::<Loose>("nameOnly")?.is_some_and(|flag| flag.0);
        let authorized = args.optional::<bool>("authorizedCollections")? == Some(true);
        args.ignore(&["includePendingDrops"]);
        Ok(ListCollections { filter, name_only, authorized, batch_size: listing::batch_size(args)? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let mut cx = query::parse_cx(op, None)?.without_now();
        let filter = listing::parse_filter(self.filter, &mut cx)?;
        let catalog = op.catalog();
        // Collections come before views.
        let (views, collections): (Vec<_>, Vec<_>) = catalog.collections(op.db()).partition(|c| c.is_view());
        let mut listed = Vec::new();
        for collection in collections.into_iter().chain(views) {
            let target = Target::Collection(op.db(), collection.name());
            if self.authorized && !op.rights.may_anything(target) {
                continue;
            }
            let entry = DocBuf::build(|doc| write_entry(doc, &catalog, collection, self.name_only));
            if filter.matches_doc(entry.as_raw())? {
                listed.push(entry);
            }
        }
        Ok(listing::reply(op, &op.namespace("$cmd.listCollections"), listed, self.batch_size))
    }
}

fn write_entry(
    doc: &mut DocWriter<'_, Vec<u8>>,
    catalog: &Catalog,
    collection: &Collection,
    name_only: bool,
) {
    doc.append("name", collection.name());
    let timeseries = collection.is_timeseries();
    let kind = match (timeseries, collection.is_view()) {
        (true, _) => "timeseries",
        (_, true) => "view",
        _ => "collection",
    };
    doc.append("type", kind);
    if name_only {
        return;
    }
    if timeseries {
        doc.append("options", &listed_options(catalog, collection));
        doc.document("info").append("readOnly", false);
        return;
    }
    doc.append("options", &collection.options);
    if collection.is_view() {
        doc.document("info").append("readOnly", true);
        return;
    }
    write_info(doc, &collection.uuid);
    let id = collection.indexes.first().filter(|index| index.spec.as_raw().element("clustered").is_none());
    if let Some(id) = id {
        doc.append("idIndex", &id.spec);
    }
}

fn write_info(doc: &mut DocWriter<'_, Vec<u8>>, uuid: &Uuid) {
    let uuid = Value::Binary(Binary { subtype: 4, bytes: uuid.as_bytes() });
    doc.document("info").append("readOnly", false).append("uuid", uuid);
}
