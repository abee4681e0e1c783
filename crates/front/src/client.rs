//! What the server knows about one connection.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use sheaf_auth::Account;
use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::{Code, Error, Result};
use sheaf_meter::{Meter, Process, Source};
use sheaf_wire::Compressor;

use crate::access::ClientAccess;
use crate::audit::event::{Place, Who};
use crate::front::Front;
use crate::session::LogicalSessionId;
use crate::watch::{Watch, Watched};

/// One connection's client, as `currentOp`, `connectionStatus` and logs see it.
pub struct Client {
    /// `connectionId`, counted from 1.
    pub id: i64,
    /// Where it connects from; `None` for a Unix domain socket.
    pub remote: Option<SocketAddr>,
    /// The address of this server that it has connected to; `None` for a Unix domain socket.
    pub local: Option<SocketAddr>,
    /// By what the audit log names it.
    pub audit_id: OnceLock<[u8; 16]>,
    /// Up to where the audit log has to be on the disk before it is answered; 0 if it need not.
    pub audited: AtomicU64,
    /// Who it is.
    pub access: Mutex<ClientAccess>,
    /// Whether it comes from where the number of connections has no limit.
    pub is_exempt: bool,
    /// Whether nobody knows who it is, where clients must prove it.
    pub is_stranger: AtomicBool,
    /// Its place among those.
    pub stranger: Stranger,
    /// For how many milliseconds its next answer is held back.
    pub delay: AtomicU64,
    /// Whether the running operation is to stop, and with which error; it looks at its next check.
    pub stop: Arc<Stop>,
    /// What its operations may use, one after the other.
    pub meter: Arc<Meter>,
    /// Wakes the connection's request if it is parked.
    pub wake: tokio::sync::Notify,
    /// Whether the connection's request waits for something to happen, so that nothing is done for it.
    pub parked: AtomicBool,
    /// Whether a message of it has been read and is not answered yet.
    pub answering: AtomicBool,
    /// What its hellos agreed on.
    pub handshake: Mutex<Handshake>,
    /// The operation under way.
    pub current: Mutex<CurrentOp>,
    /// The cluster time of the newest commit that this client has made.
    pub last_commit: AtomicU64,
    /// How long a `hello` that waits for a change of the topology still waits.
    pub await_until: Mutex<Option<Instant>>,
    /// The counter of the topology that was told last in answer to the exhaust request under way: the next answer tells
    /// of a later one.
    pub told_topology: Mutex<Option<u64>>,
    /// Whether the client has said that it knows `hello`, and with it the newer words of errors.
    pub hello_ok: AtomicBool,
}

/// A client's place among the strangers.
#[derive(Default)]
pub struct Stranger {
    /// 0: it is none of them, any more.
    pub(crate) place: AtomicU64,
    /// Its connection is to end.
    pub(crate) goes: tokio::sync::Notify,
}

impl Stranger {
    /// Waits until the client has to go, so that another one may come.
    pub async fn goes(&self) {
        self.goes.notified().await;
    }
}

/// Whether an operation has to stop: somebody has said so, or its client has gone.
#[derive(Default)]
pub struct Stop {
    /// The code of the error that it ends with; 0 while it may go on.
    code: AtomicI32,
    watch: Watch,
}

impl Stop {
    /// Stops the operation, unless it has been stopped already.
    pub fn set(&self, code: Code) {
        let _ = self.code.compare_exchange(0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Lets operations go on.
    pub fn clear(&self) {
        self.code.store(0, Ordering::Relaxed);
    }

    /// An operation began at this time, which ends when the client has gone, or does not.
    pub fn watch(&self, began: Instant, ends: bool) {
        self.watch.begin(began, ends);
    }

    /// Hands over the connection to look at.
    pub fn watch_on(&self, peer: Weak<dyn Watched>) {
        self.watch.on(peer);
    }

    /// Whether the client has gone, as far as its connection tells now.
    pub fn has_gone(&self) -> bool {
        self.watch.has_gone()
    }

    /// Whether the operation has to stop.
    pub fn is_set(&self) -> bool {
        self.code.load(Ordering::Relaxed) != 0
    }

    /// The error, if there is one.
    pub fn check(&self) -> Result<()> {
        if self.watch.is_over() {
            self.set(Code::CLIENT_DISCONNECT);
        }
        match self.code.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(Error::new(Code(code), "operation was interrupted")),
        }
    }
}

impl Source for Stop {
    fn check(&self) -> Result<()> {
        Stop::check(self)
    }
}

/// What a connection's hellos agreed on.
#[derive(Default)]
pub struct Handshake {
    /// Whether there was a hello.
    pub done: bool,
    /// The `client` document of the first hello.
    pub metadata: Option<DocBuf>,
    /// Compressors that both sides know, in the client's order.
    pub compressors: Vec<Compressor>,
}

/// The operation that a connection is running; reused from one to the next.
pub struct CurrentOp {
    /// The operation's number; 0 when idle.
    pub op_id: u64,
    /// When it began.
    pub started: Instant,
    /// The database that the command runs against.
    pub db: String,
    /// The command's name.
    pub name: &'static str,
    /// The command's bytes, if it is short.
    pub command: Vec<u8>,
    /// The session.
    pub lsid: Option<LogicalSessionId>,
    /// Whether it ends when this node ceases to be primary: it writes, or belongs to a transaction.
    pub needs_primary: bool,
}

/// Longest command that `currentOp` shows; longer ones appear by name only.
const SHOWN_COMMAND_BYTES: usize = 4096;

impl CurrentOp {
    /// Notes the start of an operation.
    pub fn begin(
        &mut self,
        op_id: u64,
        started: Instant,
        db: &str,
        name: &'static str,
        body: RawDoc<'_>,
        lsid: Option<LogicalSessionId>,
    ) {
        self.op_id = op_id;
        self.started = started;
        self.db.clear();
        self.db.push_str(db);
        self.name = name;
        self.lsid = lsid;
        self.needs_primary = false;
        self.command.clear();
        if body.len() <= SHOWN_COMMAND_BYTES {
            self.command.extend_from_slice(&crate::redact::shown(name, body));
        }
    }

