//! The plots of a run, section by section.
//!
//! With several rows, each kind of operation has a plot and each row a series in it. With one row, the kinds of
//! operations are what differs: then they are the series, and share a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::axis::{Axis, Unit};
use super::faults;
use super::format::{escape, short};
use super::plot::{
    Line, Mark, Plot, Series, Style, colour_class, is_thinned, latency_axis, time_axis, x_values, y_values,
};
use super::view;
use crate::results::{Operation, Repetition, Row, RunResult, Second};
use crate::stats;

pub use super::bars::results;

/// A heading with plots below it.
pub struct Section {
    /// The heading's anchor.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// One or two sentences on how to read it.
    pub intro: &'static str,
    /// The names of the series.
    pub legend: String,
    /// The plots.
    pub body: String,
}

/// Every section that the run has data for.
pub fn sections(run: &RunResult) -> Vec<Section> {
    let all = [
        (
            "throughput",
            "Throughput over time",
            "Operations that ended in each second. The repetition in the middle is in front, the others are faint.",
            throughput(run),
        ),
        (
            "time",
            "Latency over time",
            "Per second, from the repetition in the middle. The scale is logarithmic.",
            latency_over_time(run),
        ),
        (
            "stalls",
            "Stalls",
            "Each time of more than 100 ms in which operations of a kind were under way and none succeeded: when it began, and how \
             long it lasted. From the repetition in the middle.",
            stalls(run),
        ),
        (
            "percentiles",
            "Latency by percentile",
            "All repetitions together; each step to the right is another nine. The line ends at the worst operation.",
            percentiles(run),
        ),
        (
            "faults",
            "Around each fault",
            "By tenths of a second, from the repetition in the middle: the median, and dashed the worst. Where there is no line, \
             nothing succeeded. Vertical lines are the fault and its end.",
            faults::plots(run),
        ),
        ("calls", "Each call in order", "One dot per call, from the first to the last.", calls(run)),
        (
            "steps",
            "Growing numbers of clients",
            "Solid: average of the step. Dashed: its best second.",
            steps(run),
        ),
        (
            "servers",
            "Server processes",
            "Sampled once a second during the repetition in the middle; 100 % is one processor.",
            servers(run),
        ),
    ];
    let mut sections = Vec::new();
    for (id, title, intro, mut plots) in all {
        plots.retain(|p| !p.is_empty());
        let mut body: String = if id == "faults" { faults::table(run) } else { String::new() };
        body.extend(plots.iter().map(Plot::figure));
        if id == "servers" {
            body.push_str(&counters(run));
        }
        if !body.is_empty() {
            sections.push(Section { id, title, intro, legend: legend(&plots), body });
        }
    }
    sections
}

/// The names of all series of these plots, each a switch. Without scripts it is just a legend.
fn legend(plots: &[Plot]) -> String {
    let mut entries: BTreeMap<(usize, &str), &str> = BTreeMap::new();
    for series in plots.iter().flat_map(|p| &p.series) {
        entries.insert((series.colour, &series.key), &series.name);
    }
    let mut html = "<div class=\"legend\">".to_owned();
    for ((colour, key), name) in entries {
        let _ = write!(
            html,
            "<button type=\"button\" data-row=\"{}\" aria-pressed=\"true\"><svg viewBox=\"0 0 26 10\" aria-hidden=\"true\">\
             <g class=\"{}\"><path class=\"line\" d=\"M1 5H25\"/></g></svg>{}</button>",
            escape(key),
            colour_class(colour),
            escape(name)
        );
    }
    html.push_str("</div>\n");
    html
}

/// What a series stands for: one kind of operation of one row.
struct Subject<'a> {
    row: &'a Row,
    operation: &'a str,
    key: String,
    colour: usize,
    name: String,
}

impl Subject<'_> {
    fn series(&self, lines: Vec<Line>) -> Option<Series> {
        let series = Series { key: self.key.clone(), colour: self.colour, name: self.name.clone(), lines };
        (!series.lines.is_empty()).then_some(series)
    }

    /// The operation in the repetition that is drawn in front.
    fn typical(&self) -> Option<&Operation> {
        self.row.repetitions.get(view::typical(self.row)).and_then(|r| view::operation(r, self.operation))
    }
}

/// The plots by title, and the subjects of each.
fn subjects(run: &RunResult) -> Vec<(String, Vec<Subject<'_>>)> {
    let operations = view::operation_names(run);
    if let [row] = run.rows.as_slice() {
        let subject = |(colour, operation): (usize, &&'_ str)| Subject {
            row,
            operation: operations[colour],
            key: format!("o{colour}"),
            colour,
            name: (*operation).to_owned(),
        };
        return vec![(String::new(), operations.iter().enumerate().map(subject).collect())];
    }
    let names = view::row_names(run);
    operations
        .into_iter()
        .map(|operation| {
            let subject = |(index, row)| Subject {
                row,
                operation,
                key: index_key(index),
                colour: index,
                name: names[index].clone(),
            };
            (operation.to_owned(), run.rows.iter().enumerate().map(subject).collect())
        })
        .collect()
}

