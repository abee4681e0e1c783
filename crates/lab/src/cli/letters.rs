//! `--workload`: which of the workloads that have letters for names.

use crate::error::{Error, Result};
use crate::experiment::{Experiment, Overrides};

/// The last of YCSB's workloads; the first is `a`.
const LAST: char = 'f';

/// The letters that are asked for, each once, in order: `b`, `a,c`, `a..d`, `all`, and any of these together.
fn letters(texts: &[String]) -> Result<Vec<char>> {
    let mut wanted = Vec::new();
    for part in texts.iter().flat_map(|text| text.split(',')) {
        let part = part.trim().to_ascii_lowercase();
        let (first, last) = match part.split_once("..") {
            _ if part == "all" => ('a', LAST),
            Some((first, last)) => (letter(first)?, letter(last)?),
            None => (letter(&part)?, letter(&part)?),
        };
        if first > last {
            return Err(Error::usage(format!("--workload {part}: ends before it begins")));
        }
        wanted.extend(first..=last);
    }
    wanted.sort_unstable();
    wanted.dedup();
    Ok(wanted)
}

fn letter(text: &str) -> Result<char> {
    let mut letters = text.trim().chars();
    match (letters.next(), letters.next()) {
        (Some(letter @ 'a'..=LAST), None) => Ok(letter),
        _ => Err(Error::usage(format!(
            "--workload: there is no workload \"{text}\"; say a to {LAST}, several as a,c or a..d, or all"
        ))),
    }
}

/// Leaves only these workloads in an experiment that has several.
pub(super) fn choose(texts: &[String], experiment: &mut Experiment, overrides: &mut Overrides) -> Result<()> {
    if texts.is_empty() {
        return Ok(());
    }
    let wanted = letters(texts)?;
    if experiment.settings.contains_key("workloads") {
        return overrides.add(&format!("workloads={}", wanted.into_iter().collect::<String>()));
    }
    let Some(axis) = experiment.matrix.iter_mut().find(|axis| axis.axis == "workload") else {
        return Err(Error::usage(format!(
            "--workload: {} is one workload by itself; ycsb and at-size have several",
            experiment.name
        )));
    };
    axis.values
        .retain(|value| wanted.iter().any(|letter| value.name.eq_ignore_ascii_case(&letter.to_string())));
    if axis.values.is_empty() {
        return Err(Error::usage(format!("--workload: {} has none of these", experiment.name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Result<String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        letters(&texts).map(|letters| letters.into_iter().collect())
    }

    #[test]
    fn letters_come_alone_in_lists_and_in_ranges() {
        assert_eq!(of(&["b"]).unwrap(), "b");
        assert_eq!(of(&["a,c", "C"]).unwrap(), "ac");
        assert_eq!(of(&["a..d,f"]).unwrap(), "abcdf");
        assert_eq!(of(&["all"]).unwrap(), "abcdef");
        for wrong in ["g", "", "a,", "ab", "d..b", "a..g", "1"] {
            assert!(of(&[wrong]).unwrap_err().to_string().starts_with("--workload"), "{wrong}");
        }
    }

    #[test]
    fn an_experiment_keeps_the_rows_that_are_asked_for() {
        let chosen = |name: &str, text: &str| {
            let (mut experiment, mut overrides) = (Experiment::open(name)?, Overrides::default());
            choose(&[text.to_owned()], &mut experiment, &mut overrides)?;
            let rows = experiment.variations(&overrides)?;
            Ok::<_, Error>(rows.into_iter().map(|row| row.name).collect::<Vec<_>>())
        };
        assert_eq!(chosen("ycsb", "c,e..f").unwrap(), ["C", "E", "F"]);
        assert!(chosen("bank", "a").unwrap_err().to_string().contains("by itself"));
        assert!(chosen("ycsb", "x").is_err());
    }

    #[test]
    fn each_row_is_what_the_experiment_of_its_letter_is() {
        let rows = Experiment::open("ycsb").unwrap().variations(&Overrides::default()).unwrap();
        assert_eq!(rows.len(), 6);
        for row in rows {
            let own = Experiment::open(&format!("ycsb-{}", row.name.to_lowercase())).unwrap();
            let own = own.variations(&Overrides::default()).unwrap().remove(0);
            assert_eq!((row.settings, row.phases), (own.settings, own.phases), "{}", row.name);
        }
    }
}
