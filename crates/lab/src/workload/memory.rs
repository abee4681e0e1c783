//! What a run says of servers whose memory is limited.

use std::sync::Arc;

use super::Figure;
use crate::context::Context;
use crate::results::Check;
use crate::target::MemoryGroup;

/// The limit that each server was given.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// In bytes; `None` without a limit.
    pub limit: Option<u64>,
    /// The groups that see to it; fewer than servers where none could be made.
    pub groups: Vec<Arc<MemoryGroup>>,
}

/// The most that a server was resident with, also as a part of its limit, and the most that its group held.
pub(super) fn figures(context: &Context, prefix: &str) -> Vec<Figure> {
    let peaks = context.meter.servers().iter().filter_map(|server| server.peak_bytes());
    let Some((peak, limit)) = peaks.max().zip(context.memory.limit) else { return Vec::new() };
    let mut figures = vec![
        Figure::lower(format!("{prefix}memory"), "MB", peak as f64 / 1e6),
        Figure::lower(format!("{prefix}memory of the limit"), "%", peak as f64 / limit as f64 * 100.0)
            .aim(100.0),
    ];
    if let Some(held) = context.memory.groups.iter().filter_map(|group| group.peak()).max() {
        // With the page cache, which the kernel takes back as it likes.
        figures.push(Figure::plain(format!("{prefix}with page cache"), "MB", held as f64 / 1e6));
    }
    figures
}

/// That the kernel had to end nobody. A server that it has ended is seen anyway; a child of one is not.
pub(super) fn check(context: &Context) -> Option<Check> {
    let groups = &context.memory.groups;
    let killed: u64 = groups.iter().map(|group| group.killed()).sum();
    let limit = groups.first()?.limit() >> 20;
    let detail = match killed {
        0 => format!("nothing was ended for want of memory, with {limit} MB"),
        _ => format!("{killed} processes were ended for want of memory, with {limit} MB"),
    };
    Some(Check { name: "memory".to_owned(), passed: killed == 0, detail })
}
