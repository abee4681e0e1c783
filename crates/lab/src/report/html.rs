//! The page of one run.

use std::fmt::Write as _;

use super::format::{bytes, count, date, duration, escape, figure, latency, number, range, unit_text};
use super::page::document;
use super::{panels, view};
use crate::results::{Row, RunResult};
use crate::stats;

/// The whole page.
pub fn page(run: &RunResult) -> String {
    let mut body = heading(run);
    body.push_str(&verdict(run));
    body.push_str(&warnings(run));
    let _ = write!(body, "<section id=\"results\"><h2>Results</h2>{}", metrics(run));
    let bars = panels::results(run);
    if !bars.is_empty() {
        let _ = write!(
            body,
            "<p class=\"intro\">Bars are medians; each dot is one repetition.</p><div class=\"grid\">{bars}</div>"
        );
    }
    body.push_str(
        "</section>
",
    );
    body.push_str(&aims(run));
    for section in panels::sections(run) {
        let _ = write!(
            body,
            "<section id=\"{}\"><h2>{}</h2><p class=\"intro\">{}</p>
{}<div class=\"grid\">{}</div></section>
",
            section.id, section.title, section.intro, section.legend, section.body
        );
    }
    body.push_str("<h2>Details</h2>\n");
    body.push_str(&operations(run));
    body.push_str(&checks(run));
    body.push_str(&resources(run));
    body.push_str(&environment(run));
    body.push_str(&commands(run));
    document(&format!("{}: {}", run.experiment, date(run.started_ms)), &body)
}

fn heading(run: &RunResult) -> String {
    let environment = &run.environment;
    format!(
        "<h1>{}</h1><p>{}</p><p class=\"sub\">{} · {} · scale {} · {}, {} cores, {} · {}</p>\n",
        escape(&run.experiment),
        escape(&run.title),
        date(run.started_ms),
        duration(run.duration_s),
        run.scale,
        escape(&environment.cpu),
        environment.cores,
        bytes(environment.memory_bytes),
        escape(&environment.versions.iter().map(|(n, v)| format!("{n} {v}")).collect::<Vec<_>>().join(", "))
    )
}

/// Whether the figures count at all, before any of them.
fn verdict(run: &RunResult) -> String {
    let failures = view::failures(run);
    let all: usize = run.rows.iter().map(|r| view::check_counts(r).1).sum();
    if failures.is_empty() {
        return match all {
            0 => "<div class=\"banner care\"><strong>Nothing was checked</strong></div>\n".to_owned(),
            _ => format!("<div class=\"banner good\"><strong>All {all} checks passed</strong></div>\n"),
        };
    }
    let names = view::row_names(run);
    let mut html =
        "<div class=\"banner bad\"><strong>Failed: the figures below do not count</strong><ul>".to_owned();
    for failure in failures {
        let _ = write!(
            html,
            "<li>{}: <b>{}</b>: {}</li>",
            escape(&names[failure.row]),
            escape(&failure.check),
            escape(&failure.detail)
        );
    }
    html.push_str("</ul></div>\n");
    html
}

fn warnings(run: &RunResult) -> String {
    if run.warnings.is_empty() {
        return String::new();
    }
    let items: String = run.warnings.iter().map(|w| format!("<li>{}</li>", escape(w))).collect();
    format!(
        "<div class=\"banner care\"><strong>To know before reading the figures</strong><ul>{items}</ul></div>\n"
    )
}

/// More metrics than this do not stand side by side: then each has a line, and each row a column.
const MOST_COLUMNS: usize = 9;

