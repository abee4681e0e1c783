//! Any bytes as a key file, as a certificate, and as the files that TLS reads: they are read or refused, and what is said of it shows no key.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sheaf_auth::{Keys, certificate_subject, certificate_validity};
use sheaf_bson::{MAX_DEPTH, doc, validate};

fuzz_target!(|data: &[u8]| {
    if let Some(subject) = certificate_subject(data) {
        assert!(!subject.is_empty());
        let kept = doc! { "user": subject.as_str() };
        assert!(validate(kept.as_bytes(), MAX_DEPTH).is_ok());
    }
    let _ = certificate_validity(data);
    if let Ok(text) = std::str::from_utf8(data) {
        key_file(text);
    }
    tls_files(data);
});

fn key_file(text: &str) {
    match Keys::parse(text, "file") {
        Ok(keys) => {
            assert!(keys.iter().all(|key| (6..=1024).contains(&key.len())));
            // The same keys as a list are the same.
            let list: String = keys.iter().map(|key| format!("- {key}\n")).collect();
            assert!(Keys::parse(&list, "file").as_ref() == Ok(&keys));
            assert!(keys.iter().all(|key| !format!("{keys:?}").contains(key)));
        }
        // A character that is none of a key's may be shown.
        Err(why) => assert!(why.len() < 200, "{why}"),
    }
}

fn tls_files(data: &[u8]) {
    use sheaf_tls::{ClientOptions, Identity, TlsClient};
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder").keep());
    let file = folder.join("file.pem");
    fs::write(&file, data).expect("a file is written");
    let identity = Some(Identity { file: file.clone(), password: Some("pencil".to_owned()) });
    for options in [
        ClientOptions { ca_file: Some(file.clone()), ..ClientOptions::default() },
        ClientOptions { identity, ca_file: Some(file.clone()), ..ClientOptions::default() },
        ClientOptions {
            ca_file: Some(file.clone()),
            crl_file: Some(file.clone()),
            ..ClientOptions::default()
        },
    ] {
        if let Err(why) = TlsClient::new(options) {
            assert!(!why.contains("pencil"), "{why}");
        }
    }
}
