//! When a member tells its primary how far it is.

/// How long a primary has its members tell it what they have applied, after somebody has waited for that.
const WANTED_MILLIS: u64 = 10_000;

/// When a member tells its primary how far it is: at once, as long as somebody waits for what is applied and not yet on disk. Else the
/// acknowledgement of what is on disk says nearly all of it, and the rest has time until the next tick.
#[derive(Default)]
pub struct Reporting {
    /// Something is to be told at once, or with the next tick.
    due: bool,
    late: bool,
    /// The primary has said that nobody waits for what is only applied.
    quiet: bool,
    /// The term in which a primary's entries were last acknowledged, and up to where.
    answered: (u64, u64),
    /// As a primary: until when somebody may.
    wanted_until: u64,
}

impl Reporting {
    /// This member has come further.
    pub fn note(&mut self) {
        match self.quiet {
            true => self.late = true,
            false => self.due = true,
        }
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        self.due |= self.late;
    }

    /// Whether the primary is to be told, which it is then.
    pub fn take(&mut self) -> bool {
        let due = std::mem::take(&mut self.due);
        self.late &= !due;
        due
    }

    /// What the primary has said with its last entries.
    pub fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
        self.due |= !quiet && self.late;
    }

    /// An acknowledgement of everything up to `index` in this term. Whether it says something new.
    pub fn answer(&mut self, term: u64, index: u64) -> bool {
        let is_new = self.answered < (term, index);
        self.answered = self.answered.max((term, index));
        is_new
    }

    /// Somebody waits for what other members have applied.
    pub fn want(&mut self, now: u64) {
        self.wanted_until = now + WANTED_MILLIS;
    }

    /// Whether somebody has waited for that lately.
    pub fn is_wanted(&self, now: u64) -> bool {
        now < self.wanted_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_is_told_with_the_next_tick() {
        let mut reporting = Reporting::default();
        reporting.note();
        assert!(reporting.take() && !reporting.take());
        reporting.set_quiet(true);
        reporting.note();
        assert!(!reporting.take());
        reporting.tick();
        assert!(reporting.take());
        reporting.tick();
        assert!(!reporting.take(), "it is told once");
        reporting.note();
        reporting.set_quiet(false);
        assert!(reporting.take(), "somebody waits for it now");
    }

    #[test]
    fn what_was_acknowledged_is_known() {
        let mut reporting = Reporting::default();
        assert!(reporting.answer(1, 7) && reporting.answer(1, 8) && reporting.answer(2, 3));
        assert!(!reporting.answer(2, 3) && !reporting.answer(2, 2) && reporting.answer(2, 4));
    }

    #[test]
    fn reports_are_wanted_for_a_while_after_a_wait() {
        let mut reporting = Reporting::default();
        assert!(!reporting.is_wanted(0));
        reporting.want(500);
        assert!(reporting.is_wanted(500 + WANTED_MILLIS - 1) && !reporting.is_wanted(500 + WANTED_MILLIS));
    }
}
