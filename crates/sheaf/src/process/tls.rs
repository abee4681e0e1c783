//! TLS, as the settings say.

use sheaf_front::tls::{TlsMode, TlsOptions};

use crate::config::Settings;

/// How clients are spoken to by TLS, if they are.
///
/// Errors: a text for the user.
pub fn options(settings: &Settings) -> Result<Option<TlsOptions>, String> {
    if settings.tls_fips == Some(true) {
        return Err(
            "BadValue: FIPS mode is not supported: the cryptography is not validated for it".to_owned()
        );
    }
    let name = settings.tls_mode.as_deref().unwrap_or("disabled");
    let Some(mode) = TlsMode::from_name(name) else {
        return Err(format!("BadValue: unsupported value for tlsMode {name}"));
    };
    let Some(mode) = mode else {
        let is_said = settings.tls_certificate_key_file.is_some()
            || settings.tls_ca_file.is_some()
            || settings.tls_crl_file.is_some();
        return match is_said && settings.tls_mode.is_none() {
            true => Err(
                "BadValue: need to enable TLS via the tlsMode flag when using TLS configuration parameters"
                    .to_owned(),
            ),
            false => Ok(None),
        };
    };
    let Some(certificate_key_file) = settings.tls_certificate_key_file.clone() else {
        return Err(
            "BadValue: need tlsCertificateKeyFile or certificateSelector when TLS is enabled".to_owned()
        );
    };
    let Some(ca_file) = settings.tls_ca_file.clone() else {
        return Err(
            "BadValue: The use of TLS without specifying a chain of trust is no longer supported: tlsCAFile is missing"
                .to_owned(),
        );
    };
    let disabled = settings.tls_disabled_protocols.as_deref().unwrap_or_default();
    let disabled = disabled.split(',').map(str::trim).filter(|name| !name.is_empty());
    Ok(Some(TlsOptions {
        mode,
        certificate_key_file,
        ca_file,
        crl_file: settings.tls_crl_file.clone(),
        without_certificates: settings.tls_without_certificates == Some(true),
        disabled_protocols: disabled.map(str::to_owned).collect(),
    }))
}

/// Looks whether what is said of TLS can be obeyed.
///
/// Errors: a text for the user.
pub fn check(settings: &Settings, speaks_to_others: bool) -> Result<(), String> {
    match options(settings)? {
        Some(TlsOptions { mode: TlsMode::Prefer | TlsMode::Require, .. }) if speaks_to_others => {
            Err(format!(
                "BadValue: tlsMode {} is not supported for members of sets and for routers: they speak to each other without TLS; allowTLS is what they take",
                settings.tls_mode.as_deref().unwrap_or_default()
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_obeyed_is_refused() {
        let of = |mode: &str| Settings {
            tls_mode: Some(mode.to_owned()),
            tls_certificate_key_file: Some("key".into()),
            tls_ca_file: Some("ca".into()),
            ..Settings::default()
        };
        assert!(options(&Settings::default()).unwrap().is_none());
        assert!(options(&of("disabled")).unwrap().is_none());
        assert_eq!(options(&of("requireTLS")).unwrap().unwrap().mode, TlsMode::Require);
        assert!(check(&of("requireTLS"), false).is_ok() && check(&of("allowTLS"), true).is_ok());
        assert!(check(&of("requireTLS"), true).unwrap_err().contains("without TLS"));
        assert!(options(&of("always")).is_err());
        assert!(options(&Settings { tls_mode: None, ..of("") }).unwrap_err().contains("need to enable TLS"));
        assert!(
            options(&Settings { tls_ca_file: None, ..of("allowTLS") })
                .unwrap_err()
                .contains("chain of trust")
        );
        assert!(options(&Settings { tls_fips: Some(true), ..of("allowTLS") }).unwrap_err().contains("FIPS"));
    }
}
