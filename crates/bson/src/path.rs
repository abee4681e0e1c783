//! Dotted paths into documents.

use std::ops::ControlFlow;

use smallvec::SmallVec;

use crate::raw::RawDoc;
use crate::value::Value;

/// A dotted path, cut once: `a.b.0.c`. Empty names are names like others.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FieldPath {
    dotted: Box<str>,
    parts: SmallVec<[Part; 4]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Part {
    start: u32,
    end: u32,
    index: Option<u32>,
}

impl FieldPath {
    /// Cuts a dotted path.
    pub fn new(dotted: &str) -> Self {
        let mut start = 0;
        let parts = dotted
            .split('.')
            .map(|name| {
                let part = Part { start, end: start + name.len() as u32, index: array_index(name) };
                start = part.end + 1;
                part
            })
            .collect();
        FieldPath { dotted: dotted.into(), parts }
    }

    /// The path as written.
    pub fn dotted(&self) -> &str {
        &self.dotted
    }

    /// Number of components; at least one.
    pub fn depth(&self) -> usize {
        self.parts.len()
    }

    /// The name of a component.
    pub fn name(&self, at: usize) -> &str {
        let part = self.parts[at];
        &self.dotted[part.start as usize..part.end as usize]
    }

    /// The array position that a component can stand for.
    pub fn index(&self, at: usize) -> Option<u32> {
        self.parts[at].index
    }

    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        (0..self.depth()).map(|at| self.name(at))
    }

    /// Whether `self` is `other` or leads to it.
    pub fn is_prefix_of(&self, other: &FieldPath) -> bool {
        other.dotted.strip_prefix(&*self.dotted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// The value through embedded documents only: an array on the way leads nowhere.
    pub fn get<'a>(&self, doc: RawDoc<'a>) -> Value<'a> {
        self.names()
            .try_fold(Value::Document(doc), |at, name| at.as_doc()?.get(name))
            .unwrap_or(Value::Missing)
    }

    /// The value through embedded documents and, where a component is a number, array positions.
    pub fn get_indexed<'a>(&self, doc: RawDoc<'a>) -> Value<'a> {
        (0..self.depth())
            .try_fold(Value::Document(doc), |value, at| match value {
                Value::Document(doc) => doc.get(self.name(at)),
                Value::Array(array) => array.values().nth(self.index(at)? as usize),
                _ => None,
            })
            .unwrap_or(Value::Missing)
    }

    /// Visits everything that the path leads to when arrays on the way are expanded: all elements
    /// that are documents, and at a numeric component also the element of that position. An array at
    /// the path's end is visited as it is; where a document has no such field, or the way ends in a
    /// scalar, [`Value::Missing`] is.
    pub fn visit<'a, B>(
        &self,
        doc: RawDoc<'a>,
        mut visit: impl FnMut(Found<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.walk(Value::Document(doc), 0, 0, &mut visit)
    }

    fn walk<'a, B>(
        &self,
        value: Value<'a>,
        at: usize,
        arrays: u128,
        visit: &mut impl FnMut(Found<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        if at == self.depth() {
            return visit(Found { value, arrays });
        }
        match value {
            Value::Document(doc) => self.walk(doc.get_or_missing(self.name(at)), at + 1, arrays, visit),
            Value::Array(array) => {
                // The array is the value of the component before this one.
                let inside = arrays | 1u128.checked_shl(at.saturating_sub(1) as u32).unwrap_or(0);
                let wanted = self.index(at);
                let mut expanded = false;
                for (position, item) in array.values().enumerate() {
                    if wanted == Some(position as u32) {
                        expanded = true;
                        self.walk(item, at + 1, arrays, visit)?;
                    }
                    if let Value::Document(_) = item {
                        expanded = true;
                        self.walk(item, at, inside, visit)?;
                    }
                }
                if expanded {
                    ControlFlow::Continue(())
                } else {
                    visit(Found { value: Value::Missing, arrays: inside })
                }
            }
            _ => visit(Found { value: Value::Missing, arrays }),
        }
    }
}

/// One thing that [`FieldPath::visit`] met.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The value, or [`Value::Missing`].
    pub value: Value<'a>,
    /// Bit `i` is set if the array that is the value of component `i` was expanded on the way
    /// (components from 128 on leave no bit).
    pub arrays: u128,
}

/// The array position that a name stands for: digits without leading zeros.
pub fn array_index(name: &str) -> Option<u32> {
    let canonical = name == "0" || !name.starts_with('0');
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if canonical && digits { name.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doc;

    fn found(dotted: &str, doc: RawDoc<'_>) -> Vec<String> {
        let mut all = Vec::new();
        let _ = FieldPath::new(dotted).visit(doc, |found| {
            all.push(format!("{:?}/{}", found.value, found.arrays));
            ControlFlow::<()>::Continue(())
        });
        all
    }

    #[test]
    fn paths_are_cut() {
        let path = FieldPath::new("a..0.01.b");
        assert_eq!(path.names().collect::<Vec<_>>(), ["a", "", "0", "01", "b"]);
        assert_eq!((0..5).map(|at| path.index(at)).collect::<Vec<_>>(), [None, None, Some(0), None, None]);
        assert!(FieldPath::new("a").is_prefix_of(&path) && path.is_prefix_of(&path));
        assert!(!FieldPath::new("a.0").is_prefix_of(&FieldPath::new("a.01")));
        assert_eq!(array_index("99999999999"), None);
        assert_eq!(array_index("+1"), None);
    }

    #[test]
    fn single_values() {
        let doc = doc! { "a": { "b": [{ "c": 1 }, 7], "0": 5 } };
        let get = |dotted: &str| format!("{:?}", FieldPath::new(dotted).get(doc.as_raw()));
        let indexed = |dotted: &str| format!("{:?}", FieldPath::new(dotted).get_indexed(doc.as_raw()));
        assert_eq!(
            (get("a.0"), get("a.b.0.c"), get("a.x")),
            ("Int32(5)".into(), "Missing".into(), "Missing".into())
        );
        assert_eq!(
            (indexed("a.0"), indexed("a.b.0.c"), indexed("a.b.2")),
            ("Int32(5)".into(), "Int32(1)".into(), "Missing".into())
        );
    }

    #[test]
    fn arrays_are_expanded() {
        let doc = doc! { "a": [{ "b": 1 }, { "b": [2, 3] }, { "c": 0 }, 4, [{ "b": 5 }]], "e": [], "n": [{ "0": 6 }, 7], "s": 1 };
        let doc = doc.as_raw();
        assert_eq!(
            found("a.b", doc),
            ["Int32(1)/1", "Array({\"0\": Int32(2), \"1\": Int32(3)})/1", "Missing/1"]
        );
        assert_eq!(found("a.4.b", doc), ["Missing/1", "Missing/1", "Missing/1", "Int32(5)/2"]);
        assert_eq!(found("e.b", doc), ["Missing/1"]);
        assert_eq!(found("n.0", doc), ["Document({\"0\": Int32(6)})/0", "Int32(6)/1"]);
        assert_eq!(found("n.1", doc), ["Missing/1", "Int32(7)/0"]);
        assert_eq!(found("s.x", doc), ["Missing/0"]);
        assert_eq!(found("zzz", doc), ["Missing/0"]);
    }
}
