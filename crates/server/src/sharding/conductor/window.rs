//! The balancer's window: the time of day in which it may move chunks (`activeWindow` of its settings).

use super::Conductor;

impl Conductor {
    /// Whether it is the time of day for balancing, by this server's time zone; it is, without a window.
    pub(super) fn is_in_window(&self, window: Option<(i32, i32)>) -> bool {
        let Some((start, stop)) = window else { return true };
        let now = jiff::Timestamp::from_millisecond(self.front.clock.now_millis());
        let now = now.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned(jiff::tz::TimeZone::system());
        is_within(i32::from(now.hour()) * 60 + i32::from(now.minute()), start, stop)
    }
}

/// The minute of the day that `HH:MM` names.
pub(super) fn minute_of(time: &str) -> Option<i32> {
    let (hours, minutes) = time.split_once(':')?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..24).contains(&hours) && (0..60).contains(&minutes)).then_some(hours * 60 + minutes)
}

/// Whether a minute is in a window, which may go over midnight.
fn is_within(minute: i32, start: i32, stop: i32) -> bool {
    if start <= stop { (start..=stop).contains(&minute) } else { minute >= start || minute <= stop }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_go_over_midnight() {
        let within = |minute: &str, start: &str, stop: &str| {
            is_within(minute_of(minute).unwrap(), minute_of(start).unwrap(), minute_of(stop).unwrap())
        };
        assert!(within("12:00", "9:00", "18:30") && !within("8:59", "09:00", "18:30"));
        assert!(within("23:30", "22:00", "6:00") && within("05:59", "22:00", "6:00"));
        assert!(!within("12:00", "22:00", "6:00"));
        assert_eq!((minute_of("24:00"), minute_of("1"), minute_of("x:y")), (None, None, None));
    }
}
