//! Differences between two runs that have nothing to do with what is compared.

use crate::report::{bytes, latency};
use crate::results::RunResult;

/// One sentence for each difference.
pub fn differences(a: &RunResult, b: &RunResult) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, x: String, y: String| {
        if x != y {
            found.push(format!("{what} differs: {x} and {y}"));
        }
    };
    let (e, f) = (&a.environment, &b.environment);
    differ("the experiment", a.experiment.clone(), b.experiment.clone());
    differ("the scale", a.scale.to_string(), b.scale.to_string());
    for key in a.settings.keys().chain(b.settings.keys().filter(|k| !a.settings.contains_key(*k))) {
        let value =
            |run: &RunResult| run.settings.get(key).cloned().unwrap_or_else(|| "as in the file".to_owned());
        differ(&format!("--set {key}"), value(a), value(b));
    }
    differ("the processor", e.cpu.clone(), f.cpu.clone());
    differ("the number of processors", e.cores.to_string(), f.cores.to_string());
    differ("the kernel", e.kernel.clone(), f.kernel.clone());
    differ("the file system", e.filesystem.clone(), f.filesystem.clone());
    differ("the device", e.disk.clone(), f.disk.clone());
    if apart(e.memory_bytes as f64, f.memory_bytes as f64, 1.05) {
        differ("memory", bytes(e.memory_bytes), bytes(f.memory_bytes));
    }
    if apart(e.fsync_us, f.fsync_us, 1.5) {
        differ("write+fdatasync", latency(e.fsync_us), latency(f.fsync_us));
    }
    for (which, environment) in [("first", e), ("second", f)] {
        let busy = environment.load / f64::from(environment.cores.max(1));
        if busy > 0.5 {
            found.push(format!(
                "the machine was busy when the {which} run began: load {} on {} processors",
                environment.load, environment.cores
            ));
        }
    }
    found
}

/// Whether one is more than `factor` times the other.
fn apart(x: f64, y: f64, factor: f64) -> bool {
    x.max(y) > x.min(y) * factor
}
