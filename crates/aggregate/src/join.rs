//! Finding the documents of another collection by equality: what `$lookup` and `$graphLookup` do for each
//! document that they see.

use std::collections::{HashMap, HashSet};
use std::mem::take;

use sheaf_bson::{DocBuf, OwnedValue, RawDoc, Type, Value};
use sheaf_collation::{SharedCollator, key_of};
use sheaf_errors::Result;
use sheaf_expr::ParseCx;
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;
use sheaf_query::path::Path;
use sheaf_rows::{Cx, Figures, pull, tally};
use smallvec::SmallVec;

use crate::database::{Probe, SharedDatabase};
use crate::namespace::Namespace;
use crate::pipeline::SharedPipeline;

/// Joins on one field of another collection: through an index if there is one, else through a table of all its
/// documents, read once.
pub(crate) struct Join {
    database: SharedDatabase,
    from: Namespace,
    field: Path,
    collator: Option<SharedCollator>,
    everything: SharedPipeline,
    way: Option<Way>,
    /// Another command pulls: what an index has answered so far may be otherwise now.
    resumed: bool,
    /// What other ways than an index have read.
    figures: Figures,
    /// The figures of all ways together, as they were shown last.
    shown: Figures,
}

/// Places of documents by what the field is compared by.
type Places = HashMap<OwnedValue, SmallVec<[u32; 2]>, ahash::RandomState>;

enum Way {
    Index(Probing),
    Table {
        documents: Documents,
        by_value: Places,
        /// The places of what was found, from the last to the next.
        found: Vec<u32>,
        current: u32,
        /// There is an index that could be asked, too.
        in_place_of_index: bool,
        /// The account of both.
        _held: Held,
    },
    /// The collection is larger than memory allows: it is read for every question.
    Scan {
        found: Vec<DocBuf>,
        current: Option<DocBuf>,
        held: Held,
    },
}

/// An index being asked for one value after the other.
struct Probing {
    probe: Box<dyn Probe>,
    /// The values that are still to be asked for, from the last to the next.
    values: Vec<OwnedValue>,
    /// The values that were asked for so far.
    asked: u64,
    /// The `_id` of what was given, if there are several values: each document comes once.
    seen: Option<HashSet<OwnedValue, ahash::RandomState>>,
    held: Held,
}

/// Documents one behind the other, in blocks: a block for each would be one more place in memory to go to, for every document that is found.
#[derive(Default)]
struct Documents {
    blocks: Vec<Vec<u8>>,
    /// The block of each, and where it begins there.
    begins: Vec<(u32, u32)>,
}

impl Documents {
    /// Bytes of a block, unless one document has more.
    const BLOCK: usize = 1 << 20;

    fn push(&mut self, document: RawDoc<'_>) {
        let bytes = document.as_bytes();
        match self.blocks.last() {
            Some(block) if block.capacity() - block.len() >= bytes.len() => {}
            _ => self.blocks.push(Vec::with_capacity(bytes.len().max(Self::BLOCK))),
        }
        let at = self.blocks.len() - 1;
        let block = &mut self.blocks[at];
        self.begins.push((at as u32, block.len() as u32));
        block.extend_from_slice(bytes);
    }

    fn get(&self, place: u32) -> RawDoc<'_> {
        let (block, begin) = self.begins[place as usize];
        let rest = &self.blocks[block as usize][begin as usize..];
        let len = i32::from_le_bytes(rest[..4].try_into().expect("a document begins with its length"));
        RawDoc::new(&rest[..len as usize])
    }
}

/// Bytes of a table that are counted together.
const COUNTED_TOGETHER: u64 = 64 << 10;

/// What a document takes in a table besides its bytes.
const TABLE_ENTRY_BYTES: u64 = 256;

impl Probing {
    /// Whether so much was asked that reading the whole collection would have been quicker, and memory allows it: more
    /// questions will come, perhaps.
    fn is_outrun(&self, cx: &Cx<'_>) -> bool {
        let size = self.probe.size();
        self.asked >= self.probe.worth_reading()
            && size.bytes + size.documents * TABLE_ENTRY_BYTES <= cx.limits.memory_bytes as u64 / 2
    }

    fn begin(&mut self, values: &mut Vec<OwnedValue>, cx: &mut Cx<'_>) -> Result<()> {
        self.seen = None;
        self.held = Held::default();
        self.asked += values.len() as u64;
        if let [only] = &values[..] {
            return self.probe.find(only.as_value(), cx);
        }
        self.seen = Some(HashSet::default());
        self.held = sheaf_meter::reserve(0)?;
        self.values = take(values);
        self.values.reverse();
        self.next_value(cx).map(|_| ())
    }