/// The classic table: median and spread of each metric of each row.
fn metrics(run: &RunResult) -> String {
    let repetitions = run.rows.iter().map(|r| r.repetitions.len()).max().unwrap_or(0);
    let pivoted = view::pivoted(run);
    let checked = pivoted.is_none();
    let run = pivoted.as_ref().unwrap_or(run);
    let columns = view::metric_columns(run);
    let head = |(name, unit): &(&str, &str)| {
        let unit = unit_text(name, unit);
        let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
        escape(&format!("{name}{unit}"))
    };
    let verdict = |row: &Row| {
        let class = if row.passed() { "ok" } else { "failed" };
        format!("<td class=\"n {class}\">{}</td>", view::check_text(row))
    };
    let cell = |row: &Row, name: &str| format!("<td class=\"n\">{}</td>", metric_cell(row, name));
    let names = view::row_names(run);
    let mut html = "<div class=\"panel scroll\"><table class=\"metrics\">".to_owned();
    if columns.len() <= MOST_COLUMNS {
        let heads: String = columns.iter().map(|c| format!("<th class=\"n\">{}</th>", head(c))).collect();
        let _ = writeln!(
            html,
            "<tr><th>row</th>{heads}{}</tr>",
            if checked { "<th class=\"n\">checks</th>" } else { "" }
        );
        for (row, name) in run.rows.iter().zip(&names) {
            let cells: String = columns.iter().map(|(name, _)| cell(row, name)).collect();
            let _ = writeln!(
                html,
                "<tr><td>{}</td>{cells}{}</tr>",
                escape(name),
                if checked { verdict(row) } else { String::new() }
            );
        }
    } else {
        let heads: String = names.iter().map(|n| format!("<th class=\"n\">{}</th>", escape(n))).collect();
        let _ = writeln!(html, "<tr><th></th>{heads}</tr>");
        for column in &columns {
            let cells: String = run.rows.iter().map(|row| cell(row, column.0)).collect();
            let _ = writeln!(html, "<tr><td>{}</td>{cells}</tr>", head(column));
        }
        if checked {
            let cells: String = run.rows.iter().map(verdict).collect();
            let _ = writeln!(html, "<tr><td>checks</td>{cells}</tr>");
        }
    }
    html.push_str("</table></div>\n");
    let spread = if repetitions > 1 {
        format!("Medians of {repetitions} repetitions; below each, the smallest and the largest. ")
    } else {
        "One repetition: nothing is known of the spread. ".to_owned()
    };
    let targets: Vec<&str> = run.rows.iter().map(|r| r.target.as_str()).collect();
    if targets.windows(2).all(|w| w[0] == w[1]) && !targets.is_empty() {
        let _ = writeln!(html, "<p class=\"note\">{spread}Measured on {}.</p>", escape(targets[0]));
    } else {
        let _ = writeln!(html, "<p class=\"note\">{spread}</p>");
    }
    html
}

/// The figures that have an aim.
fn aims(run: &RunResult) -> String {
    let names = view::row_names(run);
    let mut rows = String::new();
    for view::Aimed { row, metric, median, aim, met } in view::aims(run) {
        let (class, word) = if met { ("ok", "met") } else { ("failed", "missed") };
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"{class}\">{word}</td></tr>",
            escape(&names[row]),
            escape(&metric.name),
            escape(&figure(median, &metric.unit)),
            escape(&figure(aim, &metric.unit))
        );
    }
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<section id=\"aims\"><h2>Aims</h2><div class=\"panel scroll\"><table class=\"checks\"><tr><th>row</th><th>figure</th>\
         <th class=\"n\">measured</th><th class=\"n\">aim</th><th></th></tr>\n{rows}</table></div></section>\n"
    )
}

fn metric_cell(row: &Row, name: &str) -> String {
    let found = row.metrics.iter().find(|m| m.name == name);
    let Some((metric, summary)) = found.and_then(|m| Some((m, stats::summary(&m.values)?))) else {
        return "-".to_owned();
    };
    let middle = escape(&figure(summary.median, &metric.unit));
    if summary.n == 1 {
        return middle;
    }
    let spread = range(summary.min, summary.max, &metric.unit, " – ");
    format!("{middle}<small>{}</small>", escape(&spread))
}

