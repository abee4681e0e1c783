//! A plot as inline SVG: readable without scripts, with the scales in attributes for the page's script.

use std::fmt::Write as _;

use super::axis::{Axis, Spacing, Unit};
use super::format::escape;

/// More points than this are thinned to the extremes of as many stretches: nobody sees more, browsers suffer.
const MOST_POINTS: usize = 2400;

/// How the points of a [`Line`] are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Joined.
    Line,
    /// Joined, in the background: the other repetitions.
    Faint,
    /// Joined by dashes: the second figure of a pair.
    Dashed,
    /// Each by itself.
    Dots,
}

/// Points of one series.
#[derive(Clone, Debug)]
pub struct Line {
    /// What distinguishes it from the series' other lines ("peak"); may be empty.
    pub label: String,
    /// See [`Style`].
    pub style: Style,
    /// In order of x; a y that is not a number interrupts the line.
    pub points: Vec<(f64, f64)>,
}

/// What is switched and coloured together: a row of the run, or an operation of its only row.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend switches it by; the same in every plot.
    pub key: String,
    /// Index of its colour.
    pub colour: usize,
    /// Its name under the pointer.
    pub name: String,
    /// See [`Line`].
    pub lines: Vec<Line>,
}

/// A moment marked by a vertical line.
#[derive(Clone, Debug)]
pub struct Mark {
    /// The key of the series that it belongs to; empty when it belongs to all.
    pub key: String,
    /// Where on the x axis.
    pub at: f64,
    /// What happened.
    pub text: String,
}

/// One plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Over the plot.
    pub title: String,
    /// Under the plot, where there is something to explain.
    pub note: String,
    /// Whether it takes the page's full width.
    pub wide: bool,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// See [`Series`].
    pub series: Vec<Series>,
    /// See [`Mark`].
    pub marks: Vec<Mark>,
}

/// The paper: where axes and points go.
struct Paper {
    width: f64,
    height: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Paper {
    fn of(plot: &Plot) -> Paper {
        let (width, height) = if plot.wide { (1160.0, 340.0) } else { (570.0, 300.0) };
        Paper { width, height, left: 64.0, right: width - 18.0, top: 28.0, bottom: height - 42.0 }
    }

    fn x(&self, axis: &Axis, value: f64) -> f64 {
        self.left + axis.place(value) * (self.right - self.left)
    }

    fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.bottom - axis.place(value) * (self.bottom - self.top)
    }
}

impl Plot {
    /// Whether there is anything to draw.
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|s| s.lines.iter().all(|l| l.points.iter().all(|(_, y)| y.is_nan())))
    }

    /// The plot as a `<figure>`.
    pub fn figure(&self) -> String {
        let class = if self.wide { "plot wide" } else { "plot" };
        let mut html =
            format!("<figure class=\"{class}\"><figcaption>{}</figcaption>\n", escape(&self.title));
        html.push_str(&self.svg());
        if !self.note.is_empty() {
            let _ = write!(html, "<p class=\"note\">{}</p>", escape(&self.note));
        }
        html.push_str("</figure>\n");
        html
    }

    fn svg(&self) -> String {
        let paper = Paper::of(self);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\"{}>\n",
            paper.width,
            paper.height,
            escape(&self.title),
            self.scales(&paper)
        );
        self.draw_axes(&paper, &mut svg);
        for mark in &self.marks {
            let x = paper.x(&self.x, mark.at);
            let _ = writeln!(
                svg,
                "<g class=\"mark\" data-row=\"{}\"><path d=\"M{x:.1} {}V{}\"/><path class=\"flag\" d=\"M{x:.1} {}l7 -4l-7 -4z\"/>\
                 <title>{} s: {}</title></g>",
                escape(&mark.key),
                paper.top,
                paper.bottom,
                paper.top,
                super::format::number(mark.at),
                escape(&mark.text)
            );
        }
        for series in &self.series {
            self.draw_series(series, &paper, &mut svg);
        }
        svg.push_str("<g class=\"pointer\"></g></svg>\n");
        svg
    }

    /// The axes as attributes, so that the script can turn a place back into figures.
    fn scales(&self, paper: &Paper) -> String {
        let one = |name: &str, axis: &Axis, from: f64, to: f64| {
            let spacing = if axis.spacing == Spacing::Log { "log" } else { "linear" };
            format!(
                " data-{name}=\"{spacing} {} {} {from} {to} {}\" data-{name}-title=\"{}\"",
                axis.low,
                axis.high,
                axis.unit.id(),
                escape(&axis.title)
            )
        };
        one("x", &self.x, paper.left, paper.right) + &one("y", &self.y, paper.bottom, paper.top)
    }

    fn draw_axes(&self, paper: &Paper, svg: &mut String) {
        svg.push_str("<g class=\"axes\">");
        for (value, label) in &self.y.ticks {
            let y = paper.y(&self.y, *value);
            let _ = write!(
                svg,
                "<path d=\"M{} {y:.1}H{}\"/><text class=\"y\" x=\"{}\" y=\"{:.1}\">{}</text>",
                paper.left,
                paper.right,
                paper.left - 8.0,
                y + 4.0,
                escape(label)
            );
        }
        let mut free_from = f64::NEG_INFINITY;
        for (value, label) in &self.x.ticks {
            let x = paper.x(&self.x, *value);
            let half = label.chars().count() as f64 * 3.4;
            let _ = write!(svg, "<path d=\"M{x:.1} {}v5\"/>", paper.bottom);
            // A label that would touch the one before it is left out.
            if x - half > free_from {
                let _ = write!(
                    svg,
                    "<text class=\"x\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                    paper.bottom + 18.0,
                    escape(label)
                );
                free_from = x + half + 6.0;
            }
        }
        let _ = writeln!(
            svg,
            "<path class=\"base\" d=\"M{} {}H{}\"/><text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\
             <text class=\"title end\" x=\"{}\" y=\"{}\">{}</text></g>",
            paper.left,
            paper.bottom,
            paper.right,
            8,
            paper.top - 12.0,
            escape(&self.y.title),
            paper.right,
            paper.bottom + 35.0,
            escape(&self.x.title)
        );
    }

    fn draw_series(&self, series: &Series, paper: &Paper, svg: &mut String) {
        let _ = write!(
            svg,
            "<g class=\"series {}\" data-row=\"{}\" data-name=\"{}\">",
            colour_class(series.colour),
            escape(&series.key),
            escape(&series.name)
        );
        for line in &series.lines {
            let points = thinned(&line.points);
            let mut places = Vec::with_capacity(points.len());
            for (x, y) in points {
                places.push((paper.x(&self.x, x), if y.is_nan() { f64::NAN } else { paper.y(&self.y, y) }));
            }
            let label = escape(&line.label);
            if line.style == Style::Dots {
                let _ = write!(svg, "<path class=\"dots\" data-label=\"{label}\" d=\"{}\"/>", dots(&places));
                continue;
            }
            let class = match line.style {
                Style::Faint => "line faint",
                Style::Dashed => "line dashed",
                _ => "line",
            };
            let _ = write!(svg, "<path class=\"{class}\" data-label=\"{label}\" d=\"{}\"/>", joined(&places));
            if places.len() <= 24 && line.style != Style::Faint {
                let _ = write!(svg, "<path class=\"knots\" d=\"{}\"/>", dots(&places));
            }
        }
        svg.push_str("</g>\n");
    }
}

