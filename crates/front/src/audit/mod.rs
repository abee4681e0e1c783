//! The audit log: who has proved what, what was refused, what was changed of users, roles, collections and the configuration
//! (docs/security.md).
//!
//! An event is appended when it is known, and on the disk before its command is answered: [`Audit::settle`], where one sync
//! serves all that wait. Room for the events of a command that changes something is taken before it runs
//! ([`Audit::promise`]), so where there is none the command is refused and has done nothing. Events that stand for what is only about to
//! be (logins, refusals) take their room when they are written, and never what is promised to others; if there is none, it does not come
//! to be. For the last event of all room is kept from the start. What has been done and cannot be written all the same ends the process.

mod console;
pub mod event;
pub mod noted;
mod options;
mod sink;
mod size;
mod syslog;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use sheaf_bson::json::{self, Style};
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_query::matcher::{Features, Matcher};

use event::{Event, Who};
pub use options::{AuditOptions, Destination, Format};
pub use sink::Promise;
use sink::Sink;

/// What an event of the server itself has, besides what it names.
const OWN_EVENT_BYTES: u64 = 4 << 10;

/// The audit log of a server.
pub struct Audit {
    format: Format,
    /// Whether [`Audit::take_over`] is allowed.
    pub runtime: bool,
    sink: Sink,
    /// Room for the event of the server's end.
    last: AtomicU64,
    config: RwLock<Arc<AuditConfig>>,
    /// What is kept elsewhere has not come yet: until then nothing is left out.
    awaits: AtomicBool,
    /// One changes it at a time.
    changing: Mutex<()>,
}

/// What is written down.
pub struct AuditConfig {
    /// Events that do not match are left out.
    pub filter: Option<Matcher>,
    /// Whether allowed commands are written down, too.
    pub authorization_success: bool,
    /// When it was set; the beginning of time where nobody has.
    pub time: Timestamp,
}

impl AuditConfig {
    /// With this filter; an empty one lets everything pass.
    ///
    /// Errors: those of a filter that is none.
    pub fn new(filter: RawDoc<'_>, authorization_success: bool, time: Timestamp) -> Result<Self> {
        let filter = match filter.is_empty() {
            true => None,
            false => Some(Matcher::parse_lasting(filter, Features::Validator)?),
        };
        Ok(AuditConfig { filter, authorization_success, time })
    }

    /// As the cluster's parameters keep it.
    fn read(kept: RawDoc<'_>, time: Timestamp) -> Result<Self> {
        let filter = kept.get("filter").and_then(|filter| filter.as_doc()).unwrap_or(RawDoc::EMPTY);
        let successes = kept.get("auditAuthorizationSuccess").is_some_and(|flag| flag.truthy());
        AuditConfig::new(filter, successes, time)
    }

    fn wants(&self, event: RawDoc<'_>) -> bool {
        match &self.filter {
            // What cannot be judged is rather written down.
            Some(filter) => filter.matches_doc(event).unwrap_or(true),
            None => true,
        }
    }

    /// Its fields, as `getAuditConfig` shows them.
    pub fn shown(&self) -> DocBuf {
        doc! {
            "clusterParameterTime": self.time,
            "filter": self.filter.as_ref().map_or(RawDoc::EMPTY, Matcher::filter),
            "auditAuthorizationSuccess": self.authorization_success,
        }
    }
}

impl Audit {
    /// Opens the log.
    ///
    /// Errors: a text for the user.
    pub fn open(options: &AuditOptions) -> std::result::Result<Self, String> {
        let filter = options.filter.as_ref().map_or(RawDoc::EMPTY, DocBuf::as_raw);
        let config = AuditConfig::new(filter, false, Timestamp(0))
            .map_err(|error| format!("BadValue: Invalid auditLog.filter: {}", error.message()))?;
        let config = Arc::new(config);
        let sink = Sink::open(&options.destination, options.format)?;
        let last = sink.promise(OWN_EVENT_BYTES).map_err(|error| not_written(&error).message().to_owned())?;
        let last = AtomicU64::new(last.keep());
        Ok(Audit {
            format: options.format,
            runtime: options.runtime,
            sink,
            last,
            config: RwLock::new(config),
            awaits: AtomicBool::new(false),
            changing: Mutex::default(),
        })
    }

    /// What is written down.
    pub fn config(&self) -> Arc<AuditConfig> {
        self.config.read().clone()
    }

    /// Writes down from now on what is kept by now among the cluster's parameters, which `kept` reads; what cannot be read changes nothing.
    pub fn take_over(&self, kept: impl FnOnce() -> Result<Option<DocBuf>>) {
        // What was read before must not come after.
        let _turn = self.changing.lock();
        let Ok(kept) = kept() else { return };
        if let Some(kept) = kept {
            self.obey(kept.as_raw());
        }
        self.awaits.store(false, Ordering::Relaxed);
    }

