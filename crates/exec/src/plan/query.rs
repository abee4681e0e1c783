//! A query in the form that planning reads.

use std::sync::Arc;

use sheaf_bson::DocBuf;
use sheaf_collation::SharedCollator;
use sheaf_query::matcher::Matcher;
use sheaf_query::projection::Projection;
use sheaf_query::sort::SortPattern;

/// Which plans a client allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Hint {
    /// Any.
    #[default]
    None,
    /// A collection scan, backward or not.
    Natural(bool),
    /// The index of this name.
    Name(String),
    /// The index with this key pattern.
    Pattern(DocBuf),
}

/// What is asked of a collection.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// How strings compare, if not by their bytes. Filter and sort are parsed with it.
    pub collator: Option<SharedCollator>,
    /// The filter.
    pub matcher: Option<Arc<Matcher>>,
    /// The order, if one is asked for.
    pub sort: Option<Arc<SortPattern>>,
    /// The order as it was given.
    pub sort_spec: DocBuf,
    /// The shape of the documents.
    pub projection: Option<Arc<Projection>>,
    /// The projection as it was given.
    pub projection_spec: DocBuf,
    /// Documents to leave out.
    pub skip: u64,
    /// Documents wanted; `None`: all.
    pub limit: Option<u64>,
    /// Which plans are allowed.
    pub hint: Hint,
    /// The least key, with a hinted index.
    pub min: Option<DocBuf>,
    /// The key to stop before, with a hinted index.
    pub max: Option<DocBuf>,
    /// Give index keys instead of documents.
    pub return_key: bool,
    /// Add `$recordId`.
    pub show_record_id: bool,
    /// Have `$recordId` beside the documents.
    pub number_records: bool,
    /// A tailable cursor: natural order on a capped collection.
    pub tailable: bool,
    /// Where a scan in natural order begins, if not with the first record.
    pub start: Option<Start>,
    /// Somebody wants to know the record that was given last.
    pub resumable: bool,
    /// Only the paths needed; documents need not be whole (count, distinct).
    pub only_paths: Option<Vec<String>>,
    /// Only the number of documents is wanted.
    pub counting: bool,
    /// Each document has to be looked at, whatever else could do without.
    pub whole_documents: bool,
    /// So many documents by chance are wanted, or all, for who draws these of them.
    pub sample: Option<u64>,
    /// Only the first document with each value at a path is wanted, in the order of `sort`, or the last.
    pub one_of_each: Option<OneOfEach>,
    /// Distinct values are those of arrays' elements, not of arrays.
    pub unwinds: bool,
    /// Only this field's distinct values are wanted.
    pub distinct: Option<String>,
}

/// Which documents suffice of an ordered query.
#[derive(Clone, Debug)]
pub struct OneOfEach {
    /// The path whose values tell groups apart.
    pub path: String,
    /// The last of each group, not the first.
    pub last: bool,
}

/// A place in natural order.
#[derive(Clone, Debug)]
pub struct Start {
    /// The key of the record.
    pub record: Vec<u8>,
    /// Behind the record, not with it.
    pub after: bool,
}

impl Query {
    /// All documents that match.
    pub fn filtered(matcher: Matcher) -> Self {
        Query { matcher: Some(Arc::new(matcher)), ..Query::default() }
    }

    /// The filter; `{}` if there is none.
    pub fn matcher(&self) -> Arc<Matcher> {
        self.matcher.clone().unwrap_or_else(|| Arc::new(Matcher::everything()))
    }

    /// The sort's fields and whether each descends; `None` if it sorts by anything but fields, or not at all.
    pub fn sort_fields(&self) -> Option<Vec<(String, bool)>> {
        self.sort.as_ref()?;
        let fields: Option<Vec<(String, bool)>> = self
            .sort_spec
            .as_raw()
            .iter()
            .map(|element| {
                element.value().as_f64().map(|direction| (element.key().to_owned(), direction < 0.0))
            })
            .collect();
        fields.filter(|fields| !fields.is_empty())
    }

    /// For `sort: {$natural: 1}`: whether it goes backward.
    pub fn natural_sort(&self) -> Option<bool> {
        let first = self.sort_spec.as_raw().iter().next()?;
        (first.key() == "$natural").then(|| first.value().as_f64().is_some_and(|n| n < 0.0))
    }

    /// The paths that suffice to answer, if whole documents are not needed.
    pub fn needed_paths(&self) -> Option<Vec<String>> {
        if self.whole_documents {
            return None;
        }
        if let Some(paths) = &self.only_paths {
            return Some(paths.clone());
        }
        if self.return_key || self.show_record_id {
            return None;
        }
        self.projection.as_ref()?.included_paths()
    }
}