    fn next_value(&mut self, cx: &mut Cx<'_>) -> Result<bool> {
        let Some(value) = self.values.pop() else { return Ok(false) };
        self.probe.find(value.as_value(), cx)?;
        Ok(true)
    }

    fn next(&mut self, cx: &mut Cx<'_>) -> Result<bool> {
        loop {
            if !pull(&mut *self.probe, cx)? {
                if !self.next_value(cx)? {
                    return Ok(false);
                }
                continue;
            }
            let Some(seen) = &mut self.seen else { return Ok(true) };
            let id = OwnedValue::from(self.probe.row().document().get_or_missing("_id"));
            self.held.grow(id.memory_bytes() as u64 + 64)?;
            if seen.insert(id) {
                return Ok(true);
            }
        }
    }
}

impl Join {
    pub(crate) fn new(
        database: SharedDatabase,
        from: Namespace,
        field: &str,
        collator: Option<SharedCollator>,
    ) -> Self {
        Join {
            database,
            from,
            field: Path::new(field),
            collator,
            everything: SharedPipeline::default(),
            way: None,
            resumed: false,
            figures: Figures::default(),
            shown: Figures::default(),
        }
    }

    /// Begins to look for the documents whose field equals one of `values`, each once.
    pub(crate) fn find(&mut self, values: &mut Vec<OwnedValue>, cx: &mut Cx<'_>) -> Result<()> {
        if std::mem::take(&mut self.resumed) {
            self.leave_index();
        }
        let mut way = match self.way.take() {
            Some(Way::Index(probing)) if probing.is_outrun(cx) => self.replace(probing, cx)?,
            Some(way) => way,
            None => self.choose(cx)?,
        };
        match &mut way {
            Way::Index(probing) => probing.begin(values, cx)?,
            Way::Table { by_value, found, .. } => {
                found.clear();
                found.extend(
                    values
                        .iter()
                        .filter_map(|value| look_up(by_value, self.collator.as_ref(), value))
                        .flatten(),
                );
                found.sort_unstable_by(|a, b| b.cmp(a));
                found.dedup();
            }
            Way::Scan { found, held, .. } => (*found, *held) = self.scan(values, cx)?,
        }
        self.way = Some(way);
        Ok(())
    }

    /// Moves to the next document that was found.
    pub(crate) fn next(&mut self, cx: &mut Cx<'_>) -> Result<bool> {
        match self.way.as_mut().expect("nothing was looked for") {
            Way::Index(probing) => probing.next(cx),
            Way::Table { found, current, .. } => Ok(found.pop().map(|place| *current = place).is_some()),
            Way::Scan { found, current, .. } => {
                *current = found.pop();
                Ok(current.is_some())
            }
        }
    }

