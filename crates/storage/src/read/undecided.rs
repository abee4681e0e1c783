//! What is prepared over several shards, as readers meet it.
//!
//! A prepared transaction has promised a time of its commit, or none, and others decide which. Until then nobody can say
//! what the documents that it has written are, as of that time or later. Who reads one of them waits, and nobody else does.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::Timestamp;
use sheaf_errors::Result;
use uuid::Uuid;

use crate::db::Cf;
use crate::db::sink::Sink;
use crate::locks::Owner;
use crate::options::Block;
use crate::order::{Condvar, Mutex, rank};
use crate::read::overlay::Overlay;

/// How often who waits looks whether it was interrupted.
const POLL: Duration = Duration::from_millis(20);

/// How a prepared transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It is committed as of this time, which is before its entry's.
    Committed(u64),
    Aborted,
}

/// A transaction that was prepared and not decided at some time.
#[derive(Clone, Debug)]
pub struct InDoubt {
    /// When it was prepared.
    pub prepared: Timestamp,
    /// The collections that it changes.
    pub collections: Arc<[Uuid]>,
}

/// A prepared transaction: what it changes, and how it has ended if it has.
pub(crate) struct Undecided {
    /// Time of the prepare: the commit's is not below.
    pub prepared: u64,
    /// Index of the prepare's last entry.
    pub index: u64,
    /// Who holds its locks.
    pub owner: Owner,
    /// What it changes.
    pub collections: Arc<[Uuid]>,
    writes: Overlay,
    ended: Mutex<{ rank::LEAF }, Option<Ended>>,
    changed: Condvar,
}

impl Undecided {
    pub fn new(
        prepared: u64,
        index: u64,
        owner: Owner,
        collections: &[Uuid],
        writes: Overlay,
    ) -> Arc<Undecided> {
        Arc::new(Undecided {
            prepared,
            index,
            owner,
            collections: collections.into(),
            writes,
            ended: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// It has ended; what it has written is visible, and what it had locked is free.
    pub fn end(&self, how: Ended) {
        *self.ended.lock() = Some(how);
        self.changed.notify_all();
    }

    /// How it has ended. Waits for that, however long the decision takes; the others are waited for by nobody.
    ///
    /// Errors: those of the operation that waits.
    pub fn wait(&self, block: &Block) -> Result<Ended> {
        let known = *self.ended.lock();
        if let Some(ended) = known {
            return Ok(ended);
        }
        let mut outcome = Ok(Ended::Aborted);
        block(&mut || {
            let mut ended = self.ended.lock();
            loop {
                if let Some(ended) = *ended {
                    outcome = Ok(ended);
                    return;
                }
                self.changed.wait_for(&mut ended, POLL);
                if let (None, Err(error)) = (*ended, sheaf_meter::check()) {
                    outcome = Err(error);
                    return;
                }
            }
        });
        outcome
    }

    /// Has all that it changes in a batch.
    pub fn put(&self, sink: &mut impl Sink) {
        for cf in [Cf::Records, Cf::Indexes] {
            for (key, value) in self.writes.of(cf) {
                match value {
                    Some(value) => sink.put(cf, key, value),
                    None => sink.delete(cf, key),
                }
            }
        }
    }

    /// Memory that its changes take, about.
    pub fn bytes(&self) -> usize {
        self.writes.bytes()
    }

    fn has_some(&self, cf: Cf, lower: &[u8], upper: &[u8]) -> bool {
        let range = (Bound::Included(lower), Bound::Excluded(upper));
        self.writes.of(cf).range::<[u8], _>(range).next().is_some()
    }
}

/// The prepared transactions that a state has to do with: in doubt when it was taken, or committed below its time with a later
/// entry.
pub(crate) struct Past {
    /// The time of the state. `None`: it is the newest one, and shows whatever is committed.
    as_of: Option<u64>,
    of: Arc<Vec<Arc<Undecided>>>,
    block: Block,
}

impl Past {
    /// `None` if there are none.
    pub fn new(as_of: Option<u64>, of: Arc<Vec<Arc<Undecided>>>, block: &Block) -> Option<Arc<Past>> {
        (!of.is_empty()).then(|| Arc::new(Past { as_of, of, block: block.clone() }))
    }

    fn shows(&self, transaction: &Undecided) -> Result<bool> {
        Ok(match transaction.wait(&self.block)? {
            Ended::Committed(at) => self.as_of.is_none_or(|as_of| at <= as_of),
            Ended::Aborted => false,
        })
    }

    /// What a key with its prefix has over the snapshot; `Some(None)`: it is deleted.
    pub fn get(&self, cf: Cf, full: &[u8]) -> Result<Option<Option<&[u8]>>> {
        for transaction in self.of.iter() {
            if let Some(value) = transaction.writes.of(cf).get(full)
                && self.shows(transaction)?
            {
                return Ok(Some(value.as_deref()));
            }
        }
        Ok(None)
    }

    /// What lies over the snapshot from `lower` up to `upper`, with `own` writes above it; just those if there is nothing.
    pub fn over(
        &self,
        cf: Cf,
        lower: &[u8],
        upper: &[u8],
        own: Option<&Arc<Overlay>>,
    ) -> Result<Option<Arc<Overlay>>> {
        if lower >= upper {
            return Ok(own.cloned());
        }
        let mut layer: Option<Overlay> = None;
        for transaction in self.of.iter() {
            if transaction.has_some(cf, lower, upper) && self.shows(transaction)? {
                copy(&transaction.writes, layer.get_or_insert_default(), cf, lower, upper);
            }
        }
        let Some(mut layer) = layer else { return Ok(own.cloned()) };
        if let Some(own) = own {
            copy(own, &mut layer, cf, lower, upper);
        }
        Ok(Some(Arc::new(layer)))
    }
}

fn copy(from: &Overlay, to: &mut Overlay, cf: Cf, lower: &[u8], upper: &[u8]) {
    for (key, value) in from.of(cf).range::<[u8], _>((Bound::Included(lower), Bound::Excluded(upper))) {
        match value {
            Some(value) => to.put(cf, key, value),
            None => to.delete(cf, key),
        }
    }
}
