//! What an operation's messages to shards are made of, kept from one command on a cursor to the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sheaf_aggregate::Namespace;
use sheaf_bson::{DocBuf, RawDoc, Timestamp, Value, doc};
use sheaf_client::Message;
use sheaf_cluster::{
    Answer, Asker, Call, Clock, Directory, GoOn, Preference, Sharded, error_in, for_client, unreachable,
};
use sheaf_errors::{Code, Error, Result};
use sheaf_front::access::Rights;
use sheaf_server::query_settings::FIELD;
use sheaf_shard::ShardId;

use super::on_member::{Abandoned, OnMember};
use super::open::is_out_of_reach;
use super::ready::as_they_come;
use super::remote::Remote;
use crate::addressed::{Addressed, Placed, ShardVersion, on_the_way};
use crate::past::{PATIENCE_WITH_PAST, laid_out_anew, was_closed};
use crate::session::Transaction;
use crate::target::Target;

/// The way to the shards for operators that have rows of them: it outlives the command that made it, and is lent what belongs to each
/// command while that pulls.
pub struct Link {
    directory: Arc<Directory>,
    clock: Arc<Clock>,
    abandoned: Arc<Abandoned>,
    rights: Rights,
    /// What each message carries: session, transaction, version of the API, comment.
    fields: DocBuf,
    /// Which members may answer, and what they read.
    preference: Option<DocBuf>,
    read_concern: Option<DocBuf>,
    /// What reads of anything but documents have of it: definitions are not read as of another time.
    after: Option<DocBuf>,
    write_concern: Option<DocBuf>,
    /// What was set for the operation's shape.
    settings: Option<DocBuf>,
    local_threshold: Duration,
    current: Mutex<Current>,
}

/// What belongs to the command that pulls.
#[derive(Default)]
pub struct Current {
    /// The time that its client has told.
    pub cluster_time: Option<Timestamp>,
    /// The transaction whose statement it is.
    pub transaction: Option<Transaction>,
    /// The latest `operationTime` that was answered.
    pub time: u64,
    /// How much it wants at a time.
    pub batch_size: Option<usize>,
    /// When shards that have not answered are left out, where they may be.
    pub until: Option<Instant>,
}

/// What a link goes through.
pub struct Cluster {
    /// Where collections are.
    pub directory: Arc<Directory>,
    /// The newest time.
    pub clock: Arc<Clock>,
    /// Where cursors go that nobody will read from.
    pub abandoned: Arc<Abandoned>,
    /// What the client may do who asks.
    pub rights: Rights,
    /// By how much a member that answers may be farther away than the nearest one.
    pub local_threshold: Duration,
}

/// How an operation reads.
pub struct Reads {
    /// As of when, if that is chosen.
    pub at: Option<Timestamp>,
    /// In a transaction, which says all else.
    pub in_transaction: bool,
    /// It writes, too, so that it reads what primaries have.
    pub writes: bool,
    /// What was set for queries of its shape, which also those obey that it is made of.
    pub settings: Option<DocBuf>,
}

/// Fields that are an operation's, whatever it asks.
fn is_general(name: &str) -> bool {
    matches!(
        name,
        "lsid" | "txnNumber" | "autocommit" | "apiVersion" | "apiStrict" | "comment" | "$readPreference"
    )
}

/// Whether a command is a query: it has a read concern, and something may be set for it.
fn is_query(command: &DocBuf) -> bool {
    command
        .as_raw()
        .iter()
        .next()
        .is_some_and(|first| matches!(first.key(), "aggregate" | "distinct" | "find"))
}

