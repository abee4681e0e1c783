//! `appendOplogNote`.

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::Args;
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// `{appendOplogNote: 1, data: {...}, maxClusterTime: Timestamp}`: an entry of the log that changes nothing.
pub struct AppendOplogNote<'a> {
    data: RawDoc<'a>,
    max_cluster_time: Option<Timestamp>,
}

impl<'a> Command<'a, Operation<'a>> for AppendOplogNote<'a> {
    const NAME: &'static str = "appendOplogNote";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "adds an entry to the log that changes nothing",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::AppendOplogNote])]),
        spread: Spread::AllShards,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let data = match args.value("data") {
            Value::Document(data) => data,
            Value::Missing => bail!(Code::NO_SUCH_KEY, "Missing expected field \"data\""),
            other => bail!(
                Code::TYPE_MISMATCH,
                "\"data\" had the wrong type. Expected object, found {}",
                other.type_name()
            ),
        };
        let max_cluster_time = match args.value("maxClusterTime") {
            Value::Missing => None,
            Value::Timestamp(time) => Some(time),
            other => bail!(
                Code::TYPE_MISMATCH,
                "\"maxClusterTime\" had the wrong type. Expected timestamp, found {}",
                other.type_name()
            ),
        };
        args.ignore_rest();
        Ok(AppendOplogNote { data, max_cluster_time })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let Some(replica) = op.node().replica() else {
            bail!(Code::NO_REPLICATION_ENABLED, "Must have replication set up to run \"appendOplogNote\"");
        };
        let last = Timestamp(op.last_applied().time);
        if let Some(most) = self.max_cluster_time.filter(|most| *most <= last) {
            let text = |time: Timestamp| format!("Timestamp({}, {})", time.0 >> 32, time.0 as u32);
            op.note_newest_commit();
            bail!(
                Code::STALE_CLUSTER_TIME,
                "Requested maxClusterTime {} is less or equal to the last primary OpTime: {}",
                text(most),
                text(last)
            );
        }
        let stop = op.interrupter();
        op.note_commit(replica.write_noop(&DocBuf::from(self.data), &|| stop.check())?);
        Ok(Reply::ok())
    }
}
