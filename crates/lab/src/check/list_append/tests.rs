//! One planted anomaly of each kind, and histories that are fine.

use super::*;

fn w(key: i64, value: i64) -> Op {
    Op::Append { key, value }
}

fn r(key: i64, list: &[i64]) -> Op {
    Op::Read { key, list: list.to_vec() }
}

/// Transactions of different clients, all committed.
fn committed(all: &[&[Op]]) -> Vec<Transaction> {
    let transaction = |(at, ops): (usize, &&[Op])| Transaction {
        client: at as u32,
        ops: ops.to_vec(),
        outcome: Outcome::Committed,
    };
    all.iter().enumerate().map(transaction).collect()
}

fn lists(last: &[(i64, &[i64])]) -> BTreeMap<i64, Vec<i64>> {
    last.iter().map(|(key, list)| (*key, list.to_vec())).collect()
}

fn kinds(history: &[Transaction], last: &[(i64, &[i64])]) -> Vec<&'static str> {
    judge(history, &lists(last), false).anomalies.into_iter().map(|anomaly| anomaly.kind).collect()
}

#[test]
fn one_after_another_is_fine() {
    let history = committed(&[
        &[r(1, &[]), w(1, 10), r(1, &[10])],
        &[w(1, 11), w(1, 12), r(1, &[10, 11, 12]), w(2, 20)],
        &[r(1, &[10, 11, 12]), r(2, &[20])],
    ]);
    let verdict = judge(&history, &lists(&[(1, &[10, 11, 12]), (2, &[20])]), true);
    assert_eq!((verdict.anomalies.as_slice(), verdict.committed), (&[][..], 3));
    assert!(verdict.dependencies > 3);
}

#[test]
fn write_skew_is_allowed() {
    // Each reads what the other writes: two anti-dependencies in a row, which snapshot isolation permits.
    let history = committed(&[&[r(1, &[]), w(2, 20)], &[r(2, &[]), w(1, 10)]]);
    assert!(kinds(&history, &[(1, &[10]), (2, &[20])]).is_empty());
    // The same through a third one, and in a longer ring.
    let history = committed(&[&[r(1, &[]), w(2, 20)], &[r(2, &[]), w(3, 30)], &[r(3, &[]), w(1, 10)]]);
    assert!(kinds(&history, &[(1, &[10]), (2, &[20]), (3, &[30])]).is_empty());
}

#[test]
fn g0() {
    let history = committed(&[&[w(1, 10), w(2, 20)], &[w(1, 11), w(2, 21)]]);
    assert_eq!(kinds(&history, &[(1, &[10, 11]), (2, &[21, 20])]), ["G0"]);
}

#[test]
fn g1a() {
    let mut history = committed(&[&[w(1, 10)], &[r(1, &[10])]]);
    history[0].outcome = Outcome::Aborted;
    assert_eq!(kinds(&history, &[(1, &[10])]), ["G1a"]);
    assert_eq!(kinds(&history, &[(1, &[])]), ["G1a"]);
    // Of which nobody knows, it may have committed.
    history[0].outcome = Outcome::Unknown;
    let verdict = judge(&history, &lists(&[(1, &[10])]), true);
    assert_eq!((verdict.anomalies.len(), verdict.unknown, verdict.unknown_seen), (0, 1, 1));
}

#[test]
fn g1b() {
    let history = committed(&[&[w(1, 10), w(1, 11)], &[r(1, &[10])]]);
    let found = kinds(&history, &[(1, &[10, 11])]);
    assert!(found.contains(&"G1b"), "{found:?}");
    // Its own middle is nothing special.
    let history = committed(&[&[w(1, 10), r(1, &[10]), w(1, 11)]]);
    assert!(kinds(&history, &[(1, &[10, 11])]).is_empty());
}

#[test]
fn g1c() {
    // Each reads what the other has written.
    let history = committed(&[&[w(1, 10), r(2, &[20])], &[w(2, 20), r(1, &[10])]]);
    assert_eq!(kinds(&history, &[(1, &[10]), (2, &[20])]), ["G1c"]);
}

