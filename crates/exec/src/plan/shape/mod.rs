//! Shapes of queries: what is left of a command when its constants do not count. Settings, statistics, explain and the profiler name
//! a shape by its hash, which is MongoDB's (`queryShapeHash`): SHA-256 of the shape with a representative in the place of each constant.
//!
//! A command may have a million conditions. Whoever writes a shape counts them as work, and leaves off when the operation has to stop; what
//! it has written then is given to nobody.

mod expression;
mod filter;
mod literal;
mod stages;

use sha2::{Digest, Sha256};
use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};
use sheaf_errors::Result;

pub use literal::Constants;
use literal::put_literal;

/// Flags of a `find` that are a part of its shape, in the order in which the hash has them.
const FLAGS: [&str; 8] = [
    "singleBatch",
    "allowDiskUse",
    "returnKey",
    "showRecordId",
    "tailable",
    "awaitData",
    "mirrored",
    "oplogReplay",
];

/// The shape of a `find`, `distinct` or `aggregate`. It borrows the command and is worked out when it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct QueryShape<'a> {
    kind: Kind,
    database: &'a str,
    collection: &'a str,
    command: RawDoc<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Find,
    Distinct,
    Aggregate,
}

impl<'a> QueryShape<'a> {
    /// The shape of a command that was sent to this database; `None` for other commands, which have none.
    pub fn of(database: &'a str, command: RawDoc<'a>) -> Option<QueryShape<'a>> {
        let first = command.iter().next()?;
        let kind = match first.key() {
            "find" => Kind::Find,
            "distinct" => Kind::Distinct,
            "aggregate" => Kind::Aggregate,
            _ => return None,
        };
        let collection = match first.value() {
            Value::String(name) => name,
            _ if kind == Kind::Aggregate => "$cmd.aggregate",
            _ => return None,
        };
        Some(QueryShape { kind, database, collection, command })
    }

    /// The command's name.
    pub fn command_name(&self) -> &'static str {
        match self.kind {
            Kind::Find => "find",
            Kind::Distinct => "distinct",
            Kind::Aggregate => "aggregate",
        }
    }

    /// `db.collection`.
    pub fn namespace(&self) -> String {
        format!("{}.{}", self.database, self.collection)
    }

    fn document(&self, name: &str) -> Option<RawDoc<'a>> {
        match self.command.get(name) {
            Some(Value::Document(part)) => Some(part),
            _ => None,
        }
    }

    /// The hash as hexadecimal digits.
    ///
    /// Errors: the operation has to stop.
    pub fn hash(&self) -> Result<String> {
        let mut hashed = Sha256::new();
        let constants = Constants::Representative;
        match self.kind {
            Kind::Find => self.hash_find(&mut hashed),
            Kind::Distinct => {
                hashed.update("distinct");
                hashed.update(0u16.to_le_bytes());
                hashed.update(self.namespace());
                hashed.update([0]);
                hashed.update(self.command.get("key").and_then(|key| key.as_str()).unwrap_or(""));
                hashed.update([0]);
                hashed.update(self.collation().as_bytes());
                hashed.update(filter::shape(self.document("query"), constants).as_raw().as_bytes());
            }
            Kind::Aggregate => hashed.update(self.to_doc(constants)?.as_raw().as_bytes()),
        }
        sheaf_meter::check()?;
        Ok(hashed.finalize().iter().map(|byte| format!("{byte:02X}")).collect())
    }

    fn hash_find(&self, hashed: &mut Sha256) {
        let constants = Constants::Representative;
        hashed.update("find");
        let mut flags = 0u32;
        for name in FLAGS {
            flags |= match self.command.get(name).and_then(|flag| flag.as_bool()) {
                Some(true) => 0b11,
                Some(false) => 0b10,
                None => 0,
            };
            flags <<= 2;
        }
        flags |= u32::from(self.is_given("skip")) | (u32::from(self.is_given("limit")) << 1);
        // The last bit: the collection is named, not given by its UUID.
        hashed.update((flags << 1 | 1).to_le_bytes());
        hashed.update(self.namespace());
        hashed.update(self.bound("min", constants).as_raw().as_bytes());
        hashed.update(self.bound("max", constants).as_raw().as_bytes());
        hashed.update(self.sort().as_raw().as_bytes());
        hashed.update(self.collation().as_bytes());
        hashed.update(self.variables(constants).as_raw().as_bytes());
        hashed.update(filter::shape(self.document("filter"), constants).as_raw().as_bytes());
        hashed.update(self.projection(constants).as_raw().as_bytes());
    }

    fn is_given(&self, name: &str) -> bool {
        self.command.get(name).is_some_and(|value| !matches!(value, Value::Null))
    }

    fn collation(&self) -> RawDoc<'a> {
        self.document("collation").unwrap_or(RawDoc::EMPTY)
    }

    /// The keys of an index that bound the query.
    fn bound(&self, name: &str, constants: Constants) -> DocBuf {
        DocBuf::build(|out| {
            for field in self.document(name).unwrap_or(RawDoc::EMPTY).iter() {
                if !goes_on(1) {
                    return;
                }
                put_literal(out, field.key(), field.value(), constants);
            }
        })
    }

    fn sort(&self) -> DocBuf {
        DocBuf::build(|out| put_sort(out, self.document("sort").unwrap_or(RawDoc::EMPTY)))
    }

    fn variables(&self, constants: Constants) -> DocBuf {
        DocBuf::build(|out| {
            for field in self.document("let").unwrap_or(RawDoc::EMPTY).iter() {
                expression::put(out, field.key(), field.value(), constants);
            }
        })
    }

    fn projection(&self, constants: Constants) -> DocBuf {
        match self.document("projection").filter(|projection| !projection.is_empty()) {
            Some(projection) => stages::projection(projection, constants),
            None => DocBuf::new(),
        }
    }

    /// The shape as a document.
    ///
    /// Errors: the operation has to stop.
    pub fn to_doc(&self, constants: Constants) -> Result<DocBuf> {
        let shape = DocBuf::build(|out| {
            out.document("cmdNs").append("db", self.database).append("coll", self.collection);
            if !self.collation().is_empty() {
                out.append("collation", self.collation());
            }
            if self.kind != Kind::Distinct && self.document("let").is_some() {
                out.append("let", &self.variables(constants));
            }
            out.append("command", self.command_name());
            match self.kind {
                Kind::Find => self.put_find(out, constants),
                Kind::Distinct => {
                    out.append("key", self.command.get_or_missing("key"));
                    let query = filter::shape(self.document("query"), constants);
                    if !query.as_raw().is_empty() {
                        out.append("query", &query);
                    }
                }
                Kind::Aggregate => {
                    let pipeline = self.command.get("pipeline").and_then(|list| list.as_array());
                    out.append("pipeline", &stages::pipeline(pipeline.unwrap_or(RawDoc::EMPTY), constants));
                    if let Some(Value::Bool(allowed)) = self.command.get("allowDiskUse") {
                        out.append("allowDiskUse", allowed);
                    }
                }
            }
        });
        sheaf_meter::check()?;
        Ok(shape)
    }

    fn put_find(&self, out: &mut DocWriter<'_, Vec<u8>>, constants: Constants) {
        out.append("filter", &filter::shape(self.document("filter"), constants));
        let projection = self.projection(constants);
        if !projection.as_raw().is_empty() {
            out.append("projection", &projection);
        }
        for name in ["max", "min"] {
            let bound = self.bound(name, constants);
            if !bound.as_raw().is_empty() {
                out.append(name, &bound);
            }
        }
        let sort = self.sort();
        if !sort.as_raw().is_empty() {
            out.append("sort", &sort);
        }
        for name in ["limit", "skip"] {
            if self.is_given(name) {
                put_literal(out, name, Value::Int64(1), constants);
            }
        }
        for name in FLAGS {
            if let Some(Value::Bool(flag)) = self.command.get(name) {
                out.append(name, flag);
            }
        }
    }
}

/// Counts this work, and says whether the operation may go on: if not it may not later on either.
fn goes_on(cost: u32) -> bool {
    sheaf_meter::tick(cost).is_ok()
}

/// A sort's pattern: 1, -1, or metadata under a name of its own.
fn put_sort(out: &mut DocWriter<'_, Vec<u8>>, sort: RawDoc<'_>) {
    let mut computed = 0;
    for field in sort.iter() {
        if !goes_on(1) {
            return;
        }
        match field.value() {
            Value::Document(meta) => {
                out.append(&format!("$computed{computed}"), meta);
                computed += 1;
            }
            direction => {
                let descends = direction.as_f64().is_some_and(|number| number < 0.0);
                out.append(field.key(), if descends { -1 } else { 1 });
            }
        }
    }
}

#[cfg(test)]
mod tests;
