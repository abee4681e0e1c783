//! How a deployment changes to TLS and to certificates while it runs, and until when the server's certificate holds.

use std::sync::Arc;
use std::time::Duration;

use sheaf_auth::ClusterAuthMode;
use sheaf_bson::{Value, doc};
use sheaf_errors::{Code, Result, bail};
use sheaf_tls::{Certified, TlsMode};

use crate::front::Front;
use crate::status::Doc;

fn refuse_change(name: &str, before: &str, value: &str) -> Result<()> {
    bail!(Code::BAD_VALUE, "Illegal state transition for {name}, attempt to change from {before} to {value}")
}

/// Whether a parameter may become this: `tlsMode` and `clusterAuthMode` go one step at a time.
///
/// Errors: `BadValue`.
pub(crate) fn check_change(front: &Front, name: &str, value: Value<'_>) -> Result<()> {
    let Value::String(value) = value else { return Ok(()) };
    match name {
        "tlsMode" => {
            let before = front.tls.as_ref().map(|tls| tls.mode());
            let Some(mode) = TlsMode::from_name(value) else {
                bail!(
                    Code::BAD_VALUE,
                    "Invalid TLSMode setting {value}, expected one of: 'disabled, allowTLS, preferTLS, requireTLS'"
                );
            };
            match (before, mode) {
                (Some(before), Some(mode)) if before.leads_to(mode) => Ok(()),
                (before, _) => refuse_change(name, before.map_or("disabled", TlsMode::name), value),
            }
        }
        "clusterAuthMode" => {
            let before = front.membership.mode();
            let Some(mode) = ClusterAuthMode::from_name(value) else {
                bail!(
                    Code::BAD_VALUE,
                    "Unknown clusterAuthMode, must be one of 'keyFile, sendKeyFile, sendX509, x509', not {value}"
                );
            };
            if front.membership.to_dial().is_none() {
                bail!(
                    Code::BAD_VALUE,
                    "Illegal state transition for clusterAuthMode, need to enable TLS for outgoing connections"
                );
            }
            match before.leads_to(mode) {
                true => Ok(()),
                false => refuse_change(name, before.name(), value),
            }
        }
        _ => Ok(()),
    }
}

/// Has a parameter that was checked take effect.
pub(crate) fn change(front: &Front, name: &str, value: Value<'_>) {
    let Value::String(value) = value else { return };
    match (name, &front.tls) {
        ("tlsMode", Some(tls)) => {
            if let Some(Some(mode)) = TlsMode::from_name(value) {
                tls.set_mode(mode);
            }
        }
        ("clusterAuthMode", _) => {
            if let Some(mode) = ClusterAuthMode::from_name(value) {
                front.membership.set_mode(mode);
            }
        }
        _ => {}
    }
}

/// Writes the section `security` of `serverStatus`, as far as TLS is concerned.
pub fn write_status(front: &Front, doc: &mut Doc<'_>) {
    let Some(tls) = &front.tls else { return };
    let own = tls.own();
    doc.append("SSLServerSubjectName", &own.subject);
    doc.append("SSLServerHasCertificateAuthority", true);
    doc.append("SSLServerCertificateExpirationDate", Value::DateTime(own.until.saturating_mul(1000)));
    if let Some(end) = tls.lists_end() {
        doc.append("tlsCRLExpirationDate", Value::DateTime(end.saturating_mul(1000)));
    }
}

/// `transportSecurity`: how many connections speak each version; of the older ones none.
pub fn write_versions(front: &Front, doc: &mut Doc<'_>) {
    doc.append("1.0", 0i64).append("1.1", 0i64);
    crate::status::put(doc, "1.2", &front.metrics.tls_1_2);
    crate::status::put(doc, "1.3", &front.metrics.tls_1_3);
    doc.append("unknown", 0i64);
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A list of revocations that ends within so many days is told of. They are renewed far more often than certificates.
const LIST_DAYS: i64 = 3;

/// Tells of a certificate that ends soon: now, and once a day.
pub(crate) async fn watch_certificate(front: Arc<Front>) {
    loop {
        warn_of_end(&front);
        tokio::select! {
            () = tokio::time::sleep(DAY) => {}
            () = front.until_shutdown() => return,
        }
    }
}

/// Tells of a certificate that ends soon, or has ended, and of lists of revocations that do.
pub(crate) fn warn_of_end(front: &Front) {
    if let Some(end) = front.tls.as_ref().and_then(|tls| tls.lists_end()) {
        warn_of_lists(end, front.clock.now_millis() / 1000);
    }
    for own in front.tls.iter().flat_map(|tls| tls.all_own()) {
        warn_of_end_of(front, &own);
    }
}

/// Behind their end nobody is taken who shows a certificate.
fn warn_of_lists(end: i64, now: i64) {
    let days = end.saturating_sub(now) / DAY.as_secs() as i64;
    let text = match end < now {
        true => "The list of revocations (tlsCRLFile) has ended: nobody is taken who shows a certificate",
        false if days < LIST_DAYS => "The list of revocations (tlsCRLFile) will end soon",
        false => return,
    };
    let attributes = doc! { "expiryDate": Value::DateTime(end.saturating_mul(1000)), "daysLeft": days };
    crate::log::warning("NETWORK", crate::log::ids::LISTS_END, "certificates", text, Some(attributes));
}

fn warn_of_end_of(front: &Front, own: &Certified) {
    let left = own.until.saturating_sub(front.clock.now_millis() / 1000);
    let days = left / DAY.as_secs() as i64;
    let (id, text) = match days {
        _ if left < 0 => {
            (crate::log::ids::CERTIFICATE_ENDED, "Server certificate is now invalid. It has expired.")
        }
        _ if days < front.parameters.int("tlsX509ExpirationWarningThresholdDays") => {
            (crate::log::ids::CERTIFICATE_ENDS, "Server certificate will expire soon")
        }
        _ => return,
    };
    let end = Value::DateTime(own.until.saturating_mul(1000));
    let attributes = doc! { "certSubject": &own.subject, "certExpiryDate": end, "daysLeft": days };
    crate::log::warning("NETWORK", id, "certificates", text, Some(attributes));
}
