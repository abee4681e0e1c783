//! Members by their certificates: those whose subject has the deployment's organisation, unit and domain.

/// By what members of a deployment prove that they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClusterAuthMode {
    /// By the key; nothing else is taken.
    #[default]
    KeyFile,
    /// By the key; certificates are taken, too.
    SendKeyFile,
    /// By their certificates; the key is taken, too.
    SendX509,
    /// By their certificates; nothing else is taken.
    X509,
}

impl ClusterAuthMode {
    /// All of them, in the order in which a deployment changes.
    pub const ALL: [ClusterAuthMode; 4] = [
        ClusterAuthMode::KeyFile,
        ClusterAuthMode::SendKeyFile,
        ClusterAuthMode::SendX509,
        ClusterAuthMode::X509,
    ];

    /// The mode of this name.
    pub fn from_name(name: &str) -> Option<ClusterAuthMode> {
        ClusterAuthMode::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            ClusterAuthMode::KeyFile => "keyFile",
            ClusterAuthMode::SendKeyFile => "sendKeyFile",
            ClusterAuthMode::SendX509 => "sendX509",
            ClusterAuthMode::X509 => "x509",
        }
    }

    /// Whether a member that dials shows its certificate, instead of the key.
    pub fn sends_certificate(self) -> bool {
        matches!(self, ClusterAuthMode::SendX509 | ClusterAuthMode::X509)
    }

    /// Whether certificates are taken.
    pub fn takes_certificates(self) -> bool {
        self != ClusterAuthMode::KeyFile
    }

    /// Whether the key is taken.
    pub fn takes_keys(self) -> bool {
        self != ClusterAuthMode::X509
    }

    /// Whether a running server may change to this mode.
    pub fn leads_to(self, next: ClusterAuthMode) -> bool {
        use ClusterAuthMode::{SendKeyFile, SendX509, X509};
        matches!((self, next), (SendKeyFile, SendX509) | (SendX509, X509))
    }
}

/// What the subjects of all members of a deployment have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterName {
    /// These organisations, units and domains, and no others.
    Same(Vec<(String, String)>),
    /// These attributes, and maybe others.
    Has(Vec<(String, String)>),
}

/// Attributes that tell deployments apart.
const TELLING: [&str; 3] = ["O", "OU", "DC"];

/// The organisations, units and domains of a subject.
fn telling(subject: &str) -> Option<Vec<(String, String)>> {
    let mut parts = parts(subject)?;
    parts.retain(|(name, _)| TELLING.contains(&name.as_str()));
    parts.sort();
    Some(parts)
}

impl ClusterName {
    /// Of a deployment one of whose members has this subject (RFC 2253); `None`, if it has neither organisation, unit nor domain.
    pub fn of_member(subject: &str) -> Option<ClusterName> {
        telling(subject).filter(|parts| !parts.is_empty()).map(ClusterName::Same)
    }

    /// Of a deployment whose members have these attributes, written like a subject.
    pub fn with_attributes(attributes: &str) -> Option<ClusterName> {
        parts(attributes).filter(|parts| !parts.is_empty()).map(ClusterName::Has)
    }

    /// Whether who has this subject is a member.
    pub fn has(&self, subject: &str) -> bool {
        match self {
            ClusterName::Same(wanted) => telling(subject).is_some_and(|parts| parts == *wanted),
            ClusterName::Has(wanted) => {
                parts(subject).is_some_and(|parts| wanted.iter().all(|part| parts.contains(part)))
            }
        }
    }
}

/// The attributes of a subject as RFC 2253 writes it; `None` for what is none.
fn parts(subject: &str) -> Option<Vec<(String, String)>> {
    let mut parts = Vec::new();
    let mut rest = subject.chars().peekable();
    while rest.peek().is_some() {
        let mut name = String::new();
        loop {
            match rest.next()? {
                '=' => break,
                c => name.push(c),
            }
        }
        let (mut value, mut kept) = (String::new(), 0);
        while rest.peek() == Some(&' ') {
            rest.next();
        }
        loop {
            match rest.next() {
                None | Some(',' | '+') => break,
                Some('\\') => {
                    // What is escaped stays as it is written: both sides write it alike.
                    value.push('\\');
                    value.push(rest.next()?);
                    kept = value.len();
                }
                Some(c) => {
                    value.push(c);
                    if c != ' ' {
                        kept = value.len();
                    }
                }
            }
        }
        value.truncate(kept);
        let name = name.trim().to_owned();
        if name.is_empty() {
            return None;
        }
        parts.push((name, value));
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_the_same_organisation_unit_and_domain() {
        let name = ClusterName::of_member("CN=one,OU=Plants\\, all,O=Sheaf,DC=org,DC=example").unwrap();
        assert!(name.has("CN=two,DC=example,DC=org,O=Sheaf, OU=Plants\\, all"));
        assert!(!name.has("CN=two,OU=Plants\\, all,O=Sheaf,DC=org"));
        assert!(!name.has("CN=two,OU=Plants\\, all,O=Sheaf,DC=org,DC=example,OU=more"));
        assert!(!name.has("CN=OU=Plants,O=Other") && !name.has("nothing") && !name.has(""));
        assert_eq!(ClusterName::of_member("CN=one,C=AT"), None);
    }

    #[test]
    fn attributes_may_be_others() {
        let name = ClusterName::with_attributes("L=Graz, title=member").unwrap();
        assert!(name.has("CN=x,title=member,L=Graz") && !name.has("CN=x,L=Graz"));
        assert_eq!(ClusterName::with_attributes("=x"), None);
    }
}