fn index_key(row: usize) -> String {
    row.to_string()
}

/// "insert: median", or just "median" where the operations share a plot.
fn title(operation: &str, what: &str) -> String {
    if operation.is_empty() { what.to_owned() } else { format!("{operation}: {what}") }
}

/// What was done to the servers, in the repetitions that are drawn in front.
fn marks(run: &RunResult) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (index, row) in run.rows.iter().enumerate() {
        let Some(repetition) = row.repetitions.get(view::typical(row)) else { continue };
        let key = if run.rows.len() == 1 { String::new() } else { index_key(index) };
        marks.extend(repetition.faults.iter().map(|f| Mark {
            key: key.clone(),
            at: f.at_s,
            text: f.what.clone(),
        }));
    }
    marks
}

/// Fewer points than this show no course of time.
const FEWEST_SECONDS: usize = 3;

/// Whether a plot over time would show more than a dot.
fn has_course(series: &[Series]) -> bool {
    series.iter().flat_map(|s| &s.lines).any(|l| l.points.len() >= FEWEST_SECONDS)
}

/// Operations per second. The last second is rarely a whole one: it counts for the part that was measured.
fn rates(operation: &Operation, seconds: f64) -> Vec<(f64, f64)> {
    let point = |s: &Second| {
        let part = if seconds > s.at_s { (seconds - s.at_s).min(1.0) } else { 1.0 };
        (part >= 0.2).then(|| (s.at_s, s.count as f64 / part))
    };
    operation.series.iter().filter_map(point).collect()
}

fn throughput(run: &RunResult) -> Vec<Plot> {
    let subjects = subjects(run);
    let wide = subjects.len() == 1;
    let plot = |(operation, subjects): (String, Vec<Subject>)| {
        let series: Vec<Series> = subjects.iter().filter_map(|s| s.series(throughput_lines(s))).collect();
        let y = Axis::from_zero("operations per second", Unit::Plain, y_values(&series));
        let marks = marks(run);
        let x = time_axis(&series, &marks);
        let title = if operation.is_empty() { "all operations".to_owned() } else { operation };
        Plot { title, note: String::new(), wide, x, y, series, marks }
    };
    subjects.into_iter().map(plot).filter(|p| has_course(&p.series)).collect()
}

/// A line per repetition, the typical one last, so that it lies on top.
fn throughput_lines(subject: &Subject) -> Vec<Line> {
    let front = view::typical(subject.row);
    let line = |(index, repetition): (usize, &Repetition)| {
        let points = rates(view::operation(repetition, subject.operation)?, repetition.seconds);
        let (style, label) = if index == front {
            (Style::Line, String::new())
        } else {
            (Style::Faint, format!("repetition {}", index + 1))
        };
        (!points.is_empty()).then_some(Line { label, style, points })
    };
    let mut lines: Vec<Line> = subject.row.repetitions.iter().enumerate().filter_map(line).collect();
    lines.sort_by_key(|l| l.style == Style::Line);
    lines
}

/// One of the latencies of a second.
type OfSecond = fn(&Second) -> f64;

fn latency_over_time(run: &RunResult) -> Vec<Plot> {
    let figures: [(&str, OfSecond); 4] = [
        ("median", |s| s.p50_us),
        ("99th percentile", |s| s.p99_us),
        ("99.9th percentile", |s| s.p999_us),
        ("worst", |s| s.max_us),
    ];
    let mut plots = Vec::new();
    for (operation, subjects) in subjects(run) {
        for (what, value) in figures {
            let line = |subject: &Subject| {
                let second = |s: &Second| (s.at_s, if s.count > 0 { value(s) } else { f64::NAN });
                let points = subject.typical().map(|o| o.series.iter().map(second).collect());
                subject.series(line_of(points.unwrap_or_default()))
            };
            let series: Vec<Series> = subjects.iter().filter_map(line).collect();
            if !has_course(&series) {
                continue;
            }
            let marks = marks(run);
            let (x, y) = (time_axis(&series, &marks), latency_axis(&series));
            let title = title(&operation, what);
            plots.push(Plot { title, note: String::new(), wide: false, x, y, series, marks });
        }
    }
    plots
}

