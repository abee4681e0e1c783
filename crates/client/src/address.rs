//! Connection strings.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sheaf_tls::{ClientOptions, Identity, TlsClient};

use super::auth::Credentials;
use super::concern::{W, WriteConcern};
use crate::error::{Error, Result};

/// A parsed `mongodb://` connection string.
///
/// ```
/// use sheaf_client::{ConnectionString, ReadPreference};
///
/// let to: ConnectionString = "mongodb://one:27017,two/plants?replicaSet=rs0&readPreference=nearest".parse()?;
/// assert_eq!(to.hosts, ["one:27017", "two:27017"]);
/// assert_eq!((to.db.as_deref(), to.read_preference), (Some("plants"), ReadPreference::Nearest));
/// # Ok::<(), sheaf_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionString {
    /// "host:port", at least one.
    pub hosts: Vec<String>,
    /// The database to use when nothing else is said.
    pub db: Option<String>,
    /// Who logs in; nobody without.
    pub credentials: Option<Credentials>,
    /// `tls` and what goes with it.
    pub tls: Option<TlsClient>,
    /// `replicaSet`.
    pub replica_set: Option<String>,
    /// `directConnection`: talk to the one host that is named, whatever it is.
    pub direct: bool,
    /// The hosts are routers of a sharded cluster, which can be told only by who has asked them.
    pub routed: bool,
    /// `w`, `journal`, `wtimeoutMS`.
    pub write_concern: WriteConcern,
    /// `readPreference`.
    pub read_preference: ReadPreference,
    /// `retryWrites`: sends again, to the new primary, what a lost one has not answered. Also reads. Default: no.
    pub retry: bool,
    /// `connectTimeoutMS`.
    pub connect_timeout: Duration,
    /// `socketTimeoutMS`: how long to wait for an answer.
    pub socket_timeout: Duration,
}

/// Which members reads go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadPreference {
    /// The primary.
    #[default]
    Primary,
    /// The primary, a secondary while there is none.
    PrimaryPreferred,
    /// A secondary.
    Secondary,
    /// A secondary, the primary while there is none.
    SecondaryPreferred,
    /// Any member.
    Nearest,
}

impl ReadPreference {
    /// MongoDB's word for it.
    pub fn name(self) -> &'static str {
        match self {
            ReadPreference::Primary => "primary",
            ReadPreference::PrimaryPreferred => "primaryPreferred",
            ReadPreference::Secondary => "secondary",
            ReadPreference::SecondaryPreferred => "secondaryPreferred",
            ReadPreference::Nearest => "nearest",
        }
    }
}

impl FromStr for ReadPreference {
    type Err = Error;

    fn from_str(text: &str) -> Result<ReadPreference> {
        [
            ReadPreference::Primary,
            ReadPreference::PrimaryPreferred,
            ReadPreference::Secondary,
            ReadPreference::SecondaryPreferred,
            ReadPreference::Nearest,
        ]
        .into_iter()
        .find(|preference| preference.name() == text)
        .ok_or_else(|| Error::usage(format!("unknown readPreference \"{text}\"")))
    }
}

/// Longer than anything takes but an election, and short enough that a paused member is soon left alone.
const ENDURING_TIMEOUT: Duration = Duration::from_secs(8);

const DEFAULT_PORT: &str = "27017";

impl ConnectionString {
    /// One host, addressed directly.
    pub fn direct(host: &str) -> ConnectionString {
        ConnectionString {
            hosts: vec![host.to_owned()],
            db: None,
            credentials: None,
            tls: None,
            replica_set: None,
            direct: true,
            routed: false,
            write_concern: WriteConcern::default(),
            read_preference: ReadPreference::Primary,
            retry: false,
            connect_timeout: Duration::from_secs(10),
            // Longer than any single operation of an experiment; no wait is without an end.
            socket_timeout: Duration::from_secs(120),
        }
    }

    /// One node of this deployment, addressed directly. A secondary answers too.
    pub fn for_node(&self, host: &str) -> ConnectionString {
        let read_preference = ReadPreference::PrimaryPreferred;
        let (hosts, retry, routed) = (vec![host.to_owned()], false, false);
        ConnectionString {
            hosts,
            direct: true,
            routed,
            replica_set: None,
            read_preference,
            retry,
            ..self.clone()
        }
    }

    /// The same, with reads going elsewhere.
    #[must_use]
    pub fn reading(&self, read_preference: ReadPreference) -> ConnectionString {
        ConnectionString { read_preference, ..self.clone() }
    }

