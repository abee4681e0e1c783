//! The view of a run that is under way: redrawn in place on a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Stderr, Write};

use super::format::{duration, latency, number, short};

/// One kind of operation at this moment: its name, operations per second, median and 99th percentile in microseconds.
pub type LiveOperation = (String, f64, f64, f64);

/// How the view is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Redrawn in place, this many columns wide.
    Terminal(usize),
    /// One line for each `seconds` of a row, and one when a row begins.
    Lines {
        /// The least time between two lines.
        seconds: f64,
    },
}

impl Mode {
    /// What suits standard error: a terminal, a CI system (a line each 10 s), or a pipe (a line each second).
    pub fn detect() -> Mode {
        if !io::stderr().is_terminal() {
            let ci = std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false");
            return Mode::Lines { seconds: if ci { 10.0 } else { 1.0 } };
        }
        let columns =
            rustix::termios::tcgetwinsize(io::stderr()).map(|s| usize::from(s.ws_col)).unwrap_or(80);
        Mode::Terminal(columns.max(40))
    }
}

/// How often a terminal is redrawn at most, in seconds of the run.
const REDRAW_S: f64 = 0.1;
/// Throughputs kept for the little curve.
const CURVE: usize = 30;

/// The live view. Errors of the terminal are ignored: a run does not end because nobody looks.
pub struct Live<W: Write = Stderr> {
    out: W,
    mode: Mode,
    row: String,
    shown_at: f64,
    lines_shown: usize,
    curves: Vec<(String, VecDeque<f64>)>,
    curve_at: f64,
    nodes: Vec<(String, f64, f64)>,
}

impl Live {
    /// A view on standard error, so that standard output holds nothing but the table.
    pub fn new() -> Live {
        Live::with(io::stderr(), Mode::detect())
    }
}

impl Default for Live {
    fn default() -> Live {
        Live::new()
    }
}

impl<W: Write> Live<W> {
    /// A view on anything.
    pub fn with(out: W, mode: Mode) -> Live<W> {
        Live {
            out,
            mode,
            row: String::new(),
            shown_at: f64::NEG_INFINITY,
            lines_shown: 0,
            curves: Vec::new(),
            curve_at: f64::NEG_INFINITY,
            nodes: Vec::new(),
        }
    }

    /// What the servers use now, by node: per cent of one processor, and MB resident. Shown with the next update.
    pub fn nodes(&mut self, nodes: &[(String, f64, f64)]) {
        self.nodes = nodes.to_vec();
    }

    /// The state of a row `elapsed_s` seconds after it began; `progress` is 0 ..= 1 where the end is known.
    pub fn update(&mut self, row: &str, elapsed_s: f64, operations: &[LiveOperation], progress: Option<f64>) {
        let new_row = row != self.row || elapsed_s < self.shown_at;
        if new_row {
            self.begin_row(row);
        }
        if elapsed_s - self.curve_at >= 1.0 {
            self.curve_at = elapsed_s;
            self.extend_curves(operations);
        }
        let least = match self.mode {
            Mode::Terminal(_) => REDRAW_S,
            Mode::Lines { seconds } => seconds,
        };
        if elapsed_s - self.shown_at < least {
            return;
        }
        self.shown_at = elapsed_s;
        match self.mode {
            Mode::Terminal(columns) => self.redraw(columns, elapsed_s, operations, progress),
            Mode::Lines { .. } => self.line(elapsed_s, operations, progress),
        }
    }

    /// A line that stays above the view ("warming up", "starting 127.0.0.1:27018").
    pub fn note(&mut self, text: &str) {
        self.erase();
        let _ = writeln!(self.out, "{text}");
        let _ = self.out.flush();
    }

    /// Removes the view; what is printed next starts on a clean line.
    pub fn finish(&mut self) {
        self.erase();
        self.row.clear();
        let _ = self.out.flush();
    }

    fn begin_row(&mut self, row: &str) {
        self.row = row.to_owned();
        self.shown_at = f64::NEG_INFINITY;
        self.curve_at = f64::NEG_INFINITY;
        self.curves.clear();
        self.nodes.clear();
    }

    fn extend_curves(&mut self, operations: &[LiveOperation]) {
        for (name, per_second, _, _) in operations {
            let index = self.curves.iter().position(|(n, _)| n == name).unwrap_or_else(|| {
                self.curves.push((name.clone(), VecDeque::new()));
                self.curves.len() - 1
            });
            let curve = &mut self.curves[index].1;
            curve.push_back(*per_second);
            if curve.len() > CURVE {
                curve.pop_front();
            }
        }
    }