    /// The document that [`Join::next`] moved to.
    pub(crate) fn document(&self) -> RawDoc<'_> {
        match self.way.as_ref().expect("nothing was looked for") {
            Way::Index(probing) => probing.probe.row().document(),
            Way::Table { documents, current, .. } => documents.get(*current),
            Way::Scan { current, .. } => current.as_ref().expect("there is no such document").as_raw(),
        }
    }

    /// Lets go of the state that is read.
    pub(crate) fn suspend(&mut self) {
        self.resumed = true;
        if let Some(Way::Index(probing)) = &mut self.way {
            probing.probe.suspend();
        }
    }

    /// Has the next question choose its way anew, if an index answers or has answered: the next command sees what is there
    /// then, and perhaps no such index.
    fn leave_index(&mut self) {
        match &mut self.way {
            Some(Way::Index(probing)) => self.figures.add_foreign(&tally(&mut *probing.probe)),
            Some(Way::Table { in_place_of_index: true, .. }) => {}
            _ => return,
        }
        self.way = None;
    }

    /// What was read of the other collection.
    pub(crate) fn figures(&mut self) -> &mut Figures {
        self.shown = self.figures.clone();
        if let Some(Way::Index(probing)) = &mut self.way {
            self.shown.add_foreign(&tally(&mut *probing.probe));
        }
        &mut self.shown
    }

    /// The documents that a scan of the whole collection finds, from the last to the first.
    fn scan(&mut self, values: &[OwnedValue], cx: &mut Cx<'_>) -> Result<(Vec<DocBuf>, Held)> {
        let filter = DocBuf::build(|out| {
            let mut field = out.document(self.field.dotted());
            let mut list = field.array("$in");
            values.iter().for_each(|value| _ = list.push(value));
        });
        let matcher =
            Matcher::parse(filter.as_raw(), &mut ParseCx::new().with_collator(self.collator.clone()))?;
        let mut all = self.database.run(&self.from, &self.everything, cx)?;
        let mut found = Vec::new();
        let mut held = sheaf_meter::reserve(0)?;
        while pull(&mut all, cx)? {
            cx.check_interrupt()?;
            let document = all.row().document();
            if matcher.matches_doc(document)? {
                held.grow(document.len() as u64 + 64)?;
                found.push(DocBuf::from(document));
            }
        }
        self.figures.add_foreign(&tally(&mut *all));
        found.reverse();
        Ok((found, held))
    }

    /// Decides how to join, and reads the other collection if that takes a table.
    fn choose(&mut self, cx: &mut Cx<'_>) -> Result<Way> {
        let Some(probe) =
            self.database.prepare_equal(&self.from, self.field.dotted(), self.collator.as_ref())?
        else {
            let table = self.read_all(false, cx)?;
            return Ok(table.unwrap_or(Way::Scan {
                found: Vec::new(),
                current: None,
                held: Held::default(),
            }));
        };
        let held = Held::default();
        Ok(Way::Index(Probing { probe, values: Vec::new(), asked: 0, seen: None, held }))
    }

    /// A table in the place of an index that is asked too often.
    fn replace(&mut self, mut probing: Probing, cx: &mut Cx<'_>) -> Result<Way> {
        let figures = tally(&mut *probing.probe);
        Ok(match self.read_all(true, cx)? {
            Some(table) => {
                self.figures.add_foreign(&figures);
                table
            }
            None => {
                // It is larger than it said; this is not tried again soon.
                probing.asked = 0;
                Way::Index(probing)
            }
        })
    }

    /// A table of the other collection's documents; `None` if it is larger than memory allows.
    fn read_all(&mut self, in_place_of_index: bool, cx: &mut Cx<'_>) -> Result<Option<Way>> {
        let mut all = self.database.run(&self.from, &self.everything, cx)?;
        let mut documents = Documents::default();
        let mut by_value = Places::default();
        let (mut held, mut uncounted) = (sheaf_meter::reserve(0)?, 0);
        while pull(&mut all, cx)? {
            cx.check_interrupt()?;
            let document = all.row().document();
            // There must be room for a large document, and for its field, before it is taken.
            let of_document = document.len() as u64;
            if of_document >= COUNTED_TOGETHER
                && (held.bytes() + of_document > cx.limits.memory_bytes as u64
                    || held.beside(uncounted + 2 * of_document).is_err())
            {
                return Ok(None);
            }
            let mut bytes = document.len() + 64;
            let place = u32::try_from(documents.begins.len()).expect("memory ends before 2^32 documents");
            self.each_value(document, |value| {
                bytes += value.memory_bytes() + 64;
                let places = by_value.entry(value).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            })?;
            uncounted += bytes as u64;
            if uncounted >= COUNTED_TOGETHER {
                let grows = held.grow(std::mem::take(&mut uncounted));
                if grows.is_err() || held.bytes() > cx.limits.memory_bytes as u64 {
                    return Ok(None);
                }
            }
            documents.push(document);
        }
        if held.grow(uncounted).is_err() || held.bytes() > cx.limits.memory_bytes as u64 {
            return Ok(None);
        }
        self.figures.add_foreign(&tally(&mut *all));
        Ok(Some(Way::Table {
            documents,
            by_value,
            found: Vec::new(),
            current: 0,
            in_place_of_index,
            _held: held,
        }))
    }

    /// Every value that an equality on the field can match in a document.
    fn each_value(&self, document: RawDoc<'_>, mut visit: impl FnMut(OwnedValue)) -> Result<()> {
        self.field.any(document, true, &mut |element, _| {
            match element {
                Some(element) => visit(key_of(self.collator.as_ref(), element.value())),
                // A missing field equals null.
                None => visit(OwnedValue::from(Value::Null)),
            }
            Ok(false)
        })?;
        Ok(())
    }
}

/// The places of the documents with this value.
fn look_up<'t>(
    by_value: &'t Places,
    collator: Option<&SharedCollator>,
    value: &OwnedValue,
) -> Option<&'t SmallVec<[u32; 2]>> {
    match collator {
        None => by_value.get(value),
        Some(_) => by_value.get(&key_of(collator, value.as_value())),
    }
}

/// Adds the values at the local side of a join: an array stands for its elements, nothing for null.
pub(crate) fn local_values(document: RawDoc<'_>, path: &[Box<str>], values: &mut Vec<OwnedValue>) {
    values.clear();
    collect(Value::Document(document), path, values);
    if values.is_empty() {
        values.push(OwnedValue::from(Value::Null));
    }
}

/// Adds the values at a path: an array stands for its elements.
pub(crate) fn values_at(document: RawDoc<'_>, path: &[Box<str>], values: &mut Vec<OwnedValue>) {
    collect(Value::Document(document), path, values);
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
