//! The comparison as a page: each ratio with its interval, on one common scale.

use std::fmt::Write as _;

use super::table::{change, interval, ratio};
use super::{Change, ComparedMetric, Comparison};
use crate::report::{document, escape, figure, range, unit_text};
use crate::stats::{Ratio, Summary};

/// The whole page.
pub fn page(comparison: &Comparison) -> String {
    let [a, b] = comparison.heads.clone().map(|h| escape(&h));
    let mut body = format!("<h1>Comparison</h1><p><b>A</b> {a}<br><b>B</b> {b}</p>\n");
    let _ = writeln!(body, "<p><strong>{}</strong></p>", escape(&comparison.summary()));
    if !comparison.warnings.is_empty() {
        let items: String = comparison.warnings.iter().map(|w| format!("<li>{}</li>", escape(w))).collect();
        let _ = writeln!(
            body,
            "<div class=\"banner care\"><strong>The runs differ in more than what is compared</strong><ul>{items}</ul></div>"
        );
    }
    body.push_str(
        "<p class=\"intro\">Figures are medians, with the smallest and the largest repetition. The bar is the 95 % \
         bootstrap interval of the ratio B / A; the line in the middle is no change.</p>\n",
    );
    let scale = Scale::of(comparison);
    for row in &comparison.rows {
        let targets = if row.targets[0] == row.targets[1] {
            escape(&row.targets[0])
        } else {
            format!("{} → {}", escape(&row.targets[0]), escape(&row.targets[1]))
        };
        let _ = writeln!(body, "<h2>{}</h2><p class=\"intro\">{targets}</p>", escape(&row.name));
        if let Some(reason) = &row.failed {
            let _ = writeln!(
                body,
                "<div class=\"banner bad\"><strong>Does not count</strong>{}</div>",
                escape(reason)
            );
            continue;
        }
        body.push_str(
            "<div class=\"panel scroll\"><table class=\"compared\"><tr><th>metric</th><th class=\"n\">A</th><th class=\"n\">B</th>\
             <th class=\"n\">B / A</th><th>interval</th><th>verdict</th></tr>\n",
        );
        for metric in &row.metrics {
            body.push_str(&metric_line(metric, &scale));
        }
        body.push_str("</table></div>\n");
    }
    if let Some(note) = comparison.by_chance() {
        let _ = writeln!(body, "<p class=\"intro\">{}</p>", escape(&note));
    }
    document("Comparison", &body)
}

fn metric_line(metric: &ComparedMetric, scale: &Scale) -> String {
    let class = match metric.change() {
        Change::Better => "ok",
        Change::Worse => "failed",
        Change::Other | Change::Unclear => "",
    };
    let unit = unit_text(&metric.name, &metric.unit);
    let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
    let word = change(metric);
    let word = if word.is_empty() { String::new() } else { format!("<b>{word}</b> · ") };
    format!(
        "<tr><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td>\
         <td class=\"{class}\">{word}{}</td></tr>\n",
        escape(&metric.name),
        escape(&unit),
        side(&metric.sides[0], &metric.unit),
        side(&metric.sides[1], &metric.unit),
        metric.ratio.map_or("-".to_owned(), |r| ratio(r.ratio)),
        metric.interval().map_or("-".to_owned(), |r| scale.draw(r, metric.change())),
        escape(&metric.verdict.text())
    )
}

fn side(summary: &Summary, unit: &str) -> String {
    let text = |v: f64| escape(&figure(v, unit));
    if summary.n == 1 {
        return text(summary.median);
    }
    let spread = range(summary.min, summary.max, unit, " – ");
    format!("{}<small>{}, n = {}</small>", text(summary.median), escape(&spread), summary.n)
}

/// The common scale of all ratios: logarithmic, with 1 in the middle.
struct Scale {
    /// The ratio at the right end; its inverse is at the left.
    end: f64,
}

const WIDTH: f64 = 260.0;
/// Ratios beyond this are drawn at the edge; their figures stand beside.
const FARTHEST: f64 = 100.0;

impl Scale {
    fn of(comparison: &Comparison) -> Scale {
        let ratios = comparison.rows.iter().flat_map(|r| &r.metrics).filter_map(ComparedMetric::interval);
        let far = ratios.flat_map(|r| [r.low, r.high]).filter(|v| *v > 0.0).map(|v| v.max(1.0 / v));
        let end = far.fold(1.1, f64::max).min(FARTHEST);
        let round = [1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0];
        Scale { end: round.into_iter().find(|r| *r >= end).unwrap_or(FARTHEST) }
    }

    fn place(&self, ratio: f64) -> f64 {
        let share = ratio.max(1e-9).ln() / self.end.ln();
        WIDTH / 2.0 + share.clamp(-1.0, 1.0) * (WIDTH / 2.0 - 8.0)
    }

    fn draw(&self, r: Ratio, change: Change) -> String {
        let colour = match change {
            Change::Better => "var(--good)",
            Change::Worse => "var(--bad)",
            Change::Other => "var(--c0)",
            Change::Unclear => "var(--base)",
        };
        let (low, middle, high) = (self.place(r.low), self.place(r.ratio), self.place(r.high));
        format!(
            "<svg class=\"interval\" style=\"width:{WIDTH}px\" viewBox=\"0 0 {WIDTH} 34\" role=\"img\" aria-label=\"{}\">\
             <g class=\"axes\"><path d=\"M8 14H{}\"/></g><path class=\"base\" d=\"M{} 2V26\"/>\
             <path stroke=\"{colour}\" stroke-width=\"5\" stroke-linecap=\"round\" opacity=\"0.45\" d=\"M{low:.1} 14H{high:.1}\"/>\
             <path stroke=\"{colour}\" stroke-width=\"10\" stroke-linecap=\"round\" d=\"M{middle:.1} 14h0\"/>\
             <text x=\"8\" y=\"33\">1/{e}</text><text class=\"x\" x=\"{}\" y=\"33\">{}</text>\
             <text class=\"end\" x=\"{}\" y=\"33\">{e}</text></svg>",
            escape(&interval(r)),
            WIDTH - 8.0,
            WIDTH / 2.0,
            WIDTH / 2.0,
            escape(&interval(r)),
            WIDTH - 8.0,
            e = self.end
        )
    }
}