fn stalls(run: &RunResult) -> Vec<Plot> {
    let subjects = subjects(run);
    let wide = subjects.len() == 1;
    let plot = |(operation, subjects): (String, Vec<Subject>)| {
        let dots = |subject: &Subject| {
            let stalls = subject.row.repetitions.get(view::typical(subject.row)).map(|r| r.stalls.as_slice());
            let own = stalls.unwrap_or_default().iter().filter(|stall| stall.operation == subject.operation);
            let points: Vec<(f64, f64)> = own.map(|stall| (stall.at_s, stall.ms * 1e3)).collect();
            subject
                .series(line_of(points).into_iter().map(|line| Line { style: Style::Dots, ..line }).collect())
        };
        let series: Vec<Series> = subjects.iter().filter_map(dots).collect();
        let (x, y) = (time_axis(&series, &[]), latency_axis(&series));
        let title = if operation.is_empty() { "all operations".to_owned() } else { operation };
        Plot { title, note: String::new(), wide, x, y, series, marks: Vec::new() }
    };
    subjects.into_iter().map(plot).collect()
}

fn line_of(points: Vec<(f64, f64)>) -> Vec<Line> {
    if points.is_empty() {
        return Vec::new();
    }
    vec![Line { label: String::new(), style: Style::Line, points }]
}

fn percentiles(run: &RunResult) -> Vec<Plot> {
    let subjects = subjects(run);
    let wide = subjects.len() == 1;
    let plot = |(operation, subjects): (String, Vec<Subject>)| {
        let line = |subject: &Subject| {
            let merged = stats::merge_histograms(view::histograms(subject.row, subject.operation));
            let curve = merged.map(|h| stats::percentile_curve(&h)).unwrap_or_default();
            subject.series(line_of(curve.into_iter().map(|p| (p.inverse, p.us)).collect()))
        };
        let series: Vec<Series> = subjects.iter().filter_map(line).collect();
        let x = Axis::nines(x_values(&series).fold(0.0, f64::max));
        let y = latency_axis(&series);
        let title = if operation.is_empty() { "all operations".to_owned() } else { operation };
        Plot { title, note: String::new(), wide, x, y, series, marks: Vec::new() }
    };
    subjects.into_iter().map(plot).collect()
}

/// Repetitions whose calls are drawn: more would show nothing new.
const CALLS_OF_REPETITIONS: usize = 2;

fn calls(run: &RunResult) -> Vec<Plot> {
    let mut plots = Vec::new();
    for (operation, subjects) in subjects(run) {
        for repetition in 0..CALLS_OF_REPETITIONS {
            let calls_of = |subject: &Subject| -> Vec<f64> {
                let found = subject.row.repetitions.get(repetition);
                let found = found.and_then(|r| view::operation(r, subject.operation));
                found.map(|o| o.calls_us.clone()).unwrap_or_default()
            };
            let most = subjects.iter().map(|s| calls_of(s).len()).max().unwrap_or(0);
            let dots = |subject: &Subject| {
                let points = (1..).map(f64::from).zip(calls_of(subject)).collect();
                let lines = line_of(points).into_iter().map(|line| Line { style: Style::Dots, ..line });
                subject.series(lines.collect())
            };
            let series: Vec<Series> = subjects.iter().filter_map(dots).collect();
            let note = if is_thinned(most) {
                "More calls than can be drawn: of each stretch, the fastest and the slowest are shown."
            } else {
                ""
            };
            let x = Axis::from_zero("call", Unit::Plain, std::iter::once(most as f64));
            let y = latency_axis(&series);
            let title = title(&operation, &format!("repetition {}", repetition + 1));
            plots.push(Plot {
                title,
                note: note.to_owned(),
                wide: most > 400,
                x,
                y,
                series,
                marks: Vec::new(),
            });
        }
    }
    plots
}

fn steps(run: &RunResult) -> Vec<Plot> {
    let steps_of =
        |row: &Row| row.repetitions.get(view::typical(row)).map(|r| r.steps.clone()).unwrap_or_default();
    let mut clients: Vec<f64> = run.rows.iter().flat_map(steps_of).map(|s| f64::from(s.clients)).collect();
    clients.sort_by(f64::total_cmp);
    clients.dedup();
    let subjects = subjects(run);
    let wide = subjects.len() == 1;
    let plot = |(operation, subjects): (String, Vec<Subject>)| {
        let lines = |subject: &Subject| {
            let rated = steps_of(subject.row).into_iter().filter_map(|step| {
                step.rates.get(subject.operation).map(|rate| (f64::from(step.clients), rate.clone()))
            });
            let (average, peak): (Vec<_>, Vec<_>) = rated.map(|(c, r)| ((c, r.average), (c, r.peak))).unzip();
            if average.is_empty() {
                return None;
            }
            subject.series(vec![
                Line { label: "best second".to_owned(), style: Style::Dashed, points: peak },
                Line { label: "average".to_owned(), style: Style::Line, points: average },
            ])
        };
        let series: Vec<Series> = subjects.iter().filter_map(lines).collect();
        let x = Axis::at("clients", &clients);
        let y = Axis::from_zero("operations per second", Unit::Plain, y_values(&series));
        let title = if operation.is_empty() { "all operations".to_owned() } else { operation };
        Plot { title, note: String::new(), wide, x, y, series, marks: Vec::new() }
    };
    subjects.into_iter().map(plot).collect()
}