/// The classes of a colour and, when the colours are used up, of a dash pattern.
pub fn colour_class(colour: usize) -> String {
    format!("c{} d{}", colour % 8, colour / 8 % 3)
}

fn joined(places: &[(f64, f64)]) -> String {
    let mut path = String::new();
    let mut pen_down = false;
    for (x, y) in places {
        if y.is_nan() {
            pen_down = false;
            continue;
        }
        let _ = write!(path, "{}{x:.1} {y:.1}", if pen_down { 'L' } else { 'M' });
        pen_down = true;
    }
    path
}

/// Strokes of no length, which round ends turn into dots.
fn dots(places: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (x, y) in places.iter().filter(|(_, y)| !y.is_nan()) {
        let _ = write!(path, "M{x:.1} {y:.1}h0");
    }
    path
}

/// The lowest and the highest point of each of many stretches, where there are more points than can be seen.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(MOST_POINTS / 2);
    let mut kept = Vec::with_capacity(MOST_POINTS);
    for part in points.chunks(stretch) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let known = || part.iter().filter(|(_, y)| !y.is_nan());
        let (Some(low), Some(high)) = (known().min_by(by_y), known().max_by(by_y)) else {
            kept.push((part[0].0, f64::NAN));
            continue;
        };
        kept.push(if low.0 <= high.0 { *low } else { *high });
        if low != high {
            kept.push(if low.0 <= high.0 { *high } else { *low });
        }
    }
    kept
}

/// Whether thinning applies, for the note that must then be printed.
pub fn is_thinned(points: usize) -> bool {
    points > MOST_POINTS
}

/// All y values of some series, to choose an axis by.
pub fn y_values(series: &[Series]) -> impl Iterator<Item = f64> + '_ {
    series.iter().flat_map(|s| s.lines.iter().flat_map(|l| l.points.iter().map(|p| p.1)))
}

/// All x values of some series, to choose an axis by.
pub fn x_values(series: &[Series]) -> impl Iterator<Item = f64> + '_ {
    series.iter().flat_map(|s| s.lines.iter().flat_map(|l| l.points.iter().map(|p| p.0)))
}

/// An x axis of seconds for these series and marks.
pub fn time_axis(series: &[Series], marks: &[Mark]) -> Axis {
    Axis::time(x_values(series).chain(marks.iter().map(|m| m.at)))
}

/// A logarithmic latency axis for these series.
pub fn latency_axis(series: &[Series]) -> Axis {
    Axis::log("latency", Unit::Latency, y_values(series))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_extremes() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        points[31_234].1 = 1000.0;
        points[17].1 = -5.0;
        let kept = thinned(&points);
        assert!(kept.len() <= MOST_POINTS + 2);
        assert!(kept.contains(&(31_234.0, 1000.0)) && kept.contains(&(17.0, -5.0)));
        assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(thinned(&points[..100]), &points[..100]);
    }

    #[test]
    fn gaps_lift_the_pen() {
        assert_eq!(
            joined(&[(1.0, 2.0), (3.0, 4.0), (5.0, f64::NAN), (6.0, 7.0)]),
            "M1.0 2.0L3.0 4.0M6.0 7.0"
        );
        assert_eq!(dots(&[(1.0, 2.0), (3.0, f64::NAN)]), "M1.0 2.0h0");
    }
}
