//! How often clients have asked to log in and have, by which mechanism: `serverStatus.security.authentication`.

use sheaf_bson::DocWriter;

use crate::metrics::Count;

/// The mechanisms, sorted by name.
const MECHANISMS: [&str; 4] = ["MONGODB-OIDC", "MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256"];

/// Those that have asked, and those that have been let in.
#[derive(Default)]
struct Asked {
    received: Count,
    successful: Count,
}

impl Asked {
    fn write(&self, name: &str, doc: &mut DocWriter<'_, Vec<u8>>) {
        let mut asked = doc.document(name);
        asked.append("received", self.received.get() as i64);
        asked.append("successful", self.successful.get() as i64);
    }
}

/// One mechanism.
#[derive(Default)]
struct OfMechanism {
    all: Asked,
    /// Of those, the ones that have begun in a `hello`.
    speculative: Asked,
    /// Of those, members of the deployment.
    members: Asked,
}

/// All logins of a server.
#[derive(Default)]
pub struct Logins {
    mechanisms: [OfMechanism; MECHANISMS.len()],
    supported_asked: Count,
}

/// A login as it is counted.
#[derive(Clone, Copy)]
pub(crate) struct Login<'a> {
    pub mechanism: &'a str,
    pub is_speculative: bool,
    pub is_member: bool,
}

impl Logins {
    /// Somebody has asked for a user's mechanisms.
    pub(crate) fn asked_for_mechanisms(&self) {
        self.supported_asked.add(1);
    }

    /// Somebody begins.
    pub(crate) fn begin(&self, login: Login<'_>) {
        self.each(login, |asked| asked.received.add(1));
    }

    /// Somebody is let in.
    pub(crate) fn succeed(&self, login: Login<'_>) {
        self.each(login, |asked| asked.successful.add(1));
    }

    fn each(&self, login: Login<'_>, add: impl Fn(&Asked)) {
        let Some(at) = MECHANISMS.iter().position(|name| *name == login.mechanism) else { return };
        let of = &self.mechanisms[at];
        add(&of.all);
        if login.is_speculative {
            add(&of.speculative);
        }
        if login.is_member {
            add(&of.members);
        }
    }

    /// Writes the figures of the mechanisms that the server takes.
    pub fn write(&self, takes: impl Fn(&str) -> bool, doc: &mut DocWriter<'_, Vec<u8>>) {
        let mut authentication = doc.document("authentication");
        authentication.append("saslSupportedMechsReceived", self.supported_asked.get() as i64);
        let mut mechanisms = authentication.document("mechanisms");
        for (name, of) in MECHANISMS.iter().zip(&self.mechanisms).filter(|(name, _)| takes(name)) {
            let mut mechanism = mechanisms.document(name);
            of.speculative.write("speculativeAuthenticate", &mut mechanism);
            of.members.write("clusterAuthenticate", &mut mechanism);
            of.all.write("authenticate", &mut mechanism);
        }
    }
}
