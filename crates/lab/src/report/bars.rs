//! The results as bars: one small plot per metric.

use std::fmt::Write as _;

use super::axis::{Axis, Unit};
use super::format::{escape, figure, unit_text};
use super::plot::colour_class;
use super::view;
use crate::results::{Better, Row, RunResult};
use crate::stats;

/// A plot per metric; none when there is nothing to hold a bar against.
pub fn results(run: &RunResult) -> String {
    let pivoted = view::pivoted(run);
    // The groups of an only row are switched with the operations of the same name.
    let (run, prefix) = pivoted.as_ref().map_or((run, ""), |p| (p, "o"));
    if run.rows.len() < 2 {
        return String::new();
    }
    view::metric_columns(run).into_iter().map(|(name, unit)| bars(run, prefix, name, unit)).collect()
}

/// One metric: a bar per row, and a dot per repetition.
fn bars(run: &RunResult, prefix: &str, name: &str, unit: &str) -> String {
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
            "<g class=\"series {}\" data-row=\"{prefix}{index}\"><text class=\"y\" x=\"{}\" y=\"{}\">{}<title>{}</title></text>",
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
