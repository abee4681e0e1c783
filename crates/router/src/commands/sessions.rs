//! `refreshSessions`, `endSessions` and `killSessions` with its kin: a router keeps little of a session; the shards keep the rest.

use std::time::{Duration, Instant};

use sheaf_bson::DocBuf;
use sheaf_errors::{Code, Error, Result};
use sheaf_front::args::Args;
use sheaf_front::reply::Reply;

use crate::op::Operation;

/// How long all shards together may take: who cannot be reached ends sessions by their time.
const PATIENCE: Duration = Duration::from_secs(1);

/// `{endSessions: [...]}` and the like: all shards are told, as far as they answer.
pub fn end<'a>(_: &mut Args<'a>, op: &Operation<'a>) -> Result<Reply> {
    let began = Instant::now();
    let go_on = || match began.elapsed() < PATIENCE {
        true => op.check_interrupt(),
        false => Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time")),
    };
    let command = DocBuf::build(|out| {
        for field in op.body().iter().filter(|field| !matches!(field.key(), "$db" | "$clusterTime" | "lsid"))
        {
            out.append_element(field);
        }
    });
    op.blocking(|| {
        for shard in op.router.directory.shards(&go_on).unwrap_or_default() {
            let _ = sheaf_cluster::run(&shard.set, &op.router.clock, op.db(), &command, false, &go_on);
        }
    });
    Ok(Reply::ok())
}
