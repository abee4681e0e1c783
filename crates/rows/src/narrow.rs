//! Documents with no more than some of their fields.

use std::collections::BTreeSet;

use sheaf_bson::{DocWriter, RawDoc};

/// Top-level fields that are all that is read of documents: an operator that keeps documents keeps no others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fields(Vec<Box<str>>);

impl Fields {
    /// The fields in which these paths begin.
    pub fn of_paths<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> Fields {
        let head = |path: P| Box::from(path.as_ref().split('.').next().unwrap_or_default());
        let names: BTreeSet<Box<str>> = paths.into_iter().map(head).collect();
        Fields(names.into_iter().collect())
    }

    fn has(&self, name: &[u8]) -> bool {
        // Names are mostly told apart by their first byte, without a call that compares all of them.
        self.0.iter().any(|field| {
            let field = field.as_bytes();
            field.len() == name.len() && field.first() == name.first() && field == name
        })
    }

    /// The document with these fields alone, in their order, each as often as it is there; made in `buffer`.
    pub fn of<'b>(&self, document: RawDoc<'_>, buffer: &'b mut Vec<u8>) -> RawDoc<'b> {
        buffer.clear();
        let mut out = DocWriter::new(buffer);
        // What stands side by side is copied together.
        let mut elements = document.iter();
        let (mut before, mut kept) = (elements.rest(), 0);
        while let Some(element) = elements.next() {
            if self.has(element.key_bytes()) {
                kept += element.as_bytes().len();
                continue;
            }
            if kept > 0 {
                out.append_raw_elements(&before[..kept]);
                kept = 0;
            }
            before = elements.rest();
        }
        out.append_raw_elements(&before[..kept]);
        drop(out);
        RawDoc::new(buffer)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};

    use super::*;

    #[test]
    fn fields_stay_in_order_and_as_often_as_they_are_there() {
        let fields = Fields::of_paths(["b.c", "b.d", "_id", "e"]);
        let document = doc! { "b": { "c": 1, "x": 2 }, "a": 1, "_id": 7, "b": 3 };
        let mut buffer = Vec::new();
        let narrow = DocBuf::from(fields.of(document.as_raw(), &mut buffer));
        assert_eq!(narrow, doc! { "b": { "c": 1, "x": 2 }, "_id": 7, "b": 3 });
        assert_eq!(fields.of(doc! { "a": 1 }.as_raw(), &mut buffer), RawDoc::EMPTY);
        let document = doc! { "e": 1, "b": 2, "a": 3, "_id": 4, "bb": 5 };
        assert_eq!(fields.of(document.as_raw(), &mut buffer), doc! { "e": 1, "b": 2, "_id": 4 }.as_raw());
        let all = doc! { "_id": 1, "b": 2 };
        assert_eq!(fields.of(all.as_raw(), &mut buffer), all.as_raw());
    }
}
