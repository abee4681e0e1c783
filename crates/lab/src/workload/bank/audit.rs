//! What must be true of a bank: during the run of its total, afterwards of every account and every transfer.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::{Outcome, Transfer};
use crate::results::Check;

/// The looks at the total while transfers are made.
#[derive(Debug, Default)]
pub(super) struct Watch(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    count: u64,
    wrong: u64,
    first: Option<String>,
    expected: i64,
}

impl Watch {
    /// A look at all accounts in one snapshot.
    pub fn saw(&self, right: bool, accounts: u64, total: i64, expected: i64) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.count += 1;
        looks.expected = expected;
        if !right {
            looks.wrong += 1;
            let text =
                format!("{total} in {accounts} accounts instead of {expected} at look {}", looks.count);
            looks.first.get_or_insert(text);
        }
    }

    pub fn check(&self) -> Check {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Check {
            name: "total balance during the run".to_owned(),
            // Not to have looked is not to have checked.
            passed: looks.wrong == 0 && looks.count > 0,
            detail: match &looks.first {
                Some(first) => format!("wrong at {} of {} looks: {first}", looks.wrong, looks.count),
                None => format!("{} at each of {} looks", looks.expected, looks.count),
            },
        }
    }
}

/// What the clients were told, by client and in the order of each client's transfers.
#[derive(Debug, Default)]
pub(super) struct Books(BTreeMap<u32, Vec<(Transfer, Told)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Made,
    Refused,
    /// The attempt ended with an error: it may have been made or not.
    Open,
}

impl Books {
    /// Notes how a transfer ended; `None` for an error. Each client's numbers must come in order, without gaps.
    pub fn note(&mut self, transfer: Transfer, outcome: Option<&Outcome>) {
        let told = match outcome {
            Some(Outcome::Made(_)) => Told::Made,
            Some(Outcome::Refused(_)) => Told::Refused,
            None => Told::Open,
        };
        self.0.entry((transfer.id >> 32) as u32).or_default().push((transfer, told));
    }

    fn find(&self, id: i64) -> Option<&(Transfer, Told)> {
        self.0.get(&((id >> 32) as u32))?.get((id & 0xffff_ffff) as usize)
    }
}

/// What the database holds after the run.
pub(super) struct Ledger {
    opening: i64,
    balances: Vec<Option<i64>>,
    /// What the transfer records say came and went.
    changes: Vec<i64>,
    /// Records by id: how often.
    records: BTreeMap<i64, u32>,
    strange: Problems,
}

/// Findings: how many, and the first in words.
#[derive(Default)]
struct Problems(u64, Option<String>);

impl Problems {
    fn add(&mut self, what: impl FnOnce() -> String) {
        self.0 += 1;
        self.1.get_or_insert_with(what);
    }

    fn check(self, name: &str, fine: String) -> Check {
        let detail = match &self.1 {
            None => fine,
            Some(first) if self.0 == 1 => first.clone(),
            Some(first) => format!("{first}; {} findings in all", self.0),
        };
        Check { name: name.to_owned(), passed: self.0 == 0, detail }
    }
}

impl Ledger {
    pub fn new(accounts: u64, opening: i64) -> Ledger {
        let accounts = accounts as usize;
        Ledger {
            opening,
            balances: vec![None; accounts],
            changes: vec![0; accounts],
            records: BTreeMap::new(),
            strange: Problems::default(),
        }
    }

    /// Takes in an account that was read.
    pub fn balance(&mut self, account: i64, balance: i64) {
        match usize::try_from(account).ok().and_then(|at| self.balances.get_mut(at)) {
            Some(slot @ None) => *slot = Some(balance),
            Some(Some(_)) => self.strange.add(|| format!("account {account} is there twice")),
            None => self.strange.add(|| format!("account {account} was never opened")),
        }
    }

    /// Takes in a transfer record that was read.
    pub fn transfer(&mut self, books: &Books, record: Transfer) {
        *self.records.entry(record.id).or_default() += 1;
        match books.find(record.id) {
            None => self.strange.add(|| format!("transfer record {} was never written", record.id)),
            Some((wanted, _)) if *wanted != record => {
                self.strange.add(|| format!("transfer record {} is not what was written", record.id));
            }
            Some((_, Told::Refused)) => {
                self.strange.add(|| format!("transfer {} was refused, but has a record", record.id));
            }
            Some(_) => {}
        }
        for (account, change) in [(record.from, -record.amount), (record.to, record.amount)] {
            match usize::try_from(account).ok().and_then(|at| self.changes.get_mut(at)) {
                Some(sum) => *sum += change,
                None => self.strange.add(|| format!("transfer record {} names no account", record.id)),
            }
        }
    }

