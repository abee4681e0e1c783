//! Read preferences: which members of a set may answer.
//!
//! The manual's page "Read Preference". `hedge` is taken and not looked at.

use std::time::Duration;

use sheaf_bson::{RawDoc, Value};

/// Which members may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// The primary.
    #[default]
    Primary,
    /// The primary, or a secondary without one.
    PrimaryPreferred,
    /// A secondary.
    Secondary,
    /// A secondary, or the primary without one.
    SecondaryPreferred,
    /// Whoever is there.
    Nearest,
}

impl Mode {
    /// The driver's name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Primary => "primary",
            Mode::PrimaryPreferred => "primaryPreferred",
            Mode::Secondary => "secondary",
            Mode::SecondaryPreferred => "secondaryPreferred",
            Mode::Nearest => "nearest",
        }
    }
}

/// By so much a member may be farther away than the nearest one, where nothing else is said.
pub const LOCAL_THRESHOLD: Duration = Duration::from_millis(15);

/// A `$readPreference`.
#[derive(Clone, Copy, Debug)]
pub struct Preference<'a> {
    /// Which members may answer.
    pub mode: Mode,
    /// Sets of tags, of which the first counts that a member has.
    tags: Option<RawDoc<'a>>,
    /// How far behind the primary a secondary may be.
    pub max_staleness: Option<Duration>,
    /// By how much a member may be farther away than the nearest one.
    pub local_threshold: Duration,
}

impl Default for Preference<'_> {
    fn default() -> Self {
        Preference { mode: Mode::Primary, tags: None, max_staleness: None, local_threshold: LOCAL_THRESHOLD }
    }
}

impl<'a> Preference<'a> {
    /// Reads a `$readPreference`, whose mode the front has checked.
    pub fn of(preference: Option<RawDoc<'a>>) -> Preference<'a> {
        let mode = match preference.map(|preference| preference.get_or_missing("mode")) {
            Some(Value::String("primaryPreferred")) => Mode::PrimaryPreferred,
            Some(Value::String("secondary")) => Mode::Secondary,
            Some(Value::String("secondaryPreferred")) => Mode::SecondaryPreferred,
            Some(Value::String("nearest")) => Mode::Nearest,
            _ => Mode::Primary,
        };
        let tags = preference.and_then(|preference| preference.get("tags")?.as_array());
        let staleness = preference.and_then(|preference| preference.get("maxStalenessSeconds")?.as_f64());
        let max_staleness = staleness.filter(|seconds| *seconds > 0.0 && *seconds < f64::from(u32::MAX));
        Preference {
            mode,
            tags,
            max_staleness: max_staleness.map(Duration::from_secs_f64),
            ..Preference::default()
        }
    }

    /// The same for a client of a router with this `--localThreshold`.
    pub fn within(self, local_threshold: Duration) -> Self {
        Preference { local_threshold, ..self }
    }

    /// Of these members, those that the first set of tags selects which selects any.
    pub(crate) fn tagged<'m, M>(&self, members: &[&'m M], tags: impl Fn(&'m M) -> RawDoc<'m>) -> Vec<&'m M> {
        let Some(sets) = self.tags.filter(|sets| !sets.is_empty()) else { return members.to_vec() };
        for set in sets.values().filter_map(|set| set.as_doc()) {
            let has = |member: &&&'m M| {
                let own = tags(member);
                let is = |tag: &str, value: &str| own.get(tag).and_then(|own| own.as_str()) == Some(value);
                set.iter().all(|tag| tag.value().as_str().is_some_and(|value| is(tag.key(), value)))
            };
            let found: Vec<_> = members.iter().filter(has).copied().collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn the_first_set_of_tags_that_selects_any_counts() {
        let (east, west) = (doc! { "dc": "east", "disk": "ssd" }, doc! { "dc": "west" });
        let members = [&east, &west];
        let select = |preference: sheaf_bson::DocBuf| {
            let preference = Preference::of(Some(preference.as_raw()));
            preference.tagged(&members, |tags| tags.as_raw()).into_iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(select(doc! { "mode": "nearest" }).len(), 2);
        assert_eq!(
            select(doc! { "mode": "nearest", "tags": [{ "dc": "west" }, {}] })[0].as_raw(),
            west.as_raw()
        );
        assert_eq!(
            select(doc! { "mode": "nearest", "tags": [{ "dc": "north" }, { "disk": "ssd" }] })[0].as_raw(),
            east.as_raw()
        );
        assert_eq!(select(doc! { "mode": "nearest", "tags": [{ "dc": "north" }, {}] }).len(), 2);
        assert!(select(doc! { "mode": "nearest", "tags": [{ "dc": "north" }] }).is_empty());
    }
}
