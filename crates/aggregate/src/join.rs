//! Finding the documents of another collection by equality: what `$lookup` and `$graphLookup` do for each
//! document that they see.

use std::collections::HashMap;

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Type, Value};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;
use sheaf_query::path::Path;
use smallvec::SmallVec;

use crate::database::Namespace;
use crate::pipeline::SharedPipeline;
use crate::source::RunCx;

/// Joins on one field of another collection: through an index if there is one, else through a table of all its
/// documents, read once.
pub(crate) struct Join {
    from: Namespace,
    field: Path,
    everything: SharedPipeline,
    way: Option<Way>,
}

enum Way {
    Index,
    Table {
        documents: Vec<DocBuf>,
        by_value: HashMap<OwnedValue, SmallVec<[u32; 2]>, ahash::RandomState>,
        /// The account of both.
        _held: Held,
    },
    /// The collection is larger than memory allows: it is read for every question.
    Scan,
}

impl Join {
    pub(crate) fn new(from: Namespace, field: &str) -> Self {
        Join { from, field: Path::new(field), everything: SharedPipeline::default(), way: None }
    }

    /// The documents whose field equals one of `values`, each once.
    pub(crate) fn find(&mut self, values: &[OwnedValue], cx: &mut RunCx<'_>) -> Result<Vec<DocBuf>> {
        let way = match self.way.take() {
            Some(way) => way,
            None => self.choose(cx)?,
        };
        let found = match &way {
            Way::Index => self.by_index(values, cx),
            Way::Table { documents, by_value, .. } => {
                let mut places: Vec<u32> =
                    values.iter().filter_map(|value| by_value.get(value)).flatten().copied().collect();
                places.sort_unstable();
                places.dedup();
                let mut held = sheaf_meter::reserve(0)?;
                let copy = |place: u32| {
                    let document = &documents[place as usize];
                    held.grow(document.as_bytes().len() as u64 + 64)?;
                    Ok(document.clone())
                };
                places.into_iter().map(copy).collect()
            }
            Way::Scan => self.by_scan(values, cx),
        };
        self.way = Some(way);
        found
    }

    fn by_index(&self, values: &[OwnedValue], cx: &mut RunCx<'_>) -> Result<Vec<DocBuf>> {
        if let [only] = values {
            return cx.database.find_equal(&self.from, self.field.dotted(), only.as_value());
        }
        let mut found: Vec<DocBuf> = Vec::new();
        let mut seen: std::collections::HashSet<OwnedValue, ahash::RandomState> = Default::default();
        let mut held = sheaf_meter::reserve(0)?;
        for value in values {
            for document in cx.database.find_equal(&self.from, self.field.dotted(), value.as_value())? {
                if seen.insert(OwnedValue::from(document.as_raw().get_or_missing("_id"))) {
                    held.grow(document.as_bytes().len() as u64 + 128)?;
                    found.push(document);
                }
            }
        }
        Ok(found)
    }

    fn by_scan(&self, values: &[OwnedValue], cx: &mut RunCx<'_>) -> Result<Vec<DocBuf>> {
        let filter = DocBuf::build(|out| {
            let mut field = out.document(self.field.dotted());
            let mut list = field.array("$in");
            values.iter().for_each(|value| _ = list.push(value));
        });
        let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
        let mut source = cx.database.run(&self.from, &self.everything, cx)?;
        let mut found = Vec::new();
        let mut held = sheaf_meter::reserve(0)?;
        while let Some(document) = source.next(cx)? {
            cx.check_interrupt()?;
            if matcher.matches_doc(document.as_raw())? {
                held.grow(document.as_bytes().len() as u64 + 64)?;
                found.push(document);
            }
        }
        Ok(found)
    }

    /// Decides how to join, and reads the other collection if that takes a table.
    fn choose(&self, cx: &mut RunCx<'_>) -> Result<Way> {
        if cx.database.can_find_equal(&self.from, self.field.dotted())? {
            return Ok(Way::Index);
        }
        let mut source = cx.database.run(&self.from, &self.everything, cx)?;
        let mut documents = Vec::new();
        let mut by_value: HashMap<OwnedValue, SmallVec<[u32; 2]>, ahash::RandomState> = HashMap::default();
        let mut held = sheaf_meter::reserve(0)?;
        while let Some(document) = source.next(cx)? {
            cx.check_interrupt()?;
            let mut bytes = document.as_bytes().len() + 64;
            let place = documents.len() as u32;
            self.each_value(document.as_raw(), |value| {
                bytes += value.memory_bytes() + 64;
                let places = by_value.entry(value).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            })?;
            held.grow(bytes as u64)?;
            if held.bytes() > cx.options.stage_memory_bytes as u64 {
                return Ok(Way::Scan);
            }
            documents.push(document);
        }
        Ok(Way::Table { documents, by_value, _held: held })
    }

    /// Every value that an equality on the field can match in a document.
    fn each_value(&self, document: RawDoc<'_>, mut visit: impl FnMut(OwnedValue)) -> Result<()> {
        self.field.any(document, true, &mut |element, _| {
            match element {
                Some(element) => visit(OwnedValue::from(element.value())),
                // A missing field equals null.
                None => visit(OwnedValue::from(Value::Null)),
            }
            Ok(false)
        })?;
        Ok(())
    }
}

/// The values at the local side of a join: an array stands for its elements, nothing for null.
pub(crate) fn local_values(document: RawDoc<'_>, path: &[Box<str>]) -> Vec<OwnedValue> {
    let mut values = values_at(document, path);
    if values.is_empty() {
        values.push(OwnedValue::from(Value::Null));
    }
    values
}

/// The values at a path: an array stands for its elements.
pub(crate) fn values_at(document: RawDoc<'_>, path: &[Box<str>]) -> Vec<OwnedValue> {
    let mut values = Vec::new();
    collect(Value::Document(document), path, &mut values);
    values
}

fn collect(value: Value<'_>, path: &[Box<str>], values: &mut Vec<OwnedValue>) {
    match (path.split_first(), value) {
        (None, Value::Array(items)) => values.extend(items.values().map(OwnedValue::from)),
        (None, Value::Missing) => {}
        (None, value) => values.push(OwnedValue::from(value)),
        (Some((part, rest)), Value::Document(document)) => {
            collect(document.get_or_missing(part), rest, values)
        }
        (Some((part, rest)), Value::Array(items)) => {
            for item in items.values().filter(|item| item.kind() == Type::Document) {
                collect(item, path, values);
            }
            // A number in the path may also be a position in the array.
            if part.bytes().all(|b| b.is_ascii_digit()) {
                collect(items.get_or_missing(part), rest, values);
            }
        }
        _ => {}
    }
}
