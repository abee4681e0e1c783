//! The requests that are sampled, and what a sample says of one.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value, doc};
use sheaf_wire::Sequence;

use crate::generic::is_generic;

/// A request, as far as samples tell of it.
pub struct Asked<'a> {
    /// The command's name.
    pub command: &'static str,
    /// The database that it runs against.
    pub db: &'a str,
    /// The command as it came, without its sequences.
    pub body: RawDoc<'a>,
    /// The message's sequences.
    pub sequences: &'a [Sequence<'a>],
}

/// A command that is sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `find`, whose filter is called so.
    Find,
    /// `aggregate`, whose filter is the `$match` that it begins with.
    Aggregate,
    /// `count`.
    Count,
    /// `distinct`.
    Distinct,
    /// `update`, each statement by itself.
    Update,
    /// `delete`, each statement by itself.
    Delete,
    /// `findAndModify`.
    FindAndModify,
    /// `bulkWrite`, each statement by itself.
    BulkWrite,
}

type Writer<'w> = DocWriter<'w, Vec<u8>>;

impl Kind {
    /// The kind of the command of this name; `None`: it is not sampled.
    pub fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "find" => Kind::Find,
            "aggregate" => Kind::Aggregate,
            "count" => Kind::Count,
            "distinct" => Kind::Distinct,
            "update" => Kind::Update,
            "delete" => Kind::Delete,
            "findAndModify" => Kind::FindAndModify,
            "bulkWrite" => Kind::BulkWrite,
            _ => return None,
        })
    }

    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Find => "find",
            Kind::Aggregate => "aggregate",
            Kind::Count => "count",
            Kind::Distinct => "distinct",
            Kind::Update => "update",
            Kind::Delete => "delete",
            Kind::FindAndModify => "findAndModify",
            Kind::BulkWrite => "bulkWrite",
        }
    }

    /// Whether it writes.
    pub fn is_write(self) -> bool {
        matches!(self, Kind::Update | Kind::Delete | Kind::FindAndModify | Kind::BulkWrite)
    }

    /// Whether documents may become others by it.
    pub(super) fn changes(self, asked: &Asked<'_>, statement: Option<RawDoc<'_>>) -> bool {
        match self {
            Kind::Update => true,
            Kind::FindAndModify => asked.body.element("update").is_some(),
            Kind::BulkWrite => statement.is_some_and(|statement| first_key(statement) == "update"),
            _ => false,
        }
    }

    /// The namespaces that the request names.
    pub(super) fn namespaces(self, asked: &Asked<'_>) -> Vec<String> {
        if self == Kind::BulkWrite {
            let infos = listed(asked.body, asked.sequences, "nsInfo").into_iter();
            return infos.map(|info| name_in(info).to_owned()).collect();
        }
        let collection = asked.body.values().next().and_then(|first| first.as_str());
        collection.map(|collection| format!("{}.{collection}", asked.db)).into_iter().collect()
    }

    /// Which of these a statement is about; `None`: it is not sampled.
    pub(super) fn namespace_of(self, statement: Option<RawDoc<'_>>) -> Option<usize> {
        match statement {
            Some(statement) if self == Kind::BulkWrite => {
                number(statement).filter(|_| first_key(statement) != "insert")
            }
            _ => Some(0),
        }
    }

    fn list(self) -> Option<&'static str> {
        match self {
            Kind::Update => Some("updates"),
            Kind::Delete => Some("deletes"),
            Kind::BulkWrite => Some("ops"),
            _ => None,
        }
    }

    /// What of the request is one sample each: its statements, or all of it (`None`).
    pub(super) fn statements<'a>(self, asked: &Asked<'a>) -> Vec<Option<RawDoc<'a>>> {
        let Some(list) = self.list() else { return vec![None] };
        listed(asked.body, asked.sequences, list).into_iter().map(Some).collect()
    }

    /// Writes what a sample keeps of the request, or of this statement of it.
    pub(super) fn write(self, asked: &Asked<'_>, statement: Option<RawDoc<'_>>, out: &mut Writer<'_>) {
        let body = asked.body;
        let collection = || body.values().next().and_then(|first| first.as_str()).unwrap_or_default();
        match self {
            Kind::Find => read(body, filter(body, "filter"), out),
            Kind::Count | Kind::Distinct => read(body, filter(body, "query"), out),
            Kind::Aggregate => {
                read(body, leading_match(body), out);
                if body.get("collation").is_none() {
                    out.append("collation", doc! { "locale": "simple" }.as_raw());
                }
            }
            Kind::Update | Kind::Delete => {
                out.append(self.name(), collection());
                if let (Some(list), Some(statement)) = (self.list(), statement) {
                    out.array(list).push(Value::Document(statement));
                }
                if let Some(variables) = body.get("let") {
                    out.append("let", variables);
                }
                out.append("$db", asked.db);
            }
            Kind::FindAndModify => {
                out.append(self.name(), collection());
                for field in body.iter().skip(1).filter(|field| is_own(field.key_bytes())) {
                    out.append_element(field);
                }
                out.append("$db", asked.db);
            }
            Kind::BulkWrite => {
                out.append(self.name(), 1);
                if let Some(statement) = statement {
                    let infos = listed(body, asked.sequences, "nsInfo");
                    let alone = DocBuf::build(|op| {
                        op.append(first_key(statement), 0);
                        statement.iter().skip(1).for_each(|field| _ = op.append_element(field));
                    });
                    out.array("ops").push(Value::Document(alone.as_raw()));
                    if let Some(info) = number(statement).and_then(|number| infos.get(number)) {
                        out.array("nsInfo").push(Value::Document(*info));
                    }
                }
                if let Some(variables) = body.get("let") {
                    out.append("let", variables);
                }
                out.append("$db", asked.db);
            }
        }
    }
}