    /// Whether replica sets are behind it: majorities acknowledge, snapshots can be read, members may fail over.
    pub fn is_replicated(&self) -> bool {
        self.replica_set.is_some() || self.routed
    }

    /// How long an answer may be waited for until somebody looks after the member: one of a set, by a client that sends again.
    pub(crate) fn look_after(&self) -> Duration {
        let watched = self.retry && self.replica_set.is_some() && !self.direct;
        if watched { crate::select::LOOK_AFTER.min(self.socket_timeout) } else { self.socket_timeout }
    }

    /// For a deployment that loses members: what can be sent again is, and nobody is waited for long.
    #[must_use]
    pub fn enduring(&self) -> ConnectionString {
        ConnectionString { retry: self.is_replicated(), socket_timeout: ENDURING_TIMEOUT, ..self.clone() }
    }
}

impl FromStr for ConnectionString {
    type Err = Error;

    fn from_str(text: &str) -> Result<ConnectionString> {
        // The password is not for error messages.
        let shown = without_password(text);
        let refuse = |what: &str| Error::usage(format!("connection string {shown}: {what}"));
        if text.starts_with("mongodb+srv://") {
            return Err(refuse("mongodb+srv is not supported; name the hosts"));
        }
        let rest = text.strip_prefix("mongodb://").ok_or_else(|| refuse("must begin with mongodb://"))?;
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, before) =
            before.rsplit_once('@').map_or((None, before), |(user, rest)| (Some(user), rest));
        let (hosts, db) = before.split_once('/').unwrap_or((before, ""));
        let mut parsed = ConnectionString::direct("");
        parsed.direct = false;
        parsed.hosts.clear();
        for host in hosts.split(',') {
            parsed.hosts.push(with_port(host).ok_or_else(|| refuse(&format!("bad host \"{host}\"")))?);
        }
        if !db.is_empty() {
            parsed.db = Some(percent_decode(db).ok_or_else(|| refuse("bad database name"))?);
        }
        let (mut direct, mut source) = (None, None);
        let (mut tls, mut by_certificate) = (TlsWords::default(), false);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) =
                option.split_once('=').ok_or_else(|| refuse(&format!("option \"{option}\" has no value")))?;
            let value = percent_decode(value).ok_or_else(|| refuse(&format!("bad value of {name}")))?;
            let bad = || refuse(&format!("bad value \"{value}\" of {name}"));
            let number = || value.parse::<u64>().map_err(|_| bad());
            let flag = || value.parse::<bool>().map_err(|_| bad());
            // Option names have no case, by the specification of connection strings.
            match name.to_ascii_lowercase().as_str() {
                "replicaset" => parsed.replica_set = Some(value),
                "directconnection" => direct = Some(flag()?),
                "authsource" => source = Some(value),
                "authmechanism" if value == "SCRAM-SHA-256" => {}
                "authmechanism" if value == "MONGODB-X509" => by_certificate = true,
                "authmechanism" => return Err(refuse(&format!("authMechanism {value} is not supported"))),
                "w" => parsed.write_concern.w = Some(W::parse(&value)),
                "journal" => parsed.write_concern.j = Some(flag()?),
                "wtimeoutms" => parsed.write_concern.wtimeout_ms = Some(number()?),
                "readpreference" => parsed.read_preference = value.parse().map_err(|_| bad())?,
                "retrywrites" => parsed.retry = flag()?,
                "connecttimeoutms" => parsed.connect_timeout = Duration::from_millis(number()?.max(1)),
                "sockettimeoutms" => parsed.socket_timeout = Duration::from_millis(number()?.max(1)),
                // What belongs to a pool or to a driver's ways has no meaning for one thread and one socket.
                "appname"
                | "maxpoolsize"
                | "minpoolsize"
                | "retryreads"
                | "serverselectiontimeoutms"
                | "heartbeatfrequencyms" => {}
                "tls" | "ssl" => tls.wanted = Some(flag()?),
                "tlscafile" => tls.options.ca_file = Some(value.into()),
                "tlscertificatekeyfile" => tls.certificate = Some(value),
                "tlscertificatekeyfilepassword" => tls.password = Some(value),
                "tlscrlfile" => tls.options.crl_file = Some(value.into()),
                "tlsallowinvalidcertificates" => tls.options.invalid_certificates = flag()?,
                "tlsallowinvalidhostnames" => tls.options.invalid_hostnames = flag()?,
                "tlsinsecure" => {
                    let insecure = flag()?;
                    (tls.options.invalid_certificates, tls.options.invalid_hostnames) = (insecure, insecure);
                }
                _ => return Err(refuse(&format!("unknown option {name}"))),
            }
        }
        if by_certificate {
            if user.is_some_and(|user| user.contains(':')) {
                return Err(refuse("a user with a certificate has no password"));
            }
            let user = percent_decode(user.unwrap_or_default()).ok_or_else(|| refuse("bad user"))?;
            parsed.credentials = Some(Credentials::by_certificate(user));
        } else if let Some(user) = user {
            let (user, password) =
                user.split_once(':').ok_or_else(|| refuse("a user needs a password: user:password@"))?;
            let decode = |text| percent_decode(text).ok_or_else(|| refuse("bad user or password"));
            let source = source.or_else(|| parsed.db.clone()).unwrap_or_else(|| "admin".to_owned());
            parsed.credentials = Some(Credentials::new(decode(user)?, decode(password)?, source));
        }
        parsed.tls = tls.client().map_err(|why| refuse(&why))?;
        parsed.direct = direct.unwrap_or(false);
        if parsed.direct && parsed.hosts.len() > 1 {
            return Err(refuse("directConnection=true takes one host"));
        }
        Ok(parsed)
    }
}

