//! `setQuerySettings` and `removeQuerySettings`: indexes, the framework and a refusal for queries of a shape.

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_exec::change_stream::CLUSTER_PARAMETERS;
use sheaf_exec::plan::shape::QueryShape;

use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::admin::cluster_parameter::next_time;
use crate::commands::admin::parameters;
use crate::commands::crud::explain::check_parses;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::op::Operation;
use crate::query_settings::{self, ENTRIES, PARAMETER};
use crate::reply::Reply;

const NEEDS: &[Privilege] = &[Privilege::on(Resource::Cluster, &[Action::QuerySettings])];

/// What both say of themselves, but for the sentence of help.
const fn spec(help: &'static str) -> Spec {
    Spec {
        aliases: &[],
        help,
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(NEEDS),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    }
}

/// What the first field names: a shape, by a query of it or by its hash.
enum Named<'a> {
    Hash(&'a str),
    Query(RawDoc<'a>),
}

impl<'a> Named<'a> {
    fn read(args: &mut Args<'a>) -> Result<Self> {
        match args.own_value() {
            Value::String(hash)
                if hash.len() == 64 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()) =>
            {
                Ok(Named::Hash(hash))
            }
            Value::String(hash) => {
                bail!(Code::FAILED_TO_PARSE, "The provided string is not a valid query shape hash: {hash}")
            }
            Value::Document(query) => Ok(Named::Query(query)),
            Value::Null | Value::Undefined => Err(args.missing(args.command())),
            other => bail!(
                Code::TYPE_MISMATCH,
                "BSON field '{name}.{name}' is the wrong type '{}', expected types '[string, object]'",
                other.type_name(),
                name = args.command()
            ),
        }
    }

    /// The hash, in capitals.
    ///
    /// Errors: 7746402, 40414, 8584900, 7746606 for queries that no settings can be made for; those of what is no query.
    fn hash(&self, op: &Operation<'a>) -> Result<String> {
        let query = match self {
            Named::Hash(hash) => return Ok(hash.to_ascii_uppercase()),
            Named::Query(query) => *query,
        };
        let name = query.iter().next().map_or("", |first| first.key());
        if !matches!(name, "find" | "distinct" | "aggregate") {
            bail!(
                7746402,
                "QueryShape can not be computed for command: {}",
                sheaf_bson::document_text(query)
            );
        }
        let Some(Value::String(db)) = query.get("$db") else {
            bail!(40414, "BSON field '{name}CommandRequest.$db' is missing but a required field");
        };
        check_parses(op, query)?;
        let Some(shape) = QueryShape::of(db, query) else {
            bail!(7746605, "Collection namespace string must be provided for setQuerySettings command")
        };
        if matches!(db, "admin" | "config" | "local") {
            bail!(8584900, "setQuerySettings command cannot be used on internal databases");
        }
        if shape.namespace().split_once('.').is_some_and(|(_, coll)| coll.starts_with("system.")) {
            bail!(8584901, "setQuerySettings command cannot be used on system collections");
        }
        if name == "find" && is_by_id(query) {
            bail!(7746606, "setQuerySettings command cannot be used on queries eligible for IDHACK");
        }
        shape.hash()
    }
}

/// Whether the query looks a document up by its `_id` and nothing else.
fn is_by_id(query: RawDoc<'_>) -> bool {
    let filter = query.get("filter").and_then(|filter| filter.as_doc()).unwrap_or(RawDoc::EMPTY);
    let mut fields = filter.iter();
    let (Some(only), None) = (fields.next(), fields.next()) else { return false };
    let is_constant = match only.value() {
        Value::Document(inner) => inner.iter().next().is_none_or(|first| !first.key().starts_with('$')),
        Value::Regex(_) | Value::Array(_) => false,
        _ => true,
    };
    let plain = ["skip", "hint", "min", "max", "returnKey", "showRecordId", "tailable", "collation"];
    only.key() == "_id" && is_constant && plain.iter().all(|name| query.get(name).is_none())
}

/// `{setQuerySettings: {find: "users", filter: {age: 3}, $db: "shop"}, settings: {reject: true}}`
pub struct SetQuerySettings<'a> {
    named: Named<'a>,
    settings: RawDoc<'a>,
}

