//! What all connections of a server share, whatever its role.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use sheaf_auth::oidc::Providers;
use sheaf_bson::{DocBuf, ObjectId};
use sheaf_client::Membership;
use sheaf_errors::{Code, Error};
use sheaf_meter::Process;
use tokio::sync::Notify;

use crate::access::Access;
use crate::audit::Audit;
use crate::audit::event::{Event, Who};
use crate::buffers::Buffers;
use crate::busy::BusyConnections;
use crate::client::Client;
use crate::command::Description;
use crate::failpoint::FailPoints;
use crate::metrics::{CommandCount, Metrics};
use crate::oidc::Oidc;
use crate::options::FrontOptions;
use crate::params::{PROVIDERS, Parameters};
use crate::profile::Profiling;
use crate::sampling::{EXPIRATION, Sampling};
use crate::sasl::logins::Logins;
use crate::session::LogicalSessionId;
use crate::strangers::Strangers;
use crate::strangers::establishment::Establishment;
use crate::tls::Tls;

/// What all connections of a server share.
pub struct Front {
    /// How the server was started.
    pub options: FrontOptions,
    /// The time of day.
    pub clock: Clock,
    /// Server parameters.
    pub parameters: Parameters,
    /// Who may do what.
    pub access: Access,
    /// What is written down of what clients do, if anything is.
    pub audit: Option<Audit>,
    /// How fast connections may be established.
    pub establishment: Establishment,
    /// TLS, if it is spoken.
    pub tls: Option<Arc<Tls>>,
    /// Identity providers whose tokens are taken.
    pub oidc: Oidc,
    /// Clients that nobody knows yet.
    pub strangers: Strangers,
    /// How often clients have logged in.
    pub logins: Logins,
    /// As what others of the deployment are dialled.
    pub membership: Membership,
    /// The memory that operations use.
    pub memory: Arc<Process>,
    /// Fail points.
    pub fail_points: FailPoints,
    /// Figures.
    pub metrics: Metrics,
    /// The commands of this server, in the order of their names.
    pub commands: Vec<&'static Description>,
    /// Calls of each command.
    pub command_counts: HashMap<&'static str, CommandCount, ahash::RandomState>,
    /// How long reads may take that do not say it themselves, in milliseconds; 0 is no limit.
    pub read_time_ms: AtomicU64,
    /// Samples of queries.
    pub sampling: Sampling,
    /// Profiling levels.
    pub profiling: Profiling,
    /// When the server started.
    pub started: Instant,
    /// `topologyVersion.processId`.
    pub process_id: ObjectId,
    /// The port that is listened on (chosen by the system if 0 was asked for).
    pub port: AtomicI64,
    /// Woken when shutdown begins.
    pub shutdown: Notify,
    /// Which busy connections have threads of their own.
    pub busy: BusyConnections,
    /// Room for requests that arrive or are worked on.
    pub incoming: Arc<Buffers>,
    /// Room for replies that clients do not take at once.
    pub outgoing: Arc<Buffers>,
    data: OnceLock<tokio::runtime::Handle>,
    clients: Mutex<HashMap<i64, Arc<Client>, ahash::RandomState>>,
    next_client: AtomicI64,
    next_op: AtomicU64,
    shutting_down: AtomicBool,
}

