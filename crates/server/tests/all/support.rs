//! A running server, and clients that speak to it in bytes.
#![allow(missing_docs, dead_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sheaf_bson::DocBuf;
use sheaf_front::{listener, log};
use sheaf_server::mongod::Mongod;
use sheaf_server::node::Node;
use sheaf_server::options::MongodOptions;
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD, finish_msg};

/// A server in this process.
pub struct Server {
    pub node: Arc<Node>,
    pub runtime: Option<tokio::runtime::Runtime>,
    control: Option<tokio::runtime::Runtime>,
    _folder: tempfile::TempDir,
}

impl Server {
    pub fn start(change: impl FnOnce(&mut sheaf_front::options::FrontOptions, &mut MongodOptions)) -> Server {
        log::to_nowhere();
        let folder = tempfile::tempdir().unwrap();
        let mut front = sheaf_front::options::FrontOptions { port: 0, ..Default::default() };
        let mut options = MongodOptions::default();
        front.parameters.push(("enableTestCommands".to_owned(), "1".to_owned()));
        change(&mut front, &mut options);
        let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (control, runtime) = (runtime(), runtime());
        options.dbpath = folder.path().to_owned();
        let node = Mongod::new(front, options).unwrap().0;
        let mut storage = sheaf_storage::Options::new(folder.path());
        storage.block = Arc::new(|work| tokio::task::block_in_place(work));
        storage.replica = node.options.set_name.is_some();
        node.set_engine(sheaf_storage::Engine::open(storage).unwrap());
        node.set_data_runtime(runtime.handle().clone());
        let listeners = control.block_on(async { listener::bind(node.front()) }).unwrap();
        if let Some(set) = &node.options.set_name {
            let _runtime = control.enter();
            node.join(node.engine(), set).unwrap();
        }
        control.spawn(listeners.run(Arc::new(Mongod(node.clone()))));
        Server { node, runtime: Some(runtime), control: Some(control), _folder: folder }
    }

    pub fn connect(&self) -> Connection {
        let port = self.node.port.load(Ordering::Relaxed) as u16;
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.node.begin_shutdown();
        for runtime in [self.runtime.take(), self.control.take()].into_iter().flatten() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
        self.node.engine().shutdown(true).unwrap();
        if let Some(replica) = self.node.replica() {
            replica.stop();
        }
    }
}

/// A client's connection.
pub struct Connection {
    pub stream: TcpStream,
}

impl Connection {
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// One message, or `None` when the server has closed the connection.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; HEADER_LEN];
        self.stream.read_exact(&mut bytes).ok()?;
        let length = Header::parse(&bytes).unwrap().length as usize;
        bytes.resize(length, 0);
        self.stream.read_exact(&mut bytes[HEADER_LEN..]).unwrap();
        Some(bytes)
    }

    pub fn run(&mut self, command: &DocBuf) -> DocBuf {
        self.send(&message(command, 0));
        body(&self.receive().expect("an answer"))
    }
}

pub fn message(command: &DocBuf, flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(command.as_bytes());
    finish_msg(&mut bytes, 77, 0, flags);
    bytes
}

pub fn body(reply: &[u8]) -> DocBuf {
    match sheaf_wire::parse(reply) {
        Ok(sheaf_wire::Request::Msg(msg)) => DocBuf::from(msg.body),
        other => panic!("{other:?}"),
    }
}

pub fn number(doc: &DocBuf, field: &str) -> i64 {
    doc.as_raw().get(field).and_then(|v| v.as_exact_i64()).unwrap_or_else(|| panic!("{field} in {doc:?}"))
}
