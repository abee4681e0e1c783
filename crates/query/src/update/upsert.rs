//! The document that an upsert starts from: what the query says must be equal.

use std::collections::BTreeMap;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

/// Paths that a query holds equal to a value, in byte order.
#[derive(Clone, Debug, Default)]
pub struct Equalities(BTreeMap<String, OwnedValue>);

impl Equalities {
    /// Collects `{a: 1}`, `{a: {$eq: 1}}`, a single value in `$in` or `$all`, through `$and` and through an
    /// `$or` of one clause.
    ///
    /// Errors: `NotSingleValueField` when a path, or a path and one below it, is held twice.
    pub fn of_query(query: RawDoc<'_>) -> Result<Self> {
        let mut found = Equalities::default();
        found.collect(query)?;
        Ok(found)
    }

    /// Only what stands at `_id`: what a replacement takes over from the query.
    pub fn id_of_query(query: RawDoc<'_>) -> Result<Option<OwnedValue>> {
        let mut found = Equalities::of_query(query)?;
        if let Some(below) = found.0.keys().find(|path| path.starts_with("_id.")) {
            bail!(
                Code::NOT_EXACT_VALUE_FIELD,
                "field at '_id' must be exactly specified, field at sub-path '{below}'found"
            );
        }
        Ok(found.0.remove("_id"))
    }

    fn collect(&mut self, query: RawDoc<'_>) -> Result<()> {
        for element in query.iter() {
            match (element.key(), element.value()) {
                ("$and", Value::Array(clauses)) => {
                    for clause in clauses.values() {
                        if let Value::Document(clause) = clause {
                            self.collect(clause)?;
                        }
                    }
                }
                ("$or", Value::Array(clauses)) => {
                    let mut clauses = clauses.values();
                    if let (Some(Value::Document(only)), None) = (clauses.next(), clauses.next()) {
                        self.collect(only)?;
                    }
                }
                (key, _) if key.starts_with('$') => {}
                (path, Value::Document(predicate)) if is_predicate(predicate) => {
                    self.collect_predicate(path, predicate)?;
                }
                (_, Value::Regex(_)) => {}
                (path, value) => self.add(path, value)?,
            }
        }
        Ok(())
    }

    fn collect_predicate(&mut self, path: &str, predicate: RawDoc<'_>) -> Result<()> {
        for element in predicate.iter() {
            match (element.key(), element.value()) {
                ("$eq", value) => self.add(path, value)?,
                ("$in", Value::Array(values)) => {
                    let mut values = values.values();
                    if let (Some(only), None) = (values.next(), values.next())
                        && !matches!(only, Value::Regex(_))
                    {
                        self.add(path, only)?;
                    }
                }
                ("$all", Value::Array(values)) => {
                    for value in values.values() {
                        let is_match = matches!(value, Value::Document(d) if is_predicate(d))
                            || matches!(value, Value::Regex(_));
                        if !is_match {
                            self.add(path, value)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &str, value: Value<'_>) -> Result<()> {
        for known in self.0.keys() {
            if known == path {
                bail!(
                    Code::NOT_SINGLE_VALUE_FIELD,
                    "cannot infer query fields to set, path '{path}' is matched twice"
                );
            }
            if is_below(known, path) || is_below(path, known) {
                bail!(
                    Code::NOT_SINGLE_VALUE_FIELD,
                    "cannot infer query fields to set, both paths '{path}' and '{known}' are matched"
                );
            }
        }
        self.0.insert(path.to_owned(), OwnedValue::from(value));
        Ok(())
    }

    /// The document with these values at their paths, `_id` first.
    pub fn document(&self) -> DocBuf {
        let mut root = Branch::default();
        if let Some(id) = self.0.get("_id") {
            root.insert("_id", id.as_value());
        }
        for (path, value) in self.0.iter().filter(|(path, _)| *path != "_id") {
            root.insert(path, value.as_value());
        }
        let arena = Bump::new();
        DocBuf::from(root.build(&arena))
    }
}

/// Whether `path` lies below `above`.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a document in a query holds operators; `{$ref: ..., $id: ...}` is a value.
fn is_predicate(doc: RawDoc<'_>) -> bool {
    doc.iter()
        .next()
        .is_some_and(|first| first.key().starts_with('$') && !matches!(first.key(), "$ref" | "$id" | "$db"))
}

/// A document under construction, for paths that share prefixes.
#[derive(Default)]
struct Branch<'v> {
    children: Vec<(&'v str, Twig<'v>)>,
}

enum Twig<'v> {
    Value(Value<'v>),
    Branch(Branch<'v>),
}

impl<'v> Branch<'v> {
    fn insert(&mut self, path: &'v str, value: Value<'v>) {
        let Some((head, rest)) = path.split_once('.') else {
            self.children.push((path, Twig::Value(value)));
            return;
        };
        let at = self.children.iter().position(|(name, _)| *name == head).unwrap_or_else(|| {
            self.children.push((head, Twig::Branch(Branch::default())));
            self.children.len() - 1
        });
        if let Twig::Branch(branch) = &mut self.children[at].1 {
            branch.insert(rest, value);
        }
    }

    fn build<'a>(&self, arena: &'a Bump) -> RawDoc<'a> {
        sheaf_bson::document_in(arena, |out| {
            for (name, twig) in &self.children {
                match twig {
                    Twig::Value(value) => _ = out.append(name, *value),
                    Twig::Branch(branch) => _ = out.append(name, branch.build(arena)),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    fn built(query: DocBuf) -> Result<DocBuf> {
        Ok(Equalities::of_query(query.as_raw())?.document())
    }

    #[test]
    fn equalities_become_fields() {
        assert_eq!(
            built(doc! { "b": 1, "a.x": 2, "_id": 3, "a.y": { "$eq": 4 } }).unwrap(),
            doc! {
                "_id": 3, "a": { "x": 2, "y": 4 }, "b": 1
            }
        );
        assert_eq!(
            built(doc! { "$and": [{ "a": { "$in": [5] } }, { "c": { "$gt": 1 } }], "$or": [{ "d": 1 }] })
                .unwrap(),
            doc! { "a": 5, "d": 1 }
        );
    }

    #[test]
    fn a_path_matched_twice_is_an_error() {
        let twice = built(doc! { "a": 1, "$and": [{ "a": 2 }] }).unwrap_err();
        assert_eq!(twice.code(), Code::NOT_SINGLE_VALUE_FIELD);
        let below = built(doc! { "a": { "b": 1 }, "a.b": 2 }).unwrap_err();
        assert_eq!(below.code(), Code::NOT_SINGLE_VALUE_FIELD);
    }
}
