//! What is known of a cluster: one file in its folder.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::process::Lasting;
use super::secured::Secured;
use crate::client::ConnectionString;
use crate::error::{Error, Result};
use crate::experiment::Distance;
use crate::part::{Part, parts_of};
use crate::target::set::{State, ask_all};

/// Name of the file.
const FILE: &str = "cluster.json";
/// How the names of those begin that were not written to their end, as whoever wrote was killed.
const UNFINISHED: &str = "cluster.json.";
/// The layout of the file.
const VERSION: u32 = 1;

/// A cluster as its file has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// Of the replica set.
    pub name: String,
    /// One server without a replica set.
    pub standalone: bool,
    /// Whether `down` leaves the data there when it is not told.
    pub keep: bool,
    /// Whether the sets were initiated.
    pub initiated: bool,
    /// Whether the routers know the shards.
    #[serde(default)]
    pub shards_added: bool,
    /// Whether the config servers are a shard, too.
    #[serde(default)]
    pub config_shard: bool,
    /// Whether clients prove who they are.
    #[serde(default)]
    pub secured: Option<Secured>,
    /// Flags that every server gets.
    pub flags: Vec<String>,
    /// The servers, by their number.
    pub members: Vec<Member>,
    /// The proxies on the links.
    pub links: Option<LinksRecord>,
    /// How far the members are from each other.
    pub distance: Option<Distance>,
    /// Where the file is.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// On the loopback interface.
    pub port: u16,
    /// What it is a part of.
    #[serde(default)]
    pub part: Part,
    /// It votes and holds no data.
    pub arbiter: bool,
    /// Its process, unless it was ended.
    pub process: Option<Lasting>,
    /// Whether the process is stopped.
    pub paused: bool,
    /// What it was called when it was killed or paused, until it runs again: by then its role is another's.
    #[serde(default)]
    pub called: Option<String>,
}

/// The process that holds the proxies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinksRecord {
    /// The process.
    pub process: Option<Lasting>,
    /// Of each member, its parameter `peerAddresses`.
    pub peers: Vec<String>,
}

impl Member {
    /// "host:port".
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its process, if it runs.
    pub fn running(&self) -> Option<Lasting> {
        self.process.filter(Lasting::runs)
    }
}

impl Record {
    /// Of a cluster of these members that is yet to be started.
    pub fn new(folder: PathBuf, name: &str, members: Vec<Member>) -> Record {
        Record {
            version: VERSION,
            name: name.to_owned(),
            standalone: false,
            keep: false,
            initiated: false,
            shards_added: false,
            config_shard: false,
            secured: None,
            flags: Vec::new(),
            members,
            links: None,
            distance: None,
            folder,
        }
    }

    /// Reads the file; `None` when there is none.
    pub fn find(folder: &Path) -> Result<Option<Record>> {
        let file = folder.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::from(error).context(file.display())),
        };
        let mut record: Record = serde_json::from_str(&text)
            .map_err(|error| Error::failed(format!("{}: {error}", file.display())))?;
        if record.version != VERSION {
            return Err(Error::usage(format!("{}: written by another version of sheaf", file.display())));
        }
        record.folder = folder.to_owned();
        Ok(Some(record))
    }

    /// Reads the file of a cluster that must be there.
    pub fn open(folder: &Path) -> Result<Record> {
        Record::find(folder)?.ok_or_else(|| {
            Error::usage(format!("there is no cluster in {}; `sheaf cluster up` makes one", folder.display()))
        })
    }

    /// Writes the file, as a whole or not at all.
    pub fn save(&self) -> Result<()> {
        let place = |error: std::io::Error| Error::from(error).context(self.folder.display());
        let text = serde_json::to_string_pretty(self).map_err(|error| Error::failed(error.to_string()))?;
        let mut file =
            tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder).map_err(place)?;
        writeln!(file, "{text}").map_err(place)?;
        file.persist(self.folder.join(FILE)).map_err(|error| place(error.error))?;
        Ok(())
    }

    /// The data folder of a member.
    pub fn data(&self, number: usize) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// The log of a member.
    pub fn log(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.log"))
    }

    /// Everything that belongs to the cluster, the file last.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            (0..self.members.len()).flat_map(|number| [self.data(number), self.log(number)]).collect();
        let unfinished = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files.extend(unfinished.filter(|entry| is_unfinished(&entry.file_name())).map(|entry| entry.path()));
        files.extend(self.secured_files());
        files.extend([self.socket(), self.folder.join("links.log"), self.folder.join(FILE)]);
        files
    }

    /// Where the links' process is told what to do.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("links.sock")
    }

    /// Waits until it is known which of its processes run: [`Lasting::settle`].
    pub fn settle(&self) {
        let links = self.links.as_ref().and_then(|links| links.process);
        let members = self.members.iter().filter_map(|member| member.process);
        members.chain(links).for_each(|process| process.settle());
    }

    /// The members whose processes run.
    pub fn running(&self) -> Vec<usize> {
        (0..self.members.len()).filter(|at| self.members[*at].running().is_some()).collect()
    }

    /// Whether the process that holds the links runs, if it has such.
    pub fn is_linked(&self) -> bool {
        self.links.as_ref().is_none_or(|links| links.process.is_some_and(|process| process.runs()))
    }

    /// Whether all of it runs, and has become what it was to be.
    pub fn is_up(&self) -> bool {
        let has_user = self.secured.as_ref().is_none_or(|secured| secured.has_user);
        let is_made =
            has_user && (self.standalone || self.initiated) && (!self.is_sharded() || self.shards_added);
        is_made && self.is_linked() && self.running().len() == self.members.len()
    }

    /// How a client reaches it.
    ///
    /// Errors: the files of a cluster that asks who its clients are cannot be read.
    pub fn connection_string(&self) -> Result<ConnectionString> {
        let mut to = ConnectionString::direct("");
        if self.is_sharded() {
            (to.hosts, to.direct, to.routed) = (self.addresses(Part::Router), false, true);
            return self.login(to);
        }
        to.hosts = self.members.iter().filter(|member| !member.arbiter).map(Member::address).collect();
        to.direct = self.standalone;
        to.replica_set = (!self.standalone).then(|| self.name.clone());
        self.login(to)
    }

    /// Whether it has routers and shards.
    pub fn is_sharded(&self) -> bool {
        self.members.iter().any(|member| member.part != Part::Set)
    }

    /// Its parts, each once.
    pub fn parts(&self) -> Vec<Part> {
        parts_of(self.members.iter().map(|member| member.part))
    }

    /// The numbers of the members of a part.
    pub fn of_part(&self, part: Part) -> Vec<usize> {
        (0..self.members.len()).filter(|at| self.members[*at].part == part).collect()
    }

    /// The addresses of the members of a part.
    pub fn addresses(&self, part: Part) -> Vec<String> {
        self.of_part(part).into_iter().map(|at| self.members[at].address()).collect()
    }

    /// The name of the replica set that a member belongs to.
    pub fn set_of(&self, number: usize) -> Option<String> {
        match self.members[number].part {
            Part::Set => (!self.standalone).then(|| self.name.clone()),
            part => part.set_name(),
        }
    }

    /// The server parameters among the flags.
    pub fn parameters(&self) -> impl Iterator<Item = &String> {
        let pairs = self.flags.chunks_exact(2).filter(|pair| pair[0] == "--setParameter");
        pairs.flatten()
    }

    /// What every member says that it is; those that are down or paused are not asked.
    pub fn states(&self) -> Vec<State> {
        let asked: Vec<usize> = (0..self.members.len())
            .filter(|at| self.members[*at].running().is_some() && !self.members[*at].paused)
            .collect();
        let addresses: Vec<String> = asked.iter().map(|at| self.members[*at].address()).collect();
        let to: Vec<_> = addresses.iter().filter_map(|address| self.direct(address).ok()).collect();
        let answers = ask_all(to);
        let mut states = vec![State::Away; self.members.len()];
        for (at, state) in asked.into_iter().zip(answers) {
            states[at] = state;
        }
        states
    }
}

