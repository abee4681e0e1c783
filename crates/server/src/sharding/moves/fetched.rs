//! The recipient of a collection that gets another key or place: how far it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use sheaf_bson::{DocBuf, RawDoc};

/// What this member has fetched, by operation.
#[derive(Default)]
pub struct Fetches(pub HashMap<[u8; 16], Fetched>);

/// What was fetched of one operation.
#[derive(Clone, Default)]
pub struct Fetched {
    /// The office in which that was.
    pub term: u64,
    pub by_donor: BTreeMap<String, Position>,
    pub progress: Arc<Progress>,
    pub given_up: bool,
}

/// What `currentOp` shows of it.
pub struct Progress {
    pub began: Instant,
    pub namespace: String,
    pub command: String,
    pub key: DocBuf,
    pub is_copying: AtomicBool,
    pub is_last: AtomicBool,
    pub documents: AtomicU64,
    pub bytes: AtomicU64,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            began: Instant::now(),
            namespace: String::new(),
            command: String::new(),
            key: DocBuf::new(),
            is_copying: AtomicBool::new(false),
            is_last: AtomicBool::new(false),
            documents: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// Of what a command asks for.
    pub fn of(body: RawDoc<'_>) -> Progress {
        let text = |name: &str| body.get(name).and_then(|text| text.as_str()).unwrap_or_default().to_owned();
        let key = body.get("wanted").and_then(|wanted| wanted.as_doc()?.get("key")?.as_doc());
        Progress {
            namespace: text("of"),
            command: text("command"),
            key: DocBuf::from(key.unwrap_or(RawDoc::EMPTY)),
            ..Progress::default()
        }
    }

    /// These have come.
    pub fn wrote(&self, documents: &[RawDoc<'_>]) {
        let bytes: usize = documents.iter().map(|document| document.len()).sum();
        self.documents.fetch_add(documents.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// How far a recipient is with a donor.
#[derive(Clone, Default)]
pub struct Position {
    /// The donor's name for its notes: its office and a number.
    pub name: (i64, i64),
    pub received: i64,
    /// Records that could not be written, as something of another donor, or something that changes too, was in the way.
    pub waiting: BTreeSet<Vec<u8>>,
}
