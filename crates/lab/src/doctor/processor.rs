//! Processors: their frequency, the clock, and whether they are shared.

use std::collections::BTreeSet;

use super::finding::{Finding, Host};

pub fn findings(host: &Host) -> Vec<Finding> {
    vec![governor(host), clock(host), virtualisation(host), stolen(host)]
}

fn governor(host: &Host) -> Finding {
    let finding = Finding::new(
        "frequency scaling",
        "a database waits much and computes in bursts, which governors take for idleness: latencies rise and measurements vary",
    );
    let folder = "/sys/devices/system/cpu";
    let governors: BTreeSet<String> = host
        .names(folder)
        .iter()
        .filter_map(|cpu| host.read(&format!("{folder}/{cpu}/cpufreq/scaling_governor")))
        .collect();
    let seen = governors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    match governors.len() {
        0 => finding.ok("not controlled by this system (virtual machine, or firmware)"),
        1 if seen == "performance" => finding.ok(seen),
        _ => finding.warn(seen, "cpupower frequency-set -g performance"),
    }
}

fn clock(host: &Host) -> Finding {
    let finding = Finding::new(
        "clock source",
        "databases read the clock several times for each operation; slow sources need a system call or a device access for it",
    );
    match host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(source) if matches!(source.as_str(), "hpet" | "acpi_pm" | "jiffies" | "xen" | "pit") => finding.warn(
            source,
            "if tsc is in /sys/devices/system/clocksource/clocksource0/available_clocksource: echo tsc > .../current_clocksource",
        ),
        Some(source) => finding.ok(source),
        None => finding,
    }
}

fn virtualisation(host: &Host) -> Finding {
    let finding = Finding::new(
        "virtualisation",
        "on shared hardware neighbours change the figures, and an fsync is only as good as the hypervisor's",
    );
    let Some(info) = host.read("/proc/cpuinfo") else { return finding };
    let product = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|name| host.read(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    let virtual_machine = info
        .lines()
        .any(|line| line.starts_with("flags") && line.split_whitespace().any(|flag| flag == "hypervisor"));
    match (virtual_machine, product.is_empty()) {
        (true, true) => finding.ok("virtual machine"),
        (true, false) => finding.ok(format!("virtual machine ({product})")),
        (false, true) => finding.ok("none seen"),
        (false, false) => finding.ok(format!("none seen ({product})")),
    }
}

/// Time that the hypervisor gave to others since the start, from the first line of `/proc/stat`.
fn stolen(host: &Host) -> Finding {
    let finding = Finding::new(
        "stolen time",
        "the share of time in which this machine wanted to run and the hypervisor ran others: pauses that no setting mends",
    );
    let Some(text) = host.read("/proc/stat") else { return finding };
    let Some(line) = text.lines().next().and_then(|l| l.strip_prefix("cpu ")) else { return finding };
    // user, nice, system, idle, iowait, irq, softirq, steal; guest times after it are part of user and nice.
    let times: Vec<f64> = line.split_whitespace().take(8).filter_map(|n| n.parse().ok()).collect();
    let (Some(stolen), busy) =
        (times.get(7), times.iter().sum::<f64>() - times.iter().skip(3).take(2).sum::<f64>())
    else {
        return finding;
    };
    let share = if busy > 0.0 { 100.0 * stolen / busy } else { 0.0 };
    let seen = format!("{share:.1} % of the busy time since the start");
    if share < 2.0 {
        finding.ok(seen)
    } else {
        finding.warn(seen, "move to dedicated processors, or to another host")
    }
}
