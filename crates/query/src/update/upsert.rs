//! The document that an upsert starts from: what the query says must be equal.

use std::collections::BTreeMap;

use sheaf_bson::{Bump, DocBuf, OwnedValue, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use super::check_path_depth;

/// Paths that a query holds equal to a value.
#[derive(Clone, Debug, Default)]
pub struct Equalities(BTreeMap<Path, OwnedValue>);

/// A path with zeros for its dots. No name has a zero, and it is less than whatever a name may have: in this order a path
/// stands right before those below it, and nothing else between them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Path(String);

impl Path {
    fn new(path: &str) -> Path {
        Path(path.replace('.', "\0"))
    }

    fn text(&self) -> String {
        self.0.replace('\0', ".")
    }

    fn is_below(&self, above: &Path) -> bool {
        self.0.strip_prefix(&above.0).is_some_and(|rest| rest.starts_with('\0'))
    }
}

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
        let id = Path::new("_id");
        if let Some((below, _)) = found.0.range(&id..).find(|(path, _)| **path != id)
            && below.is_below(&id)
        {
            bail!(
                Code::NOT_EXACT_VALUE_FIELD,
                "field at '_id' must be exactly specified, field at sub-path '{}'found",
                below.text()
            );
        }
        Ok(found.0.remove(&id))
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
        sheaf_meter::tick_for(path.len())?;
        check_path_depth(path)?;
        let key = Path::new(path);
        // Of those before it, only the last can be above it: what stood between them would be below that one, too.
        let before = self.0.range(..&key).next_back().filter(|(known, _)| key.is_below(known));
        let after = self.0.range(&key..).next().filter(|(known, _)| **known == key || known.is_below(&key));
        match before.or(after) {
            None => {}
            Some((known, _)) if *known == key => bail!(
                Code::NOT_SINGLE_VALUE_FIELD,
                "cannot infer query fields to set, path '{path}' is matched twice"
            ),
            Some((known, _)) => bail!(
                Code::NOT_SINGLE_VALUE_FIELD,
                "cannot infer query fields to set, both paths '{path}' and '{}' are matched",
                known.text()
            ),
        }
        self.0.insert(key, OwnedValue::from(value));
        Ok(())
    }

    /// The document with these values at their paths, `_id` first.
    pub fn document(&self) -> DocBuf {
        let mut fields: Vec<(String, Value<'_>)> =
            self.0.iter().map(|(path, value)| (path.text(), value.as_value())).collect();
        // As MongoDB has them. Those that share a part stand together also in byte order.
        fields.sort_by(|(a, _), (b, _)| (a != "_id", a).cmp(&(b != "_id", b)));
        let mut root = Branch::default();
        for (path, value) in &fields {
            root.insert(path, *value);
        }
        let arena = Bump::new();
        DocBuf::from(root.build(&arena))
    }
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
        // Paths with a part in common come one after the other.
        if self.children.last().is_none_or(|(name, _)| *name != head) {
            self.children.push((head, Twig::Branch(Branch::default())));
        }
        if let Some((_, Twig::Branch(branch))) = self.children.last_mut() {
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
    fn names_with_what_stands_before_a_dot_part_nothing() {
        let query = doc! { "a b.y": 1, "a.x": 2, "a.z c.k": 3, "a!": 4, "a.z.k": 5, "a.z.l": 6, "_id": 7, "a b.x": 8 };
        let expected = doc! {
            "_id": 7, "a b": { "x": 8, "y": 1 }, "a!": 4, "a": { "x": 2, "z c": { "k": 3 }, "z": { "k": 5, "l": 6 } }
        };
        assert_eq!(built(query).unwrap(), expected);
    }

    #[test]
    fn a_path_matched_twice_is_an_error() {
        let refused = |query: DocBuf| {
            let error = built(query).unwrap_err();
            assert_eq!(error.code(), Code::NOT_SINGLE_VALUE_FIELD);
            error.message().split_once("set, ").map(|(_, what)| what.to_owned()).unwrap_or_default()
        };
        assert_eq!(refused(doc! { "a": 1, "$and": [{ "a": 2 }] }), "path 'a' is matched twice");
        assert_eq!(refused(doc! { "a": { "b": 1 }, "a.b": 2 }), "both paths 'a.b' and 'a' are matched");
        assert_eq!(refused(doc! { "a.b.c": 1, "a": 2 }), "both paths 'a' and 'a.b.c' are matched");
        // With others that stand between them in byte order.
        assert_eq!(
            refused(doc! { "a": 1, "a b": 1, "a!": 1, "a.c": 2 }),
            "both paths 'a.c' and 'a' are matched"
        );
        assert_eq!(
            refused(doc! { "a.b": 1, "a b": 1, "a!": 1, "a": 2 }),
            "both paths 'a' and 'a.b' are matched"
        );
    }

    /// Each was compared with all before it, and nothing could stop that.
    #[test]
    fn very_many_are_collected_at_once_and_can_be_stopped() {
        let query = DocBuf::build(|out| (0..300_000).for_each(|n| _ = out.append(&format!("f{n}.x"), n)));
        let found = built(query.clone()).unwrap();
        assert_eq!(found.as_raw().count(), 300_000);
        let killed = || Err(sheaf_errors::Error::new(Code::INTERRUPTED, "operation was interrupted"));
        let process = sheaf_meter::Process::new(1 << 30, 1 << 30);
        let _entered = sheaf_meter::enter(sheaf_meter::Meter::new(&process, std::sync::Arc::new(killed)));
        assert_eq!(built(query).unwrap_err().code(), Code::INTERRUPTED);
    }

    /// Such a path has ended the process: it had a call on the stack for each part.
    #[test]
    fn a_path_that_no_document_has_is_refused() {
        let path = vec!["a"; 1_000_000].join(".");
        assert_eq!(built(DocBuf::new().with(&path, 1)).unwrap_err().code(), Code::OVERFLOW);
        let deepest = vec!["a"; sheaf_bson::MAX_STORED_DEPTH].join(".");
        assert!(built(DocBuf::new().with(&deepest, 1)).is_ok());
    }
}