impl Front {
    /// The front of a server with these commands; parameters of the command line are applied.
    ///
    /// Errors: `BadValue` for a bad `--setParameter`.
    pub fn new(
        options: FrontOptions,
        commands: impl Iterator<Item = &'static Description>,
    ) -> sheaf_errors::Result<Arc<Self>> {
        let parameters = Parameters::default();
        for (name, value) in &options.parameters {
            parameters.set_at_start(name, value)?;
            parameters.apply(name);
        }
        let mode = options.cluster_auth_mode;
        let certificates = mode.takes_certificates();
        let access = Access::new(options.authorization, options.keys.clone(), certificates, &parameters);
        let providers = Providers::parse(&parameters.text(PROVIDERS))?;
        crate::oidc::check_files(&providers)?;
        let oidc = Oidc::new(providers);
        let tls = options.tls.clone().map(|tls| crate::tls::with_parameters(tls, &parameters));
        let tls = tls.map(Tls::new).transpose();
        let tls = tls.map_err(|why| Error::new(Code::INVALID_SSL_CONFIGURATION, why))?;
        if let Some(tls) = tls.as_ref().filter(|_| mode.sends_certificate())
            && let Some(shown) = tls.shown_to_members()
            && !tls.names_member(&shown)
        {
            let text = format!(
                "clusterAuthMode {}: no member takes the certificate of {shown}: it has to have the O, OU and DC of the server's own, or the attributes that are asked for",
                mode.name()
            );
            return Err(Error::new(Code::INVALID_SSL_CONFIGURATION, text));
        }
        let audit = options.audit.as_ref().map(Audit::open).transpose();
        let audit = audit.map_err(|why| Error::new(Code::FILE_OPEN_FAILED, why))?;
        let tls = tls.map(Arc::new);
        parameters.put("clusterAuthMode", mode.name());
        parameters.put("tlsMode", tls.as_ref().map_or("disabled", |tls| tls.mode().name()));
        let membership = Membership::new(mode, access.keys(), options.transition_to_auth, tls.clone());
        sheaf_js::set_enabled(options.javascript);
        let mut commands: Vec<_> = commands.collect();
        commands.sort_by_key(|command| command.name);
        let command_counts = commands.iter().map(|command| (command.name, CommandCount::default())).collect();
        let profiling = Profiling::new(options.profile_level, options.slow_ms, options.sample_rate);
        let memory = memory(&parameters);
        let buffers = || Buffers::new(&memory, memory.limit() / BUFFERS_SHARE);
        let (incoming, outgoing) = (buffers(), buffers());
        let front = Arc::new(Front {
            incoming,
            outgoing,
            port: AtomicI64::new(i64::from(options.port)),
            busy: BusyConnections::new(options.busy_threads),
            options,
            clock: Clock,
            audit,
            tls,
            oidc,
            establishment: Establishment::default(),
            strangers: Strangers::default(),
            logins: Logins::default(),
            membership,
            access,
            memory,
            parameters,
            fail_points: FailPoints::default(),
            metrics: Metrics::default(),
            commands,
            command_counts,
            read_time_ms: AtomicU64::new(0),
            sampling: Sampling::default(),
            profiling,
            started: Instant::now(),
            process_id: new_object_id(),
            shutdown: Notify::new(),
            data: OnceLock::new(),
            clients: Mutex::default(),
            next_client: AtomicI64::new(0),
            next_op: AtomicU64::new(0),
            shutting_down: AtomicBool::new(false),
        });
        front.audit_start()?;
        Ok(front)
    }

    /// Hands over the runtime for connections that ask for data; once, before the first connection is accepted.
    pub fn set_data_runtime(&self, runtime: tokio::runtime::Handle) {
        assert!(self.data.set(runtime).is_ok(), "the data runtime is set once");
    }

