//! Events of the floors below (storage, log), which know no server: they speak through `tracing`, and
//! this writes what they say into the server's log.

use std::fmt::{Debug, Write};

use sheaf_bson::{DocBuf, RawDoc};
use sheaf_errors::Error;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::{Severity, ids};

/// Sends the events of the storage engine to the log from now on; later calls change nothing.
pub fn listen() {
    // An error means that this process listens already.
    let _ = tracing::subscriber::set_global_default(ToLog);
}

/// Logs every panic where it happens: what it ends, a command or the process, is decided later, and perhaps by one that is
/// not told why.
pub fn listen_for_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let thread = std::thread::current();
        let payload = panic.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let attributes = sheaf_bson::doc! {
            "what": text.unwrap_or("unknown panic"),
            "where": panic.location().map(ToString::to_string).unwrap_or_default().as_str(),
            "thread": thread.name().unwrap_or_default(),
        };
        super::error("-", ids::PANIC, &super::current_context(), "Panic", Some(attributes));
    }));
}

/// Logs a document that fails its collection's validator.
pub fn failed_validation(namespace: &str, document: RawDoc<'_>, error: &Error) {
    let attributes = DocBuf::build(|out| {
        out.append("namespace", namespace);
        out.append("document", RawDoc::new(&super::shown(document)));
        if let Some(info) = error.err_info() {
            out.append("errInfo", RawDoc::new(&super::shown(RawDoc::new(info))));
        }
    });
    let context = super::current_context();
    super::warning(
        "STORAGE",
        ids::VALIDATION_FAILED,
        &context,
        "Document would fail validation",
        Some(attributes),
    );
}

struct ToLog;

impl Subscriber for ToLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with("sheaf")
    }

    fn event(&self, event: &Event<'_>) {
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        };
        let mut fields = Fields { message: String::new(), attributes: DocBuf::new() };
        event.record(&mut fields);
        super::write(
            severity,
            "STORAGE",
            ids::STORAGE_EVENT,
            "storage",
            &fields.message,
            Some(&fields.attributes),
        );
    }

    // Nothing below opens spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Fields {
    message: String,
    attributes: DocBuf,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            // Writing to a String cannot fail.
            let _ = write!(self.message, "{value:?}");
        } else {
            self.attributes.append(field.name(), format!("{value:?}").as_str());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attributes.append(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attributes.append(field.name(), i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.attributes.append(field.name(), value);
    }
}