    fn line(&mut self, elapsed_s: f64, operations: &[LiveOperation], progress: Option<f64>) {
        let mut line = format!("{}: {} s", self.row, number(elapsed_s.round()));
        if let Some(progress) = progress {
            let _ = write!(line, ", {:.0} %", progress.clamp(0.0, 1.0) * 100.0);
        }
        for (name, per_second, p50, p99) in operations {
            let _ =
                write!(line, "; {name} {}/s p50 {} p99 {}", short(*per_second), latency(*p50), latency(*p99));
        }
        for (node, cpu, memory) in &self.nodes {
            let _ = write!(line, "; {node} {cpu:.0} % {memory:.0} MB");
        }
        let _ = writeln!(self.out, "{line}");
        let _ = self.out.flush();
    }

    fn redraw(
        &mut self,
        columns: usize,
        elapsed_s: f64,
        operations: &[LiveOperation],
        progress: Option<f64>,
    ) {
        let mut lines = vec![format!("{}  {}", self.row, duration(elapsed_s.floor()))];
        if let Some(progress) = progress {
            lines.push(bar(progress.clamp(0.0, 1.0), columns.min(60)));
        }
        let width = operations.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
        for (name, per_second, p50, p99) in operations {
            let curve =
                self.curves.iter().find(|(n, _)| n == name).map(|(_, c)| curve(c)).unwrap_or_default();
            lines.push(format!(
                "  {name:width$} {:>9}/s  p50 {:>8}  p99 {:>8}  {curve}",
                short(*per_second),
                latency(*p50),
                latency(*p99)
            ));
        }
        for (node, cpu, memory) in &self.nodes {
            lines.push(format!("  {node}  cpu {cpu:.0} %  memory {} MB", number(*memory)));
        }
        self.erase();
        self.lines_shown = lines.len();
        for line in lines {
            // A line that wrapped would spoil the count of lines to go up.
            let cut: String = line.chars().take(columns - 1).collect();
            let _ = writeln!(self.out, "{cut}");
        }
        let _ = self.out.flush();
    }

    fn erase(&mut self) {
        if self.lines_shown > 0 {
            let _ = write!(self.out, "\x1b[{}A\x1b[J", self.lines_shown);
            self.lines_shown = 0;
        }
    }
}

fn bar(progress: f64, columns: usize) -> String {
    let inner = columns.saturating_sub(12).max(10);
    let done = (progress * inner as f64).round() as usize;
    format!("  [{}{}] {:>3.0} %", "#".repeat(done), "-".repeat(inner - done), progress * 100.0)
}

/// The last seconds as a row of small bars.
fn curve(values: &VecDeque<f64>) -> String {
    let bars = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    values.iter().map(|v| bars[((v / top * 8.0) as usize).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operations() -> Vec<LiveOperation> {
        vec![("insert".to_owned(), 12_345.0, 250.0, 1_200.0), ("read".to_owned(), 99.0, 80.0, 90.0)]
    }

    #[test]
    fn plain_lines_come_at_most_each_so_many_seconds() {
        let mut live = Live::with(Vec::new(), Mode::Lines { seconds: 10.0 });
        for tenth in 0..=250 {
            live.update("safe", f64::from(tenth) / 10.0, &operations(), Some(0.5));
        }
        live.update("normal", 0.0, &operations(), None);
        live.finish();
        let text = String::from_utf8(live.out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(
            lines[1],
            "safe: 10 s, 50 %; insert 12.3 k/s p50 250 µs p99 1.20 ms; read 99/s p50 80 µs p99 90 µs"
        );
        assert!(lines[3].starts_with("normal: 0 s; insert"));
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_terminal_is_redrawn_in_place() {
        let mut live = Live::with(Vec::new(), Mode::Terminal(50));
        live.update("safe", 0.0, &operations(), Some(0.25));
        live.nodes(&[("127.0.0.1:27018".to_owned(), 143.0, 412.0)]);
        live.update("safe", 0.05, &operations(), Some(0.26));
        live.update("safe", 1.0, &operations(), Some(0.5));
        live.finish();
        let text = String::from_utf8(live.out).unwrap();
        // Two drawings: the one in between came too soon. Four lines, then five; all are taken back.
        assert_eq!(text.matches("\x1b[4A\x1b[J").count(), 1);
        assert_eq!(text.matches("\x1b[5A\x1b[J").count(), 1);
        assert!(text.ends_with("\x1b[5A\x1b[J"));
        assert!(text.contains("127.0.0.1:27018  cpu 143 %  memory 412 MB"));
        assert!(
            text.split('\n').all(|l| l.trim_start_matches("\x1b[4A\x1b[J").chars().count() < 50),
            "{text}"
        );
    }
}