/// What is drawn of the servers: the figure's name in the samples, its title, the axis' title, whether it is a counter of which
/// the change per second is drawn.
const SERVER_FIGURES: [(&str, &str, &str, bool); 5] = [
    ("cpu_percent", "processor", "% of one processor", false),
    ("resident_mb", "memory", "MB resident", false),
    ("disk_written_mb", "written to disk", "MB per second", true),
    ("disk_read_mb", "read from disk", "MB per second", true),
    ("opcounters.insert", "inserts", "documents per second", true),
];

fn servers(run: &RunResult) -> Vec<Plot> {
    let names = view::row_names(run);
    let mut plots = Vec::new();
    for (figure, title, axis_title, counts) in SERVER_FIGURES {
        let mut series = Vec::new();
        for (row, r) in run.rows.iter().enumerate() {
            let Some(repetition) = r.repetitions.get(view::typical(r)) else { continue };
            let mut lines = Vec::new();
            for server in &repetition.servers {
                let value =
                    |s: &(f64, BTreeMap<String, f64>)| (s.0, s.1.get(figure).copied().unwrap_or(f64::NAN));
                let points: Vec<(f64, f64)> = server.samples.iter().map(value).collect();
                let points = if counts { per_second(&points) } else { points };
                if points.iter().any(|(_, y)| !y.is_nan()) {
                    lines.push(Line { label: server.node.clone(), style: Style::Line, points });
                }
            }
            if run.rows.len() > 1 {
                series.push(Series { key: index_key(row), colour: row, name: names[row].clone(), lines });
                continue;
            }
            // One row: the nodes are what differs.
            for (node, line) in lines.into_iter().enumerate() {
                let name = line.label.clone();
                let line = Line { label: String::new(), ..line };
                series.push(Series { key: format!("n{node}"), colour: node, name, lines: vec![line] });
            }
        }
        series.retain(|s| !s.lines.is_empty());
        if !has_course(&series) {
            continue;
        }
        let marks = marks(run);
        let y = Axis::from_zero(axis_title, Unit::Plain, y_values(&series));
        let x = time_axis(&series, &marks);
        plots.push(Plot { title: title.to_owned(), note: String::new(), wide: false, x, y, series, marks });
    }
    plots
}

/// How a counter grows, from each look to the next. One that was started again begins anew.
fn per_second(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let rate = |pair: &[(f64, f64)]| {
        let ((then, before), (now, after)) = (pair[0], pair[1]);
        let change = if after < before { after } else { after - before };
        (now, if now > then { change / (now - then) } else { f64::NAN })
    };
    points.windows(2).map(rate).collect()
}

/// Every other figure of the samples: where it began, where it ended, and the change per second.
fn counters(run: &RunResult) -> String {
    let names = view::row_names(run);
    let mut body = String::new();
    for (row, r) in run.rows.iter().enumerate() {
        let Some(repetition) = r.repetitions.get(view::typical(r)) else { continue };
        for server in &repetition.servers {
            let (Some(first), Some(last)) = (server.samples.first(), server.samples.last()) else { continue };
            for (name, end) in &last.1 {
                if SERVER_FIGURES.iter().any(|(drawn, .., counts)| drawn == name && !counts) {
                    continue;
                }
                let begin = first.1.get(name).copied().unwrap_or(0.0);
                let seconds = last.0 - first.0;
                let rate = if seconds > 0.0 { short((end - begin) / seconds) } else { "-".to_owned() };
                let _ = writeln!(
                    body,
                    "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{rate}</td></tr>",
                    escape(&names[row]),
                    escape(&server.node),
                    escape(name),
                    short(begin),
                    short(*end)
                );
            }
        }
    }
    if body.is_empty() {
        return String::new();
    }
    format!(
        "<details class=\"wide\"><summary>All sampled figures of the servers</summary><div class=\"scroll\"><table>\
         <tr><th>row</th><th>node</th><th>figure</th><th class=\"n\">first</th><th class=\"n\">last</th>\
         <th class=\"n\">change per second</th></tr>\n{body}</table></div></details>\n"
    )
}
