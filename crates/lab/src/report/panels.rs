//! The plots of a run, section by section.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::axis::{Axis, Unit};
use super::format::{escape, figure, short, unit_text};
use super::plot::{
    Line, Mark, Plot, Series, Style, colour_class, is_thinned, latency_axis, time_axis, x_values, y_values,
};
use super::view;
use crate::results::{Better, Operation, Repetition, Row, RunResult, Second};
use crate::stats;

/// A heading with plots below it.
pub struct Section {
    /// The heading's anchor.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// One or two sentences on how to read it.
    pub intro: &'static str,
    /// The plots.
    pub body: String,
    /// Whether the rows' names must stand beside it.
    pub legend: bool,
}

/// Every section that the run has data for.
pub fn sections(run: &RunResult) -> Vec<Section> {
    let all = [
        ("results", "Results", "Bars are medians; each dot is one repetition.", results(run), false),
        (
            "throughput",
            "Throughput over time",
            "Operations that ended in each second. The repetition in the middle is in front, the others are faint.",
            throughput(run),
            true,
        ),
        (
            "time",
            "Latency over time",
            "Per second, from the repetition in the middle. The scale is logarithmic.",
            latency_over_time(run),
            true,
        ),
        (
            "percentiles",
            "Latency by percentile",
            "All repetitions together; each step to the right is another nine. The line ends at the worst operation.",
            percentiles(run),
            true,
        ),
        ("calls", "Each call in order", "One dot per call, from the first to the last.", calls(run), true),
        (
            "steps",
            "Growing numbers of clients",
            "Solid: average of the step. Dashed: its best second.",
            steps(run),
            true,
        ),
        (
            "servers",
            "Server processes",
            "Sampled once a second during the repetition in the middle; 100 % is one processor.",
            servers(run),
            true,
        ),
    ];
    all.into_iter()
        .filter(|(_, _, _, body, _)| !body.is_empty())
        .map(|(id, title, intro, body, legend)| Section { id, title, intro, body, legend })
        .collect()
}

/// The legend: one switch per row. Without scripts it is just a legend.
pub fn legend(run: &RunResult) -> String {
    let mut html = "<div class=\"legend\">".to_owned();
    for (row, name) in view::row_names(run).iter().enumerate() {
        let _ = write!(
            html,
            "<button type=\"button\" data-row=\"{row}\" aria-pressed=\"true\"><svg viewBox=\"0 0 26 10\" aria-hidden=\"true\">\
             <g class=\"{}\"><path class=\"line\" d=\"M1 5H25\"/></g></svg>{}</button>",
            colour_class(row),
            escape(name)
        );
    }
    html.push_str("</div>\n");
    html
}

fn grid(plots: Vec<Plot>) -> String {
    plots.iter().filter(|p| !p.is_empty()).map(Plot::figure).collect()
}

/// A series per row, from the lines that `lines` finds for it.
fn by_row(run: &RunResult, lines: impl Fn(&Row) -> Vec<Line>) -> Vec<Series> {
    let names = view::row_names(run);
    run.rows
        .iter()
        .enumerate()
        .map(|(row, r)| Series { row, colour: row, name: names[row].clone(), lines: lines(r) })
        .filter(|series| !series.lines.is_empty())
        .collect()
}

/// What was done to the servers, in the repetitions that are drawn in front.
fn marks(run: &RunResult) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (row, r) in run.rows.iter().enumerate() {
        let Some(repetition) = r.repetitions.get(view::typical(r)) else { continue };
        marks.extend(repetition.faults.iter().map(|f| Mark { row, at: f.at_s, text: f.what.clone() }));
    }
    marks
}

fn results(run: &RunResult) -> String {
    view::metric_columns(run).into_iter().map(|(name, unit)| bars(run, name, unit)).collect()
}