    /// Notes its end.
    pub fn end(&mut self) {
        self.op_id = 0;
    }
}

impl Client {
    /// Whose messages it sends: its user's, or its address' as long as nobody knows who it is.
    pub fn sender(&self) -> u64 {
        let digest = self.access.lock().digest();
        match digest.and_then(|digest| digest.first_chunk().copied()) {
            Some(bytes) => u64::from_le_bytes(bytes),
            None => {
                ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(self.remote.map(|remote| remote.ip()))
            }
        }
    }

    /// Whether an operation is at work.
    pub fn is_busy(&self) -> bool {
        !self.parked.load(Ordering::Relaxed) && self.current.lock().op_id != 0
    }

    /// Stops the operation that is under way.
    pub fn kill(&self) {
        self.interrupt(Code::INTERRUPTED);
    }

    /// Stops the operation that is under way with this error.
    pub fn interrupt(&self, code: Code) {
        self.stop.set(code);
        self.meter.wake();
        self.wake.notify_one();
    }

    /// A new connection's client; its operations share the server's `memory`.
    pub fn new(id: i64, remote: Option<SocketAddr>, memory: &Arc<Process>) -> Self {
        let stop = Arc::new(Stop::default());
        Client {
            id,
            remote,
            local: None,
            audit_id: OnceLock::new(),
            audited: AtomicU64::new(0),
            access: Mutex::default(),
            is_exempt: false,
            is_stranger: AtomicBool::new(false),
            stranger: Stranger::default(),
            delay: AtomicU64::new(0),
            meter: Meter::new(memory, stop.clone()),
            stop,
            wake: tokio::sync::Notify::new(),
            parked: AtomicBool::new(false),
            answering: AtomicBool::new(false),
            handshake: Mutex::default(),
            current: Mutex::new(CurrentOp {
                op_id: 0,
                started: Instant::now(),
                db: String::new(),
                name: "",
                command: Vec::new(),
                lsid: None,
                needs_primary: false,
            }),
            last_commit: AtomicU64::new(0),
            await_until: Mutex::default(),
            told_topology: Mutex::default(),
            hello_ok: AtomicBool::new(false),
        }
    }

    /// As whom the audit log shows it: as this account, or as who it has proved to be.
    pub fn who(&self, account: Option<&Account>) -> Who {
        let access = self.access.lock();
        let place = match self.remote {
            Some(remote) => Place::Tcp { local: self.local, remote },
            None if access.is_server => Place::System,
            None => Place::Unix,
        };
        Who {
            id: *self.audit_id.get_or_init(|| *uuid::Uuid::new_v4().as_bytes()),
            place,
            user: account.map(|account| &account.user.name).or(access.user()).cloned(),
            roles: account.map_or_else(Vec::new, |account| account.resolved.roles.iter().cloned().collect()),
        }
    }

    /// `127.0.0.1:54321`, or mongod's words for a Unix domain socket.
    pub fn remote_text(&self) -> String {
        match self.remote {
            Some(address) => address.to_string(),
            None => "anonymous unix socket".to_owned(),
        }
    }

    /// What log lines about its connection tell.
    pub fn about(&self, front: &Front) -> DocBuf {
        doc! {
            "remote": &self.remote_text(),
            "connectionId": self.id,
            "connectionCount": front.connection_count() as i64,
        }
    }

    /// `conn12`: the context of its log lines.
    pub fn context(&self) -> String {
        format!("conn{}", self.id)
    }

    /// `application.name` of its metadata.
    pub fn app_name(&self) -> Option<String> {
        let handshake = self.handshake.lock();
        let metadata = handshake.metadata.as_ref()?;
        let application = metadata.as_raw().get("application")?.as_doc()?;
        Some(application.get("name")?.as_str()?.to_owned())
    }
}