impl fmt::Display for ConnectionString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password, because it goes into reports.
        let user = self.credentials.as_ref().filter(|who| !who.user.is_empty());
        let user = user.map_or_else(String::new, |who| format!("{}@", percent_encode(&who.user)));
        write!(f, "mongodb://{user}{}/{}", self.hosts.join(","), self.db.as_deref().unwrap_or(""))?;
        let mut options = Vec::new();
        if self.credentials.as_ref().is_some_and(|who| who.by_certificate) {
            options.push("authMechanism=MONGODB-X509".to_owned());
        }
        if let Some(set) = &self.replica_set {
            options.push(format!("replicaSet={set}"));
        }
        if self.direct {
            options.push("directConnection=true".to_owned());
        }
        if let Some(tls) = &self.tls {
            options.extend(shown(tls.options()));
        }
        match &self.write_concern.w {
            Some(W::Nodes(n)) => options.push(format!("w={n}")),
            Some(W::Tag(tag)) => options.push(format!("w={tag}")),
            None => {}
        }
        if let Some(j) = self.write_concern.j {
            options.push(format!("journal={j}"));
        }
        if self.read_preference != ReadPreference::Primary {
            options.push(format!("readPreference={}", self.read_preference.name()));
        }
        if self.retry {
            options.push("retryWrites=true".to_owned());
        }
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

/// What a connection string says of TLS.
#[derive(Default)]
struct TlsWords {
    wanted: Option<bool>,
    options: ClientOptions,
    certificate: Option<String>,
    password: Option<String>,
}

impl TlsWords {
    /// Who dials by it, if at all.
    ///
    /// Errors: a text for the user.
    fn client(mut self) -> Result<Option<TlsClient>, String> {
        if self.password.is_some() && self.certificate.is_none() {
            return Err("tlsCertificateKeyFilePassword without tlsCertificateKeyFile".to_owned());
        }
        let password = self.password;
        self.options.identity = self.certificate.map(|file| Identity { file: file.into(), password });
        // Whoever says how wants it.
        let said = self.options != ClientOptions::default();
        match self.wanted {
            Some(true) => TlsClient::new(self.options).map(Some),
            None if said => TlsClient::new(self.options).map(Some),
            Some(false) | None => Ok(None),
        }
    }
}

/// The options of a connection string for TLS; without the password.
fn shown(tls: &ClientOptions) -> Vec<String> {
    let mut options = vec!["tls=true".to_owned()];
    let mut file = |name: &str, path: Option<&std::path::PathBuf>| {
        options.extend(path.map(|path| format!("{name}={}", percent_encode(&path.display().to_string()))));
    };
    file("tlsCAFile", tls.ca_file.as_ref());
    file("tlsCertificateKeyFile", tls.identity.as_ref().map(|identity| &identity.file));
    file("tlsCRLFile", tls.crl_file.as_ref());
    if tls.invalid_certificates {
        options.push("tlsAllowInvalidCertificates=true".to_owned());
    }
    if tls.invalid_hostnames {
        options.push("tlsAllowInvalidHostnames=true".to_owned());
    }
    options
}