/// One metric: a bar per row, and a dot per repetition.
fn bars(run: &RunResult, name: &str, unit: &str) -> String {
    let names = view::row_names(run);
    let metric_of = |row: &Row| row.metrics.iter().find(|m| m.name == name).cloned();
    let values = || run.rows.iter().filter_map(metric_of).flat_map(|m| m.values);
    if values().all(|v| !v.is_finite()) {
        return String::new();
    }
    let axis = Axis::from_zero("", Unit::Plain, values());
    let (left, right, line) = (205.0, 470.0, 26.0);
    let height = run.rows.len() as f64 * line + 14.0;
    let place = |v: f64| left + axis.place(v) * (right - left);
    let better = match run.rows.iter().find_map(metric_of).and_then(|m| m.better) {
        Some(Better::Higher) => ", more is better",
        Some(Better::Lower) => ", less is better",
        None => "",
    };
    let unit_shown = unit_text(name, unit);
    let unit_shown = if unit_shown.is_empty() { String::new() } else { format!(" ({unit_shown})") };
    let mut html = format!(
        "<figure class=\"plot\"><figcaption>{}{}<small>{better}</small></figcaption>\n\
         <svg class=\"bars\" viewBox=\"0 0 570 {height}\" role=\"img\" aria-label=\"{}\">\
         <path class=\"base\" d=\"M{left} 4V{}\"/>\n",
        escape(name),
        escape(&unit_shown),
        escape(name),
        height - 8.0
    );
    for (index, row) in run.rows.iter().enumerate() {
        let middle = 6.0 + (index as f64 + 0.5) * line;
        let _ = write!(
            html,
            "<g class=\"series {}\" data-row=\"{index}\"><text class=\"y\" x=\"{}\" y=\"{}\">{}<title>{}</title></text>",
            colour_class(index),
            left - 8.0,
            middle + 4.0,
            escape(&cut(&names[index], 29)),
            escape(&names[index])
        );
        if let Some((metric, summary)) =
            metric_of(row).and_then(|m| stats::summary(&m.values).map(|s| (m, s)))
        {
            let _ = write!(
                html,
                "<path class=\"bar\" d=\"M{left} {:.1}H{:.1}v12H{left}z\"/>",
                middle - 6.0,
                place(summary.median)
            );
            if summary.n > 1 {
                html.push_str("<path class=\"dots\" d=\"");
                for value in metric.values.iter().filter(|v| v.is_finite()) {
                    let _ = write!(html, "M{:.1} {middle:.1}h0", place(*value));
                }
                html.push_str("\"/>");
            }
            let _ = write!(
                html,
                "<text class=\"value\" x=\"{:.1}\" y=\"{}\">{}</text>",
                place(summary.max) + 9.0,
                middle + 4.0,
                escape(&figure(summary.median, unit))
            );
        } else {
            let _ =
                write!(html, "<text class=\"value\" x=\"{}\" y=\"{}\">-</text>", left + 9.0, middle + 4.0);
        }
        html.push_str("</g>\n");
    }
    html.push_str("</svg></figure>\n");
    html
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

/// The rate of successful operations in each second; the gap between two looks may differ from a second.
fn rates(operation: &Operation) -> Vec<(f64, f64)> {
    operation.series.iter().map(|s| (s.at_s, s.count as f64)).collect()
}

fn throughput(run: &RunResult) -> String {
    let names = view::operation_names(run);
    let wide = names.len() == 1;
    let plots = names.into_iter().map(|name| {
        let series = by_row(run, |row| {
            let front = view::typical(row);
            let line = |(index, repetition): (usize, &Repetition)| {
                let points = rates(view::operation(repetition, name)?);
                let style = if index == front { Style::Line } else { Style::Faint };
                (!points.is_empty()).then(|| Line {
                    label: format!("repetition {}", index + 1),
                    style,
                    points,
                })
            };
            let mut lines: Vec<Line> = row.repetitions.iter().enumerate().filter_map(line).collect();
            // The one in front is drawn last, and needs no label.
            lines.sort_by_key(|l| l.style == Style::Line);
            lines.iter_mut().filter(|l| l.style == Style::Line).for_each(|l| l.label.clear());
            lines
        });
        let y = Axis::from_zero("operations per second", Unit::Plain, y_values(&series));
        let marks = marks(run);
        Plot {
            title: name.to_owned(),
            note: String::new(),
            wide,
            x: time_axis(&series, &marks),
            y,
            series,
            marks,
        }
    });
    grid(plots.collect())
}

fn latency_over_time(run: &RunResult) -> String {
    let figures: [(&str, fn(&Second) -> f64); 4] = [
        ("median", |s| s.p50_us),
        ("99th percentile", |s| s.p99_us),
        ("99.9th percentile", |s| s.p999_us),
        ("worst", |s| s.max_us),
    ];
    let mut plots = Vec::new();
    for name in view::operation_names(run) {
        for (title, value) in figures {
            let series = by_row(run, |row| {
                let points: Vec<(f64, f64)> = row
                    .repetitions
                    .get(view::typical(row))
                    .and_then(|r| view::operation(r, name))
                    .map(|o| {
                        o.series
                            .iter()
                            .map(|s| (s.at_s, if s.count > 0 { value(s) } else { f64::NAN }))
                            .collect()
                    })
                    .unwrap_or_default();
                line_of(points)
            });
            let title = format!("{name}: {title}");
            let marks = marks(run);
            let (x, y) = (time_axis(&series, &marks), latency_axis(&series));
            plots.push(Plot { title, note: String::new(), wide: false, x, y, series, marks });
        }
    }
    grid(plots)
}

fn line_of(points: Vec<(f64, f64)>) -> Vec<Line> {
    if points.is_empty() {
        return Vec::new();
    }
    vec![Line { label: String::new(), style: Style::Line, points }]
}

fn percentiles(run: &RunResult) -> String {
    let names = view::operation_names(run);
    let wide = names.len() == 1;
    let plots = names.into_iter().map(|name| {
        let series = by_row(run, |row| {
            let curve =
                stats::merge_histograms(view::histograms(row, name)).map(|h| stats::percentile_curve(&h));
            line_of(curve.unwrap_or_default().into_iter().map(|p| (p.inverse, p.us)).collect())
        });
        let x = Axis::nines(x_values(&series).fold(0.0, f64::max));
        let y = latency_axis(&series);
        Plot { title: name.to_owned(), note: String::new(), wide, x, y, series, marks: Vec::new() }
    });
    grid(plots.collect())
}

/// Repetitions whose calls are drawn: the first run and the second, where caches and files are warm.
const CALLS_OF_REPETITIONS: usize = 2;

fn calls(run: &RunResult) -> String {
    let mut plots = Vec::new();
    for name in view::operation_names(run) {
        let calls_of = |row: &Row, repetition: usize| -> Vec<f64> {
            let found = row.repetitions.get(repetition).and_then(|r| view::operation(r, name));
            found.map(|o| o.calls_us.clone()).unwrap_or_default()
        };
        for repetition in 0..CALLS_OF_REPETITIONS {
            let most = run.rows.iter().map(|r| calls_of(r, repetition).len()).max().unwrap_or(0);
            let series = by_row(run, |row| {
                let points: Vec<(f64, f64)> = (1..).map(f64::from).zip(calls_of(row, repetition)).collect();
                line_of(points).into_iter().map(|line| Line { style: Style::Dots, ..line }).collect()
            });
            let note = if is_thinned(most) {
                "There are more calls than can be drawn: the fastest and the slowest of each stretch are shown.".to_owned()
            } else {
                String::new()
            };
            let order = ["first run", "second run"][repetition];
            let x = Axis::from_zero("call", Unit::Plain, std::iter::once(most as f64));
            let y = latency_axis(&series);
            plots.push(Plot {
                title: format!("{name}: {order}"),
                note,
                wide: most > 400,
                x,
                y,
                series,
                marks: Vec::new(),
            });
        }
    }
    grid(plots)
}

fn steps(run: &RunResult) -> String {
    let steps_of =
        |row: &Row| row.repetitions.get(view::typical(row)).map(|r| r.steps.clone()).unwrap_or_default();
    let steps = || run.rows.iter().flat_map(steps_of);
    let kinds: BTreeSet<String> = steps().flat_map(|s| s.rates.into_keys()).collect();
    let mut clients: Vec<f64> = steps().map(|s| f64::from(s.clients)).collect();
    clients.sort_by(f64::total_cmp);
    clients.dedup();
    let wide = kinds.len() == 1;
    let plots = kinds.into_iter().map(|kind| {
        let series = by_row(run, |row| {
            let (mut average, mut peak) = (Vec::new(), Vec::new());
            for step in steps_of(row) {
                if let Some(rate) = step.rates.get(&kind) {
                    average.push((f64::from(step.clients), rate.average));
                    peak.push((f64::from(step.clients), rate.peak));
                }
            }
            if average.is_empty() {
                return Vec::new();
            }
            vec![
                Line { label: "best second".to_owned(), style: Style::Dashed, points: peak },
                Line { label: "average".to_owned(), style: Style::Line, points: average },
            ]
        });
        let x = Axis::at("clients", &clients);
        let y = Axis::from_zero("operations per second", Unit::Plain, y_values(&series));
        Plot { title: kind, note: String::new(), wide, x, y, series, marks: Vec::new() }
    });
    grid(plots.collect())
}

/// What is drawn of the servers: the figure's name in the samples, its title, the axis' title.
const SERVER_FIGURES: [(&str, &str, &str); 2] =
    [("cpu_percent", "processor", "% of one processor"), ("resident_mb", "memory", "MB resident")];

fn servers(run: &RunResult) -> String {
    let names = view::row_names(run);
    let mut plots = Vec::new();
    for (figure, title, axis_title) in SERVER_FIGURES {
        let mut series = Vec::new();
        for (row, r) in run.rows.iter().enumerate() {
            let Some(repetition) = r.repetitions.get(view::typical(r)) else { continue };
            // One row: nodes differ in colour. Several: rows do, and nodes share it.
            for (node, server) in repetition.servers.iter().enumerate() {
                let value = |s: &(f64, std::collections::BTreeMap<String, f64>)| {
                    (s.0, s.1.get(figure).copied().unwrap_or(f64::NAN))
                };
                let points: Vec<(f64, f64)> = server.samples.iter().map(value).collect();
                if points.iter().all(|(_, y)| y.is_nan()) {
                    continue;
                }
                let line = Line { label: server.node.clone(), style: Style::Line, points };
                let colour = if run.rows.len() == 1 { node } else { row };
                series.push(Series { row, colour, name: names[row].clone(), lines: vec![line] });
            }
        }
        let marks = marks(run);
        let y = Axis::from_zero(axis_title, Unit::Plain, y_values(&series));
        let x = time_axis(&series, &marks);
        plots.push(Plot { title: title.to_owned(), note: String::new(), wide: false, x, y, series, marks });
    }
    grid(plots) + &counters(run)
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
                if SERVER_FIGURES.iter().any(|(drawn, _, _)| drawn == name) {
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