/// The documents of a list that is a sequence of the message, or a field.
fn listed<'a>(body: RawDoc<'a>, sequences: &[Sequence<'a>], list: &str) -> Vec<RawDoc<'a>> {
    if let Some(sequence) = sequences.iter().find(|sequence| sequence.name == list) {
        return sequence.iter().collect();
    }
    let documents = body.get(list).and_then(|list| list.as_array());
    documents.into_iter().flat_map(|list| list.values()).filter_map(|one| one.as_doc()).collect()
}

/// The namespace of the statement at this place of a `bulkWrite`.
pub fn bulk_namespace<'a>(body: RawDoc<'a>, sequences: &[Sequence<'a>], at: usize) -> Option<&'a str> {
    let statement = *listed(body, sequences, "ops").get(at)?;
    listed(body, sequences, "nsInfo").get(number(statement)?).map(|info| name_in(*info))
}

fn name_in(info: RawDoc<'_>) -> &str {
    info.get("ns").and_then(|ns| ns.as_str()).unwrap_or_default()
}

fn first_key(statement: RawDoc<'_>) -> &str {
    statement.iter().next().map_or("", |first| first.key())
}

/// The number of a statement's namespace.
fn number(statement: RawDoc<'_>) -> Option<usize> {
    statement.values().next()?.as_exact_i64().and_then(|number| usize::try_from(number).ok())
}

fn is_own(name: &[u8]) -> bool {
    !is_generic(name) && !name.starts_with(b"$")
}

fn filter<'a>(body: RawDoc<'a>, name: &str) -> RawDoc<'a> {
    body.get(name).and_then(|filter| filter.as_doc()).unwrap_or(RawDoc::EMPTY)
}

fn leading_match(body: RawDoc<'_>) -> RawDoc<'_> {
    let stages = body.get("pipeline").and_then(|stages| stages.as_array());
    let first = stages.and_then(|stages| stages.values().next()?.as_doc());
    first.and_then(|stage| stage.get("$match")?.as_doc()).unwrap_or(RawDoc::EMPTY)
}

fn read(body: RawDoc<'_>, filter: RawDoc<'_>, out: &mut Writer<'_>) {
    out.append("filter", filter);
    for name in ["collation", "let"] {
        if let Some(value) = body.get(name) {
            out.append(name, value);
        }
    }
}
