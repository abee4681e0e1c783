//! What a member must never forget, besides its log: term, vote, configuration. One small file, replaced as a whole.
//!
//! A member whose disk is full must still be able to vote: else two of three full disks are a set without a primary, in which nothing can be
//! deleted. So there are two files, which change places: the new state is written over the blocks of the one before the last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sheaf_bson::{Binary, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_repl::HardState;
use sheaf_repl::config::ReplSetConfig;

/// The file's name in the data folder.
const NAME: &str = "replica.bson";

/// Its length is a multiple of this, so that a number of one more digit needs no more room on the disk.
const BLOCK: usize = 4096;

/// What rollbacks have taken back since this member exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollbackCount {
    /// Rollbacks.
    pub count: u64,
    /// Documents that were written to files.
    pub documents: u64,
}

/// The file's contents.
#[derive(Clone, Debug, Default)]
pub struct DurableState {
    /// Term, vote; the commit point as it was when the file was written.
    pub hard_state: HardState,
    /// Grows with every start of this member.
    pub incarnation: u64,
    /// The configuration, and which of its members this is.
    pub config: Option<(ReplSetConfig, Option<u64>)>,
    /// What rollbacks have taken back.
    pub rollbacks: RollbackCount,
}

/// The file.
pub struct StateFile {
    path: PathBuf,
    /// As the file has it.
    pub state: DurableState,
    /// Term and vote of the units up to this one were kept before their turn.
    pub early: u64,
}

impl StateFile {
    /// Reads the file of a data folder, if there is one.
    ///
    /// Errors: `UnsupportedFormat` if it cannot be read.
    pub fn open(folder: &Path) -> Result<StateFile> {
        let path = folder.join(NAME);
        let state = match fs::read(&path) {
            Ok(bytes) => parse(&bytes).ok_or_else(|| {
                Error::new(Code::UNSUPPORTED_FORMAT, format!("{} cannot be read", path.display()))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => DurableState::default(),
            Err(error) => return Err(failed("reading", &path, &error)),
        };
        Ok(StateFile { path, state, early: 0 })
    }

    /// Writes the state; it survives a crash of the machine when this returns.
    pub fn save(&self) -> Result<()> {
        let next = self.path.with_extension("next");
        let bytes = to_document(&self.state);
        let written = write_over(&next, bytes.as_bytes()).and_then(|()| {
            if renameat_with(CWD, &next, CWD, &self.path, RenameFlags::EXCHANGE).is_err() {
                // The first time, or a file system that cannot. The room for the next time is no condition of this one.
                fs::rename(&next, &self.path)?;
                let _ = write_over(&next, bytes.as_bytes());
            }
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
        written.map_err(|error| failed("writing", &self.path, &error))
    }
}

/// Makes these bytes a file's, in the blocks that it has.
fn write_over(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::FILE_STREAM_FAILED, format!("{what} {} failed: {error}", path.display()))
}

/// The state in a document that fills its blocks.
fn to_document(state: &DurableState) -> DocBuf {
    let with_room = |room: &[u8]| {
        let mut doc = described(state);
        doc.append("room", Value::Binary(Binary { subtype: 0, bytes: room }));
        doc
    };
    let least = with_room(&[]).as_bytes().len();
    with_room(&vec![0; least.next_multiple_of(BLOCK) - least])
}

fn described(state: &DurableState) -> DocBuf {
    DocBuf::build(|doc| {
        doc.append("term", state.hard_state.term as i64);
        if let Some(vote) = state.hard_state.vote {
            doc.append("vote", vote as i64);
        }
        doc.append("commit", state.hard_state.commit as i64);
        doc.append("incarnation", state.incarnation as i64);
        doc.append("rollbacks", state.rollbacks.count as i64);
        doc.append("rolledBack", state.rollbacks.documents as i64);
        if let Some((config, me)) = &state.config {
            doc.append("config", &config.to_document());
            if let Some(me) = me {
                doc.append("me", *me as i64);
            }
        }
    })
}

fn parse(bytes: &[u8]) -> Option<DurableState> {
    sheaf_bson::validate(bytes, 100).ok()?;
    let doc = RawDoc::new(bytes);
    let number = |name: &str| doc.get(name).and_then(|value| value.as_exact_i64()).map(|n| n as u64);
    let config = match doc.get("config") {
        Some(Value::Document(config)) => Some((ReplSetConfig::parse(config).ok()?, number("me"))),
        _ => None,
    };
    Some(DurableState {
        hard_state: HardState { term: number("term")?, vote: number("vote"), commit: number("commit")? },
        incarnation: number("incarnation")?,
        config,
        rollbacks: RollbackCount {
            count: number("rollbacks").unwrap_or(0),
            documents: number("rolledBack").unwrap_or(0),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_repl::config::MemberConfig;

    #[test]
    fn a_state_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(folder.path()).unwrap();
        assert!(file.state.config.is_none());
        let members = vec![MemberConfig::new(0, "a:1"), MemberConfig::new(3, "b:2")];
        file.state = DurableState {
            hard_state: HardState { term: 7, vote: Some(3), commit: 12 },
            incarnation: 4,
            rollbacks: RollbackCount { count: 1, documents: 2 },
            config: Some((ReplSetConfig::new("rs", members), Some(3))),
        };
        file.save().unwrap();
        let back = StateFile::open(folder.path()).unwrap().state;
        assert_eq!(back.hard_state, file.state.hard_state);
        assert_eq!((back.incarnation, back.config, back.rollbacks.documents), (4, file.state.config, 2));
        std::fs::write(folder.path().join(NAME), b"short").unwrap();
        assert!(StateFile::open(folder.path()).is_err());
    }

    /// The two files stay, with their blocks: a save makes none anew.
    #[test]
    fn a_state_is_written_into_the_blocks_that_are_there() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let mut file = StateFile::open(folder.path()).unwrap();
        let members = vec![MemberConfig::new(0, "a:1")];
        file.state.config = Some((ReplSetConfig::new("rs", members), Some(0)));
        let files = || {
            let of = |name: &str| fs::metadata(folder.path().join(name)).unwrap();
            let (now, next) = (of(NAME), of("replica.next"));
            assert!((now.len(), next.len()) == (BLOCK as u64, BLOCK as u64));
            (now.ino(), next.ino())
        };
        file.save().unwrap();
        let (now, next) = files();
        for term in [9, 10, 1 << 40] {
            file.state.hard_state = HardState { term, vote: (term > 9).then_some(0), commit: term };
            file.save().unwrap();
            assert_eq!(StateFile::open(folder.path()).unwrap().state.hard_state, file.state.hard_state);
            assert_eq!(files(), if term == 10 { (now, next) } else { (next, now) });
        }
    }
}
