//! How regularly words come from the primary.

/// Spans of time whose longest silences are remembered.
const SPANS: usize = 8;

/// Milliseconds of such a span.
const SPAN_MILLIS: u64 = 15_000;

/// The two longest silences, the longest first: what has happened once is no habit.
type Longest = [u64; 2];

fn note(longest: &mut Longest, silence: u64) {
    if silence > longest[0] {
        *longest = [silence, longest[0]];
    } else {
        longest[1] = longest[1].max(silence);
    }
}

/// How regularly words come from the primary, whoever that is. Time that this member slept through counts little: words may have come
/// that it has not read.
#[derive(Default)]
pub struct Listening {
    /// The primary that is listened to, and its term.
    to: Option<(u64, u64)>,
    /// Since when, and since its last word.
    heard_for: u64,
    silence: u64,
    /// How long the silence was when it was asked last.
    asked_at: u64,
    /// It has been found silent.
    told: bool,
    /// The longest silences that a word has ended, in this span of time and those before it; and how long this one lasts.
    longest: [Longest; SPANS],
    span: u64,
    /// Those after which it is not clear yet that the primary stays one; for how long it has said something all the time since, and for how
    /// long it has stayed one however it spoke.
    fresh: Longest,
    stayed: u64,
    settling: u64,
}

impl Listening {
    /// Time has passed for who listens to the primary of this term.
    pub fn pass(&mut self, to: (u64, u64), millis: u64) {
        if self.to != Some(to) {
            // What a primary leaves unsaid in the end tells nothing of the links, nor what it was still heard to say when another was
            // elected already; what was learned before does.
            *self =
                Listening { to: Some(to), longest: self.longest, span: self.span, ..Listening::default() };
        }
        self.heard_for += millis;
        self.silence += millis;
        self.span += millis;
        if self.span >= SPAN_MILLIS {
            self.span = 0;
            self.longest.rotate_right(1);
            self.longest[0] = Longest::default();
        }
    }

    /// There is nobody to listen to.
    pub fn stop(&mut self) {
        self.to = None;
    }

    /// The member has said something. `timeout` is the election time-out.
    pub fn heard(&mut self, from: u64, timeout: u64) {
        if self.to.is_some_and(|(to, _)| to == from) {
            let before = self.fresh;
            note(&mut self.fresh, self.silence);
            // Shorter ones do not count.
            self.stayed = if self.silence < timeout / 25 { self.stayed + self.silence } else { 0 };
            self.settling = if self.fresh == before { self.settling + self.silence } else { 0 };
            // Who always speaks seldom settles nothing by speaking often.
            if self.stayed >= timeout / 4 || self.settling >= SPAN_MILLIS.max(timeout) {
                for silence in std::mem::take(&mut self.fresh) {
                    note(&mut self.longest[0], silence);
                }
            }
            (self.silence, self.asked_at, self.told) = (0, 0, false);
        }
    }

    /// Whether the primary is to be asked for a word, as it has said nothing for another `every` milliseconds.
    pub fn is_to_ask(&mut self, every: u64) -> bool {
        let due = self.silence >= self.asked_at + every;
        if due {
            self.asked_at = self.silence;
        }
        due
    }

    /// Whether the primary has been silent for much longer than it usually is, and this was not told before. `timeout` is the election
    /// time-out.
    pub fn has_fallen_silent(&mut self, timeout: u64) -> bool {
        let is_news = !self.told && self.heard_for >= timeout / 4 && self.silence >= self.patience(timeout);
        self.told |= is_news;
        is_news
    }

