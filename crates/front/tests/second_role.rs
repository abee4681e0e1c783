//! A second role on the front: it answers `hello` as a router does, and refuses everything else. It has no data, and
//! nothing of a mongod.
#![allow(missing_docs)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sheaf_bson::{Binary, DocBuf, Value, doc};
use sheaf_errors::{Result, bail};
use sheaf_front::args::{Args, Fields};
use sheaf_front::command::*;
use sheaf_front::command_entry;
use sheaf_front::front::Front;
use sheaf_front::handshake::Handshake;
use sheaf_front::listener;
use sheaf_front::outcome::Ran;
use sheaf_front::reply::Reply;
use sheaf_front::request::Request;
use sheaf_front::role::{Found, Role};
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD, finish_msg};

/// What the role's commands run with: nothing but the request.
struct Operation<'a> {
    request: &'a Request<'a>,
}

struct Hello<'a>(Handshake<'a>);

impl<'a> Command<'a, Operation<'a>> for Hello<'a> {
    const NAME: &'static str = "hello";
    const SPEC: Spec = Spec {
        aliases: &["isMaster", "ismaster"],
        help: "",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Before,
        api_v1: false,
        admin_only: false,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::None,
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let handshake = Handshake::parse(args, false)?;
        args.ignore_rest();
        Ok(Hello(handshake))
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let agreed = self.0.settle(op.request)?;
        Ok(Reply::ok().with_fields(|doc| {
            self.0.begin(doc);
            doc.append("isWritablePrimary", true).append("msg", "isdbgrid");
            self.0.end(op.request, &agreed, doc);
        }))
    }
}

/// Panics.
struct Fails;

impl<'a> Command<'a, Operation<'a>> for Fails {
    const NAME: &'static str = "fails";
    const SPEC: Spec = Spec { aliases: &[], ..<Hello<'_> as Command<Operation<'_>>>::SPEC };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(Fails)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        panic!("on purpose")
    }
}

