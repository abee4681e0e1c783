//! The ids of log lines. Tools and people find a line by its id, so each names one message for good: one that is no longer
//! written is not used again. mongod's own are below 99,000,000, and stand for the same message there.

macro_rules! ids {
    ($($(#[$about:meta])+ $name:ident = $id:literal;)+) => {
        $($(#[$about])+ pub const $name: i32 = $id;)+

        #[cfg(test)]
        const ALL: &[(&str, i32)] = &[$((stringify!($name), $id)),+];
    };
}

ids! {
    /// A client has proved who it is.
    AUTHENTICATED = 5286306;
    /// The keys of an identity provider cannot be read.
    KEYS_NOT_READ = 99_000_080;
    /// Members will not take this one's certificate.
    CERTIFICATE_DOUBTED = 99_000_081;
    /// Lists of revocations end soon, or have ended.
    LISTS_END = 99_000_082;
    /// A client has not proved who it is.
    NOT_AUTHENTICATED = 5286307;
    /// Certificates were read anew.
    CERTIFICATES_ROTATED = 4913400;
    /// The server's certificate holds for some days only.
    CERTIFICATE_ENDS = 23221;
    /// It does not hold any more.
    CERTIFICATE_ENDED = 23222;
    /// A document fails its collection's validator.
    VALIDATION_FAILED = 20294;
    /// `validate` has found a document that is damaged.
    DOCUMENT_CORRUPT = 20404;
    /// The profiler cannot write its entry.
    PROFILE_FAILED = 20504;
    /// The data cannot be opened, and the process ends.
    STORAGE_NOT_OPEN = 20557;
    /// There is no listener, and the process ends.
    NO_LISTENER = 20568;
    /// Sessions cannot be written to `config.system.sessions`.
    SESSIONS_NOT_REFRESHED = 20710;
    /// This member has become primary and accepts writes.
    BECAME_PRIMARY = 21331;
    /// This member has another state in its set.
    MEMBER_STATE_CHANGED = 21358;
    /// The options that were given.
    OPTIONS = 21951;
    /// `replSetStepDown` was asked for.
    STEPPING_DOWN = 21579;
    /// A rollback begins.
    ROLLING_BACK = 21608;
    /// The data of a shard, in a server that was not started as a shard's.
    NOT_A_SHARD_SERVER = 22074;
    /// There is no access control.
    NO_ACCESS_CONTROL = 22120;
    /// Clients' certificates may be anybody's.
    INVALID_CERTIFICATES_TAKEN = 22124;
    /// Certificates of servers that are dialled may be for other hosts.
    HOST_NAMES_NOT_CHECKED = 22128;
    /// The process may do everything on its machine.
    RUN_BY_ROOT = 22138;
    /// The process may open few files.
    FEW_DESCRIPTORS = 22184;
    /// Writers are held back, and the commit point does not move.
    FLOW_CONTROL_STANDS = 22225;
    /// Expired documents cannot be deleted.
    TTL_INTERRUPTED = 22537;
    /// A connection was refused because there are too many.
    CONNECTION_REFUSED = 22942;
    /// A connection was accepted.
    CONNECTION_ACCEPTED = 22943;
    /// A connection has ended.
    CONNECTION_ENDED = 22944;
    /// A request cannot be read; its connection ends.
    CONNECTION_BROKEN = 22988;
    /// The server listens on this address.
    LISTENING_ON = 23015;
    /// The server is ready.
    WAITING_FOR_CONNECTIONS = 23016;
    /// A connection cannot be accepted.
    NOT_ACCEPTED = 23022;
    /// An address cannot be listened on.
    LISTENER_FAILED = 23024;
    /// The process ends, with this exit code.
    SHUTTING_DOWN = 23138;
    /// A signal came that ends the process.
    SIGNAL_RECEIVED = 23377;
    /// Which version this is.
    BUILD_INFO = 23403;
    /// What a client has told about itself.
    CLIENT_METADATA = 51800;
    /// An operation was slow.
    SLOW_QUERY = 51803;
    /// The server starts.
    STARTING = 4_615_611;
    /// `shutdown` was received.
    SHUTDOWN_COMMAND = 4_695_400;
    /// Commands under way are interrupted for the shutdown.
    ENDING_COMMANDS = 4_784_901;
    /// This member sends its clients to others before it ends.
    QUIESCE_MODE = 4_794_602;
    /// `validate` has found a document that its validator refuses.
    DOCUMENT_NOT_COMPLIANT = 5_363_500;
    /// `validate` has found a bucket of measurements whose parts contradict each other.
    BUCKET_NOT_COMPLIANT = 6_698_300;
    /// A command has panicked.
    COMMAND_PANICKED = 99_000_001;
    /// What storage keeps of a session cannot be removed.
    SESSION_NOT_FORGOTTEN = 99_000_002;
    /// The runtime's threads cannot be started.
    NO_THREADS = 99_000_010;
    /// The file with the process id cannot be written.
    PID_FILE_NOT_WRITTEN = 99_000_011;
    /// The folder's version cannot be written.
    VERSION_NOT_WRITTEN = 99_000_012;
    /// `local.startup_log` cannot be written.
    STARTUP_LOG_NOT_WRITTEN = 99_000_013;
    /// The last flush was left out.
    NO_LAST_FLUSH = 99_000_014;
    /// The port for metrics cannot be had.
    METRICS_NOT_SERVED = 99_000_015;
    /// Storage did not end in order.
    UNCLEAN_END = 99_000_016;
    /// A link from another member has ended.
    MEMBER_LINK_ENDED = 99_000_020;
    /// A new primary cannot write the collections that it has to have.
    PRIMARY_NOT_PREPARED = 99_000_021;
    /// The program runs anew in its process.
    RESTARTING_IN_PLACE = 99_000_022;
    /// A rollback has failed and is tried again.
    ROLLBACK_FAILED = 99_000_023;
    /// The steps of an initial sync; their texts tell them apart.
    INITIAL_SYNC = 99_000_024;
    /// `local.system.replset` cannot be written.
    CONFIG_NOT_PUBLISHED = 99_000_025;
    /// A resized oplog has the size of its start again.
    OPLOG_SIZE_NOT_RESTORED = 99_000_026;
    /// The replica set's state cannot be read.
    NO_REPLICA = 99_000_027;
    /// Signals cannot be listened for.
    NO_SIGNALS = 99_000_028;
    /// A message of a member cannot be true, and is not read.
    MEMBER_REFUSED = 99_000_050;
    /// A link of a member is not believed.
    LINK_REFUSED = 99_000_051;
    /// Another process answers at this member's address.
    MEMBER_IS_ELSEWHERE = 99_000_055;
    /// A panic, wherever it ends.
    PANIC = 99_000_052;
    /// The thread that watches the memory of the process cannot be started.
    MEMORY_NOT_WATCHED = 99_000_053;
    /// Operations were ended because memory is short.
    MEMORY_SHORT = 99_000_054;
    /// A router does not reach its config servers, or reaches them again.
    CONFIG_SERVERS = 99_000_062;
    /// The document of a user who was named at a login cannot be read.
    USER_DAMAGED = 99_000_072;
    /// The audit log cannot be written, and the process ends.
    AUDIT_NOT_WRITTEN = 99_000_070;
    /// The server ends, and nobody reads the audit log.
    AUDIT_NOT_READ = 99_000_071;
    /// The server ends, and that cannot be written to the audit log.
    AUDIT_WITHOUT_END = 99_000_073;
    /// Two shards have said what cannot both be true of a transaction.
    SHARDS_CONTRADICT = 99_000_060;
    /// The members of a cluster in one process cannot be brought together.
    NO_CLUSTER = 99_000_061;
    /// Events of the floors below; their texts tell them apart.
    STORAGE_EVENT = 99_000_100;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::ALL;

    /// Ids of ours begin with this and have three more digits.
    const OURS: &str = "99000";

    #[test]
    fn no_id_is_used_twice() {
        for (at, (name, id)) in ALL.iter().enumerate() {
            assert!(
                (20_000..10_000_000).contains(id) || (99_000_001..99_001_000).contains(id),
                "{name} is {id}"
            );
            if let Some((other, _)) = ALL[..at].iter().find(|(_, earlier)| earlier == id) {
                panic!("{name} and {other} are both {id}");
            }
        }
    }

    #[test]
    fn no_id_is_written_outside_of_this_table() {
        let crates = Path::new("..");
        let mut found = Vec::new();
        for path in sources(crates) {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let lines = text.lines().enumerate().filter(|(_, line)| has_id(line) || logs_a_number(line));
            found.extend(lines.map(|(at, line)| format!("{}:{}: {}", path.display(), at + 1, line.trim())));
        }
        found.retain(|line| !line.contains("front/src/log/ids.rs"));
        assert!(found.is_empty(), "give these a name in log/ids.rs:\n{}", found.join("\n"));
    }

    #[test]
    fn ids_are_seen_however_they_are_written() {
        let plain = format!("warning({OURS}012, text)");
        assert!(has_id(&plain) && has_id(&plain.replace(OURS, "99_000_")));
        assert!(!has_id("4_107_542_399_000") && !has_id("99_000"));
        let number = format!("info({}, 23015, text)", "\"NETWORK\"");
        assert!(logs_a_number(&number) && !logs_a_number(&number.replace("23015", "ids::LISTENING_ON")));
    }

    /// Whether a line logs by a number instead of a name: a severity, a component and a number.
    fn logs_a_number(line: &str) -> bool {
        let call =
            ["info(", "warning(", "error(", "debug(", "fatal("].iter().find_map(|call| line.split_once(call));
        let Some(argument) = call.and_then(|(_, arguments)| arguments.strip_prefix('"')) else {
            return false;
        };
        let id = argument.split_once("\", ").map(|(_, rest)| rest);
        id.is_some_and(|id| id.starts_with(|c: char| c.is_ascii_digit()))
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
        found
    }

    /// Whether a number in a line, read without its underscores, is an id of ours.
    fn has_id(line: &str) -> bool {
        let line = line.replace('_', "");
        line.split(|c: char| !c.is_ascii_digit()).any(|number| number.len() == 8 && number.starts_with(OURS))
    }
}
