//! Members for tests that answer every message with the same document, and processes that only sleep.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use sheaf_bson::{DocBuf, doc};
use sheaf_wire::{HEADER_LEN, Header, REPLY_HEAD};

use super::{Access, Member, Process, Running};
use crate::client::ConnectionString;
use crate::cluster::Links;
use crate::database::Database;
use crate::journal::Journal;
use crate::part::Part;

/// A listener that says what it is told to say. Its threads end with the test's process.
pub(crate) struct FakeMember {
    pub address: String,
    pub says: Arc<Mutex<DocBuf>>,
    /// The names of the commands so far.
    pub heard: Arc<Mutex<Vec<String>>>,
}

pub(crate) fn primary() -> DocBuf {
    doc! { "isWritablePrimary": true, "secondary": false, "setName": "lab", "ok": 1.0 }
}

pub(crate) fn secondary() -> DocBuf {
    doc! { "isWritablePrimary": false, "secondary": true, "setName": "lab", "ok": 1.0 }
}

impl FakeMember {
    pub fn start(says: DocBuf) -> FakeMember {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (says, heard) = (Arc::new(Mutex::new(says)), Arc::new(Mutex::new(Vec::new())));
        let fake = FakeMember { address, says: says.clone(), heard: heard.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (says, heard) = (says.clone(), heard.clone());
                std::thread::spawn(move || answer(stream, &says, &heard));
            }
        });
        fake
    }
}

fn answer(mut stream: TcpStream, says: &Mutex<DocBuf>, heard: &Mutex<Vec<String>>) -> Option<()> {
    loop {
        let mut message = vec![0; HEADER_LEN];
        stream.read_exact(&mut message).ok()?;
        let header = Header::parse(&message).ok()?;
        message.resize(header.length as usize, 0);
        stream.read_exact(&mut message[HEADER_LEN..]).ok()?;
        let Ok(sheaf_wire::Request::Msg(request)) = sheaf_wire::parse(&message) else { return None };
        heard.lock().unwrap().push(request.body.iter().next()?.key().to_owned());
        let mut bytes = vec![0; REPLY_HEAD];
        bytes.extend_from_slice(says.lock().unwrap().as_bytes());
        sheaf_wire::finish_msg(&mut bytes, 0, header.request_id, 0);
        stream.write_all(&bytes).ok()?;
    }
}

/// A set of fake members, the first of them the primary, each with a process that sleeps.
pub(crate) fn running(count: usize, folder: &Path, journal: &Journal) -> (Running, Vec<FakeMember>) {
    let says = |at| if at == 0 { primary() } else { secondary() };
    let fakes: Vec<FakeMember> = (0..count).map(|at| FakeMember::start(says(at))).collect();
    let process = |(at, fake): (usize, &FakeMember)| {
        let data = folder.join(at.to_string());
        std::fs::create_dir(&data).unwrap();
        let mut command = Command::new("sleep");
        command.arg("1000");
        Process::start(command, fake.address.clone(), data, false, journal).unwrap()
    };
    let member = |fake: &FakeMember| Member {
        address: fake.address.clone(),
        part: Part::Set,
        arbiter: false,
        data: None,
    };
    let addresses: Vec<_> = fakes.iter().map(|fake| fake.address.parse().unwrap()).collect();
    let running = Running {
        database: Database::MongoDb(ConnectionString::direct(&fakes[0].address)),
        access: Access::default(),
        name: "fake 1".into(),
        processes: fakes.iter().enumerate().map(process).collect(),
        nodes: fakes.iter().map(|fake| fake.address.clone()).collect(),
        members: fakes.iter().map(member).collect(),
        links: Some(Links::start(&addresses).unwrap()),
        warnings: Vec::new(),
    };
    (running, fakes)
}