impl<'a> Command<'a, Operation<'a>> for SetQuerySettings<'a> {
    const NAME: &'static str = "setQuerySettings";
    const SPEC: Spec = spec("makes settings for queries of a shape");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let named = Named::read(args)?;
        let settings: RawDoc<'a> = args.required("settings")?;
        check_settings(settings)?;
        Ok(SetQuerySettings { named, settings })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_index_hints(self.settings)?;
        let hash = self.named.hash(op)?;
        let mut entry = DocBuf::new();
        change(op, &hash, |old| {
            let (old_settings, old_query) = match old {
                Some(old) => (
                    old.get("settings").and_then(|settings| settings.as_doc()).unwrap_or(RawDoc::EMPTY),
                    old.get("representativeQuery").and_then(|query| query.as_doc()),
                ),
                None => (RawDoc::EMPTY, None),
            };
            let settings = merged(old_settings, self.settings);
            if ["indexHints", "queryFramework", "reject"]
                .iter()
                .all(|name| settings.as_raw().get(name).is_none())
            {
                bail!(7746604, "the resulting settings cannot be empty or contain only default values");
            }
            let query = match self.named {
                Named::Query(query) => Some(query),
                Named::Hash(_) => old_query,
            };
            entry = DocBuf::build(|out| {
                out.append("queryShapeHash", hash.as_str()).append("settings", &settings);
                if let Some(query) = query {
                    out.append("representativeQuery", query);
                }
            });
            Ok(Some(entry.clone()))
        })?;
        let mut reply = Reply::ok();
        for field in entry.as_raw().iter() {
            reply = reply.with(field.key(), field.value());
        }
        Ok(reply)
    }
}

/// Known fields, and the types of their values.
fn check_settings(settings: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part("setQuerySettings.settings", settings)?;
    let hints = args.value("indexHints");
    let framework: Option<&str> = args.optional("queryFramework")?;
    args.optional::<Loose>("reject")?;
    args.value("comment");
    args.finish()?;
    if let Some(other) = framework.filter(|name| !matches!(*name, "classic" | "sbe")) {
        bail!(
            Code::BAD_VALUE,
            "Enumeration value '{other}' for field 'setQuerySettings.settings.queryFramework' is not a valid value."
        );
    }
    match hints {
        Value::Missing => Ok(()),
        Value::Document(one) => check_hint(one),
        Value::Array(list) => list.values().try_for_each(|one| match one {
            Value::Document(one) => check_hint(one),
            other => wrong_hint(other),
        }),
        other => wrong_hint(other),
    }
}

fn wrong_hint(value: Value<'_>) -> Result<()> {
    bail!(
        Code::TYPE_MISMATCH,
        "BSON field 'setQuerySettings.settings.indexHints' is the wrong type '{}', expected types '[array, object]'",
        value.type_name()
    )
}

fn check_hint(hint: RawDoc<'_>) -> Result<()> {
    let mut args = Args::of_part("indexHints", hint)?;
    let namespace: RawDoc<'_> = args.required("ns")?;
    let allowed = match args.value("allowedIndexes") {
        Value::Missing => return Err(args.missing("allowedIndexes")),
        Value::Array(list) => list,
        other => bail!(
            Code::TYPE_MISMATCH,
            "BSON field 'indexHints.allowedIndexes' is the wrong type '{}', expected type 'array'",
            other.type_name()
        ),
    };
    args.finish()?;
    let mut args = Args::of_part("indexHints.ns", namespace)?;
    args.optional::<&str>("db")?;
    args.optional::<&str>("coll")?;
    args.finish()?;
    for index in allowed.values() {
        if !matches!(index, Value::String(_) | Value::Document(_)) {
            bail!(Code::FAILED_TO_PARSE, "Hint must be a string or an object");
        }
    }
    Ok(())
}

