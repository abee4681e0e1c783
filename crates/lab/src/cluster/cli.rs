//! The command line of `sheaf cluster`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::record::{Record, usual_folder};
use super::{control, down, faults, process, show, up};
use crate::cli::{exit_code, stop_on_signals};
use crate::error::{Error, Result};
use crate::experiment::Time;
use crate::journal::Journal;

/// `sheaf cluster`.
#[derive(Args, Clone, Debug)]
pub struct Cluster {
    #[command(subcommand)]
    command: Command,
    /// Name of the cluster; that of its replica set, if it is one
    #[arg(long, global = true, default_value = "rs0")]
    name: String,
    /// The cluster's folder [default: sheaf-cluster/NAME in the user's data folder]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Start a single server, a replica set or a sharded cluster, or one that was kept
    Up(UpArgs),
    /// Show what every member is
    Status {
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// End all processes
    Down {
        /// Leave the data there, for another `up`
        #[arg(long, conflicts_with = "discard")]
        keep: bool,
        /// Throw the data away
        #[arg(long)]
        discard: bool,
    },
    /// Kill members at once, as a crash would (kill -9)
    Kill {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary
        #[arg(required = true)]
        members: Vec<String>,
    },
    /// Stop members (SIGSTOP) until they are resumed
    Pause {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary
        #[arg(required = true)]
        members: Vec<String>,
    },
    /// Let paused members go on; all when none is named
    Resume {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary
        members: Vec<String>,
    },
    /// Start members again that are down; end them in order first where they run
    Restart {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary
        #[arg(required = true)]
        members: Vec<String>,
    },
    /// Let nothing through between a member and the others, or between two members
    Cut {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary
        member: String,
        /// The other one [default: all others]
        other: Option<String>,
        /// Close connections, instead of losing what is sent as a network that is down
        #[arg(long)]
        refuse: bool,
        /// Only what the first sends to the second
        #[arg(long)]
        one_way: bool,
    },
    /// Let everything through again, or what is sent to and by one member
    Heal {
        /// Number, port, primary, secondary, arbiter; router, config, shard0, shard0/secondary [default: everything]
        member: Option<String>,
    },
    /// Holds the links; started by `up`
    #[command(hide = true)]
    Links {
        #[arg(long)]
        socket: PathBuf,
        #[arg(long = "member", required = true)]
        members: Vec<SocketAddr>,
    },
    /// Becomes a command when it is told to; started by `up`
    #[command(hide = true)]
    Hold {
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

/// `sheaf cluster up`.
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// Members that hold data, of a sharded cluster those of each shard [default: 3, of a shard 1]
    #[arg(long, value_name = "N")]
    pub members: Option<u32>,
    /// Members that only vote, of a sharded cluster in each shard [default: 0]
    #[arg(long, value_name = "N")]
    pub arbiters: Option<u32>,
    /// One server without a replica set
    #[arg(long)]
    pub standalone: bool,
    /// Port of the first member, the others take the following ones; 0 takes free ones [default: 27017]
    #[arg(long)]
    pub port: Option<u16>,
    /// `down` leaves the data there
    #[arg(long)]
    pub keep: bool,
    /// A proxy on every link between two members, so that it can be cut
    #[arg(long)]
    pub links: bool,
    /// Round trip between members, 0.86ms; implies --links
    #[arg(long, value_name = "TIME")]
    pub distance: Option<Time>,
    /// Data centre of each member, 0,0,1; with --between
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "between")]
    pub centres: Vec<u32>,
    /// Round trip between members in different data centres, 71ms; implies --links
    #[arg(long, value_name = "TIME", requires = "centres")]
    pub between: Option<Time>,
    /// Server parameter of all members
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Megabytes of oplog of each member
    #[arg(long = "oplogSize", value_name = "MB")]
    pub oplog_size: Option<u64>,
    /// Gigabytes of memory for the caches of each member
    #[arg(long = "cacheSizeGB", value_name = "GB")]
    pub cache_size_gb: Option<f64>,
    /// A sharded cluster of so many shards
    #[arg(long, value_name = "N", conflicts_with = "standalone")]
    pub shards: Option<u32>,
    /// Routers of a sharded cluster, on the first ports [default: 1]
    #[arg(long, value_name = "N", requires = "shards")]
    pub routers: Option<u32>,
    /// Config servers of a sharded cluster [default: as many as a shard has members, at most 3]
    #[arg(long = "config-servers", value_name = "N", requires = "shards")]
    pub config_servers: Option<u32>,
    /// The config servers hold documents, too: they are a shard beside the others, called `config`
    #[arg(long = "config-shard", requires = "shards")]
    pub config_shard: bool,
    /// Clients must prove who they are; makes a key for the members and a first user
    #[arg(long)]
    pub auth: bool,
    /// Everybody must speak TLS; makes certificates for a trial
    #[arg(long, requires = "auth")]
    pub tls: bool,
}

/// `sheaf cluster`: runs it and says how the process should end.
pub fn cluster(cluster: &Cluster) -> ExitCode {
    exit_code(run(cluster).map(|()| ExitCode::SUCCESS))
}

fn run(cluster: &Cluster) -> Result<()> {
    let journal = Journal::new();
    let folder = || match &cluster.data {
        Some(folder) => std::path::absolute(folder).map_err(Error::from),
        None => usual_folder(&cluster.name),
    };
    let open = || Record::open(&folder()?);
    match &cluster.command {
        Command::Up(arguments) => {
            let stop = stop_on_signals()?;
            let record = up::up(&folder()?, &cluster.name, arguments, &journal, &stop)?;
            // The one thing on standard output, so that a script can take it.
            println!("{}", record.typed()?);
            Ok(())
        }
        Command::Status { json } => show::show(&open()?, *json),
        Command::Down { keep, discard } => {
            let mut record = open()?;
            let keep = *keep || record.keep && !discard;
            down::down(&mut record, keep, &journal)
        }
        Command::Kill { members } => faults::kill(&mut open()?, members, &journal),
        Command::Pause { members } => faults::pause(&mut open()?, members, &journal),
        Command::Resume { members } => faults::resume(&mut open()?, members, &journal),
        Command::Restart { members } => {
            let stop = stop_on_signals()?;
            faults::restart(&mut open()?, members, &journal, &stop)
        }
        Command::Cut { member, other, refuse, one_way } => {
            faults::cut(&open()?, member, other.as_deref(), *refuse, *one_way)
        }
        Command::Heal { member } => faults::heal(&open()?, member.as_deref()),
        Command::Links { socket, members } => control::serve(socket, members),
        Command::Hold { command } => process::hold(command),
    }
}
