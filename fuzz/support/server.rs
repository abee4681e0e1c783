//! A server in this process, spoken to over a pipe as a client speaks to it over a socket.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, Value, doc, validate};
use sheaf_front::client::Client;
use sheaf_front::session::SessionRegistry;
use sheaf_server::mongod::Mongod;
use sheaf_server::node::Node;
use sheaf_server::options::MongodOptions;
use sheaf_storage::Engine;
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD, Request, finish_msg, parse};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;

use super::command;
use super::generate::Choices;

/// Longest that a command may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Commands in one input at most.
const COMMANDS: usize = 6;

/// How a panic that dispatch has caught begins.
const CAUGHT: &str = "internal error in command";

/// The server, with its data in a temporary folder that goes with it.
pub struct Server {
    runtime: Runtime,
    node: Arc<Node>,
    client: Arc<Client>,
    stream: DuplexStream,
    names: Vec<&'static str>,
    /// How often each command ended with each code; 0 is success.
    pub outcomes: BTreeMap<(String, i32), u64>,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server. The data go to memory where the system has such a folder, unless `TMPDIR` says otherwise.
    pub fn start() -> Server {
        let shared = std::path::Path::new("/dev/shm");
        let parent = match std::env::var_os("TMPDIR") {
            None if shared.is_dir() => shared.to_owned(),
            _ => std::env::temp_dir(),
        };
        let folder = tempfile::tempdir_in(parent).expect("a folder");
        sheaf_front::log::to_nowhere();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let options = MongodOptions { dbpath: folder.path().to_owned(), ..MongodOptions::default() };
        let node = Mongod::new(Default::default(), options).expect("a node").0;
        let mut storage = sheaf_storage::Options::new(folder.path());
        storage.cache_bytes = 64 << 20;
        storage.oplog_bytes = 64 << 20;
        storage.block = Arc::new(|wait| tokio::task::block_in_place(wait));
        node.set_engine(Engine::open(storage).expect("an engine"));
        let client = node.connect(None, None).expect("a client");
        let (stream, far_end) = tokio::io::duplex(64 * 1024);
        runtime.spawn(sheaf_front::connection::serve(
            far_end,
            client.clone(),
            Arc::new(Mongod(node.clone())),
        ));
        let mut names: Vec<_> = sheaf_server::commands::TABLE.all().map(|command| command.name).collect();
        names.sort_unstable();
        Server { runtime, node, client, stream, names, outcomes: BTreeMap::new(), _folder: folder }
    }

    /// Runs the commands that `data` makes up, and checks every reply. The first puts some documents there.
    pub fn run_arbitrary(&mut self, data: &[u8]) {
        self.clear();
        let mut choices = Choices::new(data);
        let documents = [
            doc! { "_id": 0, "a": 1, "b": [1, 2, { "c": 3 }], "c": { "d": "x" } },
            doc! { "_id": 1, "a": [1, { "b": 2.5 }], "b": "abc", "c": [{ "d": 1 }, { "d": Value::Null }] },
            doc! { "_id": 2, "a": { "b": { "c": 1i64 } }, "x": Value::DateTime(0) },
            doc! { "_id": 3, "a": 1.0, "b": [], "c": Value::Null },
            doc! { "_id": 4, "a": "abc", "b": { "c": [[1], 2] } },
        ];
        let insert =
            doc! { "insert": "c", "$db": "t" }.with("documents", &sheaf_bson::ArrayBuf::of(&documents));
        self.checked(insert.as_raw(), &mut choices);
        for _ in 0..COMMANDS {
            if choices.is_over() {
                break;
            }
            let body = command::arbitrary(&mut choices, &self.names);
            self.checked(body.as_raw(), &mut choices);
        }
    }

    /// Runs a command and checks the reply's shape.
    fn checked(&mut self, body: RawDoc<'_>, choices: &mut Choices<'_>) {
        let reply = self.run(body);
        let reply = reply.as_raw();
        let Some(Value::Double(ok)) = reply.get("ok") else { panic!("{body:?}: {reply:?}") };
        assert!(ok == 1.0 || ok == 0.0, "{body:?}: {reply:?}");
        if ok == 0.0 {
            let message = reply.get("errmsg").and_then(|message| message.as_str()).expect("errmsg");
            assert!(!message.starts_with(CAUGHT), "{body:?}: {reply:?}");
            assert!(reply.get("code").is_some() && reply.get("codeName").is_some(), "{body:?}: {reply:?}");
        }
        let name = body.iter().next().map_or("", |first| first.key());
        let code = reply
            .get("code")
            .filter(|_| ok == 0.0)
            .map_or(0, |code| code.as_exact_i64().unwrap_or(-1) as i32);
        *self.outcomes.entry((name.to_owned(), code)).or_default() += 1;
        let cursor = reply.get("cursor").and_then(|cursor| cursor.as_doc());
        if let Some(Value::Int64(id @ 1..)) = cursor.and_then(|cursor| cursor.get("id")) {
            choices.cursors.push(id);
        }
    }

    /// Sends a command and reads its reply.
    pub fn run(&mut self, body: RawDoc<'_>) -> DocBuf {
        let mut message = vec![0; REPLY_HEAD];
        message.extend_from_slice(body.as_bytes());
        finish_msg(&mut message, 1, 0, 0);
        let stream = &mut self.stream;
        let exchange = async move {
            stream.write_all(&message).await.expect("the server reads");
            let mut reply = vec![0; HEADER_LEN];
            stream.read_exact(&mut reply).await.expect("the server answers");
            let header = Header::parse(&reply).expect("a header");
            reply.resize(header.length as usize, 0);
            stream.read_exact(&mut reply[HEADER_LEN..]).await.expect("a whole reply");
            reply
        };
        let reply = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, exchange).await });
        let Ok(reply) = reply else { panic!("no answer within {PATIENCE:?}: {body:?}") };
        let Ok(Request::Msg(reply)) = parse(&reply) else { panic!("{body:?} is answered with {reply:?}") };
        assert!(validate(reply.body.as_bytes(), sheaf_bson::MAX_DEPTH).is_ok());
        DocBuf::from(reply.body)
    }

    /// Ends sessions and cursors, and drops all databases.
    fn clear(&mut self) {
        let _inside = self.runtime.enter();
        let sessions: Vec<_> = self.node.sessions.list().iter().map(|session| session.id).collect();
        self.node.end(&sessions);
        self.node.cursors.kill_where(|_| true);
        *self.client.handshake.lock() = Default::default();
        let catalog = self.node.engine().catalog();
        // The log that `local` shows is not dropped.
        for database in catalog.databases().filter(|database| *database != "local") {
            self.node
                .engine()
                .drop_database(database, &|_| Ok(()), sheaf_storage::Told::Here, &|| Ok(()))
                .expect("a database is dropped");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.node.begin_shutdown();
        let _ = self.node.engine().shutdown(true);
    }
}
