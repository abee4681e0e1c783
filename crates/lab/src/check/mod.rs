//! Checkers of histories: what clients saw, against what a database that keeps its word could have shown them.
//!
//! They are pure: a history goes in, anomalies come out. Workloads record the histories, `tests` plant one anomaly of each
//! kind. What cannot be known (a write whose answer never came) is never an anomaly by itself.

mod cycles;
pub mod durability;
mod graph;
pub mod list_append;
pub mod members;
pub mod register;
pub mod stream;

use std::fmt;

use crate::results::Check;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// Its name: "G1a", "lost update", "event twice".
    pub kind: &'static str,
    /// What was seen.
    pub text: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// Anomalies shown in words by [`check`]; of the rest only the number.
const SHOWN: usize = 3;

/// The check that passes when there is no anomaly; `fine` is what it says then.
pub fn check(name: &str, anomalies: &[Anomaly], fine: impl Into<String>) -> Check {
    let mut detail = fine.into();
    if !anomalies.is_empty() {
        // One of each kind first: they tell more than the same thing again.
        let mut shown: Vec<&Anomaly> = Vec::new();
        for anomaly in anomalies {
            if shown.len() < SHOWN && shown.iter().all(|other| other.kind != anomaly.kind) {
                shown.push(anomaly);
            }
        }
        let texts: Vec<String> = shown.iter().map(ToString::to_string).collect();
        detail = format!("{} anomalies: {}", anomalies.len(), texts.join("; "));
    }
    Check { name: name.to_owned(), passed: anomalies.is_empty(), detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_shows_one_of_each_kind() {
        let anomaly = |kind, text: &str| Anomaly { kind, text: text.to_owned() };
        assert!(check("x", &[], "all fine").passed);
        let found = [anomaly("a", "1"), anomaly("a", "2"), anomaly("b", "3")];
        let check = check("x", &found, "all fine");
        assert_eq!((check.passed, check.detail.as_str()), (false, "3 anomalies: a: 1; b: 3"));
    }
}
