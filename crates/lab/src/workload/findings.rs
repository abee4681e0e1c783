//! What goes wrong while a workload runs, counted, with the first of it in words.

use std::sync::{Mutex, PoisonError};

use crate::results::Check;

/// Findings of all clients.
#[derive(Debug, Default)]
pub(super) struct Findings(Mutex<(u64, Option<String>)>);

impl Findings {
    /// Something is not as it must be.
    pub fn add(&self, what: impl Into<String>) {
        let mut findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        findings.0 += 1;
        findings.1.get_or_insert(what.into());
    }

    /// The check that passes when there were none; `fine` is what it says then.
    pub fn check(&self, name: &str, fine: impl Into<String>) -> Check {
        let findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Check {
            name: name.to_owned(),
            passed: findings.0 == 0,
            detail: match &findings.1 {
                None => fine.into(),
                Some(first) if findings.0 == 1 => first.clone(),
                Some(first) => format!("{first}; {} findings in all", findings.0),
            },
        }
    }
}
