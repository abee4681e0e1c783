//! What a person sees while a run goes on.

use crate::report::live::Live;
use crate::runner::{LiveOperation, Observer};

/// The live view, and lines between its states.
pub(super) struct Lines {
    live: Option<Live>,
}

impl Lines {
    pub(super) fn new(quiet: bool) -> Lines {
        Lines { live: (!quiet).then(Live::new) }
    }
}

impl Observer for Lines {
    fn update(&mut self, row: &str, elapsed_s: f64, operations: &[LiveOperation], progress: Option<f64>) {
        // Before the first operation there is nothing to see.
        if let Some(live) = self.live.as_mut().filter(|_| !operations.is_empty()) {
            live.update(row, elapsed_s, operations, progress);
        }
    }

    fn nodes(&mut self, nodes: &[(String, f64, f64)]) {
        if let Some(live) = &mut self.live {
            live.nodes(nodes);
        }
    }

    fn finish(&mut self) {
        if let Some(live) = &mut self.live {
            live.finish();
        }
    }

    fn say(&mut self, line: &str) {
        match &mut self.live {
            Some(live) => live.note(line),
            None => eprintln!("{line}"),
        }
    }
}
