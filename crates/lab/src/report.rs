//! What a person sees of a run: the live view, the table at the end, and the page with the plots.
//!
//! Everything is drawn from the [`RunResult`] alone, so a report can be made again from `results.json` at any time.

mod axis;
mod bars;
mod faults;
mod format;
pub mod html;
pub mod live;
mod page;
mod panels;
mod plot;
#[cfg(test)]
mod sample;
mod table;
mod text;
mod view;

// The sample run names its types by this path, here and in the example that draws it.
#[cfg(test)]
use crate::results;

pub(crate) use format::{bytes, date, escape, figure, latency, range, unit_text};
pub(crate) use page::document;
pub(crate) use text::{Align, Grid, terminal_width};

use crate::results::RunResult;

/// The run as one HTML page that needs nothing but a browser.
pub fn html(run: &RunResult) -> String {
    html::page(run)
}

/// The run as aligned text, as wide as the terminal allows.
pub fn table(run: &RunResult) -> String {
    table::table(run, terminal_width())
}
