//! TLS, as the settings say.

use sheaf_auth::ClusterAuthMode;
use sheaf_tls::{Identity, TlsMode, TlsOptions};

use crate::config::Settings;

/// How TLS is spoken, if it is.
///
/// Errors: a text for the user.
pub fn options(settings: &Settings) -> Result<Option<TlsOptions>, String> {
    let tls = &settings.tls;
    let bad = |text: &str| Err(format!("BadValue: {text}"));
    if tls.fips == Some(true) {
        return bad("FIPS mode is not supported: the cryptography is not validated for it");
    }
    let name = tls.mode.as_deref().unwrap_or("disabled");
    let Some(mode) = TlsMode::from_name(name) else {
        return Err(format!(
            "BadValue: unsupported value for tlsMode {name}: it is one of disabled, allowTLS, preferTLS, requireTLS"
        ));
    };
    let Some(mode) = mode else {
        return match tls.say_more_than_mode() && tls.mode.is_none() {
            true => bad("need to enable TLS via the tlsMode flag when using TLS configuration parameters"),
            false => Ok(None),
        };
    };
    let Some(file) = tls.certificate_key_file.clone() else {
        return bad("need tlsCertificateKeyFile when TLS is enabled");
    };
    let Some(ca_file) = tls.ca_file.clone() else {
        return bad(
            "The use of TLS without specifying a chain of trust is no longer supported: tlsCAFile is missing",
        );
    };
    if tls.cluster_password.is_some() && tls.cluster_file.is_none() {
        return bad("tlsClusterPassword without tlsClusterFile");
    }
    let disabled = tls.disabled_protocols.as_deref().unwrap_or_default();
    let disabled = disabled.split(',').map(str::trim).filter(|name| !name.is_empty());
    let cluster_password = tls.cluster_password.clone();
    Ok(Some(TlsOptions {
        mode,
        identity: Identity { file, password: tls.certificate_key_file_password.clone() },
        cluster_identity: tls.cluster_file.clone().map(|file| Identity { file, password: cluster_password }),
        ca_file,
        cluster_ca_file: tls.cluster_ca_file.clone(),
        crl_file: tls.crl_file.clone(),
        without_certificates: tls.without_certificates == Some(true),
        invalid_certificates: tls.invalid_certificates == Some(true),
        invalid_hostnames: tls.invalid_hostnames == Some(true),
        disabled_protocols: disabled.map(str::to_owned).collect(),
        member_attributes: tls.member_attributes.clone(),
        other_members: None,
    }))
}

/// Looks whether what is said of TLS can be obeyed.
///
/// Errors: a text for the user.
pub fn check(settings: &Settings, by: ClusterAuthMode) -> Result<(), String> {
    match options(settings)?.map(|tls| tls.mode) {
        None if by.takes_certificates() => Err(format!(
            "BadValue: need to enable TLS via the tlsMode flag for clusterAuthMode {}",
            by.name()
        )),
        Some(TlsMode::Allow) if by.sends_certificate() => {
            Err("BadValue: cannot have x.509 cluster authentication in allowTLS mode".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls_settings::TlsSettings;

    fn of(tls: TlsSettings) -> Settings {
        Settings { tls, ..Settings::default() }
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused() {
        let mode = |mode: &str| TlsSettings {
            mode: Some(mode.to_owned()),
            certificate_key_file: Some("key".into()),
            ca_file: Some("ca".into()),
            ..TlsSettings::default()
        };
        let why = |tls: TlsSettings| options(&of(tls)).unwrap_err();
        assert!(options(&Settings::default()).unwrap().is_none());
        assert!(options(&of(mode("disabled"))).unwrap().is_none());
        assert_eq!(options(&of(mode("requireTLS"))).unwrap().unwrap().mode, TlsMode::Require);
        assert!(why(mode("always")).contains("unsupported value"));
        assert!(why(TlsSettings { mode: None, ..mode("") }).contains("need to enable TLS"));
        assert!(why(TlsSettings { ca_file: None, ..mode("allowTLS") }).contains("chain of trust"));
        assert!(why(TlsSettings { fips: Some(true), ..mode("allowTLS") }).contains("FIPS"));
        for (named, by, taken) in [
            ("disabled", ClusterAuthMode::SendKeyFile, false),
            ("disabled", ClusterAuthMode::KeyFile, true),
            ("allowTLS", ClusterAuthMode::SendKeyFile, true),
            ("allowTLS", ClusterAuthMode::X509, false),
            ("preferTLS", ClusterAuthMode::X509, true),
        ] {
            assert_eq!(check(&of(mode(named)), by).is_ok(), taken, "{named} {by:?}");
        }
    }
}