#[test]
fn read_skew_is_g_single() {
    // The reader sees the second key after the writer, and the first one before it.
    let history = committed(&[&[w(1, 10), w(2, 20)], &[r(1, &[]), r(2, &[20])]]);
    let verdict = judge(&history, &lists(&[(1, &[10]), (2, &[20])]), false);
    assert_eq!(verdict.anomalies.len(), 1);
    let anomaly = &verdict.anomalies[0];
    assert_eq!(anomaly.kind, "G-single");
    assert_eq!(
        anomaly.text,
        "T0 (client 0) appended to key 2 what T1 (client 1) read, \
         T1 (client 1) read key 1 before T0 (client 0) appended to it"
    );
}

#[test]
fn lost_update() {
    let history = committed(&[&[r(1, &[]), w(1, 10)], &[r(1, &[]), w(1, 11)]]);
    assert_eq!(kinds(&history, &[(1, &[10, 11])]), ["lost update", "G-single"]);
    // Blind appends may meet in any order.
    let history = committed(&[&[w(1, 10)], &[w(1, 11)]]);
    assert!(kinds(&history, &[(1, &[11, 10])]).is_empty());
}

#[test]
fn long_fork_is_g_nonadjacent() {
    // Two readers see two independent writes in opposite orders.
    let history =
        committed(&[&[w(1, 10)], &[w(2, 20)], &[r(1, &[10]), r(2, &[])], &[r(1, &[]), r(2, &[20])]]);
    assert_eq!(kinds(&history, &[(1, &[10]), (2, &[20])]), ["G-nonadjacent"]);
}

#[test]
fn internal() {
    let history = committed(&[&[w(1, 10), r(1, &[])]]);
    assert_eq!(kinds(&history, &[(1, &[10])]), ["internal"]);
    let history = committed(&[&[r(1, &[]), r(1, &[10])], &[w(1, 10)]]);
    assert_eq!(kinds(&history, &[(1, &[10])]), ["internal"]);
}

#[test]
fn lists_that_are_wrong() {
    let history = committed(&[&[w(1, 10)], &[w(1, 11)], &[r(1, &[11])]]);
    assert_eq!(kinds(&history, &[(1, &[10, 11])]), ["incompatible order"]);
    let history = committed(&[&[w(1, 10)]]);
    assert_eq!(kinds(&history, &[(1, &[10, 10])]), ["duplicate"]);
    assert_eq!(kinds(&history, &[(1, &[10, 12])]), ["phantom"]);
    assert_eq!(kinds(&history, &[(1, &[])]), ["lost append"]);
    assert_eq!(kinds(&history, &[]), ["lost append"]);
}

#[test]
fn a_client_sees_its_own_transactions() {
    let mut history = committed(&[&[w(1, 10)], &[r(1, &[])], &[w(2, 20)]]);
    history[1].client = 0;
    let last = lists(&[(1, &[10]), (2, &[20])]);
    assert!(judge(&history, &last, false).anomalies.is_empty());
    let verdict = judge(&history, &last, true);
    assert_eq!(verdict.anomalies.iter().map(|a| a.kind).collect::<Vec<_>>(), ["G-single-session"]);
}

#[test]
fn a_bad_history_is_said() {
    let history = committed(&[&[w(1, 10)], &[w(1, 10)]]);
    assert!(kinds(&history, &[(1, &[10])]).contains(&"bad history"));
}

/// Transactions run one after another against real lists, as a database would, are always fine.
#[test]
fn random_serial_histories_are_fine() {
    let mut random = crate::generate::Random::new(5);
    for _ in 0..50 {
        let mut lists: BTreeMap<i64, Vec<i64>> = (0..4).map(|key| (key, Vec::new())).collect();
        let mut history = Vec::new();
        for number in 0..200 {
            let mut ops = Vec::new();
            for step in 0..1 + random.below(4) as i64 {
                let key = random.below(4) as i64;
                if random.below(2) == 0 {
                    ops.push(r(key, &lists[&key]));
                } else {
                    let value = number * 10 + step;
                    lists.get_mut(&key).unwrap().push(value);
                    ops.push(w(key, value));
                }
            }
            let client = random.below(3) as u32;
            history.push(Transaction { client, ops, outcome: Outcome::Committed });
        }
        let verdict = judge(&history, &lists, true);
        assert!(verdict.anomalies.is_empty(), "{:?}", verdict.anomalies);
    }
}