/// A connection string of any database, as it may be shown.
///
/// ```
/// use sheaf_client::without_password;
///
/// assert_eq!(without_password("mongodb://ann:secret@one/plants"), "mongodb://ann@one/plants");
/// ```
pub fn without_password(url: &str) -> String {
    const OF_A_KEY: &str = "tlscertificatekeyfilepassword=";
    if let Some(begin) = url.to_ascii_lowercase().find(OF_A_KEY) {
        let end = url[begin..].find('&').map_or(url.len(), |length| begin + length);
        return without_password(&format!("{}{}", &url[..begin], url[end..].trim_start_matches('&')));
    }
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user = user.split_once(':').map_or(user, |(user, _)| user);
            format!("{scheme}://{user}@{host}")
        }
        None => url.to_owned(),
    }
}

fn with_port(host: &str) -> Option<String> {
    let host = percent_decode(host)?;
    // An IPv6 address has its own colons, inside of brackets.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host.as_str(), DEFAULT_PORT),
    };
    if name.is_empty() || name.contains('/') || port.parse::<u16>().ok()? == 0 {
        return None;
    }
    Some(format!("{name}:{port}"))
}

fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let encode = |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_string() {
        let text = "mongodb://h1:1,h2/plants?replicaSet=rs&w=majority&journal=true&readPreference=secondaryPreferred";
        let parsed: ConnectionString = text.parse().unwrap();
        assert_eq!(parsed.hosts, ["h1:1", "h2:27017"]);
        assert_eq!(parsed.db.as_deref(), Some("plants"));
        assert_eq!(parsed.replica_set.as_deref(), Some("rs"));
        assert_eq!(parsed.write_concern.w, Some(W::Tag("majority".into())));
        assert_eq!(parsed.write_concern.j, Some(true));
        assert_eq!(parsed.read_preference, ReadPreference::SecondaryPreferred);
        assert!(!parsed.direct);
    }

    #[test]
    fn users_log_in_at_their_database() {
        let who = |text: &str| {
            let parsed: ConnectionString = text.parse().unwrap();
            assert!(!parsed.to_string().contains("s:cret") && !format!("{parsed:?}").contains("s:cret"));
            let who = parsed.credentials.unwrap();
            (who.user, who.password, who.source)
        };
        let expected = |source: &str| ("a@b".to_owned(), "s:cret".to_owned(), source.to_owned());
        assert_eq!(who("mongodb://a%40b:s%3Acret@h/"), expected("admin"));
        assert_eq!(who("mongodb://a%40b:s%3Acret@h/plants"), expected("plants"));
        assert_eq!(who("mongodb://a%40b:s%3Acret@h/plants?authSource=users"), expected("users"));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        for text in [
            "mongodb://a:1/",
            "mongodb://a:1,b:2/db?replicaSet=x&w=2&journal=false&retryWrites=true",
            "mongodb://[::1]:5/?directConnection=true&readPreference=nearest",
            "mongodb://a:1/?tls=true&tlsAllowInvalidCertificates=true&tlsAllowInvalidHostnames=true",
        ] {
            let parsed: ConnectionString = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
            assert_eq!(parsed.to_string().parse::<ConnectionString>().unwrap(), parsed);
        }
    }

    #[test]
    fn what_is_refused_says_why() {
        for (text, why) in [
            ("localhost:27017", "must begin with mongodb://"),
            ("mongodb+srv://x", "name the hosts"),
            ("mongodb://u@h/", "mongodb://u@h/: a user needs a password"),
            ("mongodb://u:secret@h/?colour=red", "mongodb://u@h/?colour=red: unknown option"),
            ("mongodb://u:p@h/?authMechanism=PLAIN", "PLAIN is not supported"),
            ("mongodb://", "bad host \"\""),
            ("mongodb://h:0", "bad host \"h:0\""),
            ("mongodb://h:x", "bad host \"h:x\""),
            ("mongodb://h/?journal=maybe", "bad value \"maybe\" of journal"),
            ("mongodb://h/?colour=red", "unknown option colour"),
            ("mongodb://h/?w", "has no value"),
            ("mongodb://h/?readPreference=first", "bad value \"first\" of readPreference"),
            ("mongodb://a,b/?directConnection=true", "takes one host"),
            ("mongodb://h/?tls=maybe", "bad value \"maybe\" of tls"),
            ("mongodb://h/?tlsCAFile=/nowhere.pem", "cannot read certificates of /nowhere.pem"),
            (
                "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=x",
                "h/?tls=true&: tlsCertificateKeyFilePassword without",
            ),
            ("mongodb://h/?appName=%zz", "bad value of appName"),
        ] {
            let error = text.parse::<ConnectionString>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
