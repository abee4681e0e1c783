//! The files that TLS needs: certificates, keys, lists of revocations.

use std::path::{Path, PathBuf};

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::SecretDocument;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime,
};
use rustls::server::VerifierBuilderError;
use rustls::{RootCertStore, SupportedProtocolVersion};

use crate::options::Identity;

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| match is_sealed_the_old_way(path) {
        true => sealed_the_old_way(path),
        false => format!("cannot read certificates of {}: {error}", shown(path)),
    };
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(failed)?.collect();
    match read.map_err(failed)? {
        none if none.is_empty() => Err(format!("{} has no certificate (in PEM)", shown(path))),
        some => Ok(some),
    }
}

fn is_sealed_the_old_way(path: &Path) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(SEALED_THE_OLD_WAY))
}

/// What keys have that a password protects in a way that PEM had before PKCS #8.
const SEALED_THE_OLD_WAY: &str = "Proc-Type: 4,ENCRYPTED";

fn sealed_the_old_way(path: &Path) -> String {
    format!(
        "the key in {} is encrypted in a way that is not supported: openssl pkcs8 -topk8 makes one of PKCS #8 of it",
        shown(path)
    )
}

/// Where systems keep the certificates of those whom everybody trusts.
const SYSTEM: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Who is trusted: those of the file, or of the system.
pub fn roots(path: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        let system = named.or_else(|| SYSTEM.iter().map(PathBuf::from).find(|path| path.is_file()));
        if let Some(path) = system {
            // Some of those are too old to be read.
            roots.add_parsable_certificates(certificates(&path)?);
        }
        return Ok(roots);
    };
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", shown(path)))?;
    }
    Ok(roots)
}

/// Until when all these lists hold, in seconds since the epoch; `None` if none says an end.
pub fn end_of_lists(lists: &[CertificateRevocationListDer<'_>]) -> Option<i64> {
    lists.iter().filter_map(|list| sheaf_auth::list_end(list)).min()
}

pub fn revocations(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let failed = |error| format!("cannot read revocations of {}: {error}", shown(path));
    let lists: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_file_iter(path).map_err(failed)?.collect();
    match lists.map_err(failed)? {
        // Without any list nothing would be looked up, and whoever was revoked would be taken.
        none if none.is_empty() => Err(format!("{} has no list of revocations", shown(path))),
        some => {
            let now = UnixTime::now().as_secs() as i64;
            // By an old list nobody is taken, the one who would put it right included.
            match end_of_lists(&some).is_some_and(|end| end < now) {
                true => Err(format!("{}: the list of revocations has ended", shown(path))),
                false => Ok(some),
            }
        }
    }
}

/// What is said where an identity cannot be used.
pub fn unfit(error: &rustls::Error, of: &Identity) -> String {
    let file = shown(&of.file);
    match error {
        rustls::Error::InconsistentKeys(_) => format!("the key in {file} is not that of its certificate"),
        rustls::Error::General(text) if text.contains("private key") => {
            format!(
                "the key in {file} is of no kind that is taken: RSA of 2048 to 8192 bits, P-256, P-384, Ed25519"
            )
        }
        error => format!("{file}: {error}"),
    }
}

/// What is said where certificates cannot be looked at by these authorities and these lists.
pub fn unusable(error: &VerifierBuilderError, authorities: Option<&Path>, lists: Option<&Path>) -> String {
    match (error, authorities, lists) {
        (VerifierBuilderError::InvalidCrl(_), _, Some(path)) | (_, Some(path), _) => {
            let what = if let VerifierBuilderError::InvalidCrl(_) = error {
                " (a list of version 2 is needed)"
            } else {
                ""
            };
            format!("{}: {error}{what}", shown(path))
        }
        _ => "TLS needs to know who signs certificates: tlsCAFile is missing".to_owned(),
    }
}

/// The beginning and the end of a key that a password protects.
const ENCRYPTED: (&str, &str) =
    ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----");

/// The certificate of an identity with those above it, and its key.
pub fn identity(of: &Identity) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    Ok((certificates(&of.file)?, key(of)?))
}

fn key(of: &Identity) -> Result<PrivateKeyDer<'static>, String> {
    let file = shown(&of.file);
    let text = std::fs::read_to_string(&of.file).map_err(|error| format!("{file}: {error}"))?;
    if text.contains(SEALED_THE_OLD_WAY) {
        return Err(sealed_the_old_way(&of.file));
    }
    let Some(begin) = text.find(ENCRYPTED.0) else {
        return PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| match error {
            pem::Error::NoItemsFound => format!("cannot read the key of {file}: there is none in it"),
            error => format!("cannot read the key of {file}: {error}"),
        });
    };
    let Some(password) = &of.password else {
        return Err(format!("the key in {file} is encrypted, and no password is given"));
    };
    let text = &text[begin..];
    let end = text.find(ENCRYPTED.1).ok_or_else(|| format!("the key in {file} has no end"))?;
    let wrong = |error: String| format!("cannot decrypt the key of {file}: {error}");
    let (_, sealed) = SecretDocument::from_pem(&text[..end + ENCRYPTED.1.len()])
        .map_err(|error| wrong(error.to_string()))?;
    let sealed =
        EncryptedPrivateKeyInfoRef::try_from(sealed.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let opened = sealed.decrypt(password).map_err(|error| wrong(error.to_string()))?;
    Ok(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(opened.as_bytes().to_vec())))
}

pub fn versions(disabled: &[String]) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let mut all = vec![("TLS1_2", &rustls::version::TLS12), ("TLS1_3", &rustls::version::TLS13)];
    for name in disabled {
        // rustls speaks none of the older ones.
        if !["TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3", "none"].contains(&name.as_str()) {
            return Err(format!("Unrecognized disabledProtocols '{name}'"));
        }
        all.retain(|(known, _)| known != name);
    }
    if all.is_empty() {
        return Err("All valid TLS modes disabled".to_owned());
    }
    Ok(all.into_iter().map(|(_, version)| version).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_list_of_revocations_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crl.pem");
        let certificate = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        for text in ["", "hello", certificate] {
            std::fs::write(&path, text).unwrap();
            assert!(revocations(&path).unwrap_err().contains("has no list of revocations"), "{text}");
        }
        std::fs::write(&path, "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n").unwrap();
        assert_eq!(revocations(&path).unwrap().len(), 1);
    }

    #[test]
    fn versions_that_are_disabled_are_not_spoken() {
        let names = |list: &[&str]| versions(&list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(names(&["TLS1_0", "TLS1_1"]).unwrap().len(), 2);
        assert_eq!(names(&["TLS1_2"]).unwrap(), [&rustls::version::TLS13]);
        assert!(names(&["TLS1_2", "TLS1_3"]).is_err() && names(&["SSL3"]).is_err());
    }
}
