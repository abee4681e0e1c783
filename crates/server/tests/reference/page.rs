//! Pages that say of each name of MongoDB's manual what there is of it: the names, and what is known of limits, come from a table in
//! this folder; what is there is asked of the code.

use std::fmt::Write;
use std::fs;

/// What a table says of a name.
enum Note<'a> {
    Nothing,
    /// It is there, but not all of it.
    Limits(&'a str),
    /// It has no sense here.
    None(&'a str),
    /// It is known, and every use of it refused.
    Refused(&'a str),
}

/// Whether the code knows a name; if not, how it answers.
pub type Known = Result<(), String>;

/// How many names of a section are in which state.
#[derive(Default)]
struct Counts {
    there: usize,
    limits: usize,
    missing: usize,
    senseless: usize,
}

fn note<'a>(name: &str, text: &'a str) -> Note<'a> {
    match text.split_once(": ") {
        None if text.is_empty() => Note::Nothing,
        Some(("limits", text)) => Note::Limits(text),
        Some(("none", text)) => Note::None(text),
        Some(("refused", text)) => Note::Refused(text),
        _ => panic!("{name}: {text}"),
    }
}

/// A cell of the page; where table and code differ, what is wrong.
fn state(name: &str, note: &Note<'_>, known: &Known, counts: &mut Counts) -> Result<String, String> {
    let (count, cell) = match (note, known) {
        (Note::Nothing, Ok(())) => (&mut counts.there, "yes".to_owned()),
        (Note::Nothing, Err(answer)) => (&mut counts.missing, format!("no ({answer})")),
        (Note::Limits(what), Ok(())) => (&mut counts.limits, format!("with limits: {what}")),
        (Note::Refused(what), Ok(())) => (&mut counts.senseless, format!("refused: {what}")),
        (Note::None(why), Err(answer)) => {
            (&mut counts.senseless, format!("not applicable: {why} ({answer})"))
        }
        (Note::Limits(_) | Note::Refused(_), Err(answer)) => {
            return Err(format!("{name} has limits in the table, and the code says: {answer}"));
        }
        (Note::None(_), Ok(())) => {
            return Err(format!("{name} has no sense in the table, and the code knows it"));
        }
    };
    *count += 1;
    Ok(cell)
}

/// One section of a table: its title, the word of its probe, its lines.
struct Section<'a> {
    title: &'a str,
    probe: &'a str,
    lines: Vec<&'a str>,
}

fn sections(table: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if let Some(head) = line.strip_prefix("== ") {
            let (title, probe) = head.split_once(" | ").expect("a title and a probe");
            sections.push(Section { title, probe, lines: Vec::new() });
        } else {
            sections.last_mut().expect("a section").lines.push(line);
        }
    }
    sections
}

/// The page, and what is wrong. `known` says for a section's probe whether the code knows a name, `others` what names it knows there at all.
fn page(
    head: &str,
    table: &str,
    mut known: impl FnMut(&str, &str) -> Known,
    mut others: impl FnMut(&str) -> Vec<String>,
) -> (String, Vec<String>) {
    let (mut wrong, mut body, mut unnamed) = (Vec::new(), String::new(), String::new());
    let mut overview =
        "| | yes | with limits | no | not applicable, or refused |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for Section { title, probe, lines } in sections(table) {
        let mut counts = Counts::default();
        writeln!(body, "\n## {title}\n\n| name | state |\n| --- | --- |").unwrap();
        let mut names = Vec::new();
        for line in lines {
            let (name, text) = line.split_once(" | ").unwrap_or((line, ""));
            match state(name, &note(name, text), &known(probe, name), &mut counts) {
                Ok(cell) => writeln!(body, "| `{name}` | {cell} |").unwrap(),
                Err(text) => wrong.push(format!("{title}: {text}")),
            }
            names.push(name);
        }
        let Counts { there, limits, missing, senseless } = counts;
        writeln!(overview, "| {title} | {there} | {limits} | {missing} | {senseless} |").unwrap();
        let mut own: Vec<_> =
            others(probe).into_iter().filter(|name| !names.contains(&name.as_str())).collect();
        own.sort();
        if !own.is_empty() {
            writeln!(
                unnamed,
                "- {title}: {}",
                own.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
            )
            .unwrap();
        }
    }
    if !unnamed.is_empty() {
        unnamed.insert_str(0, "\n## Known here, and not named there\n\nWhat is internal, of tests, an older spelling, or our own.\n\n");
    }
    (format!("{head}\n{overview}{body}{unnamed}"), wrong)
}

/// Compares the page with the file that has it; with `UPDATE` in the environment the file is written anew.
pub fn check(
    (file, head, table): (&str, &str, &str),
    known: impl FnMut(&str, &str) -> Known,
    others: impl FnMut(&str) -> Vec<String>,
) {
    let (page, wrong) = page(head, table, known, others);
    assert!(wrong.is_empty(), "table and code differ:\n{}", wrong.join("\n"));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file, &page).unwrap();
    }
    let kept = fs::read_to_string(file).unwrap_or_default();
    let differs = page.lines().zip(kept.lines()).find(|(now, then)| now != then);
    assert_eq!(kept, page, "{file} is old; the first line that differs: {differs:?}");
}
