//! Who may connect, as the settings say: the key file and what goes with it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sheaf_auth::{ClusterAuthMode, Keys};

use crate::config::Settings;
use crate::process::tls;

/// Whether clients must prove who they are, and may do only what they were granted.
pub fn asks_clients(settings: &Settings) -> bool {
    let has_keys = settings.key_file.is_some() || settings.own_keys.is_some();
    let has_mode = settings.cluster_auth_mode.is_some();
    settings.auth.unwrap_or(has_keys || has_mode) && settings.transition_to_auth != Some(true)
}

/// By what members of the deployment know each other.
///
/// Errors: a text for the user.
pub fn keys(settings: &Settings) -> Result<Option<Keys>, String> {
    match &settings.key_file {
        Some(path) => read(path).map(Some),
        None => Ok(settings.own_keys.clone()),
    }
}

/// By what members prove that they are.
///
/// Errors: a text for the user.
pub fn cluster_auth_mode(settings: &Settings) -> Result<ClusterAuthMode, String> {
    let name = settings.cluster_auth_mode.as_deref().unwrap_or("keyFile");
    ClusterAuthMode::from_name(name).ok_or_else(|| {
        let known = ClusterAuthMode::ALL.map(ClusterAuthMode::name).join(", ");
        format!("BadValue: unsupported value for clusterAuthMode {name}: it is one of {known}")
    })
}

/// Reads a key file, which nobody but its owner may.
fn read(path: &Path) -> Result<Keys, String> {
    let shown = path.display().to_string();
    let failed = |error: std::io::Error| format!("error opening file: {shown}: {error}");
    let found = std::fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        return Err(format!("error opening file: {shown}: it is no file"));
    }
    if found.permissions().mode() & 0o077 != 0 {
        return Err(format!(
            "permissions on {shown} are too open: only its owner may read it (chmod 600 {shown})"
        ));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| format!("invalid char in key file {shown}"))?;
    Keys::parse(text, &shown)
}

/// What is said where encryption at rest is asked for.
const NO_ENCRYPTION: &str = "BadValue: security.enableEncryption: data files cannot be encrypted by the server; put the data folder on an encrypted volume (docs/security.md, At rest, has the commands)";

/// Looks whether what is said of security goes together.
///
/// Errors: a text for the user.
pub fn check(settings: &Settings, is_member: bool) -> Result<(), String> {
    let mode = cluster_auth_mode(settings)?;
    tls::check(settings, mode)?;
    let by_key = matches!(mode, ClusterAuthMode::KeyFile | ClusterAuthMode::SendKeyFile);
    if settings.cluster_auth_mode.is_some() && by_key && settings.key_file.is_none() {
        return Err(format!("BadValue: keyFile is required when clusterAuthMode is {}", mode.name()));
    }
    let has_proof = settings.key_file.is_some() || mode.sends_certificate();
    if settings.transition_to_auth == Some(true) && !has_proof {
        return Err(
            "BadValue: --transitionToAuth must be used with keyFile or x509 authentication".to_owned()
        );
    }
    if settings.auth == Some(true) && is_member && !has_proof {
        let what = if settings.config_db.is_some() { "in a router" } else { "with replica sets" };
        return Err(format!("BadValue: security.keyFile is required when authorization is enabled {what}"));
    }
    if settings.encryption == Some(true) {
        return Err(NO_ENCRYPTION.to_owned());
    }
    keys(settings).map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_its_owner_may_read_a_key_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let settings = Settings { key_file: Some(path.clone()), ..Settings::default() };
        assert!(keys(&settings).unwrap_err().contains("error opening file"));
        std::fs::write(&path, "c2VjcmV0").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(keys(&settings).unwrap_err().contains("are too open"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert!(keys(&settings).unwrap().is_some() && asks_clients(&settings));
        assert!(check(&settings, true).is_ok());
        let x509 = Settings { cluster_auth_mode: Some("x509".to_owned()), ..settings };
        assert!(check(&x509, true).unwrap_err().contains("need to enable TLS"));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let auth = Settings { auth: Some(true), ..Settings::default() };
        assert!(check(&auth, false).is_ok());
        assert!(check(&auth, true).unwrap_err().contains("security.keyFile is required"));
        let transition = Settings { transition_to_auth: Some(true), ..Settings::default() };
        assert!(check(&transition, false).unwrap_err().contains("must be used with keyFile"));
    }
}