impl Link {
    /// The link of an operation with this body.
    pub fn new(to: Cluster, body: RawDoc<'_>, reads: Reads) -> Arc<Link> {
        let fields = DocBuf::build(|out| {
            for field in body.iter().filter(|field| is_general(field.key())) {
                out.append_element(field);
            }
            if let Some(asked_for) = to.rights.asked_for() {
                out.append("$audit", &asked_for);
            }
        });
        let own = |name: &str| body.get(name).and_then(|value| value.as_doc()).map(DocBuf::from);
        let after = |concern: DocBuf| {
            let after = concern.as_raw().get("afterClusterTime")?;
            Some(doc! { "afterClusterTime": after })
        };
        Arc::new(Link {
            directory: to.directory,
            clock: to.clock,
            abandoned: to.abandoned,
            rights: to.rights,
            fields,
            preference: own("$readPreference").filter(|_| !reads.in_transaction && !reads.writes),
            read_concern: match reads.at {
                Some(at) => Some(doc! { "level": "snapshot", "atClusterTime": at }),
                None => own("readConcern").filter(|_| !reads.in_transaction),
            },
            after: own("readConcern").filter(|_| !reads.in_transaction).and_then(after),
            write_concern: own("writeConcern").filter(|_| !reads.in_transaction),
            settings: reads.settings,
            local_threshold: to.local_threshold,
            current: Mutex::default(),
        })
    }

    /// Where cursors go that nobody will read from.
    pub fn abandoned(&self) -> &Arc<Abandoned> {
        &self.abandoned
    }

