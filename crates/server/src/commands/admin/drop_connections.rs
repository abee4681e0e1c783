//! `dropConnections`.

use sheaf_bson::Value;
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Array};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// The port of an address that names none.
const PORT: u16 = 27017;

/// `{dropConnections: 1, hostAndPort: ["db1.example.net:27017"]}`
pub struct DropConnections {
    addresses: Vec<String>,
}

impl<'a> Command<'a, Operation<'a>> for DropConnections {
    const NAME: &'static str = "dropConnections";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "closes connections to other servers",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::DropConnections])]),
        spread: Spread::Refused,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let Array(hosts) = args.required("hostAndPort")?;
        let mut addresses = Vec::new();
        for host in hosts.iter() {
            match host.value() {
                Value::String(text) => addresses.push(address(text)?),
                other => bail!(
                    Code::TYPE_MISMATCH,
                    "BSON field 'dropConnections.hostAndPort.{}' is the wrong type '{}', expected type 'string'",
                    host.key(),
                    other.type_name()
                ),
            }
        }
        Ok(DropConnections { addresses })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        self.addresses.iter().for_each(|address| op.node().peers.forget(address));
        Ok(Reply::ok())
    }
}

/// `host`, `host:port` or `[ipv6]:port` in the form that connections are kept by.
///
/// Errors: `FailedToParse`.
fn address(text: &str) -> Result<String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((host, after)) = rest.split_once(']') else {
            bail!(Code::FAILED_TO_PARSE, "ipv6 address is missing closing ']' in hostname: {text}");
        };
        match after.strip_prefix(':') {
            Some(port) => (format!("[{host}]"), Some(port)),
            None if after.is_empty() => (format!("[{host}]"), None),
            None => bail!(Code::FAILED_TO_PARSE, "extra characters after ']' in hostname: {text}"),
        }
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => bail!(
                Code::FAILED_TO_PARSE,
                "More than one ':' detected. If this is an ipv6 address, it needs to be surrounded by '[' and ']'; {text}"
            ),
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        }
    };
    if host.is_empty() || host == "[]" {
        bail!(Code::FAILED_TO_PARSE, "Empty host component parsing HostAndPort from \"{text}\"");
    }
    let Some(port) = port else { return Ok(format!("{host}:{PORT}")) };
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(format!("{host}:{port}")),
        _ => bail!(
            Code::FAILED_TO_PARSE,
            "Port number {port} out of range parsing HostAndPort from \"{text}\""
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, kept) in
            [("a", "a:27017"), ("a:1", "a:1"), ("[::1]:2", "[::1]:2"), ("[::1]", "[::1]:27017")]
        {
            assert_eq!(address(text).unwrap(), kept);
        }
        for bad in ["", ":1", "a:", "a:0", "a:99999", "a:x", "a:b:c", "a:-1", "[::1", "[]:1", "[::1]x"] {
            assert_eq!(address(bad).unwrap_err().code(), Code::FAILED_TO_PARSE, "{bad}");
        }
    }
}
