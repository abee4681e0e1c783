//! What `$meta` shows of a row besides its document.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc};
use sheaf_errors::Result;
use sheaf_query::projection::Projection;
use sheaf_query::sort::SortPattern;

use sheaf_rows::{Cx, Row};

use super::number::Numbers;

/// The metadata that a projection asks for.
pub struct Metadata {
    names: Vec<&'static str>,
    sort: Option<Arc<SortPattern>>,
    /// The fields of the rows' keys.
    fields: Vec<(String, bool)>,
    numbers: Numbers,
}

impl Metadata {
    /// `None` if the projection asks for none.
    pub fn of(
        projection: &Projection,
        sort: Option<Arc<SortPattern>>,
        fields: Vec<(String, bool)>,
        numbers: Numbers,
    ) -> Option<Metadata> {
        let names = projection.metadata();
        (!names.is_empty()).then_some(Metadata { names, sort, fields, numbers })
    }

    /// A row's metadata by name. `below` is what the operators below say of it.
    pub fn of_row(&mut self, row: Row<'_>, below: Option<RawDoc<'_>>, cx: &mut Cx<'_>) -> Result<DocBuf> {
        let mut out = DocBuf::new();
        for name in &self.names {
            match *name {
                "recordId" => {
                    if let Some(number) = self.numbers.of(row.record, cx)? {
                        out.append("recordId", number);
                    }
                }
                "indexKey" => {
                    if let Some(key) = index_key(row, &self.fields) {
                        out.append("indexKey", &key);
                    }
                }
                "sortKey" => {
                    if let Some(sort) = &self.sort {
                        let key =
                            sort.key(row.doc.unwrap_or(RawDoc::EMPTY), below.unwrap_or(RawDoc::EMPTY))?;
                        let values = ArrayBuf::build(|out| key.iter().for_each(|value| _ = out.push(*value)));
                        out.append("sortKey", &values);
                    } else if let Some(distance) = below.and_then(|below| below.get("geoNearDistance")) {
                        out.append("sortKey", &ArrayBuf::build(|out| _ = out.push(distance)));
                    }
                }
                other => {
                    if let Some(element) = below.and_then(|below| below.element(other)) {
                        out.append(other, element.value());
                    }
                }
            }
        }
        Ok(out)
    }

    /// The command is over.
    pub fn suspend(&mut self) {
        self.numbers.suspend();
    }
}

/// The index key of a row as a document with the key pattern's field names.
pub fn index_key(row: Row<'_>, fields: &[(String, bool)]) -> Option<DocBuf> {
    let Some((key, bits)) = row.key else {
        // Records in `_id` order carry their key in the document.
        let id = row.doc?.element("_id").filter(|_| fields.len() == 1)?;
        return Some(DocBuf::build(|out| _ = out.append_element(id)));
    };
    let mut decoder = sheaf_bson::key::Decoder::new(key, bits);
    Some(DocBuf::build(|out| {
        for (path, descending) in fields {
            let _ = decoder.next_into(*descending, out, path);
        }
    }))
}
