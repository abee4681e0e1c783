//! The ready-made experiments, which are part of the program, so that a lone binary can run them.

/// A ready-made experiment.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// As in `sheaf bench run NAME`.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! experiments {
    ($($name:literal),* $(,)?) => {
        &[$(Ready {
            name: $name,
            text: include_str!(concat!("../../../../experiments/", $name, ".yaml")),
        }),*]
    };
}

/// Every file of `experiments/`, in the order in which they are listed for people.
const READY: &[Ready] = experiments![
    "most-single",
    "most-single-larger",
    "most-replicaset",
    "most-sharded",
    "most-sharded-replicated",
    "insert-latency",
    "insert-latency-replicaset",
    "mixed-kv",
    "bench-run",
    "bulk-import",
    "import-sharded",
    "bank",
    "bank-replicaset",
    "bank-sharded",
    "list-append",
    "register",
    "change-stream",
    "torment",
    "torment-sharded",
    "ycsb",
    "ycsb-a",
    "ycsb-b",
    "ycsb-c",
    "ycsb-d",
    "ycsb-e",
    "ycsb-f",
    "at-size",
];

/// All of them.
pub fn ready() -> impl Iterator<Item = Ready> {
    READY.iter().copied()
}

/// The one with this name.
pub fn ready_by_name(name: &str) -> Option<Ready> {
    ready().find(|ready| ready.name == name)
}
