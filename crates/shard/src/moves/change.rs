//! What a move makes of a shard's placement document.

use std::fmt;
use std::sync::Arc;

use sheaf_bson::{Binary, DocBuf, DocWriter, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Error, Result};

use crate::placement::{Key, KeyPattern, KeyRange};

use super::{Move, MoveId};

/// A change of a shard's placement of one collection. The driver reads the document, applies the change and writes what comes out, in one
/// unit or as a statement of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum PlacementChange {
    /// The range is about to be copied here. Makes a document where there is none.
    Receive {
        /// What.
        the_move: Arc<Move>,
    },
    /// What was copied is to be removed. Changes nothing if there is no mark of this move.
    GiveUp {
        /// Which.
        id: MoveId,
    },
    /// The donor owns the range no more.
    Leave {
        /// What.
        the_move: Arc<Move>,
        /// The version.
        lastmod: Timestamp,
        /// When, in milliseconds of the time of day: what has left is kept for a while, for those who began to read before.
        since: i64,
    },
    /// The recipient owns the range.
    Own {
        /// What.
        the_move: Arc<Move>,
        /// The version.
        lastmod: Timestamp,
    },
    /// What had left is about to be removed. Changes nothing where there is no such mark.
    Removing {
        /// Where the mark begins.
        min: Key,
    },
    /// What had left is removed.
    Removed {
        /// Where the mark begins.
        min: Key,
    },
}

/// The placement is not such that the change could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit(pub String);

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Misfit> for Error {
    fn from(why: Misfit) -> Self {
        Error::new(Code::CONFLICTING_OPERATION_IN_PROGRESS, why.0)
    }
}

/// From one key on and before another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    min: Key,
    max: Key,
    of: Option<MoveId>,
    /// Of what has left: since when. None: nobody could read it.
    since: Option<i64>,
    /// Of what has left: whether some of it may be gone.
    removing: bool,
}

/// A placement document, taken apart.
struct Marks {
    pattern: KeyPattern,
    lastmod: Timestamp,
    owned: Vec<Span>,
    receiving: Vec<Span>,
    leaving: Vec<Span>,
}

impl PlacementChange {
    /// The document after the change, `None` where it changes nothing. Fields that it has besides stay as they are.
    ///
    /// Errors: `ConflictingOperationInProgress`, if the change does not fit ([`Misfit`]); `BadValue`, if the document is malformed.
    pub fn apply(&self, document: Option<RawDoc<'_>>) -> Result<Option<DocBuf>> {
        let Some(document) = document else {
            return match self {
                PlacementChange::Receive { the_move } => Ok(Some(the_move.first_placement())),
                PlacementChange::GiveUp { .. }
                | PlacementChange::Removing { .. }
                | PlacementChange::Removed { .. } => Ok(None),
                PlacementChange::Leave { .. } | PlacementChange::Own { .. } => {
                    Err(Misfit("the shard has nothing of the collection".to_owned()).into())
                }
            };
        };
        let mut marks = Marks::parse(document)?;
        Ok(if marks.change(self)? { Some(marks.write(document)) } else { None })
    }
}

/// The moves that a placement document has in `receiving`, for [`super::Recipients::became_primary`].
///
/// Errors: `BadValue`, if it is malformed.
pub fn receiving_in(document: RawDoc<'_>) -> Result<Vec<MoveId>> {
    Ok(Marks::parse(document)?.receiving.iter().filter_map(|span| span.of).collect())
}

/// The ranges that a placement document has in `leaving`, for [`super::Removals::placement`].
///
/// Errors: `BadValue`, if it is malformed.
pub fn leaving_in(document: RawDoc<'_>) -> Result<Vec<(Key, Key)>> {
    Ok(Marks::parse(document)?.leaving.into_iter().map(|span| (span.min, span.max)).collect())
}

impl Move {
    fn span(&self, of: Option<MoveId>) -> Span {
        Span { min: self.min.clone(), max: self.max.clone(), of, since: None, removing: false }
    }

    /// The placement of a shard that never had anything of the collection, and is about to.
    fn first_placement(&self) -> DocBuf {
        DocBuf::build(|out| {
            out.append("_id", uuid_value(&self.uuid))
                .append("ns", &*self.ns)
                .append("key", self.pattern.document())
                .append("unique", false)
                .append("lastmod", Timestamp(0));
            write_spans(out, "owned", &[]);
            write_spans(out, "receiving", &[self.span(Some(self.id))]);
            write_spans(out, "leaving", &[]);
        })
    }
}

impl Marks {
    fn parse(document: RawDoc<'_>) -> Result<Marks> {
        let malformed =
            |name: &str| Error::bad_value(format!("a placement has no {name}, or not what it must be"));
        let key = document.get_or_missing("key").as_doc().ok_or_else(|| malformed("key"))?;
        let pattern = KeyPattern::parse(key)?;
        let Value::Timestamp(lastmod) = document.get_or_missing("lastmod") else {
            return Err(malformed("lastmod"));
        };
        let spans = |name: &str| -> Result<Vec<Span>> {
            let list = document.get_or_missing(name).as_array().ok_or_else(|| malformed(name))?;
            list.values().map(|span| Span::parse(&pattern, span, name)).collect()
        };
        let (owned, receiving, leaving) = (spans("owned")?, spans("receiving")?, spans("leaving")?);
        Ok(Marks { pattern, lastmod, owned, receiving, leaving })
    }