    /// The runtime for connections that ask for data; `None` where all share one.
    pub fn data_runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.data.get()
    }

    /// Whether shutdown has begun.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// Begins a clean shutdown: running operations are interrupted, listeners stop.
    pub fn begin_shutdown(&self) {
        if !self.shutting_down.swap(true, Ordering::Relaxed)
            && let Some(audit) = &self.audit
        {
            audit.end(&self.itself(), &self.own_event("shutdown", DocBuf::new()));
        }
        self.memory.end();
        self.incoming.end();
        self.outgoing.end();
        self.shutdown.notify_waiters();
    }

    /// Waits until shutdown begins.
    pub async fn until_shutdown(&self) {
        let woken = self.shutdown.notified();
        tokio::pin!(woken);
        // Register before looking, so that a shutdown in between is not missed.
        woken.as_mut().enable();
        if !self.is_shutting_down() {
            woken.await;
        }
    }

    /// Waits until all messages that have come are answered, for no longer than `limit`. Nothing new is begun by then.
    pub async fn until_answered(&self, limit: Duration) {
        let until = Instant::now() + limit;
        while self.clients().iter().any(|client| client.answering.load(Ordering::Acquire))
            && Instant::now() < until
        {
            tokio::time::sleep(ANSWERED_STEP).await;
        }
    }

    /// Registers a connection. `None`: there are too many.
    pub fn connect(&self, remote: Option<SocketAddr>, local: Option<SocketAddr>) -> Option<Arc<Client>> {
        let mut clients = self.clients.lock();
        let asks = self.access.enabled;
        let most = self.options.max_connections;
        let is_exempt =
            remote.is_some_and(|remote| self.options.exempt.iter().any(|range| range.contains(remote.ip())));
        if !is_exempt && (clients.len() >= most || asks && !self.strangers.make_room(most)) {
            self.metrics.connections_rejected.add(1);
            return None;
        }
        let id = self.next_client.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(Client { local, is_exempt, ..Client::new(id, remote, &self.memory) });
        if asks {
            self.is_stranger(&client);
        }
        clients.insert(id, client.clone());
        self.metrics.connections_created.add(1);
        Some(client)
    }

    /// Writes down that the server has started.
    ///
    /// Errors: it cannot be written; then it must not go on.
    fn audit_start(&self) -> Result<(), Error> {
        let Some(audit) = &self.audit else { return Ok(()) };
        let param = sheaf_bson::doc! { "options": self.options.parsed.as_raw() };
        audit.settle(audit.append(&self.itself(), &self.own_event("startup", param))?);
        Ok(())
    }

    /// The server as one who does what is written down.
    fn itself(&self) -> Who {
        Who { id: self.process_uuid(), ..Who::default() }
    }

    fn own_event(&self, atype: &'static str, param: DocBuf) -> Event {
        Event { atype, param, result: Code::OK, millis: self.clock.now_millis() }
    }

    /// Begins a new file of the audit log, or opens it anew, as [`log::rotate`](crate::log::rotate) does.
    ///
    /// Errors: those of the file system.
    pub fn rotate_audit(&self) -> std::io::Result<()> {
        let Some(audit) = &self.audit else { return Ok(()) };
        audit.rotate(crate::log::is_renamed(), &self.itself(), |old| {
            let old = old.map(|path| path.display().to_string()).unwrap_or_default();
            let param = DocBuf::build(|doc| {
                let mut status = doc.document("logRotationStatus");
                status.append("status", "OK").append("rotatedLogPath", &old);
                let _ = status.array("errors");
            });
            self.own_event("rotateLog", param)
        })
    }

    /// Names the server itself among those who do what is written down.
    fn process_uuid(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..12].copy_from_slice(&self.process_id.0);
        // Version and variant of a UUID of chance.
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        id
    }

    /// Forgets a connection.
    pub fn disconnect(&self, client: &Client) {
        self.clients.lock().remove(&client.id);
        self.is_known(client);
    }

    /// Notes that nobody knows who a client is.
    pub(crate) fn is_stranger(&self, client: &Arc<Client>) {
        // Whoever comes from where there is no limit makes no room for others.
        if !client.is_stranger.swap(true, Ordering::Relaxed) && !client.is_exempt {
            self.strangers.put_last(client);
        }
    }

    /// Notes that a client has gone, or that it is known who it is.
    pub(crate) fn is_known(&self, client: &Client) {
        if client.is_stranger.swap(false, Ordering::Relaxed) {
            self.strangers.remove(client);
        }
    }

    /// Counts a client's connection as long as the result lives.
    pub fn guest(self: &Arc<Self>, client: Arc<Client>) -> Guest {
        Guest { front: self.clone(), client }
    }

    /// Connections now.
    pub fn connection_count(&self) -> usize {
        self.clients.lock().len()
    }

    /// All connections.
    pub fn clients(&self) -> Vec<Arc<Client>> {
        self.clients.lock().values().cloned().collect()
    }

    /// Stops the operations of these sessions, but those that end sessions.
    pub fn stop_operations(&self, of: impl Fn(LogicalSessionId) -> bool) {
        for client in self.clients() {
            let current = client.current.lock();
            let ends = matches!(current.name, "endSessions" | "killSessions" | "killAllSessions");
            if current.op_id != 0 && current.lsid.is_some_and(&of) && !ends {
                client.kill();
            }
        }
    }

    /// A number for the next operation.
    pub fn next_op_id(&self) -> u64 {
        self.next_op.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether a command has this name, or another spelling of its name.
    pub fn knows(&self, command: &str) -> bool {
        self.commands.iter().any(|known| known.name == command || known.spec.aliases.contains(&command))
    }

    /// Whether `enableTestCommands` is on.
    pub fn test_commands(&self) -> bool {
        self.parameters.bool("enableTestCommands")
    }

    /// Milliseconds since the start: what expires by idleness is measured by this, not by the time of day, which may step.
    pub fn uptime_millis(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// `host:port`, as `serverStatus` and `hello` name this server.
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", hostname(), self.port.load(Ordering::Relaxed))
    }
}

