//! What a member must never forget, besides its log: term, vote, configuration. One small file, replaced as a whole.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sheaf_bson::{DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result};
use sheaf_repl::HardState;
use sheaf_repl::config::ReplSetConfig;

/// The file's name in the data folder.
const NAME: &str = "replica.bson";

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
        Ok(StateFile { path, state })
    }

    /// Writes the state; it survives a crash of the machine when this returns.
    pub fn save(&self) -> Result<()> {
        let next = self.path.with_extension("next");
        let written = File::create(&next).and_then(|mut file| {
            file.write_all(to_document(&self.state).as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
        written.map_err(|error| failed("writing", &self.path, &error))
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::FILE_STREAM_FAILED, format!("{what} {} failed: {error}", path.display()))
}

fn to_document(state: &DurableState) -> DocBuf {
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
}
