//! How a set is named in `--configdb` and in `config.shards`.

use std::fmt;
use std::str::FromStr;

use sheaf_errors::{Code, Error, Result, bail};

/// The port that a host is given which names none.
const DEFAULT_PORT: u16 = 27017;

/// `set/host:port,host:port`: a set's name, and some of its members.
///
/// ```
/// use sheaf_cluster::SetAddress;
///
/// let address: SetAddress = "plants/a:27018,b".parse().unwrap();
/// assert_eq!(address.name, "plants");
/// assert_eq!(address.hosts, ["a:27018", "b:27017"]);
/// assert_eq!(address.to_string(), "plants/a:27018,b:27017");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAddress {
    /// The set's name.
    pub name: String,
    /// Some of its members, "host:port".
    pub hosts: Vec<String>,
}

impl FromStr for SetAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<SetAddress> {
        let Some((name, hosts)) = text.split_once('/') else {
            bail!(Code::FAILED_TO_PARSE, "'{text}' names no replica set: it must be <name>/<host:port>,...");
        };
        if name.is_empty() || hosts.is_empty() {
            bail!(Code::FAILED_TO_PARSE, "'{text}' must be <name of the replica set>/<host:port>,...");
        }
        let hosts = hosts.split(',').map(|host| with_port(host.trim())).collect::<Result<_>>()?;
        Ok(SetAddress { name: name.to_owned(), hosts })
    }
}

fn with_port(host: &str) -> Result<String> {
    // An IPv6 address has its own colons, inside of brackets.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            (name, port.parse::<u16>().ok().filter(|port| *port > 0))
        }
        _ => (host, Some(DEFAULT_PORT)),
    };
    match port {
        Some(port) if !name.is_empty() && !name.contains('/') => Ok(format!("{name}:{port}")),
        _ => bail!(Code::FAILED_TO_PARSE, "'{host}' is no host:port"),
    }
}

impl fmt::Display for SetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.name, self.hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_set_is_refused() {
        for text in ["a:1", "/a:1", "x/", "x/a:0", "x/a:b", "x/,a:1", "x/a/b"] {
            assert!(text.parse::<SetAddress>().is_err(), "{text}");
        }
        assert_eq!("x/[::1]".parse::<SetAddress>().unwrap().hosts, ["[::1]:27017"]);
        assert_eq!("x/[::1]:5".parse::<SetAddress>().unwrap().hosts, ["[::1]:5"]);
    }
}