/// Whether a file of this name is one that was never written to its end: it says nothing.
pub fn is_unfinished(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(UNFINISHED.as_bytes())
}

/// The folder of a cluster unless one is named: below the user's data, by the cluster's name. Not below `sheaf`: that is the
/// data folder of the server that `scripts/start` starts.
pub fn usual_folder(name: &str) -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = variable("XDG_DATA_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/share")));
    let data =
        data.ok_or_else(|| Error::usage("neither XDG_DATA_HOME nor HOME is set: name a folder with --data"))?;
    Ok(folder_below(&data, name))
}

fn folder_below(data: &Path, name: &str) -> PathBuf {
    // Where earlier versions put it: one that is there is found.
    let before = data.join("sheaf/cluster").join(name);
    if before.join(FILE).exists() { before } else { data.join("sheaf-cluster").join(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(port: u16, process: Option<Lasting>) -> Member {
        Member { port, part: Part::Set, arbiter: false, process, paused: false, called: None }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Record::find(folder.path()).unwrap().is_none());
        assert!(Record::open(folder.path()).unwrap_err().to_string().contains("there is no cluster"));
        let process = Some(Lasting::of(std::process::id()));
        let members = vec![member(27017, process), Member { arbiter: true, ..member(27018, None) }];
        let record = Record::new(folder.path().to_owned(), "rs0", members);
        record.save().unwrap();
        assert_eq!(Record::open(folder.path()).unwrap(), record);
        assert!(record.running() == [0] && !record.is_up());
        let whole = Record { initiated: true, members: vec![member(27017, process)], ..record.clone() };
        assert!(whole.is_up());
        let links = Some(LinksRecord { process: None, peers: Vec::new() });
        assert!(!Record { links, ..whole.clone() }.is_up(), "without its links");
        assert!(!Record { initiated: false, ..whole }.is_up(), "no set yet");
        assert_eq!(
            record.connection_string().unwrap().to_string(),
            "mongodb://127.0.0.1:27017/?replicaSet=rs0"
        );
        std::fs::write(folder.path().join(FILE), "{}").unwrap();
        assert!(Record::open(folder.path()).is_err());
    }

    /// `scripts/start` gives the server the folder `sheaf`.
    #[test]
    fn clusters_are_not_put_into_the_data_folder_of_the_server() {
        let home = tempfile::tempdir().unwrap();
        let usual = folder_below(home.path(), "rs0");
        assert!(!usual.starts_with(home.path().join("sheaf")), "{}", usual.display());
        assert_eq!(folder_below(home.path(), "rs1"), usual.with_file_name("rs1"));
        let before = home.path().join("sheaf/cluster/rs0");
        std::fs::create_dir_all(&before).unwrap();
        Record::new(before.clone(), "rs0", Vec::new()).save().unwrap();
        assert_eq!(folder_below(home.path(), "rs0"), before);
        assert_eq!(folder_below(home.path(), "rs1"), usual.with_file_name("rs1"));
    }
}
