//! What flags and the configuration file say of TLS.

use std::path::PathBuf;

use clap::Args;

/// The settings of TLS, each as it was said. On the command line they are flags.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct TlsSettings {
    /// Whether TLS may be spoken (allowTLS), is spoken to other servers too (preferTLS), must be (requireTLS), or cannot (disabled)
    #[arg(long = "tlsMode", value_name = "MODE")]
    pub mode: Option<String>,
    /// File with the server's certificate and its key
    #[arg(long = "tlsCertificateKeyFile", value_name = "FILE")]
    pub certificate_key_file: Option<PathBuf>,
    /// What that key is encrypted with
    #[arg(long = "tlsCertificateKeyFilePassword", value_name = "PASSWORD")]
    pub certificate_key_file_password: Option<String>,
    /// File with the certificate, and its key, that is shown to other servers; else the server's
    #[arg(long = "tlsClusterFile", value_name = "FILE")]
    pub cluster_file: Option<PathBuf>,
    /// What that key is encrypted with
    #[arg(long = "tlsClusterPassword", value_name = "PASSWORD")]
    pub cluster_password: Option<String>,
    /// File with the certificates of those who sign certificates
    #[arg(long = "tlsCAFile", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// File with the certificates of those who sign those of who connects; else the same
    #[arg(long = "tlsClusterCAFile", value_name = "FILE")]
    pub cluster_ca_file: Option<PathBuf>,
    /// File with lists of certificates that do not hold any more
    #[arg(long = "tlsCRLFile", value_name = "FILE")]
    pub crl_file: Option<PathBuf>,
    /// Clients may have no certificate
    #[arg(long = "tlsAllowConnectionsWithoutCertificates", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub without_certificates: Option<bool>,
    /// Certificates are taken that nobody has signed; nobody logs in by one
    #[arg(long = "tlsAllowInvalidCertificates", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub invalid_certificates: Option<bool>,
    /// Certificates of other servers may name another host
    #[arg(long = "tlsAllowInvalidHostnames", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub invalid_hostnames: Option<bool>,
    /// Versions that are not spoken, with commas between: TLS1_2, TLS1_3; older ones never are
    #[arg(long = "tlsDisabledProtocols", value_name = "VERSIONS")]
    pub disabled_protocols: Option<String>,
    /// What the subjects of members' certificates have, instead of the same O, OU and DC
    #[arg(long = "tlsClusterAuthX509Attributes", value_name = "ATTRIBUTES")]
    pub member_attributes: Option<String>,
    /// Not supported
    #[arg(long = "tlsFIPSMode", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub fips: Option<bool>,
}

impl TlsSettings {
    /// Fills what is open from `file`; what the command line says goes first.
    #[must_use]
    pub fn or(self, file: TlsSettings) -> TlsSettings {
        macro_rules! merge {
            ($($name:ident),* $(,)?) => { TlsSettings { $($name: self.$name.or(file.$name)),* } };
        }
        merge!(
            mode,
            certificate_key_file,
            certificate_key_file_password,
            cluster_file,
            cluster_password,
            ca_file,
            cluster_ca_file,
            crl_file,
            without_certificates,
            invalid_certificates,
            invalid_hostnames,
            disabled_protocols,
            member_attributes,
            fips,
        )
    }

    /// Takes what the configuration file says below `net.tls`, if it is known there.
    ///
    /// Errors: a text for the user.
    pub fn take(&mut self, name: &str, text: String) -> Result<bool, String> {
        let flag = || match text.as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(format!("net.tls.{name} must be true or false")),
        };
        match name {
            "mode" => self.mode = Some(text),
            "certificateKeyFile" => self.certificate_key_file = Some(text.into()),
            "certificateKeyFilePassword" => self.certificate_key_file_password = Some(text),
            "clusterFile" => self.cluster_file = Some(text.into()),
            "clusterPassword" => self.cluster_password = Some(text),
            "CAFile" => self.ca_file = Some(text.into()),
            "clusterCAFile" => self.cluster_ca_file = Some(text.into()),
            "CRLFile" => self.crl_file = Some(text.into()),
            "allowConnectionsWithoutCertificates" => self.without_certificates = flag()?,
            "allowInvalidCertificates" => self.invalid_certificates = flag()?,
            "allowInvalidHostnames" => self.invalid_hostnames = flag()?,
            "disabledProtocols" => self.disabled_protocols = Some(text),
            "clusterAuthX509.attributes" => self.member_attributes = Some(text),
            "FIPSMode" => self.fips = flag()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether anything is said but the mode.
    pub fn say_more_than_mode(&self) -> bool {
        TlsSettings { mode: None, ..self.clone() } != TlsSettings::default()
    }
}

/// An option as it was called below `net.ssl` before MongoDB 4.2, and its value, as they are called below `net.tls`.
pub fn named_anew(name: &str, value: String) -> (&str, String) {
    match name {
        "mode" => (name, value.strip_suffix("SSL").map(|mode| format!("{mode}TLS")).unwrap_or(value)),
        "PEMKeyFile" => ("certificateKeyFile", value),
        "PEMKeyPassword" => ("certificateKeyFilePassword", value),
        _ => (name, value),
    }
}
