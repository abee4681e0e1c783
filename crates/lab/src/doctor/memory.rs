//! How the kernel manages memory.

use super::finding::{Finding, Host};
use crate::report::bytes;

const GIB: u64 = 1 << 30;

pub fn findings(host: &Host) -> Vec<Finding> {
    vec![swap(host), huge_pages(host), numa(host), zone_reclaim(host), dirty(host), overcommit(host)]
}

fn swap(host: &Host) -> Finding {
    let finding = Finding::new(
        "swap",
        "a cache page that was swapped out costs a disk read where memory was expected; databases keep their own caches",
    );
    let (Some(total), Some(swappiness)) = (host.meminfo("SwapTotal"), host.number("/proc/sys/vm/swappiness"))
    else {
        return finding;
    };
    let seen = format!("{}, swappiness {swappiness}", bytes(total));
    match (total, swappiness) {
        (0, _) => finding.ok("none (memory that runs out ends processes at once)"),
        (_, 0..=10) => finding.ok(seen),
        _ => finding.warn(seen, "sysctl -w vm.swappiness=1 (and a file in /etc/sysctl.d)"),
    }
}

/// The chosen word of a file like "always [madvise] never".
fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn huge_pages(host: &Host) -> Finding {
    let finding = Finding::new(
        "transparent huge pages",
        "Sheaf's allocator (mimalloc) and RocksDB's blocks free memory in small pieces: with \"always\", a few live bytes keep \
         2 MiB resident and the kernel stops threads to build such pages; mongod 8.0 and later wants the opposite, \"always\" \
         with defrag \"defer+madvise\", and mongod before 8.0 wants \"never\"",
    );
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let (Some(enabled), Some(defrag)) =
        (host.read(&format!("{folder}/enabled")), host.read(&format!("{folder}/defrag")))
    else {
        return finding;
    };
    let (Some(enabled), Some(defrag)) = (chosen(&enabled), chosen(&defrag)) else { return finding };
    let seen = format!("{enabled}, defrag {defrag}");
    match enabled {
        "madvise" | "never" => finding.ok(seen),
        _ => finding
            .warn(seen, format!("echo madvise > {folder}/enabled (not on a host for mongod 8.0 or later)")),
    }
}

fn nodes(host: &Host) -> usize {
    let is_node = |n: &String| {
        n.strip_prefix("node").is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    host.names("/sys/devices/system/node").iter().filter(|n| is_node(n)).count()
}

fn numa(host: &Host) -> Finding {
    let finding = Finding::new(
        "NUMA",
        "a process takes memory from its own node first: one node fills up while others are empty, and the cache is slower",
    );
    match nodes(host) {
        0 => finding.ok("none"),
        1 => finding.ok("one node"),
        n => finding.warn(
            format!("{n} nodes"),
            "start the server with: numactl --interleave=all, or bind one server to each node",
        ),
    }
}

fn zone_reclaim(host: &Host) -> Finding {
    let finding = Finding::new(
        "zone reclaim",
        "with it, a full NUMA node throws cached files away instead of using another node's memory",
    );
    match (host.number("/proc/sys/vm/zone_reclaim_mode"), nodes(host)) {
        (Some(0), _) => finding.ok("off"),
        (Some(mode), 0 | 1) => finding.ok(format!("mode {mode}, without effect on one node")),
        (Some(mode), _) => finding.bad(format!("mode {mode}"), "sysctl -w vm.zone_reclaim_mode=0"),
        // Kernels without NUMA do not have it.
        (None, 0 | 1) => finding.ok("none"),
        (None, _) => finding,
    }
}

fn dirty(host: &Host) -> Finding {
    let finding = Finding::new(
        "unwritten pages",
        "what the kernel has collected is written all at once when a limit is reached; an fsync then waits behind gigabytes",
    );
    let total = host.meminfo("MemTotal");
    // The limit in bytes counts when it is not 0, else the share of memory.
    let amount = |name: &str| match host.number(&format!("/proc/sys/vm/dirty_{name}bytes"))? {
        0 => Some(total? / 100 * host.number(&format!("/proc/sys/vm/dirty_{name}ratio"))?),
        limit => Some(limit),
    };
    let (Some(background), Some(most)) = (amount("background_"), amount("")) else { return finding };
    let seen = format!("written from {} on, writers wait at {}", bytes(background), bytes(most));
    if background <= 2 * GIB && most <= 8 * GIB {
        return finding.ok(seen);
    }
    finding.warn(seen, "sysctl -w vm.dirty_background_bytes=268435456 vm.dirty_bytes=1073741824")
}

fn overcommit(host: &Host) -> Finding {
    let finding = Finding::new(
        "overcommit",
        "allocators reserve more address space than they use; strict accounting refuses it although memory is free",
    );
    match host.number("/proc/sys/vm/overcommit_memory") {
        Some(2) => finding.warn("strict (2)", "sysctl -w vm.overcommit_memory=0"),
        Some(mode) => finding.ok(format!("mode {mode}")),
        None => finding,
    }
}