    /// What was set before this start is kept elsewhere, and [taken over](Audit::take_over) once it is known.
    pub fn await_config(&self) {
        self.awaits.store(self.runtime, Ordering::Relaxed);
    }

    /// Whether that has not come yet.
    pub fn awaits_config(&self) -> bool {
        self.awaits.load(Ordering::Relaxed)
    }

    fn obey(&self, kept: RawDoc<'_>) {
        let time = match kept.get_or_missing("clusterParameterTime") {
            Value::Timestamp(time) => time,
            _ => Timestamp(0),
        };
        if time != self.config().time
            && let Ok(config) = AuditConfig::read(kept, time)
        {
            *self.config.write() = Arc::new(config);
        }
    }

    /// Whether allowed commands are written down.
    pub fn wants_successes(&self) -> bool {
        self.config.read().authorization_success || self.awaits_config()
    }

    /// Appends an event, if the filter wants it; gives the place up to which [`Audit::settle`] has to wait. Nothing has been promised for it.
    ///
    /// Errors: `OutOfDiskSpace`, `OperationFailed`: it is not written.
    pub fn append(&self, who: &Who, event: &Event) -> Result<u64> {
        self.write(who, event, &Cell::new(0), false)
    }

    /// The same for an event of what has happened, for which this is [promised](Audit::promise); what it has taken of that is promised no more.
    fn append_promised(&self, who: &Who, event: &Event, promised: &Cell<u64>) -> Result<u64> {
        self.write(who, event, promised, true)
    }

    fn write(&self, who: &Who, event: &Event, promised: &Cell<u64>, happened: bool) -> Result<u64> {
        let document = event.document(who);
        let changes = event.atype == "auditConfigure";
        let wanted = self.config().wants(document.as_raw())
            || changes && is_wanted_before_or_after(event.param.as_raw(), document.as_raw());
        if !wanted {
            return Ok(0);
        }
        let written = match self.format {
            Format::Bson => self.sink.append(document.as_bytes(), promised, happened),
            Format::Json => self.sink.append(line(document.as_raw()).as_bytes(), promised, happened),
        };
        written.map_err(|error| not_written(&error))
    }

    /// The same for what has happened already.
    ///
    /// The process ends if it cannot be written.
    pub fn append_done(&self, who: &Who, event: &Event, promised: &Cell<u64>) -> u64 {
        match self.append_promised(who, event, promised) {
            Ok(place) => place,
            Err(_) if self.sink.has_given_up() => never_answered(),
            Err(error) => stop(error.message()),
        }
    }

    /// The server is to end, which is its last event. Where that cannot be written it is told in its log: there is nobody to be answered.
    pub fn end(&self, who: &Who, event: &Event) {
        self.sink.end();
        let room = Cell::new(self.last.swap(0, Ordering::Relaxed));
        match self.append_promised(who, event, &room) {
            Ok(place) => self.settle(place),
            Err(error) => {
                let attributes = doc! { "event": event.atype, "error": error.message() };
                let (id, text) = match self.sink.has_given_up() {
                    true => (
                        crate::log::ids::AUDIT_NOT_READ,
                        "The audit log is not read: the server ends without its last events",
                    ),
                    false => (
                        crate::log::ids::AUDIT_WITHOUT_END,
                        "The audit log cannot be written: the server ends without its last event",
                    ),
                };
                crate::log::warning("CONTROL", id, "-", text, Some(attributes));
            }
        }
        self.sink.give_back(room.get());
    }

    /// Waits until everything up to this place is on the disk.
    ///
    /// The process ends if the disk fails.
    pub fn settle(&self, place: u64) {
        if let Err(error) = self.sink.sync(place) {
            stop(&error.to_string());
        }
    }

    /// Takes room for so many bytes of events as long as the result lives.
    ///
    /// Errors: `OutOfDiskSpace`.
    pub fn promise(&self, bytes: usize) -> Result<Promise<'_>> {
        self.sink.promise(bytes as u64).map_err(|error| not_written(&error))
    }

    /// As many bytes as what an event names takes in the log, or some more.
    pub fn most_bytes(&self, param: RawDoc<'_>) -> usize {
        match self.format {
            Format::Bson => param.len(),
            Format::Json => size::as_json(param),
        }
    }

    /// Gives back room that was [kept](Promise::keep).
    pub fn give_back(&self, bytes: u64) {
        self.sink.give_back(bytes);
    }

    /// Begins a new file: with `rename` the old one is kept under a name with a time stamp. `event` makes the event of it, which is told that
    /// name. What has been promised to others is promised in the new file.
    ///
    /// Errors: those of the file system; then it goes on in the old file.
    pub fn rotate(
        &self,
        rename: bool,
        who: &Who,
        event: impl FnOnce(Option<PathBuf>) -> Event,
    ) -> std::io::Result<()> {
        let room = self.sink.promise(OWN_EVENT_BYTES + self.sink.name_bytes())?;
        let event = event(self.sink.rotate(rename)?);
        let place = self.append_done(who, &event, room.left());
        self.settle(place);
        Ok(())
    }
}

