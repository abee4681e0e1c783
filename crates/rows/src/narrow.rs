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

    /// The document with these fields alone, in their order, each as often as it is there; made in `buffer`.
    pub fn of<'b>(&self, document: RawDoc<'_>, buffer: &'b mut Vec<u8>) -> RawDoc<'b> {
        buffer.clear();
        let mut out = DocWriter::new(buffer);
        for element in document.iter() {
            let name = element.key_bytes();
            if self.0.iter().any(|field| field.as_bytes() == name) {
                out.append_element(element);
            }
        }
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
    }
}
