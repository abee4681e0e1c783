//! What a write waits for.

use std::time::Duration;

use sheaf_bson::{DocBuf, DocWriter};
pub use sheaf_front::concern::{ReadConcern, ReadLevel, W, WriteConcern};
use sheaf_repl::write_concern as repl;

/// What a write waits for, nothing left open: the client's write concern with the node's default for what it does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// Who shall have the write.
    pub w: repl::W,
    /// `j`, if somebody said.
    pub journal: Option<bool>,
    /// `wtimeout`; zero waits without end.
    pub timeout: Duration,
    /// Who has decided.
    pub provenance: Provenance,
}

/// Who has decided on a write concern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// The client.
    ClientSupplied,
    /// The rule that there is when nobody says anything.
    ImplicitDefault,
    /// `setDefaultRWConcern`.
    CustomDefault,
}

impl Provenance {
    /// The word of `provenance`.
    pub fn name(self) -> &'static str {
        match self {
            Provenance::ClientSupplied => "clientSupplied",
            Provenance::ImplicitDefault => "implicitDefault",
            Provenance::CustomDefault => "customDefault",
        }
    }
}

impl Effective {
    /// Waits for nobody else.
    pub fn alone() -> Self {
        let (timeout, provenance) = (Duration::ZERO, Provenance::ImplicitDefault);
        Effective { w: repl::W::Nodes(1), journal: None, timeout, provenance }
    }

    /// The client's `given`, where it says something, and `default` where it does not.
    pub fn of(given: Option<&WriteConcern<'_>>, default: &Effective) -> Self {
        let Some(given) = given else { return default.clone() };
        Effective {
            w: given.w.map_or_else(|| default.w.clone(), owned_w),
            journal: given.journal.or(given.fsync.then_some(true)),
            timeout: given.timeout,
            provenance: Provenance::ClientSupplied,
        }
    }

    /// Whether the writer wants no answer about this write.
    pub fn unacknowledged(&self) -> bool {
        self.w == repl::W::Nodes(0)
    }

    /// Whether a node without others waits for its disk. `majority` promises that a write cannot be lost, so without
    /// an explicit `j` it does.
    pub fn wants_journal(&self) -> bool {
        self.journal.unwrap_or(self.w == repl::W::Majority)
    }

    /// As the replication core takes it. What a majority has is on disk there unless the configuration says otherwise,
    /// so only an explicit `j` asks for the journal.
    pub fn for_set(&self) -> repl::WriteConcern {
        repl::WriteConcern { w: self.w.clone(), journal: self.journal == Some(true) }
    }

    /// Appends its fields: what replies show as the write concern used.
    pub fn write(&self, doc: &mut DocWriter<'_, Vec<u8>>) {
        match &self.w {
            repl::W::Nodes(n) => _ = doc.append("w", *n as i32),
            repl::W::Majority => _ = doc.append("w", "majority"),
            repl::W::Mode(name) => _ = doc.append("w", name.as_str()),
            repl::W::Tags(tags) => {
                let mut w = doc.document("w");
                for (name, count) in tags {
                    w.append(name, *count as i32);
                }
            }
        }
        if let Some(journal) = self.journal {
            doc.append("j", journal);
        }
        doc.append("wtimeout", self.timeout.as_millis() as i32);
    }

    /// `errInfo` of its `writeConcernError`.
    pub fn error_info(&self, timed_out: bool) -> DocBuf {
        DocBuf::build(|info| {
            if timed_out {
                info.append("wtimeout", true);
            }
            let mut used = info.document("writeConcern");
            self.write(&mut used);
            used.append("provenance", self.provenance.name());
        })
    }
}

fn owned_w(w: W<'_>) -> repl::W {
    match w {
        W::Nodes(n) => repl::W::Nodes(u64::from(n)),
        W::Majority => repl::W::Majority,
        W::Mode(name) => repl::W::Mode(name.to_owned()),
        W::Tags(tags) => repl::W::Tags(
            tags.iter()
                .map(|tag| (tag.key().to_owned(), sheaf_front::args::safe_i64(tag.value()).unwrap_or(0)))
                .collect(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_bson::doc;

    #[test]
    fn a_default_fills_what_the_client_leaves_open() {
        let default = Effective { w: repl::W::Majority, ..Effective::alone() };
        let used = |given: DocBuf| {
            let given = WriteConcern::parse(given.as_raw()).unwrap();
            let used = Effective::of(Some(&given), &default);
            DocBuf::build(|doc| used.write(doc))
        };
        assert_eq!(used(doc! { "w": 2 }), doc! { "w": 2, "wtimeout": 0 });
        assert_eq!(used(doc! { "j": true }), doc! { "w": "majority", "j": true, "wtimeout": 0 });
        assert_eq!(used(doc! { "wtimeout": 5 }), doc! { "w": "majority", "wtimeout": 5 });
        assert_eq!(used(doc! { "w": { "dc": 2 } }), doc! { "w": { "dc": 2 }, "wtimeout": 0 });
        assert_eq!(Effective::of(None, &default), default);
        let info = doc! {
            "wtimeout": true,
            "writeConcern": { "w": "majority", "wtimeout": 0, "provenance": "implicitDefault" }
        };
        assert_eq!(default.error_info(true), info);
    }
}