    /// What the client may do who asks.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Where everything is.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// The newest time.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.clock
    }

    /// Lends what belongs to a command to whoever works with the link meanwhile; what has become of it comes back.
    pub fn during<T>(&self, lent: Current, work: impl FnOnce() -> T) -> (T, Current) {
        *self.current.lock() = lent;
        let worked = work();
        (worked, std::mem::take(&mut *self.current.lock()))
    }

    /// Has all of these get their next batch, all at once.
    ///
    /// Errors: the first that a member answers; `HostUnreachable` and kin, where one is lost; those of `go_on`.
    pub fn refill(&self, remotes: &mut [&mut Remote], go_on: &dyn Fn() -> Result<()>) -> Result<()> {
        let calls = remotes.iter().map(|remote| self.send_get_more(remote)).collect::<Result<Vec<Call>>>()?;
        for (remote, call) in remotes.iter_mut().zip(calls) {
            let answer = call.finish_there(go_on)?;
            self.check(&remote.cursor.target, &answer)?;
            remote.take(answer.reply())?;
        }
        Ok(())
    }

    /// The same of those that can be reached; the others are at their end, and so are those that have not answered at the last moment of
    /// this command. Whether there are such.
    ///
    /// Errors: the first that a member answers; those of `go_on`.
    pub fn refill_reachable(
        &self,
        remotes: &mut [&mut Remote],
        go_on: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        let until = self.current.lock().until;
        let in_time = || match until {
            Some(until) if Instant::now() >= until => {
                Err(Error::new(Code::NETWORK_TIMEOUT, "no answer in time"))
            }
            _ => go_on(),
        };
        let mut left_out = false;
        let mut under_way = Vec::with_capacity(remotes.len());
        for (at, remote) in remotes.iter_mut().enumerate() {
            match self.send_get_more(remote) {
                Ok(call) => under_way.push((at, call)),
                Err(error) if is_out_of_reach(&error) => {
                    remote.give_up();
                    left_out = true;
                }
                Err(error) => return Err(error),
            }
        }
        as_they_come(under_way, until, go_on, |at, call| {
            let remote = &mut *remotes[at];
            match call.finish_there(&in_time) {
                Ok(answer) => {
                    self.check(&remote.cursor.target, &answer)?;
                    remote.take(answer.reply())?;
                }
                Err(error) if is_out_of_reach(&error) => {
                    remote.give_up();
                    left_out = true;
                }
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        // Whoever asks may have been told to stop meanwhile, which is nobody's silence.
        go_on()?;
        Ok(left_out)
    }

    fn send_get_more(&self, remote: &Remote) -> Result<Call> {
        self.send_for_more(&remote.cursor, &DocBuf::new())
    }

    /// Asks for a cursor's next batch, with these fields besides.
    ///
    /// Errors: `HostUnreachable` and kin.
    pub fn send_for_more(&self, cursor: &OnMember, fields: &DocBuf) -> Result<Call> {
        let (db, collection) = cursor.namespace.split_once('.').unwrap_or((&cursor.namespace, ""));
        let (time, batch_size) = {
            let current = self.current.lock();
            (current.cluster_time, current.batch_size)
        };
        let mut message = Message::new();
        message.begin(0, |out| {
            out.append("getMore", cursor.id).append("collection", collection);
            if let Some(size) = batch_size {
                out.append("batchSize", size as i64);
            }
            out.append_all(fields.as_raw());
            out.append_all(self.fields.as_raw());
            self.clock.append(out, time);
            out.append("$db", db);
        });
        Call::send_to(cursor.target.set(), &cursor.host, &mut message)
            .map_err(|error| unreachable(&cursor.host, &error))
    }

    /// Takes in what an answer tells of times and of the transaction.
    ///
    /// Errors: the one that it answers.
    pub fn check(&self, target: &Target, answer: &Answer) -> Result<()> {
        let reply: RawDoc<'_> = answer.reply();
        self.clock.see(reply);
        let mut current = self.current.lock();
        if let Some(Value::Timestamp(time)) = reply.get("operationTime") {
            current.time = current.time.max(time.0);
        }
        if let Some(transaction) = &mut current.transaction {
            transaction.answered(target, reply)?;
        }
        match error_in(reply) {
            Some(error) => Err(for_client(error)),
            None => Ok(()),
        }
    }

    /// Runs a request for a collection, and runs it again where a shard says that the router's view was out of date, as
    /// [`until_fresh`](crate::route::until_fresh) does for an operation.
    ///
    /// Errors: those of `run`; those of asking the config servers.
    pub fn until_fresh<T>(
        &self,
        ns: &Namespace,
        makes: bool,
        go_on: GoOn<'_>,
        mut run: impl FnMut(&Placed) -> Result<T>,
    ) -> Result<T> {
        let directory = &*self.directory;
        let (began, mut pause) = (Instant::now(), Duration::from_millis(10));
        let mut last = None;
        loop {
            let believed = match &*ns.database {
                "admin" | "config" | "local" => None,
                _ => Some(directory.collection(&ns.to_string(), go_on)?),
            };
            let sharded = believed.as_ref().and_then(|believed| believed.sharded.clone());
            let version = sharded.as_ref().map(|sharded| sharded.table.version());
            let told_nothing = last == Some(version);
            if told_nothing {
                go_on()?;
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(200));
            }
            last = Some(version);
            let placed = match sharded {
                Some(sharded) => Placed::Spread(sharded),
                None => Placed::Whole(self.whole(&ns.database, makes, go_on)?),
            };
            let error = match run(&placed) {
                Err(error) if matches!(error.code(), Code::STALE_CONFIG | Code::STALE_DB_VERSION) => error,
                done => return done,
            };
            // Marked whatever becomes of this: a transaction that ends by it is run again.
            if let Some(believed) = &believed {
                directory.stale(believed);
            }
            if error.code() == Code::STALE_DB_VERSION {
                directory.forget_database(&ns.database);
            }
            if self.current.lock().transaction.is_some() {
                return Err(error.with_label("TransientTransactionError"));
            }
            let is_over = || was_closed(&error) || told_nothing && began.elapsed() > PATIENCE_WITH_PAST;
            if self.reads_as_of().is_some() && is_over() {
                return Err(laid_out_anew(&error));
            }
            if began.elapsed() > Duration::from_secs(20) {
                return Err(error);
            }
        }
    }

    /// The fields of a collection's shard key; `None`: it is not sharded.
    ///
    /// Errors: those of asking the config servers.
    pub fn shard_key(&self, ns: &Namespace, go_on: GoOn<'_>) -> Result<Option<Vec<String>>> {
        let believed = match &*ns.database {
            "admin" | "config" | "local" => return Ok(None),
            _ => self.directory.collection(&ns.to_string(), go_on)?,
        };
        let names = |sharded: &Arc<Sharded>| {
            sharded.pattern().document().iter().map(|field| field.key().to_owned()).collect()
        };
        Ok(believed.sharded.as_ref().map(names))
    }

    /// Whether a collection is sharded.
    ///
    /// Errors: those of asking the config servers.
    pub fn is_sharded(&self, ns: &Namespace, go_on: GoOn<'_>) -> Result<bool> {
        Ok(self.shard_key(ns, go_on)?.is_some())
    }

    /// Where the collections of a database are that are not sharded.
    ///
    /// Errors: `ShardNotFound` without shards; those of asking the config servers.
    pub fn whole(&self, db: &str, makes: bool, go_on: GoOn<'_>) -> Result<Addressed> {
        let directory = &*self.directory;
        if matches!(db, "admin" | "config") {
            return Ok(Target::Config(directory.config().clone()).into());
        }
        let shard = match directory.database(db, go_on)? {
            Some(shard) => Some(shard),
            None if makes => Some(directory.make_database(db, go_on)?),
            None => directory.shards(go_on)?.into_iter().next(),
        };
        let shard = shard.ok_or_else(|| Error::new(Code::SHARD_NOT_FOUND, "No shards found"))?;
        Ok(Addressed { target: Target::Shard(shard), version: Some(ShardVersion::Plain) })
    }

    /// The time as of which it reads, if that is known.
    pub fn reads_as_of(&self) -> Option<Timestamp> {
        if let Some(transaction) = &self.current.lock().transaction {
            return transaction.reads_as_of();
        }
        match self.read_concern.as_ref()?.as_raw().get("atClusterTime") {
            Some(Value::Timestamp(at)) => Some(at),
            _ => None,
        }
    }

    /// A shard as a request for this collection addresses it.
    ///
    /// Errors: `ShardNotFound`; those of asking the config servers.
    pub fn addressed(&self, sharded: &Sharded, shard: &ShardId, go_on: GoOn<'_>) -> Result<Addressed> {
        let shard_there = self.directory.shard(shard.as_str(), go_on).map_err(on_the_way)?;
        let target = Target::Shard(shard_there);
        Ok(Addressed { target, version: Some(ShardVersion::Of(sharded.table.version_of(shard))) })
    }

    /// Sends a command to all of these, and gives what each of them answers, in the same order.
    ///
    /// Errors: those of the way to them.
    pub fn ask_each(
        &self,
        to: &[Addressed],
        db: &str,
        command: &DocBuf,
        writes: bool,
        go_on: GoOn<'_>,
    ) -> Result<Vec<Result<Answer>>> {
        let preference = self.preference.as_ref().filter(|_| !writes).map(DocBuf::as_raw);
        let again = !writes && self.current.lock().transaction.is_none();
        let asker =
            Asker { preference: Preference::of(preference).within(self.local_threshold), again, go_on };
        let mut under_way = Vec::with_capacity(to.len());
        for to in to {
            let mut message = self.message(to, db, command, writes);
            let call =
                Call::send(to.target.set(), &mut message, &asker).map_err(|error| to.unanswered(error))?;
            under_way.push((to, call, message));
        }
        let finish = |(to, call, mut message): (&Addressed, Call, Message)| {
            let answer = call.finish(&mut message, &asker).map_err(|error| to.unanswered(error))?;
            self.check(&to.target, &answer)?;
            Ok(answer)
        };
        Ok(under_way.into_iter().map(finish).collect())
    }

    fn message(&self, to: &Addressed, db: &str, command: &DocBuf, writes: bool) -> Message {
        let mut current = self.current.lock();
        let mut message = Message::new();
        let read_concern = if is_query(command) { &self.read_concern } else { &self.after };
        message.begin(0, |out| {
            out.append_all(command.as_raw());
            out.append_all(self.fields.as_raw());
            match (read_concern, &self.write_concern) {
                (_, Some(concern)) if writes => _ = out.append("writeConcern", concern.as_raw()),
                (Some(concern), _) if !writes => _ = out.append("readConcern", concern.as_raw()),
                _ => {}
            }
            to.append_versions(out);
            if let Some(settings) =
                self.settings.as_ref().filter(|_| to.version.is_some() && is_query(command))
            {
                out.append(FIELD, settings.as_raw());
            }
            if let Some(transaction) = &mut current.transaction {
                transaction.take_part(&to.target, writes);
                transaction.append_start(to.target.name(), out);
            }
            self.clock.append(out, current.cluster_time);
            out.append("$db", db);
        });
        message
    }
}
