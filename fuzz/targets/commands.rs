//! Any sequence of commands: each is answered, in time, with a valid reply that has `ok`, and none panics.
#![no_main]

use std::sync::{Mutex, OnceLock};

use libfuzzer_sys::fuzz_target;
use sheaf_fuzz::server::Server;

static SERVER: OnceLock<Mutex<Server>> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    let server = SERVER.get_or_init(|| Mutex::new(Server::start()));
    server.lock().expect("a panic ends the process").run_arbitrary(data);
});
