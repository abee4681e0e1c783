//! The folder of a whole cluster: a data folder for each member, and a file that says which there are.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use sheaf_bson::{DocBuf, json};

/// Name of the file.
const FILE: &str = "sharded.json";
/// Name of the config servers' set.
const CONFIG: &str = "config";

/// A cluster in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    folder: PathBuf,
    /// Of the config server and of each shard.
    pub ports: Vec<u16>,
    /// Whether the shards were added.
    pub complete: bool,
}

/// The folder whose lock tells the process of the server that runs here.
pub fn locked(folder: &Path) -> PathBuf {
    if folder.join(FILE).exists() { folder.join(CONFIG) } else { folder.to_owned() }
}

/// Refuses the folder of a whole cluster to a server that is not to run one: it would show an empty server beside the data.
///
/// Errors: a text for the user.
pub fn check_plain(folder: &Path) -> Result<(), String> {
    if !folder.join(FILE).exists() {
        return Ok(());
    }
    Err(format!("BadValue: {} holds a whole cluster: it is started with --shards", folder.display()))
}

impl Layout {
    /// Reads the file, or plans a new cluster, whose members have the ports behind the router's (free ones, where that is 0).
    ///
    /// Errors: a text for the user.
    pub fn open(folder: &Path, shards: u32, port: u16) -> Result<Layout, String> {
        let file = folder.join(FILE);
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Layout::plan(folder, shards, port);
            }
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        let layout = Layout::parse(folder, &text)
            .ok_or_else(|| format!("{}: it does not say what is in this folder", file.display()))?;
        match layout.shards() {
            found if found == shards => Ok(layout),
            found => Err(format!(
                "BadValue: {} holds a cluster of {found} shards, not of {shards}",
                folder.display()
            )),
        }
    }

    fn plan(folder: &Path, shards: u32, port: u16) -> Result<Layout, String> {
        if !folder.is_dir() {
            return Err(format!("NonExistentPath: Data directory {} not found.", folder.display()));
        }
        let mut entries =
            std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        if entries.next().is_some() {
            return Err(format!(
                "BadValue: {} is not empty and holds no cluster: --shards begins with a folder of its own",
                folder.display()
            ));
        }
        let ports = free_ports(port, shards + 1)?;
        Ok(Layout { folder: folder.to_owned(), ports, complete: false })
    }

    fn parse(folder: &Path, text: &str) -> Option<Layout> {
        let doc = json::parse_document(text).ok()?;
        let doc = doc.as_raw();
        let port = |value: sheaf_bson::Value<'_>| u16::try_from(value.as_exact_i64()?).ok();
        let ports: Vec<u16> = doc.get("ports")?.as_array()?.values().map(port).collect::<Option<_>>()?;
        let complete = doc.get("complete")?.as_bool()?;
        (ports.len() > 1).then(|| Layout { folder: folder.to_owned(), ports, complete })
    }

    /// Writes the file, as a whole or not at all, and makes the data folders.
    ///
    /// Errors: a text for the user.
    pub fn save(&self) -> Result<(), String> {
        let doc = DocBuf::build(|doc| {
            let mut ports = doc.array("ports");
            for port in &self.ports {
                ports.push(i32::from(*port));
            }
            drop(ports);
            doc.append("complete", self.complete);
        });
        let text = json::to_json(doc.as_raw(), json::Style::Relaxed);
        let place = |error: std::io::Error| format!("{}: {error}", self.folder.display());
        for number in 0..self.ports.len() {
            std::fs::create_dir_all(self.data(number)).map_err(place)?;
        }
        let new = self.folder.join(format!("{FILE}.new"));
        std::fs::write(&new, text).map_err(place)?;
        std::fs::rename(&new, self.folder.join(FILE)).map_err(place)
    }

    /// How many shards there are.
    pub fn shards(&self) -> u32 {
        self.ports.len() as u32 - 1
    }

    /// The name of a member's set; the config server is number 0.
    pub fn set_name(&self, number: usize) -> String {
        if number == 0 { CONFIG.to_owned() } else { format!("shard{}", number - 1) }
    }

    /// The data folder of a member.
    pub fn data(&self, number: usize) -> PathBuf {
        self.folder.join(self.set_name(number))
    }

    /// "host:port" of a member.
    pub fn address(&self, number: usize) -> String {
        format!("127.0.0.1:{}", self.ports[number])
    }

    /// "shard0/host:port".
    pub fn set_address(&self, number: usize) -> String {
        format!("{}/{}", self.set_name(number), self.address(number))
    }
}

/// The ports of the members of a new cluster, which nobody must listen on.
fn free_ports(router: u16, count: u32) -> Result<Vec<u16>, String> {
    let mut held = Vec::new();
    for number in 1..=count {
        let port = match router {
            0 => 0,
            first => u16::try_from(u32::from(first) + number)
                .map_err(|_| format!("BadValue: there are not enough ports behind {first}"))?,
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
            format!("port {port}, for a member of the cluster, cannot be used ({error}); name another one with --port")
        })?;
        held.push(listener);
    }
    held.iter().map(|listener| listener.local_addr().map(|at| at.port()).map_err(|e| e.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("sheaf-sharded-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_layout_is_read_as_it_was_written() {
        let folder = Folder::new("layout");
        assert_eq!(locked(&folder.0), folder.0);
        let mut layout = Layout::open(&folder.0, 2, 0).unwrap();
        assert_eq!((layout.ports.len(), layout.shards(), layout.complete), (3, 2, false));
        layout.complete = true;
        layout.save().unwrap();
        assert_eq!(Layout::open(&folder.0, 2, 27017).unwrap(), layout);
        assert!(Layout::open(&folder.0, 3, 27017).unwrap_err().contains("of 2 shards, not of 3"));
        assert_eq!(layout.set_address(2), format!("shard1/127.0.0.1:{}", layout.ports[2]));
        assert!(layout.data(0).is_dir() && layout.data(2).ends_with("shard1"));
        assert_eq!(locked(&folder.0), layout.data(0));
        assert!(
            check_plain(&folder.0).unwrap_err().contains("--shards") && check_plain(&layout.data(0)).is_ok()
        );
        for text in
            ["", "{}", r#"{"ports": [1], "complete": true}"#, r#"{"ports": [1, 70000], "complete": true}"#]
        {
            std::fs::write(folder.0.join(FILE), text).unwrap();
            assert!(Layout::open(&folder.0, 1, 0).unwrap_err().contains("does not say"), "{text}");
        }
    }

    #[test]
    fn folders_of_others_are_left_alone() {
        let folder = Folder::new("others");
        std::fs::write(folder.0.join("sheaf.format"), "").unwrap();
        assert!(Layout::open(&folder.0, 2, 0).unwrap_err().contains("is not empty"));
        assert!(Layout::open(&folder.0.join("none"), 2, 0).unwrap_err().contains("not found"));
        assert!(free_ports(65535, 2).unwrap_err().contains("not enough"));
    }
}
