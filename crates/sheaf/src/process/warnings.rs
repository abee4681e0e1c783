//! What a start warns of: settings that are meant for trials, and a host that is not made for a server.

use sheaf_bson::{DocBuf, doc};
use sheaf_front::front::Front;
use sheaf_front::log::{self, ids};

use crate::config::Settings;
use crate::limits;

/// With fewer descriptors clients are refused sooner than they need to be.
const ENOUGH_FILES: u64 = 64_000;

/// Warns of what holds for the whole process.
pub fn at_start(front: &Front, settings: &Settings) {
    if let Some(files) = limits::open_files().filter(|files| *files < ENOUGH_FILES) {
        let attributes = doc! { "currentValue": files as i64, "recommendedMinimum": ENOUGH_FILES as i64 };
        warn(ids::FEW_DESCRIPTORS, "Soft rlimits for open file descriptors too low", Some(attributes));
    }
    if !front.access.enabled {
        // Otherwise it is forgotten that it was to be for a while.
        let because =
            (settings.transition_to_auth == Some(true)).then(|| doc! { "because": "transitionToAuth" });
        let text = "Access control is not enabled for the database. Read and write access to data and configuration is unrestricted";
        warn(ids::NO_ACCESS_CONTROL, text, because);
    }
    if settings.tls.invalid_certificates == Some(true) {
        let text = "While invalid X509 certificates may be used to connect to this server, they will not be considered permissible for authentication";
        warn(ids::INVALID_CERTIFICATES_TAKEN, text, None);
    }
    if settings.tls.invalid_hostnames == Some(true) {
        let text = "This server will not perform X.509 hostname validation. This may allow your server to make or accept connections to untrusted parties";
        warn(ids::HOST_NAMES_NOT_CHECKED, text, None);
    }
    let by_certificate = front.options.cluster_auth_mode.sends_certificate();
    if let Some(tls) = front.tls.as_ref().filter(|_| by_certificate)
        && let Some(why) = tls.doubt_of_members()
    {
        let text = "This server's certificate is not taken by members that have the same authorities and revocations";
        warn(ids::CERTIFICATE_DOUBTED, text, Some(doc! { "error": &why }));
    }
    if rustix::process::geteuid().is_root() {
        let text = "You are running this process as the root user, which is not recommended";
        warn(ids::RUN_BY_ROOT, text, None);
    }
}

fn warn(id: i32, text: &str, attributes: Option<DocBuf>) {
    log::warning("CONTROL", id, "initandlisten", text, attributes);
}