/// How often it is looked whether all messages are answered.
const ANSWERED_STEP: Duration = Duration::from_millis(2);

/// A connection that counts as a client's without being served as one.
pub struct Guest {
    front: Arc<Front>,
    client: Arc<Client>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.front.disconnect(&self.client);
    }
}

impl Front {
    /// When samples of queries that are taken now go away, in milliseconds.
    pub fn samples_expire(&self) -> i64 {
        self.clock.now_millis() + self.parameters.int(EXPIRATION) * 1000
    }

    /// The address under which a set of one announces its member: drivers connect to it, so it is
    /// the machine's name only if the server listens for more than this machine.
    pub fn member_address(&self) -> String {
        let port = self.port.load(Ordering::Relaxed);
        let local = |host: &String| host == "localhost" || host == "::1" || host.starts_with("127.");
        match self.options.bind.iter().find(|host| local(host)) {
            Some(host) if self.options.bind.iter().all(local) => match host.as_str() {
                "::1" => format!("[::1]:{port}"),
                host => format!("{host}:{port}"),
            },
            _ => self.host_and_port(),
        }
    }
}

/// Messages under way may have this part of what clients may have together, in each direction.
const BUFFERS_SHARE: u64 = 6;

/// The memory of operations: a share of what this process may use, unless parameters say otherwise.
fn memory(parameters: &Parameters) -> Arc<Process> {
    let share = Process::share_of(crate::system::memory_limit());
    let chosen = |name, share| match parameters.int(name) {
        bytes if bytes > 0 => bytes as u64,
        _ => share,
    };
    let limit = chosen("operationsMemoryBytes", share.limit());
    let each = chosen("operationMemoryBytes", share.operation_limit().min(limit.div_ceil(2)));
    Process::new(limit, each)
}

/// The time of day, asked for in one place.
pub struct Clock;

impl Clock {
    /// Milliseconds since the epoch.
    pub fn now_millis(&self) -> i64 {
        (self.now_micros() / 1000) as i64
    }

    /// Microseconds since the epoch.
    #[expect(clippy::disallowed_methods, reason = "this is the place")]
    pub fn now_micros(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
    }
}

/// A fresh ObjectId: seconds, then noise.
pub fn new_object_id() -> ObjectId {
    let mut id: [u8; 12] = rand::random();
    let seconds = (Clock.now_millis() / 1000) as u32;
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    ObjectId(id)
}

/// The machine's name.
pub fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// `ShutdownInProgress`.
pub fn shutting_down_error() -> Error {
    Error::new(Code::SHUTDOWN_IN_PROGRESS, "The server is in quiesce mode and will shut down")
}
