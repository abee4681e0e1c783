//! What workloads share that go on while members come and go.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, doc};

use super::load;
use crate::check::members::{self, Hashes, Member};
use crate::check::{self};
use crate::client::{Client, Collection, WriteConcern};
use crate::context::{Context, Worker};
use crate::error::{Error, Result};
use crate::part::{Part, parts_of};
use crate::results::Check;

/// A sleeping client looks so often whether the run is over.
const NAP: Duration = Duration::from_millis(20);
/// How long members may take to catch up once everything is quiet, and how long the last look may take: a busy machine
/// is no anomaly.
const CATCH_UP: Duration = Duration::from_secs(300);
/// CursorNotFound, CursorKilled: a cursor that its member's loss has taken along.
const CURSOR_IS_GONE: [i32; 2] = [43, 237];

/// The pause of a client between two operations.
pub(super) fn pause(worker: &Worker<'_>, ms: u64) {
    let wake = Instant::now() + Duration::from_millis(ms);
    while !worker.stopping() {
        let left = wake.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// A client that lives through elections.
pub(super) fn connect(context: &Context) -> Result<Client> {
    Client::connect(&context.mongodb()?.enduring())
}

/// Makes a collection anew, empty; a majority has it when this returns.
pub(super) fn create(context: &Context, client: &mut Client, collection: &Collection) -> Result<()> {
    client.drop_collection(collection)?;
    let mut create = doc! { "create": collection.name.as_str() };
    if context.mongodb()?.is_replicated() {
        create.append("writeConcern", doc! { "w": "majority" }.as_raw());
    }
    context.admin(client, &collection.db, &create).map(drop)
}

/// Makes a collection anew, with these documents; a majority has them when this returns.
pub(super) fn fill(
    context: &Context,
    (db, name): (&str, &str),
    keys: Range<i64>,
    make: impl Fn(i64) -> DocBuf + Sync,
) -> Result<()> {
    let mut client = connect(context)?;
    let collection = Collection::new(db, name).with_concern(&safest(context, None)?);
    create(context, &mut client, &collection)?;
    load::fill(context, &collection.into(), keys, || {
        |bytes: &mut Vec<u8>, key| bytes.extend_from_slice(make(key).as_bytes())
    })
}

/// The write concern of what must never be lost: a majority, or on a server that is alone, its journal. Another one can
/// be `given`, to see that with less the checks fail.
pub(super) fn safest(context: &Context, given: Option<&str>) -> Result<WriteConcern> {
    match given {
        Some(text) => WriteConcern::parse(text).map_err(Error::usage),
        None if context.mongodb()?.is_replicated() => Ok(WriteConcern::majority()),
        None => Ok(WriteConcern::journaled()),
    }
}

/// Waits until every member that holds data has everything, so that none of them still has something to take back: they
/// all acknowledge one more write. What does not come to rest in time is left to the checks.
pub(super) fn come_to_rest(context: &Context, db: &str) -> Result<()> {
    // Of shards: the members of the one where the collection is.
    let sets = parts_of(context.data_members().map(|member| member.part)).len().max(1);
    let members = (context.data_members().count() / sets) as u32;
    if members < 2 {
        return Ok(());
    }
    let concern = WriteConcern { wtimeout_ms: Some(5000), ..WriteConcern::nodes(members) };
    let at_rest = Collection::new(db, "at_rest").with_concern(&concern);
    let (mut client, began) = (connect(context)?, Instant::now());
    loop {
        let mut insert = client.insert(&at_rest);
        insert.push(|document| {
            document.append("at", "rest");
        });
        match insert.send() {
            Ok(_) => return Ok(()),
            Err(error) if !error.is_transient() => return Err(error.context("coming to rest")),
            Err(_) if began.elapsed() > CATCH_UP || context.stop.is_set() => return Ok(()),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// The last look at a database, when everything is healed. It sees all that was ever acknowledged: a primary that was
/// just elected may not know yet that a majority has what the one before it acknowledged, so another write is
/// acknowledged by a majority first, and the client comes after it with all its reads. A look that an election ends is
/// begun anew.
pub(super) fn look<T>(
    context: &Context,
    db: &str,
    mut look: impl FnMut(&mut Client) -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    loop {
        let outcome = connect_after_all(context, db).and_then(|mut client| look(&mut client));
        match outcome {
            Err(error) if may_pass(&error) && began.elapsed() < CATCH_UP && !context.stop.is_set() => {
                std::thread::sleep(Duration::from_millis(200));
            }
            outcome => return outcome,
        }
    }
}

fn may_pass(error: &Error) -> bool {
    error.is_transient() || error.code().is_some_and(|code| CURSOR_IS_GONE.contains(&code))
}

fn connect_after_all(context: &Context, db: &str) -> Result<Client> {
    if !context.mongodb()?.is_replicated() {
        return connect(context);
    }
    let mut client = connect(context)?.causal();
    let last = Collection::new(db, "at_rest").with_concern(&WriteConcern::majority());
    let mut insert = client.insert(&last);
    insert.push(|document| {
        document.append("at", "the end");
    });
    insert.send()?;
    Ok(client)
}

/// Whether reads with the usual read concern may show what is not the newest: while something is done to the members of a
/// set, a primary that was replaced and does not know it yet still answers, and readConcern "local" promises no more.
pub(super) fn reads_may_be_old(context: &Context) -> bool {
    let set = context.mongodb().is_ok_and(|to| to.is_replicated());
    set && context.under_faults()
}

/// "members' hashes": at rest, all members of a set that hold data have the same in this database. Nothing for one member
/// alone.
pub(super) fn members_hold_the_same(context: &Context, db: &str) -> Result<Vec<Check>> {
    let parts = parts_of(context.data_members().map(|member| member.part));
    let checks = parts.into_iter().map(|part| of_a_set(context, part, db));
    Ok(checks.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn of_a_set(context: &Context, part: Part, db: &str) -> Result<Option<Check>> {
    let own = context.data_members().filter(|member| member.part == part);
    let addresses: Vec<String> = own.map(|member| member.address.clone()).collect();
    if addresses.len() < 2 {
        return Ok(None);
    }
    let place = if part == Part::Set { String::new() } else { format!(" of {part}") };
    let began = Instant::now();
    loop {
        let hashes: Result<Vec<Member>> =
            addresses.iter().map(|address| hash(context, address, db)).collect();
        let late = began.elapsed() > CATCH_UP || context.stop.is_set();
        match hashes {
            Ok(hashes) => {
                let anomalies = members::judge(&hashes);
                if anomalies.is_empty() || late {
                    let collections = hashes[0].1.get(db).map_or(0, Hashes::len);
                    let fine = format!("{} members agree on {collections} collections", hashes.len());
                    return Ok(Some(check::check(&format!("members' hashes{place}"), &anomalies, fine)));
                }
            }
            Err(error) if late || !error.is_transient() => return Err(error.context("dbHash")),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn hash(context: &Context, address: &str, db: &str) -> Result<Member> {
    let mut client = Client::connect(&context.mongodb()?.for_node(address))?;
    let reply = client.read_command(db, &doc! { "dbHash": 1 })?;
    let collections = reply
        .get("collections")
        .and_then(|collections| collections.as_doc())
        .ok_or_else(|| Error::failed(format!("{address}: dbHash gave no collections")))?;
    let hashes: Hashes = collections
        .iter()
        .map(|element| (element.key().to_owned(), element.value().as_str().unwrap_or("?").to_owned()))
        .collect();
    Ok((address.to_owned(), BTreeMap::from([(db.to_owned(), hashes)])))
}
