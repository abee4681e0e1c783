//! What was done to the servers, and what the clients felt of it.

use std::fmt::Write as _;

use super::axis::Axis;
use super::format::{escape, latency, number};
use super::plot::{Line, Mark, Plot, Series, Style, latency_axis};
use super::text::{Align, Grid};
use super::view;
use crate::fault::DRAWN;
use crate::results::{Fault, Moment, Row, RunResult};

/// The faults of the repetition that is drawn in front.
fn of(row: &Row) -> &[Fault] {
    row.repetitions.get(view::typical(row)).map_or(&[], |repetition| &repetition.faults)
}

/// The kinds of operations that some fault has a gap of.
fn operations(run: &RunResult) -> Vec<&str> {
    let met = |name: &&str| run.rows.iter().flat_map(of).any(|fault| fault.gaps_ms.contains_key(*name));
    view::operation_names(run).into_iter().filter(met).collect()
}

fn gap(fault: &Fault, operation: &str) -> String {
    fault.gaps_ms.get(operation).map_or_else(|| "-".to_owned(), |ms| latency(ms * 1e3))
}

/// More kinds of operations than these have no column each; the page has room for all.
const COLUMNS: usize = 3;

/// The kind of operation that missed its service longest, and how long.
fn longest(fault: &Fault) -> String {
    let longest = fault.gaps_ms.iter().max_by(|a, b| a.1.total_cmp(b.1));
    longest.map_or_else(|| "-".to_owned(), |(name, ms)| format!("{} {name}", latency(ms * 1e3)))
}

/// A line per fault.
pub fn grid(run: &RunResult) -> Grid {
    let several = run.rows.len() > 1;
    let mut header: Vec<(String, Align)> = Vec::new();
    header.extend(several.then(|| ("row".to_owned(), Align::Left)));
    header.extend([("at".to_owned(), Align::Right), ("fault".to_owned(), Align::Left)]);
    header.push(("over at".to_owned(), Align::Right));
    let operations = operations(run);
    let narrow = operations.len() > COLUMNS;
    if narrow {
        header.push(("longest without".to_owned(), Align::Left));
    } else {
        header.extend(operations.iter().map(|name| (format!("no {name}"), Align::Right)));
    }
    let mut grid = Grid::new(header);
    for (row, name) in run.rows.iter().zip(view::row_names(run)) {
        for fault in of(row) {
            let mut cells: Vec<String> = several.then(|| name.clone()).into_iter().collect();
            cells.extend([format!("{:.1} s", fault.at_s), fault.what.clone()]);
            cells.push(fault.until_s.map_or_else(|| "-".to_owned(), |until| format!("{until:.1} s")));
            if narrow {
                cells.push(longest(fault));
            } else {
                cells.extend(operations.iter().map(|operation| gap(fault, operation)));
            }
            grid.row(cells);
        }
    }
    grid
}

/// The same for the page.
pub fn table(run: &RunResult) -> String {
    let operations = operations(run);
    let mut rows = String::new();
    for (row, name) in run.rows.iter().zip(view::row_names(run)) {
        for fault in of(row) {
            let until = fault.until_s.map_or_else(|| "-".to_owned(), |until| format!("{} s", number(until)));
            let _ = write!(
                rows,
                "<tr><td>{}</td><td class=\"n\">{} s</td><td>{}</td><td class=\"n\">{until}</td>",
                escape(&name),
                number(fault.at_s),
                escape(&fault.what)
            );
            for operation in &operations {
                let _ = write!(rows, "<td class=\"n\">{}</td>", gap(fault, operation));
            }
            rows.push_str("</tr>\n");
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let columns: String =
        operations.iter().map(|name| format!("<th class=\"n\">no {}</th>", escape(name))).collect();
    format!(
        "<div class=\"scroll wide\"><table class=\"faults\"><tr><th>row</th><th class=\"n\">at</th><th>fault</th>\
         <th class=\"n\">over at</th>{columns}</tr>\n{rows}</table></div>\n"
    )
}

/// A plot per fault.
pub fn plots(run: &RunResult) -> Vec<Plot> {
    let single = run.rows.len() == 1;
    let names = view::operation_names(run);
    let mut plots = Vec::new();
    for (row, row_name) in run.rows.iter().zip(view::row_names(run)) {
        for fault in of(row).iter().filter(|fault| !fault.around.is_empty()).take(DRAWN) {
            let series = |(colour, name): (usize, &&str)| {
                let moments = fault.around.get(*name)?;
                let key = if single { format!("o{colour}") } else { format!("f{colour}") };
                Some(Series { key, colour, name: (*name).to_owned(), lines: lines(moments) })
            };
            let series: Vec<Series> = names.iter().enumerate().filter_map(series).collect();
            let mark = |at: f64, text: &str| Mark { key: String::new(), at, text: text.to_owned() };
            let mut marks = vec![mark(fault.at_s, &fault.what)];
            marks.extend(fault.until_s.map(|until| mark(until, "the end of the fault")));
            let moments = fault.around.values().flatten().map(|moment| moment.at_s);
            let (x, y) =
                (Axis::window(moments.chain(marks.iter().map(|mark| mark.at))), latency_axis(&series));
            let what = &fault.what;
            let title = if single { what.clone() } else { format!("{row_name}: {what}") };
            plots.push(Plot { title, note: String::new(), wide: false, x, y, series, marks });
        }
    }
    plots
}

fn lines(moments: &[Moment]) -> Vec<Line> {
    let points = |value: fn(&Moment) -> f64| {
        let point =
            |moment: &Moment| (moment.at_s, if moment.count > 0 { value(moment).max(1.0) } else { f64::NAN });
        moments.iter().map(point).collect()
    };
    vec![
        Line { label: "worst".to_owned(), style: Style::Dashed, points: points(|moment| moment.max_us) },
        Line { label: "median".to_owned(), style: Style::Line, points: points(|moment| moment.p50_us) },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn each_fault_has_a_line_and_a_plot() {
        let run = sample::run();
        let text = grid(&run).print(200);
        assert!(text.contains("no write") && !text.contains("no read"), "{text}");
        assert_eq!(text.matches("pause 127.0.0.1:27018 for 2 s").count(), run.rows.len());
        assert!(text.contains("31.5 s") && text.contains("33.5 s") && text.contains("2.01 s"), "{text}");
        let plots = plots(&run);
        assert_eq!(plots.len(), run.rows.len());
        assert_eq!((plots[0].series.len(), plots[0].marks.len()), (1, 2));
        assert!(table(&run).contains("<th class=\"n\">no write</th>"));
        let calm = RunResult { rows: vec![Row::default()], ..RunResult::default() };
        assert!(grid(&calm).is_empty() && table(&calm).is_empty() && self::plots(&calm).is_empty());
    }
}