/// Nobody hides a change of what is written down by that change, nor by another one that comes right behind it.
fn is_wanted_before_or_after(change: RawDoc<'_>, event: RawDoc<'_>) -> bool {
    ["previous", "config"].into_iter().any(|side| {
        let side = change.get(side).and_then(|side| side.as_doc()).unwrap_or(RawDoc::EMPTY);
        // What cannot be judged is rather written down.
        AuditConfig::read(side, Timestamp(0)).map_or(true, |config| config.wants(event))
    })
}

fn not_written(error: &std::io::Error) -> Error {
    let full = matches!(
        error.kind(),
        std::io::ErrorKind::StorageFull
            | std::io::ErrorKind::QuotaExceeded
            | std::io::ErrorKind::FileTooLarge
    );
    let code = if full { Code::OUT_OF_DISK_SPACE } else { Code::OPERATION_FAILED };
    Error::new(code, format!("The audit log cannot be written: {error}"))
}

/// What has been done and cannot be written down must not be answered.
fn stop(why: &str) -> ! {
    let attributes = doc! { "error": why };
    let (id, text) = (crate::log::ids::AUDIT_NOT_WRITTEN, "Failure writing to the audit log, terminating");
    crate::log::write(crate::log::Severity::Fatal, "CONTROL", id, "-", text, Some(&attributes));
    eprintln!("{text}: {why}");
    std::process::abort()
}

/// The same where the server ends anyhow: it does so while this waits.
fn never_answered() -> ! {
    loop {
        std::thread::park();
    }
}

