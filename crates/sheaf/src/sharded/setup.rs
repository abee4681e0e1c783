//! Bringing the members of a cluster together, as somebody from outside would.

use std::thread::sleep;
use std::time::{Duration, Instant};

use sheaf_bson::{DocBuf, doc};
use sheaf_client::{Connection, Membership, Result};

use super::folder::Layout;

/// How long a member may take to answer and to be the primary of its set: a start may have much to apply.
const PATIENCE: Duration = Duration::from_secs(600);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Makes each member the primary of a set of its own.
pub fn form(layout: &Layout, membership: &Membership) -> Result<()> {
    (0..layout.ports.len()).try_for_each(|number| lead(layout, membership, number))
}

fn lead(layout: &Layout, membership: &Membership, number: usize) -> Result<()> {
    let began = Instant::now();
    loop {
        match look(layout, membership, number) {
            Ok(true) => return Ok(()),
            Ok(false) if began.elapsed() < PATIENCE => {}
            Ok(false) => {
                let name = layout.set_name(number);
                return Err(sheaf_client::Error::failed(format!("{name} has no primary")));
            }
            Err(error) if !error.is_transient() || began.elapsed() > PATIENCE => return Err(error),
            Err(_) => {}
        }
        sleep(LOOK);
    }
}

/// Whether the member leads its set; one that belongs to none yet is told to begin it.
fn look(layout: &Layout, membership: &Membership, number: usize) -> Result<bool> {
    let mut member = connect(membership, &layout.address(number))?;
    let role = member.hello()?;
    if role.set.is_none() {
        let config = configuration(layout, number);
        member
            .command("admin", &doc! { "replSetInitiate": config.as_raw() })
            .map_err(|e| e.context("replSetInitiate"))?;
    }
    Ok(role.primary)
}

fn connect(membership: &Membership, address: &str) -> Result<Connection> {
    Connection::open(address, &membership.direct(address))
}

fn configuration(layout: &Layout, number: usize) -> DocBuf {
    DocBuf::build(|config| {
        config.append("_id", layout.set_name(number).as_str());
        if number == 0 {
            config.append("configsvr", true);
        }
        let mut members = config.array("members");
        members.document().append("_id", 0).append("host", layout.address(number).as_str());
    })
}

/// Tells the router at this address of the shards.
pub fn add_shards(layout: &Layout, membership: &Membership, router: &str) -> Result<()> {
    let mut router = connect(membership, router)?;
    for number in 1..layout.ports.len() {
        let add = doc! { "addShard": layout.set_address(number).as_str() };
        router.command("admin", &add).map_err(|error| error.context("addShard"))?;
    }
    Ok(())
}