    /// False: nothing has changed.
    fn change(&mut self, change: &PlacementChange) -> Result<bool, Misfit> {
        match change {
            PlacementChange::Receive { the_move } => {
                let span = the_move.span(Some(the_move.id));
                if self.receiving.contains(&span) {
                    return Ok(false);
                }
                self.is_free(&span)?;
                self.receiving.push(span);
                sort(&mut self.receiving);
            }
            PlacementChange::GiveUp { id } => {
                let Some(at) = self.receiving.iter().position(|span| span.of == Some(*id)) else {
                    return Ok(false);
                };
                let span = self.receiving.remove(at);
                self.leaving.push(Span { of: None, ..span });
                sort(&mut self.leaving);
            }
            PlacementChange::Leave { the_move, lastmod, since } => {
                let span = Span { since: Some(*since), ..the_move.span(None) };
                self.disown(&span)?;
                self.leaving.push(span);
                sort(&mut self.leaving);
                self.lastmod = *lastmod;
            }
            PlacementChange::Own { the_move, lastmod } => {
                let span = the_move.span(Some(the_move.id));
                let Some(at) = self.receiving.iter().position(|other| *other == span) else {
                    return Err(Misfit(format!("the keys from {} on are not being received", span.min)));
                };
                self.receiving.remove(at);
                self.owned.push(the_move.span(None));
                self.join_owned();
                self.lastmod = *lastmod;
            }
            PlacementChange::Removing { min } => {
                let span = self.leaving.iter_mut().find(|span| span.min == *min && !span.removing);
                let Some(span) = span else { return Ok(false) };
                span.removing = true;
            }
            PlacementChange::Removed { min } => {
                let Some(at) = self.leaving.iter().position(|span| span.min == *min) else {
                    return Ok(false);
                };
                self.leaving.remove(at);
            }
        }
        Ok(true)
    }

    /// A range returns only when what was left of it is removed.
    fn is_free(&self, span: &Span) -> Result<(), Misfit> {
        let range = self.range(span);
        let lists = [
            ("owned", &self.owned),
            ("being received", &self.receiving),
            ("still being removed", &self.leaving),
        ];
        for (what, spans) in lists {
            if let Some(other) = spans.iter().find(|other| self.range(other).overlaps(&range)) {
                return Err(Misfit(format!("the keys from {} on are {what}", other.min)));
            }
        }
        Ok(())
    }

    fn disown(&mut self, span: &Span) -> Result<(), Misfit> {
        let range = self.range(span);
        let Some(at) = self.owned.iter().position(|own| self.range(own).covers(&range)) else {
            return Err(Misfit(format!("the keys from {} on are not owned", span.min)));
        };
        let own = self.owned.remove(at);
        let rests = [(own.min, span.min.clone()), (span.max.clone(), own.max)];
        let rests = rests.into_iter().filter(|(min, max)| min < max);
        self.owned.extend(rests.map(|(min, max)| Span { min, max, of: None, since: None, removing: false }));
        sort(&mut self.owned);
        Ok(())
    }

    fn join_owned(&mut self) {
        sort(&mut self.owned);
        let mut joined: Vec<Span> = Vec::with_capacity(self.owned.len());
        for span in self.owned.drain(..) {
            match joined.last_mut() {
                Some(last) if last.max == span.min => last.max = span.max,
                _ => joined.push(span),
            }
        }
        self.owned = joined;
    }

    fn range(&self, span: &Span) -> KeyRange {
        KeyRange::new(&span.min, &span.max, span.max == self.pattern.max())
    }

    fn write(&self, old: RawDoc<'_>) -> DocBuf {
        DocBuf::build(|out| {
            for element in old.iter() {
                match element.key() {
                    "lastmod" => {
                        out.append("lastmod", self.lastmod);
                    }
                    "owned" => write_spans(out, "owned", &self.owned),
                    "receiving" => write_spans(out, "receiving", &self.receiving),
                    "leaving" => write_spans(out, "leaving", &self.leaving),
                    _ => {
                        out.append_element(element);
                    }
                }
            }
        })
    }
}

impl Span {
    fn parse(pattern: &KeyPattern, value: Value<'_>, list: &str) -> Result<Span> {
        let key = |name: &str| {
            let bound = value.as_doc().and_then(|span| span.get(name)).and_then(|bound| bound.as_doc());
            bound.ok_or_else(|| Error::bad_value(format!("a range in '{list}' of a placement has no {name}")))
        };
        let of = value.as_doc().and_then(|span| uuid_in(span, "move")).map(MoveId);
        let since = match value.as_doc().and_then(|span| span.get("since")) {
            Some(Value::DateTime(since)) => Some(since),
            _ => None,
        };
        let removing = value.as_doc().is_some_and(|span| span.get("removing").is_some());
        Ok(Span { min: pattern.key(key("min")?)?, max: pattern.key(key("max")?)?, of, since, removing })
    }
}

fn sort(spans: &mut [Span]) {
    spans.sort_by(|a, b| a.min.cmp(&b.min));
}

fn write_spans(out: &mut DocWriter<'_, Vec<u8>>, name: &str, spans: &[Span]) {
    let mut list = out.array(name);
    for span in spans {
        let mut item = list.document();
        item.append("min", span.min.document()).append("max", span.max.document());
        if let Some(MoveId(id)) = &span.of {
            item.append("move", uuid_value(id));
        }
        if let Some(since) = span.since {
            item.append("since", Value::DateTime(since));
        }
        if span.removing {
            item.append("removing", true);
        }
    }
}

/// A UUID as a value.
pub(super) fn uuid_value(uuid: &[u8; 16]) -> Value<'_> {
    Value::Binary(Binary { subtype: 4, bytes: uuid })
}

/// A field that is a UUID.
pub(super) fn uuid_in(doc: RawDoc<'_>, name: &str) -> Option<[u8; 16]> {
    match doc.get(name)? {
        Value::Binary(Binary { subtype: 4, bytes }) => bytes.try_into().ok(),
        _ => None,
    }
}