/// An event as a line of JSON. Its UUID is written as MongoDB does it there.
fn line(document: RawDoc<'_>) -> String {
    let mut line = String::with_capacity(document.len() * 2);
    line.push('{');
    for (at, field) in document.iter().enumerate() {
        line.push_str(if at == 0 { " " } else { ", " });
        json::put_string(&mut line, field.key());
        line.push_str(" : ");
        match field.value() {
            Value::Binary(uuid) if field.key() == "uuid" => {
                line.push_str("{ \"$binary\" : \"");
                line.push_str(&json::base64(uuid.bytes));
                line.push_str("\", \"$type\" : \"04\" }");
            }
            value => json::put_value(&mut line, value, Style::Log),
        }
    }
    line.push_str(" }\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who { id: [7; 16], ..Who::default() }
    }

    fn event(atype: &'static str) -> Event {
        Event { atype, param: doc! { "user": "ann" }, result: Code::OK, millis: 0 }
    }

    fn options(folder: &std::path::Path, format: Format, filter: Option<DocBuf>) -> AuditOptions {
        let path = folder.join("audit");
        AuditOptions { destination: Destination::File(path), format, filter, runtime: false }
    }

    #[test]
    fn events_are_lines_and_those_that_do_not_match_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let filter = doc! { "atype": { "$in": ["createUser"] } };
        let audit = Audit::open(&options(folder.path(), Format::Json, Some(filter))).unwrap();
        let place = audit.append(&who(), &event("createUser")).unwrap();
        assert!(place > 0);
        assert_eq!(audit.append(&who(), &event("dropUser")).unwrap(), 0);
        audit.settle(place);
        let text = std::fs::read_to_string(folder.path().join("audit")).unwrap();
        assert_eq!(
            text,
            "{ \"atype\" : \"createUser\", \"ts\" : {\"$date\":\"1970-01-01T00:00:00.000Z\"}, \"uuid\" : \
             { \"$binary\" : \"BwcHBwcHBwcHBwcHBwcHBw==\", \"$type\" : \"04\" }, \"local\" : {\"isSystemUser\":true}, \
             \"remote\" : {\"isSystemUser\":true}, \"users\" : [], \"roles\" : [], \"param\" : {\"user\":\"ann\"}, \
             \"result\" : 0 }\n"
        );
    }

    fn only_users(time: u64) -> DocBuf {
        doc! { "clusterParameterTime": Timestamp(time), "filter": { "atype": "createUser" } }
    }

    #[test]
    fn a_change_of_the_filter_is_written_if_the_old_one_or_the_new_one_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Json, None)).unwrap();
        let everything = audit.config().shown();
        let change = |previous: &DocBuf, config: &DocBuf| Event {
            param: doc! { "previous": previous.as_raw(), "config": config.as_raw() },
            ..event("auditConfigure")
        };
        // Another change has come right behind both.
        audit.take_over(|| Ok(Some(only_users(3))));
        for (previous, config, wanted) in [
            (&everything, &only_users(1), true),
            (&only_users(1), &everything, true),
            (&only_users(1), &only_users(2), false),
        ] {
            let place = audit.append(&who(), &change(previous, config)).unwrap();
            assert_eq!(place > 0, wanted, "{previous:?} {config:?}");
        }
        assert_eq!(audit.append(&who(), &event("dropUser")).unwrap(), 0);
    }

    #[test]
    fn what_is_kept_is_taken_over_where_it_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Json, None)).unwrap();
        audit.take_over(|| Ok(None));
        audit.take_over(|| Err(Error::new(Code::INTERNAL_ERROR, "a disk that fails")));
        let bad = doc! { "clusterParameterTime": Timestamp(1), "filter": { "$nonesuch": 1 } };
        audit.take_over(|| Ok(Some(bad)));
        assert_eq!(audit.config().time, Timestamp(0));
        audit.take_over(|| Ok(Some(only_users(2).with("auditAuthorizationSuccess", true))));
        assert!(audit.config().time == Timestamp(2) && audit.wants_successes());
        // A rollback may bring back an earlier one.
        audit.take_over(|| Ok(Some(only_users(1))));
        assert!(audit.config().time == Timestamp(1) && !audit.wants_successes());
    }

    #[test]
    fn nothing_is_left_out_until_it_is_known_what_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let options = AuditOptions { runtime: true, ..options(folder.path(), Format::Json, None) };
        let audit = Audit::open(&options).unwrap();
        assert!(!audit.wants_successes());
        audit.await_config();
        assert!(audit.wants_successes());
        audit.take_over(|| Err(Error::new(Code::HOST_UNREACHABLE, "the config servers are not there")));
        assert!(audit.wants_successes());
        audit.take_over(|| Ok(None));
        assert!(!audit.wants_successes());
        audit.await_config();
        audit.take_over(|| Ok(Some(only_users(2))));
        assert!(!audit.wants_successes() && audit.config().time == Timestamp(2));
        // What the settings say is not kept elsewhere.
        let fixed = Audit::open(&AuditOptions { runtime: false, ..options }).unwrap();
        fixed.await_config();
        assert!(!fixed.wants_successes());
    }

    #[test]
    fn what_a_crash_has_torn_does_not_spoil_what_follows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        std::fs::write(&path, "{ \"atype\"").unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Json, None)).unwrap();
        audit.settle(audit.append(&who(), &event("startup")).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some("{ \"atype\""));
        assert_eq!(text.lines().count(), 2);

        let whole = doc! { "a": 1 };
        std::fs::write(&path, [whole.as_bytes(), &whole.as_bytes()[..5]].concat()).unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Bson, None)).unwrap();
        audit.settle(audit.append(&who(), &event("startup")).unwrap());
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[..whole.as_bytes().len()], whole.as_bytes());
        let rest = RawDoc::new(&bytes[whole.as_bytes().len()..]);
        assert_eq!(rest.get("atype").and_then(|atype| atype.as_str()), Some("startup"));
    }

    #[test]
    fn a_new_file_begins_where_the_old_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Json, None)).unwrap();
        audit.append(&who(), &event("startup")).unwrap();
        let mut old = None;
        let rotated = |path| {
            old = path;
            event("rotateLog")
        };
        audit.rotate(true, &who(), rotated).unwrap();
        audit.end(&who(), &event("shutdown"));
        assert!(std::fs::read_to_string(old.unwrap()).unwrap().contains("startup"));
        let new = std::fs::read_to_string(folder.path().join("audit")).unwrap();
        assert!(new.contains("rotateLog") && new.contains("shutdown") && !new.contains("startup"));
    }

    #[test]
    fn for_the_last_event_there_is_room_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(&options(folder.path(), Format::Json, None)).unwrap();
        let kept = audit.last.load(Ordering::Relaxed);
        let Sink::File(file) = &audit.sink else { panic!("no file") };
        assert!(kept > 0 && file.promised() == kept);
        audit.end(&who(), &event("shutdown"));
        assert_eq!(file.promised(), 0);
        assert!(std::fs::read_to_string(folder.path().join("audit")).unwrap().contains("shutdown"));
    }

    #[test]
    fn without_room_there_is_an_error_and_no_event() {
        let options = AuditOptions {
            destination: Destination::File("/dev/full".into()),
            format: Format::Json,
            filter: None,
            runtime: false,
        };
        let audit = Audit::open(&options).unwrap();
        let error = audit.append(&who(), &event("startup")).unwrap_err();
        assert_eq!(error.code(), Code::OUT_OF_DISK_SPACE);
        // Which does not keep the server from its end.
        audit.end(&who(), &event("shutdown"));
    }
}