fn operations(run: &RunResult) -> String {
    let mut rows = String::new();
    for (row, row_name) in run.rows.iter().zip(view::row_names(run)) {
        for name in view::operation_names(run) {
            let counts = view::counts(row, name);
            if counts.done + counts.errors == 0 {
                continue;
            }
            let _ = write!(rows, "<tr><td>{}</td><td>{}</td>", escape(&row_name), escape(name));
            for value in [counts.done, counts.errors, counts.retries] {
                let _ = write!(rows, "<td class=\"n\">{}</td>", count(value));
            }
            match stats::merge_histograms(view::histograms(row, name)) {
                Ok(h) if !h.is_empty() => {
                    let at = |q: f64| h.value_at_quantile(q) as f64 / 1e3;
                    let values = [
                        h.mean() / 1e3,
                        h.min() as f64 / 1e3,
                        at(0.5),
                        at(0.95),
                        at(0.99),
                        at(0.999),
                        h.max() as f64 / 1e3,
                    ];
                    for value in values {
                        let _ = write!(rows, "<td class=\"n\">{}</td>", latency(value));
                    }
                }
                Ok(_) => rows.push_str(&"<td class=\"n\">-</td>".repeat(7)),
                Err(error) => {
                    let _ = write!(
                        rows,
                        "<td colspan=\"7\" class=\"failed\">{}</td>",
                        escape(&error.to_string())
                    );
                }
            }
            rows.push_str("</tr>\n");
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let heads = ["done", "errors", "retries", "mean", "min", "p50", "p95", "p99", "p99.9", "max"];
    let heads: String = heads.iter().map(|h| format!("<th class=\"n\">{h}</th>")).collect();
    format!(
        "<details open><summary>Operations, all repetitions together</summary><div class=\"scroll\">\
         <table><tr><th>row</th><th>operation</th>{heads}</tr>\n{rows}</table></div></details>\n"
    )
}

fn checks(run: &RunResult) -> String {
    let mut rows = String::new();
    for (row, row_name) in run.rows.iter().zip(view::row_names(run)) {
        for (index, repetition) in row.repetitions.iter().enumerate() {
            for check in &repetition.checks {
                let (class, word) = if check.passed { ("ok", "passed") } else { ("failed", "FAILED") };
                let _ = writeln!(
                    rows,
                    "<tr><td>{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"{class}\">{word}</td><td>{}</td></tr>",
                    escape(&row_name),
                    index + 1,
                    escape(&check.name),
                    escape(&check.detail)
                );
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let open = if run.passed() { "" } else { " open" };
    format!(
        "<details{open}><summary>Checks</summary><div class=\"scroll\"><table class=\"checks\"><tr><th>row</th>\
         <th class=\"n\">repetition</th><th>check</th><th>outcome</th><th>seen</th></tr>\n{rows}</table></div></details>\n"
    )
}

/// Processor time of generator and servers, bytes on disk, faults: per repetition.
fn resources(run: &RunResult) -> String {
    let mut rows = String::new();
    for (row, row_name) in run.rows.iter().zip(view::row_names(run)) {
        for (index, r) in row.repetitions.iter().enumerate() {
            let share =
                |cpu: f64| format!("{} s ({} %)", number(cpu), number(100.0 * cpu / r.seconds.max(1e-9)));
            let disk: Vec<String> =
                r.disk_bytes.iter().map(|(n, b)| format!("{} {}", escape(n), bytes(*b))).collect();
            let faults: Vec<String> =
                r.faults.iter().map(|f| format!("{} s: {}", number(f.at_s), escape(&f.what))).collect();
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{} s</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
                 <td>{}</td><td>{}</td></tr>",
                escape(&row_name),
                index + 1,
                number(r.seconds),
                share(r.client_cpu_s),
                r.server_cpu_s.map_or("-".to_owned(), share),
                disk.join("<br>"),
                faults.join("<br>")
            );
        }
    }
    format!(
        "<details><summary>Processor time, disk, faults</summary><div class=\"scroll\"><table><tr><th>row</th>\
         <th class=\"n\">repetition</th><th class=\"n\">measured</th><th class=\"n\">processor time of the load generator</th>\
         <th class=\"n\">of the servers</th><th>on disk at the end</th><th>faults</th></tr>\n{rows}</table></div></details>\n"
    )
}

fn environment(run: &RunResult) -> String {
    let e = &run.environment;
    let mut pairs = vec![
        ("processor".to_owned(), e.cpu.clone()),
        ("logical processors".to_owned(), e.cores.to_string()),
        ("memory".to_owned(), bytes(e.memory_bytes)),
        ("kernel".to_owned(), e.kernel.clone()),
        ("file system of the data".to_owned(), e.filesystem.clone()),
        ("device of the data".to_owned(), e.disk.clone()),
        ("median of write+fdatasync".to_owned(), latency(e.fsync_us)),
        ("load average at the start".to_owned(), number(e.load)),
    ];
    pairs.extend(e.versions.iter().map(|(name, version)| (format!("version of {name}"), version.clone())));
    pairs.extend(run.settings.iter().map(|(key, value)| (format!("--set {key}"), value.clone())));
    let rows: String = pairs
        .iter()
        .map(|(name, value)| format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(name), escape(value)))
        .collect();
    format!(
        "<details open><summary>Environment</summary><table class=\"environment\">{rows}</table></details>\n"
    )
}

fn commands(run: &RunResult) -> String {
    if run.commands.is_empty() {
        return String::new();
    }
    let mut lines = String::new();
    for command in &run.commands {
        let to = match command.to.as_str() {
            "shell" => "$".to_owned(),
            "fault" => "#".to_owned(),
            node => format!("{node}>"),
        };
        let _ = writeln!(
            lines,
            "<span class=\"to\">{} </span><span class=\"text\">{}</span>",
            escape(&to),
            escape(&command.text)
        );
    }
    format!(
        "<details open><summary>Commands, to repeat the run by hand</summary><pre data-copy>{lines}</pre></details>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn every_section_is_there_and_has_a_series_per_row() {
        let run = sample::run();
        let html = page(&run);
        for id in ["results", "throughput", "time", "percentiles", "calls", "steps", "servers"] {
            assert!(html.contains(&format!("<section id=\"{id}\">")), "{id}");
            let from = html.find(&format!("<section id=\"{id}\">")).unwrap();
            let section = &html[from..from + html[from..].find("</section>").unwrap()];
            let rows = (0..run.rows.len())
                .filter(|i| section.contains(&format!("data-row=\"{i}\" data-name")))
                .count();
            if id != "results" {
                assert_eq!(rows, run.rows.len(), "{id}");
            }
        }
        assert!(!html.contains("NaN") && !html.contains("inf "), "a figure that is none was drawn");
        assert!(!html.contains("http://") || html.matches("http://").count() == 1, "only the name of SVG");
        assert!(!html.contains("https://") && !html.contains("src=\""));
    }

    #[test]
    fn the_operations_of_a_single_row_share_a_plot() {
        let mut run = sample::run();
        run.rows.truncate(1);
        let html = page(&run);
        let from = html.find("<section id=\"percentiles\">").unwrap();
        let section = &html[from..from + html[from..].find("</section>").unwrap()];
        assert_eq!(section.matches("<figure").count(), 1);
        assert_eq!(section.matches("class=\"series").count(), 2);
        assert!(section.contains(">write</button>") && section.contains(">read</button>"));
    }

    #[test]
    fn many_metrics_stand_below_each_other() {
        let mut run = sample::run();
        let metric = run.rows[0].metrics[0].clone();
        for i in 0..12 {
            run.rows[0]
                .metrics
                .push(crate::results::Metric { name: format!("further {i}"), ..metric.clone() });
        }
        let html = page(&run);
        assert!(html.contains("<tr><td>further 11 (MB/s)</td><td class=\"n\">"));
        assert!(html.contains("<tr><td>checks</td>"));
    }

    #[test]
    fn groups_of_metrics_have_no_checks_of_their_own() {
        let mut run = sample::run();
        run.rows.truncate(1);
        let metric = run.rows[0].metrics[0].clone();
        let named = |i: usize| crate::results::Metric {
            name: format!("{}: m{}", ["A", "B"][i % 2], i / 2),
            ..metric.clone()
        };
        run.rows[0].metrics = (0..24).map(named).collect();
        let html = page(&run);
        assert!(html.contains("<tr><td>m11 (MB/s)</td><td class=\"n\">"));
        assert!(!html.contains("<tr><td>checks</td>"));
    }

    #[test]
    fn a_run_of_a_second_has_no_course_of_time() {
        let mut run = sample::run();
        for repetition in run.rows.iter_mut().flat_map(|r| &mut r.repetitions) {
            repetition.operations.iter_mut().for_each(|o| o.series.truncate(2));
        }
        let html = page(&run);
        assert!(!html.contains("<section id=\"throughput\">") && !html.contains("<section id=\"time\">"));
        assert!(html.contains("<section id=\"percentiles\">"));
    }

    #[test]
    fn texts_are_escaped() {
        let mut run = sample::run();
        let evil = "<script>alert(1)</script>\"'&";
        run.experiment = evil.into();
        run.title = evil.into();
        run.warnings.push(evil.into());
        run.rows[0].name = evil.into();
        run.rows[0].failed = Some(evil.into());
        run.rows[0].metrics[0].name = evil.into();
        run.rows[0].metrics[0].unit = evil.into();
        run.environment.cpu = evil.into();
        run.environment.versions.insert(evil.into(), evil.into());
        run.commands[0].text = evil.into();
        let repetition = &mut run.rows[0].repetitions[0];
        repetition.operations[0].name = evil.into();
        repetition.checks[0].name = evil.into();
        repetition.checks[0].detail = evil.into();
        repetition.servers[0].node = evil.into();
        repetition.disk_bytes.insert(evil.into(), 1);
        for fault in &mut repetition.faults {
            fault.what = evil.into();
        }
        let html = page(&run);
        assert!(!html.contains("<script>alert"));
        assert!(!html.contains("\"'&\""), "an attribute was broken open");
    }

    #[test]
    fn empty_runs_have_a_page() {
        let html = page(&RunResult::default());
        assert!(html.contains("Nothing was checked"));
        let run = RunResult { rows: vec![Row::default()], ..RunResult::default() };
        assert!(page(&run).contains("</html>"));
    }

    #[test]
    fn failures_stand_first() {
        let html = page(&sample::failed_run());
        let banner = html.find("the figures below do not count").unwrap();
        assert!(banner < html.find("<section").unwrap());
        assert!(html.contains("999,900 instead of 1,000,000"));
    }
}
