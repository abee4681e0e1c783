//! The rows of several cursors, one after another or merged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_bson::{Element, RawDoc, key};
use sheaf_errors::Result;
use sheaf_query::sort::SortPattern;
use sheaf_rows::{Cx, Operator, Row, Scratch, Step};

use super::{Link, Remote};

/// In which order rows of several cursors come, each cursor's being in that order.
pub enum Order {
    /// In any: those of one after those of another, as they come.
    None,
    /// By this pattern, whose fields are in the rows.
    By(Arc<SortPattern>),
    /// By this pattern; the row's key is an array in its last field, which is taken away.
    ByLast(Arc<SortPattern>),
}

/// The rows of several cursors, one after another or merged. Only cursors of which nothing is left here are asked for more.
pub struct Gather {
    link: Arc<Link>,
    inputs: Vec<Input>,
    order: Order,
    /// Where the row at hand is.
    at: Option<usize>,
    /// The row at hand without its key.
    stripped: Vec<u8>,
    /// Set when a shard was left out; `None`: none may be.
    left_out: Option<Arc<AtomicBool>>,
}

/// Documents with more than this may have large keys.
const LARGE_BYTES: usize = 64 << 10;

struct Input {
    remote: Remote,
    /// Whether its document at hand has not been given yet.
    has: bool,
    /// The comparable form of that document's key.
    key: Scratch,
}

impl Gather {
    /// The rows of these cursors.
    pub fn new(link: Arc<Link>, remotes: Vec<Remote>, order: Order) -> Self {
        let input = |remote| Input { remote, has: false, key: Scratch::default() };
        let inputs = remotes.into_iter().map(input).collect();
        Gather { link, inputs, order, at: None, stripped: Vec::new(), left_out: None }
    }

    /// The same without the rows of those that cannot be reached any more; the flag says so then.
    pub fn leaving_out(self, left_out: Arc<AtomicBool>) -> Self {
        Gather { left_out: Some(left_out), ..self }
    }

    /// Moves on behind the row at hand.
    fn leave(&mut self) -> Result<()> {
        if let Some(at) = self.at.take() {
            self.inputs[at].advance(&self.order)?;
        }
        Ok(())
    }

    /// Gets batches for those that need them before the next row can be told; `false`: none does.
    fn refill(&mut self, cx: &Cx<'_>) -> Result<bool> {
        for input in self.inputs.iter_mut().filter(|input| !input.has) {
            input.advance(&self.order)?;
        }
        if matches!(self.order, Order::None) && self.inputs.iter().any(|input| input.has) {
            return Ok(false);
        }
        let empty = self.inputs.iter_mut().filter(|input| !input.has && !input.remote.is_done());
        let mut empty: Vec<&mut Remote> = empty.map(|input| &mut input.remote).collect();
        if empty.is_empty() {
            return Ok(false);
        }
        let go_on = || (cx.interrupt())();
        match &self.left_out {
            None => self.link.refill(&mut empty, &go_on)?,
            Some(left_out) => {
                if self.link.refill_reachable(&mut empty, &go_on)? {
                    left_out.store(true, Ordering::Relaxed);
                }
            }
        }
        Ok(true)
    }
}

impl Input {
    fn advance(&mut self, order: &Order) -> Result<()> {
        self.has = self.remote.advance();
        if !self.has {
            return Ok(());
        }
        self.key.let_go();
        match order {
            Order::None => {}
            Order::By(pattern) => {
                let document = self.remote.document();
                // Only a large document has a large key.
                let is_large = document.len() > LARGE_BYTES;
                let room = if is_large { pattern.key_room(document, RawDoc::EMPTY) } else { 0 };
                pattern.put_key_bytes(document, RawDoc::EMPTY, self.key.begin(room)?)?;
            }
            Order::ByLast(pattern) => {
                let last = self.remote.document().iter().last();
                let values = last.and_then(|last| last.value().as_array()).unwrap_or(RawDoc::EMPTY);
                let key = self.key.begin(values.len())?;
                for (part, value) in pattern.parts().iter().zip(values.values()) {
                    key::encode_bound(value, part.descending, key);
                }
            }
        }
        self.key.settle()
    }
}

/// The document without its last field.
fn without_last(document: RawDoc<'_>, out: &mut Vec<u8>) {
    let last = document.iter().last().map_or(0, |last: Element<'_>| last.as_bytes().len());
    let bytes = document.as_bytes();
    let length = bytes.len() - last;
    out.clear();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&bytes[4..length - 1]);
    out.push(0);
}

impl Operator for Gather {
    fn work(&mut self, cx: &mut Cx<'_>) -> Result<Step> {
        self.leave()?;
        if self.refill(cx)? {
            return Ok(Step::More);
        }
        let ready = self.inputs.iter().enumerate().filter(|(_, input)| input.has);
        let next = match self.order {
            Order::None => ready.map(|(at, _)| at).next(),
            _ => ready.min_by(|(_, a), (_, b)| a.key.bytes.cmp(&b.key.bytes)).map(|(at, _)| at),
        };
        let Some(next) = next else { return Ok(Step::Eof) };
        if let Order::ByLast(_) = self.order {
            without_last(self.inputs[next].remote.document(), &mut self.stripped);
        }
        self.at = Some(next);
        Ok(Step::Row)
    }

    fn row(&self) -> Row<'_> {
        let Some(at) = self.at else { return Row::default() };
        Row::of(match self.order {
            Order::ByLast(_) => RawDoc::new(&self.stripped),
            _ => self.inputs[at].remote.document(),
        })
    }

    fn inputs(&mut self, _: &mut dyn FnMut(&mut dyn Operator)) {}

    fn is_eof(&self) -> bool {
        self.at.is_none() && self.inputs.iter().all(|input| !input.has && input.remote.is_done())
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{Value, doc};

    use super::*;

    #[test]
    fn the_key_is_taken_away() {
        let mut out = Vec::new();
        without_last(doc! { "a": 1, "b": "x", "key": [1, 2] }.as_raw(), &mut out);
        assert_eq!(out, doc! { "a": 1, "b": "x" }.as_bytes());
        without_last(doc! { "key": Value::Null }.as_raw(), &mut out);
        assert_eq!(out, doc! {}.as_bytes());
    }
}