type RunOnRouter = for<'a, 'o> fn(&mut Args<'a>, &'o Operation<'a>) -> Result<Reply>;

static COMMANDS: &[Entry<RunOnRouter>] =
    &[command_entry!(Hello<'_>, Operation), command_entry!(Fails, Operation)];

static TABLE: LazyLock<Table<RunOnRouter>> = LazyLock::new(|| Table::new(&[COMMANDS]));

struct Router(Arc<Front>);

impl Role for Router {
    fn front(&self) -> &Arc<Front> {
        &self.0
    }

    fn find(&self, name: &str) -> Option<Found> {
        TABLE.find(name)
    }

    fn check(&self, request: &Request<'_>) -> Result<()> {
        if request.generic.read_concern.is_some() {
            bail!(sheaf_errors::Code::INVALID_OPTIONS, "nothing is read here");
        }
        Ok(())
    }

    fn place(&self, _: &Request<'_>) -> Result<()> {
        Ok(())
    }

    fn run<'a>(&'a self, request: &'a Request<'a>, fields: Fields<'a>) -> Ran {
        let op = Operation { request };
        let result = request.args(fields).and_then(|mut args| {
            request.handle(|| match TABLE.at(request.at) {
                Run::Front(run) => run(&mut args, request),
                Run::Role(run) => run(&mut args, &op),
            })
        });
        Ran::at_once(result)
    }
}

fn ask(stream: &mut TcpStream, command: &DocBuf) -> DocBuf {
    let mut bytes = vec![0; REPLY_HEAD];
    bytes.extend_from_slice(command.as_bytes());
    finish_msg(&mut bytes, 1, 0, 0);
    stream.write_all(&bytes).unwrap();
    let mut reply = vec![0; HEADER_LEN];
    stream.read_exact(&mut reply).unwrap();
    reply.resize(Header::parse(&reply).unwrap().length as usize, 0);
    stream.read_exact(&mut reply[HEADER_LEN..]).unwrap();
    match sheaf_wire::parse(&reply) {
        Ok(sheaf_wire::Request::Msg(message)) => DocBuf::from(message.body),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_role_without_data_answers_hello_and_refuses_the_rest() {
    sheaf_front::log::to_nowhere();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let options = sheaf_front::options::FrontOptions { port: 0, ..Default::default() };
    let front = Front::new(options, TABLE.all()).unwrap();
    let listeners = runtime.block_on(async { listener::bind(&front) }).unwrap();
    runtime.spawn(listeners.run(Arc::new(Router(front.clone()))));
    let mut stream = TcpStream::connect(("127.0.0.1", front.port.load(Ordering::Relaxed) as u16)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();

    let hello = ask(&mut stream, &doc! { "hello": 1, "$db": "admin" });
    assert_eq!(hello.as_raw().get("msg").and_then(|msg| msg.as_str()), Some("isdbgrid"));
    assert!(hello.as_raw().get("ok").is_some_and(|ok| ok.truthy()));
    let code = |stream: &mut TcpStream, command: DocBuf| {
        let reply = ask(stream, &command);
        reply.as_raw().get("code").and_then(|code| code.as_exact_i64()).unwrap_or(0)
    };
    assert_eq!(code(&mut stream, doc! { "ismaster": 1, "$db": "admin" }), 0);
    assert_eq!(code(&mut stream, doc! { "find": "c", "$db": "test" }), 59);
    assert_eq!(
        code(&mut stream, doc! { "hello": 1, "readConcern": { "level": "local" }, "$db": "admin" }),
        72
    );
    assert_eq!(code(&mut stream, doc! { "hello": 1, "txnNumber": 1i64, "$db": "admin" }), 72);
    // What every server answers, this one answers, too.
    for command in [
        doc! { "ping": 1, "$db": "admin" },
        doc! { "buildInfo": 1, "$db": "admin" },
        doc! { "hostInfo": 1, "$db": "admin" },
        doc! { "getLog": "*", "$db": "admin" },
        doc! { "getCmdLineOpts": 1, "$db": "admin" },
        doc! { "getParameter": 1, "cursorTimeoutMillis": 1, "$db": "admin" },
        doc! { "setParameter": 1, "cursorTimeoutMillis": 5000, "$db": "admin" },
        doc! { "connectionStatus": 1, "$db": "admin" },
        doc! { "whatsmyuri": 1, "$db": "admin" },
        doc! { "killOp": 1, "op": 1_000_000, "$db": "admin" },
        doc! { "currentOp": 1, "$db": "admin" },
        doc! { "startSession": 1, "$db": "admin" },
        doc! { "refreshSessions": [], "$db": "admin" },
        doc! { "endSessions": [], "$db": "admin" },
        doc! { "killAllSessions": [], "$db": "admin" },
        doc! { "killCursors": "c", "cursors": [7i64], "$db": "test" },
        doc! { "connPoolStats": 1, "$db": "admin" },
        doc! { "features": 1, "$db": "admin" },
    ] {
        assert_eq!(code(&mut stream, command.clone()), 0, "{command:?}");
    }
    // It has no users, and says no more than others of one that there is not.
    let payload = Binary { subtype: 0, bytes: b"n,,n=u" };
    let start = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Value::Binary(payload), "$db": "admin" };
    assert_eq!(code(&mut stream, start), 18);
    let list = ask(&mut stream, &doc! { "listCommands": 1, "$db": "admin" });
    let listed = list.as_raw().get("commands").and_then(|list| list.as_doc()).unwrap();
    assert!(listed.get("hello").is_some() && listed.get("ping").is_some() && listed.get("find").is_none());
    // One command's panic is its own.
    assert_eq!(code(&mut stream, doc! { "fails": 1, "$db": "admin" }), 1);
    assert_eq!(code(&mut stream, doc! { "hello": 1, "$db": "admin" }), 0);
    assert_eq!(front.command_counts["hello"].total.get(), 3);
    front.begin_shutdown();
    runtime.shutdown_timeout(Duration::from_secs(5));
}