    /// The invariants.
    pub fn checks(self, books: &Books) -> Vec<Check> {
        let accounts = self.balances.len();
        let total: i64 = self.balances.iter().flatten().sum();
        let expected = accounts as i64 * self.opening;
        let mut sum = Problems::default();
        if total != expected {
            sum.add(|| format!("{total} instead of {expected}"));
        }
        let (mut exact, mut overdrawn) = (Problems::default(), Problems::default());
        for (account, (balance, change)) in self.balances.iter().zip(&self.changes).enumerate() {
            let should = self.opening + change;
            match balance {
                None => exact.add(|| format!("account {account} is missing")),
                Some(is) if *is != should => {
                    exact.add(|| format!("account {account} holds {is}, its transfers give {should}"));
                }
                Some(_) => {}
            }
            if let Some(is) = balance.filter(|is| *is < 0) {
                overdrawn.add(|| format!("account {account} holds {is}"));
            }
        }
        let mut told = self.strange;
        let mut made = 0u64;
        for (transfer, _) in books.0.values().flatten().filter(|(_, told)| *told == Told::Made) {
            made += 1;
            match self.records.get(&transfer.id) {
                None => told.add(|| format!("transfer {} was acknowledged, but has no record", transfer.id)),
                Some(1) => {}
                Some(n) => told.add(|| format!("transfer {} has {n} records", transfer.id)),
            }
        }
        vec![
            sum.check("total balance", format!("{total} in {accounts} accounts")),
            exact.check(
                "balances by transfer records",
                format!("{} records give every balance", self.records.len()),
            ),
            overdrawn.check("no account overdrawn", format!("{accounts} accounts hold 0 or more")),
            told.check("acknowledged transfers", format!("all {made} have one record each")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::transfer_id;
    use super::*;

    fn transfer(number: u32, from: i64, to: i64, amount: i64) -> Transfer {
        Transfer { id: transfer_id(3, number), from, to, amount }
    }

    /// Three accounts of 100; a transfer made, one refused, one open.
    fn books() -> (Books, [Transfer; 3]) {
        let transfers = [transfer(0, 0, 1, 30), transfer(1, 2, 0, 500), transfer(2, 1, 2, 5)];
        let mut books = Books::default();
        books.note(transfers[0], Some(&Outcome::Made(2)));
        books.note(transfers[1], Some(&Outcome::Refused(0)));
        books.note(transfers[2], None);
        (books, transfers)
    }

    fn failing(balances: &[(i64, i64)], records: &[Transfer]) -> Vec<String> {
        let (books, _) = books();
        let mut ledger = Ledger::new(3, 100);
        balances.iter().for_each(|&(account, balance)| ledger.balance(account, balance));
        records.iter().for_each(|record| ledger.transfer(&books, *record));
        ledger.checks(&books).into_iter().filter(|c| !c.passed).map(|c| c.name).collect()
    }

    #[test]
    fn a_right_ledger_passes_with_and_without_the_open_transfer() {
        let (_, [made, _, open]) = books();
        assert!(failing(&[(0, 70), (1, 130), (2, 100)], &[made]).is_empty());
        assert!(failing(&[(2, 105), (0, 70), (1, 125)], &[open, made]).is_empty());
    }

    #[test]
    fn every_way_to_be_wrong_is_found_by_its_check() {
        let (_, [made, refused, open]) = books();
        let right = [(0, 70), (1, 130), (2, 100)];
        let by_records = "balances by transfer records";
        // Money that appeared; money that moved without a record; a record without money.
        assert_eq!(failing(&[(0, 71), (1, 130), (2, 100)], &[made]), ["total balance", by_records]);
        assert_eq!(failing(&[(0, 69), (1, 131), (2, 100)], &[made]), [by_records]);
        assert_eq!(failing(&right, &[made, open]), [by_records]);
        // An acknowledged transfer that is gone altogether.
        assert_eq!(failing(&[(0, 100), (1, 100), (2, 100)], &[]), ["acknowledged transfers"]);
        assert!(failing(&right, &[made, made]).contains(&"acknowledged transfers".to_owned()));
        assert!(failing(&right, &[made, refused]).contains(&"acknowledged transfers".to_owned()));
        let other = Transfer { amount: 29, ..made };
        assert!(failing(&right, &[other]).contains(&"acknowledged transfers".to_owned()));
        let unknown = transfer(9, 0, 1, 0);
        assert_eq!(failing(&right, &[made, unknown]), ["acknowledged transfers"]);
        assert_eq!(failing(&[(0, 70), (1, 130)], &[made]), ["total balance", by_records]);
        assert!(
            failing(&[(0, -70), (1, 270), (2, 100)], &[made]).contains(&"no account overdrawn".to_owned())
        );
    }

    #[test]
    fn a_watch_that_never_looked_does_not_pass() {
        let watch = Watch::default();
        assert!(!watch.check().passed);
        watch.saw(true, 3, 300, 300);
        assert!(watch.check().passed);
        watch.saw(false, 3, 301, 300);
        watch.saw(true, 3, 300, 300);
        let check = watch.check();
        assert!(
            !check.passed && check.detail.contains("1 of 3") && check.detail.contains("301"),
            "{}",
            check.detail
        );
    }
}
