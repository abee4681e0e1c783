//! `getDefaultRWConcern` and `setDefaultRWConcern`: what reads and writes get that name no concern.

use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose};
use crate::command::*;
use crate::commands::crud::writes::{collection_for_write, with_writer};
use crate::concern::{Effective, ReadConcern, ReadLevel, WriteConcern};
use crate::default_concerns::{ID, SETTINGS};
use crate::op::Operation;
use crate::reply::Reply;

/// `{getDefaultRWConcern: 1, inMemory: false}`.
pub struct GetDefaultRwConcern {
    in_memory: bool,
}

impl<'a> Command<'a, Operation<'a>> for GetDefaultRwConcern {
    const NAME: &'static str = "getDefaultRWConcern";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "default read and write concerns",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetDefaultRwConcern])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let in_memory = args.optional::<Loose>("inMemory")?.is_some_and(|flag| flag.0);
        Ok(GetDefaultRwConcern { in_memory })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_set(op, Self::NAME)?;
        Ok(answer(op, self.in_memory))
    }
}

fn check_set(op: &Operation<'_>, name: &str) -> Result<()> {
    if op.node().replica().is_none() {
        bail!(51300, "'{name}' is not supported on standalone nodes.");
    }
    Ok(())
}

fn answer(op: &Operation<'_>, in_memory: bool) -> Reply {
    let current = op.node().default_concerns();
    Reply::ok().with_fields(|doc| {
        current.append(doc);
        doc.append("localUpdateWallClockTime", Value::DateTime(op.now_millis()));
        if in_memory {
            doc.append("inMemory", true);
        }
    })
}

/// `{setDefaultRWConcern: 1, defaultReadConcern: {...}, defaultWriteConcern: {...}}`.
pub struct SetDefaultRwConcern<'a> {
    read: Option<RawDoc<'a>>,
    write: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for SetDefaultRwConcern<'a> {
    const NAME: &'static str = "setDefaultRWConcern";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "sets default read and write concerns",
        access: Access::Write,
        transaction: Transaction::Refused,
        secondary: Secondary::Never,
        maintenance: false,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::WRITE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetDefaultRwConcern])]),
        spread: Spread::ConfigServers,
        counter: Counter::Command,
        threads: Threads::DataMayBlock,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let read: Option<RawDoc<'a>> = args.optional("defaultReadConcern")?;
        let write: Option<RawDoc<'a>> = args.optional("defaultWriteConcern")?;
        Ok(SetDefaultRwConcern { read, write })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        check_set(op, Self::NAME)?;
        self.check(op)?;
        let time = Timestamp(op.last_applied().time + 1);
        with_writer(op, true, |w| {
            let collection = collection_for_write(op, w, SETTINGS)?;
            let key = collection.record_key(Value::String(ID))?;
            let old = w.read_for_update(&collection, &key)?;
            let known = old.as_ref().map_or(RawDoc::EMPTY, |old| RawDoc::new(old));
            let document = DocBuf::build(|out| {
                out.append("_id", ID);
                for (name, given) in [("defaultReadConcern", self.read), ("defaultWriteConcern", self.write)]
                {
                    // An empty document takes back what was set.
                    let part = given.or_else(|| known.get(name)?.as_doc()).filter(|part| !part.is_empty());
                    if let Some(part) = part {
                        out.append(name, part);
                    }
                }
                out.append("updateOpTime", time);
                out.append("updateWallClockTime", Value::DateTime(op.now_millis()));
            });
            match &old {
                Some(old) => w.update(&collection, &key, RawDoc::new(old), document.as_raw(), None),
                None => w.insert(&collection, document.as_raw()),
            }
        })?;
        Ok(answer(op, false))
    }
}

impl SetDefaultRwConcern<'_> {
    fn check(&self, op: &Operation<'_>) -> Result<()> {
        if self.read.is_none() && self.write.is_none() {
            bail!(
                Code::BAD_VALUE,
                "At least one of the \"defaultReadConcern\" or \"defaultWriteConcern\" fields must be present"
            );
        }
        if let Some(read) = self.read.filter(|read| !read.is_empty()) {
            let concern = ReadConcern::parse(read)?;
            let level = concern.level.unwrap_or(ReadLevel::Local);
            if !matches!(level, ReadLevel::Local | ReadLevel::Available | ReadLevel::Majority) {
                bail!(
                    Code::BAD_VALUE,
                    "level: '{}' is not suitable for the default read concern",
                    level.name()
                );
            }
            let times = [
                ("afterClusterTime", concern.after_cluster_time),
                ("atClusterTime", concern.at_cluster_time),
            ];
            if let Some((name, _)) = times.iter().find(|(_, time)| time.is_some()) {
                bail!(Code::BAD_VALUE, "'{name}' is not suitable for the default read concern");
            }
        }
        let Some(write) = self.write else { return Ok(()) };
        let custom = op.node().default_concerns().is_custom_write();
        if write.is_empty() {
            if custom {
                bail!(
                    Code::ILLEGAL_OPERATION,
                    "The global default write concern cannot be unset once it is set."
                );
            }
            return Ok(());
        }
        let concern = WriteConcern::parse(write)?;
        if concern.w.is_none() {
            bail!(Code::BAD_VALUE, "Default write concern must have 'w' field.");
        }
        if concern.unacknowledged() {
            bail!(
                Code::BAD_VALUE,
                "Unacknowledged write concern is not suitable for the default write concern"
            );
        }
        check_satisfiable(op, &Effective::of(Some(&concern), &Effective::alone()))
    }
}

fn check_satisfiable(op: &Operation<'_>, concern: &Effective) -> Result<()> {
    let Some(replica) = op.node().replica() else { return Ok(()) };
    let Some(config) = replica.with(|core| core.config().cloned()) else { return Ok(()) };
    sheaf_repl::write_concern::check_satisfiable(&config, &concern.for_set())
}