    /// The longest silence that means nothing: two and a half times what was usual lately, and a tenth of the time-out at the least. One
    /// silence alone makes it no longer than a fifth of the time-out, several make it half of that at the most: whoever is silent for
    /// seconds now and then is better replaced than waited for.
    fn patience(&self, timeout: u64) -> u64 {
        let mut usual = self.fresh;
        self.longest.iter().flatten().for_each(|silence| note(&mut usual, *silence));
        let [once, again] = usual.map(|silence| silence * 5 / 2);
        once.min(timeout / 5).max(again.min(timeout / 2)).max(timeout / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 10_000;

    /// Listens to member 1 for so long, which says something every `every` milliseconds. Whether it was ever found silent.
    fn listen(listening: &mut Listening, millis: u64, every: u64) -> bool {
        let mut silent = false;
        for at in (50..=millis).step_by(50) {
            listening.pass((1, 1), 50);
            if at % every == 0 {
                listening.heard(1, TIMEOUT);
            }
            silent |= listening.has_fallen_silent(TIMEOUT);
        }
        silent
    }

    /// How long it takes to find it silent.
    fn until_silent(listening: &mut Listening) -> u64 {
        (50..=20_000).step_by(50).find(|_| listen(listening, 50, u64::MAX)).unwrap()
    }

    #[test]
    fn patience_is_learned_and_forgotten() {
        let mut listening = Listening::default();
        assert!(!listen(&mut listening, 60_000, 250));
        assert_eq!(until_silent(&mut listening), 1000);
        assert!(!listen(&mut listening, 1000, u64::MAX), "it is told once");
        // It was not gone. But once is no habit.
        listening.heard(1, TIMEOUT);
        assert!(!listen(&mut listening, 5000, 250));
        assert_eq!(until_silent(&mut listening), 2000);
        listening.heard(1, TIMEOUT);
        // Now that is what happens here.
        assert!(!listen(&mut listening, 4000, 2000));
        assert_eq!(until_silent(&mut listening), 5000, "never longer than that");
        listening.heard(1, TIMEOUT);
        listen(&mut listening, 30_400, 800);
        assert_eq!(until_silent(&mut listening), 5000);
        listening.heard(1, TIMEOUT);
        listen(&mut listening, 150_000, 250);
        assert_eq!(until_silent(&mut listening), 1000);
    }

    /// Where words come seldom all the time, what was unusual among them is forgotten as anywhere else.
    #[test]
    fn patience_is_forgotten_where_words_are_seldom() {
        let mut listening = Listening::default();
        assert!(!listen(&mut listening, 60_000, 500));
        for _ in 0..2 {
            listen(&mut listening, 5000, u64::MAX);
            listening.heard(1, TIMEOUT);
        }
        assert_eq!(until_silent(&mut listening), 5000);
        listening.heard(1, TIMEOUT);
        listen(&mut listening, 300_000, 500);
        assert_eq!(until_silent(&mut listening), 1250);
    }

    /// A pause that the primary does not survive as one leaves the next one to be found as soon as any other.
    #[test]
    fn silence_that_ends_in_an_election_is_forgotten() {
        let mut listening = Listening::default();
        listen(&mut listening, 60_000, 250);
        for _ in 0..3 {
            until_silent(&mut listening);
            listen(&mut listening, 1000, u64::MAX);
            listening.heard(1, TIMEOUT);
        }
        // Its last words come when another one is elected.
        listen(&mut listening, 1000, 250);
        for at in (50..=10_000).step_by(50) {
            listening.pass((2, 2), 50);
            if at % 250 == 0 {
                listening.heard(2, TIMEOUT);
            }
        }
        let until = (50..=20_000).step_by(50).find(|_| {
            listening.pass((2, 2), 50);
            listening.has_fallen_silent(TIMEOUT)
        });
        assert_eq!(until, Some(1000));
    }

    #[test]
    fn nothing_is_concluded_of_a_primary_that_was_not_heard_for_long() {
        let mut listening = Listening::default();
        assert!(!listen(&mut listening, 2400, u64::MAX));
        assert!(listen(&mut listening, 200, u64::MAX));
        listening.pass((2, 2), 50);
        assert!(!listening.has_fallen_silent(TIMEOUT));
        assert!(listening.is_to_ask(50) && !listening.is_to_ask(50));
    }
}
