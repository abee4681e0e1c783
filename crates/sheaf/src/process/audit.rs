//! The audit log as the settings ask for it.

use sheaf_bson::json;
use sheaf_front::audit::{AuditOptions, Destination, Format};

use crate::config::Settings;
use crate::process::shell_json::to_json;

/// The audit log, if one is asked for.
///
/// Errors: a text for the user.
pub fn options(settings: &Settings) -> Result<Option<AuditOptions>, String> {
    let asked = &settings.audit;
    let Some(destination) = asked.destination.as_deref() else {
        let beside = [
            (asked.format.is_some(), "format"),
            (asked.path.is_some(), "path"),
            (asked.filter.is_some(), "filter"),
            (asked.schema.is_some(), "schema"),
            (asked.runtime == Some(true), "runtimeConfiguration"),
        ];
        return match beside.into_iter().find(|(said, _)| *said) {
            Some((_, name)) => {
                Err(format!("BadValue: auditLog.{name} cannot be used without auditLog.destination"))
            }
            None => Ok(None),
        };
    };
    if let Some(schema) = asked.schema.as_deref().filter(|schema| *schema != "mongo") {
        return Err(format!("BadValue: auditLog.schema {schema} is not supported; mongo is what there is"));
    }
    if asked.filter.is_some() && asked.runtime == Some(true) {
        return Err("BadValue: auditLog.filter cannot be used with auditLog.runtimeConfiguration".to_owned());
    }
    if asked.runtime == Some(true)
        && settings.parameters.iter().any(|(name, _)| name == "auditAuthorizationSuccess")
    {
        return Err("BadValue: auditAuthorizationSuccess cannot be used with auditLog.runtimeConfiguration"
            .to_owned());
    }
    let destination = match (destination, &asked.path, asked.format.as_deref()) {
        ("file", Some(path), Some(_)) => Destination::File(path.clone()),
        ("file", ..) => {
            return Err(
                "BadValue: auditLog.path and auditLog.format are required with auditLog.destination file"
                    .to_owned(),
            );
        }
        ("console", None, None | Some("JSON")) => Destination::Console,
        ("syslog", None, None | Some("JSON")) => Destination::Syslog,
        ("console" | "syslog", ..) => {
            return Err(format!(
                "BadValue: auditLog.path and auditLog.format cannot be used with auditLog.destination {destination}"
            ));
        }
        _ => return Err(format!("BadValue: invalid auditLog.destination {destination}")),
    };
    let format = match asked.format.as_deref() {
        None | Some("JSON") => Format::Json,
        Some("BSON") => Format::Bson,
        Some(other) => return Err(format!("BadValue: invalid auditLog.format {other}")),
    };
    let filter = match &asked.filter {
        Some(text) => Some(
            json::parse_document(&to_json(text))
                .map_err(|error| format!("BadValue: auditLog.filter is no document: {error}"))?,
        ),
        None => None,
    };
    Ok(Some(AuditOptions { destination, format, filter, runtime: asked.runtime == Some(true) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Process, parse};

    fn of(text: &str) -> Result<Option<AuditOptions>, String> {
        options(&parse(text, Process::Server).unwrap())
    }

    #[test]
    fn what_is_asked_for_goes_together() {
        assert!(of("").unwrap().is_none());
        let file = of("auditLog:\n  destination: file\n  path: /a\n  format: BSON\n  filter: '{atype: x}'\n");
        assert!(file.unwrap_err().contains("is no document"));
        let file =
            "auditLog:\n  destination: file\n  path: /a\n  format: BSON\n  filter: '{\"atype\": \"x\"}'\n";
        let file = of(file).unwrap().unwrap();
        assert_eq!((file.format, file.destination), (Format::Bson, Destination::File("/a".into())));
        assert_eq!(of("auditLog.destination: console").unwrap().unwrap().destination, Destination::Console);
        assert_eq!(of("auditLog.destination: syslog").unwrap().unwrap().destination, Destination::Syslog);
        assert!(of("auditLog.destination: file").unwrap_err().contains("are required"));
        assert!(of("auditLog.destination: paper").unwrap_err().contains("invalid"));
        assert!(of("auditLog.path: /a").unwrap_err().contains("without auditLog.destination"));
        let both = "auditLog: {destination: console, runtimeConfiguration: true}\nsetParameter: {auditAuthorizationSuccess: true}";
        assert!(of(both).unwrap_err().contains("auditAuthorizationSuccess"));
        assert!(of("auditLog: {destination: console, schema: OCSF}").unwrap_err().contains("OCSF"));
    }
}
