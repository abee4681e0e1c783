//! What a change stream must show: every acknowledged majority write once, in the order of each document, with tokens
//! that ascend, however often the stream was resumed.

use std::collections::{BTreeMap, BTreeSet};

use super::Anomaly;

/// A write that a client tried. Each document has one writer, which numbers its writes 1, 2, 3, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// `_id` of the document.
    pub document: i64,
    /// The number that was written into it.
    pub number: i64,
    /// Whether the write was acknowledged by a majority; otherwise it may have happened or not.
    pub acknowledged: bool,
}

/// An event that a stream showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// `_id._data`: what the stream is resumed with. Its order as text is the order of the events.
    pub token: String,
    /// `_id` of the document.
    pub document: i64,
    /// The number that the document holds then.
    pub number: i64,
    /// `clusterTime`: seconds and increment.
    pub cluster_time: (u32, u32),
}

/// Judges one stream that was open before the first write and read on until after the last one. `name` says which.
pub fn judge(name: &str, written: &[Written], events: &[Event]) -> Vec<Anomaly> {
    let mut anomalies = Vec::new();
    let mut found = |kind, text: String| anomalies.push(Anomaly { kind, text: format!("{name}: {text}") });
    let tried: BTreeSet<(i64, i64)> = written.iter().map(|write| (write.document, write.number)).collect();
    let mut seen: BTreeMap<(i64, i64), usize> = BTreeMap::new();
    let mut newest: BTreeMap<i64, i64> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        let what = format!("{} of document {} (event {at})", event.number, event.document);
        if !tried.contains(&(event.document, event.number)) {
            found("event of nobody", what.clone());
        }
        if let Some(first) = seen.insert((event.document, event.number), at) {
            found("event twice", format!("{what}, before as event {first}"));
        } else if let Some(before) = newest.insert(event.document, event.number)
            && before > event.number
        {
            found("events out of order", format!("{what} after {before}"));
        }
    }
    for (at, pair) in events.windows(2).enumerate() {
        let (first, second) = (&pair[0], &pair[1]);
        if second.token <= first.token {
            let text = format!("{} of event {} after {}", second.token, at + 1, first.token);
            found("tokens that do not ascend", text);
        }
        if second.cluster_time < first.cluster_time {
            let text =
                format!("{:?} of event {} after {:?}", second.cluster_time, at + 1, first.cluster_time);
            found("cluster times that descend", text);
        }
    }
    for write in written.iter().filter(|write| write.acknowledged) {
        if !seen.contains_key(&(write.document, write.number)) {
            found("event missing", format!("{} of document {}", write.number, write.document));
        }
    }
    anomalies
}

/// Two streams over the same writes must show the same events in the same order. (What only one of them shows is found by
/// [`judge`], but for writes that were never acknowledged.)
pub fn compare(names: (&str, &str), events: (&[Event], &[Event])) -> Vec<Anomaly> {
    let (first, second) = events;
    let differs = first.iter().zip(second).position(|(a, b)| a != b);
    let at = match differs {
        Some(at) => at,
        None if first.len() == second.len() => return Vec::new(),
        None => first.len().min(second.len()),
    };
    let show = |events: &[Event]| events.get(at).map_or("nothing".to_owned(), |event| format!("{event:?}"));
    let text = format!("event {at}: {} shows {}, {} shows {}", names.0, show(first), names.1, show(second));
    vec![Anomaly { kind: "streams differ", text }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Vec<Written> {
        let write = |document, number, acknowledged| Written { document, number, acknowledged };
        vec![write(1, 1, true), write(1, 2, false), write(1, 3, true), write(2, 1, true), write(2, 2, false)]
    }

    fn events(of: &[(i64, i64)]) -> Vec<Event> {
        let event = |(at, &(document, number)): (usize, &(i64, i64))| Event {
            token: format!("82{at:04}"),
            document,
            number,
            cluster_time: (7, at as u32 / 2),
        };
        of.iter().enumerate().map(event).collect()
    }

    fn kinds(events: &[Event]) -> Vec<&'static str> {
        judge("stream", &written(), events).into_iter().map(|anomaly| anomaly.kind).collect()
    }

    #[test]
    fn with_and_without_what_nobody_knows_of() {
        assert!(kinds(&events(&[(1, 1), (2, 1), (1, 3)])).is_empty());
        assert!(kinds(&events(&[(2, 1), (1, 1), (1, 2), (1, 3), (2, 2)])).is_empty());
    }

    #[test]
    fn each_anomaly_has_its_name() {
        assert_eq!(kinds(&events(&[(1, 1), (1, 3)])), ["event missing"]);
        assert_eq!(kinds(&events(&[(1, 1), (1, 3), (2, 1), (1, 3)])), ["event twice"]);
        assert_eq!(kinds(&events(&[(1, 3), (1, 1), (2, 1)])), ["events out of order"]);
        assert_eq!(kinds(&events(&[(1, 1), (1, 3), (2, 1), (3, 1)])), ["event of nobody"]);
        let mut spoiled = events(&[(1, 1), (1, 3), (2, 1)]);
        spoiled[2].token = spoiled[1].token.clone();
        assert_eq!(kinds(&spoiled), ["tokens that do not ascend"]);
        let mut spoiled = events(&[(1, 1), (1, 3), (2, 1)]);
        spoiled[2].cluster_time = (6, 9);
        assert_eq!(kinds(&spoiled), ["cluster times that descend"]);
    }

    #[test]
    fn streams_are_compared() {
        let (a, b) = (events(&[(1, 1), (1, 3), (2, 1)]), events(&[(1, 1), (1, 2), (2, 1)]));
        assert!(compare(("a", "b"), (&a, &a)).is_empty());
        assert!(compare(("a", "b"), (&a, &b))[0].text.starts_with("event 1: a shows Event"));
        assert!(compare(("a", "b"), (&a, &a[..2]))[0].text.contains("b shows nothing"));
    }
}