/// What hints say together.
///
/// Errors: 8727502, 8727500, 8727501, 7746608, 9646000.
fn check_index_hints(settings: RawDoc<'_>) -> Result<()> {
    if settings.is_empty() {
        bail!(8727502, "settings field in setQuerySettings command cannot be empty");
    }
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for hint in hints(settings) {
        let namespace = hint.get("ns").and_then(|ns| ns.as_doc()).unwrap_or(RawDoc::EMPTY);
        let part = |name: &str| namespace.get(name).and_then(|part| part.as_str());
        let Some(db) = part("db") else { bail!(8727500, "invalid index hint: 'ns.db' field is missing") };
        let Some(coll) = part("coll") else {
            bail!(8727501, "invalid index hint: 'ns.coll' field is missing")
        };
        if allowed(hint).values().any(|index| index.as_doc().is_some_and(|pattern| pattern.is_empty())) {
            bail!(9646000, "key pattern index can't be empty");
        }
        if seen.contains(&(db, coll)) {
            bail!(7746608, "Collection '{db}.{coll}' has already index hints specified");
        }
        seen.push((db, coll));
    }
    Ok(())
}

fn hints(settings: RawDoc<'_>) -> Vec<RawDoc<'_>> {
    match settings.get("indexHints") {
        Some(Value::Document(one)) => vec![one],
        Some(Value::Array(list)) => list.values().filter_map(|one| one.as_doc()).collect(),
        _ => Vec::new(),
    }
}

fn allowed(hint: RawDoc<'_>) -> RawDoc<'_> {
    hint.get("allowedIndexes").and_then(|list| list.as_array()).unwrap_or(RawDoc::EMPTY)
}

/// New settings over old ones: each field that is given takes the old one's place. Hints without indexes, and a refusal that is
/// none, are left out.
fn merged(old: RawDoc<'_>, new: RawDoc<'_>) -> DocBuf {
    let from = |name: &str| if new.get(name).is_some() { new } else { old };
    DocBuf::build(|out| {
        for name in ["indexHints", "queryFramework", "reject", "comment"] {
            let Some(field) = from(name).element(name) else { continue };
            match name {
                "indexHints" if hints(from(name)).iter().all(|hint| allowed(*hint).is_empty()) => {}
                "reject" if !field.value().truthy() => {}
                "reject" => _ = out.append("reject", true),
                _ => _ = out.append_element(field),
            }
        }
    })
}

/// Changes the entry of a shape; `decide` gives the new one for the old one.
fn change(
    op: &Operation<'_>,
    hash: &str,
    mut decide: impl FnMut(Option<RawDoc<'_>>) -> Result<Option<DocBuf>>,
) -> Result<()> {
    with_writer(op, true, |w| {
        let collection = collection_for_write(op, w, CLUSTER_PARAMETERS)?;
        let key = collection.record_key(Value::String(PARAMETER))?;
        let old = w.read_for_update(&collection, &key)?;
        let kept = old.as_ref().map_or(RawDoc::EMPTY, |old| RawDoc::new(old));
        let time = next_time(op, kept);
        let entry = decide(query_settings::entry(kept, hash))?;
        let entries = ArrayBuf::build(|out| {
            query_settings::others(kept, hash).into_iter().for_each(|other| _ = out.push(other));
            if let Some(entry) = &entry {
                out.push(entry);
            }
        });
        let document = DocBuf::build(|out| {
            out.append("_id", PARAMETER).append("clusterParameterTime", time).append(ENTRIES, &entries);
        });
        match &old {
            Some(old) => w.update(&collection, &key, RawDoc::new(old), document.as_raw(), None),
            None => w.insert(&collection, document.as_raw()),
        }
    })?;
    parameters::refresh(op.node());
    Ok(())
}

/// `{removeQuerySettings: {find: "users", filter: {age: 3}, $db: "shop"}}`
pub struct RemoveQuerySettings<'a> {
    named: Named<'a>,
}

impl<'a> Command<'a, Operation<'a>> for RemoveQuerySettings<'a> {
    const NAME: &'static str = "removeQuerySettings";
    const SPEC: Spec = spec("takes back the settings for queries of a shape");

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        Ok(RemoveQuerySettings { named: Named::read(args)? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let hash = self.named.hash(op)?;
        // Where nothing was set, nothing has to be written.
        let kept = parameters::kept(&op.engine().view()?, PARAMETER)?;
        if kept.is_some_and(|kept| query_settings::entry(kept.as_raw(), &hash).is_some()) {
            change(op, &hash, |_| Ok(None))?;
        }
        Ok(Reply::ok())
    }
}
