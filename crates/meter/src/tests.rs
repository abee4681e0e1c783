use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sheaf_errors::{Code, Error, Result};

use super::*;

fn process(limit: u64, operation: u64) -> Arc<Process> {
    Process::new(limit, operation)
}

fn meter(process: &Arc<Process>) -> Arc<Meter> {
    Meter::background(process)
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> Code {
    result.expect_err("it is refused").code()
}

#[test]
fn outside_any_operation_everything_is_free() {
    check().unwrap();
    for _ in 0..10_000 {
        tick(7).unwrap();
    }
    let mut held = reserve(u64::MAX / 2).unwrap();
    held.set(5).unwrap();
    assert_eq!(held.bytes(), 5);
    assert!(current().is_none());
}

#[test]
fn whoever_enters_last_counts_and_the_one_before_comes_back() {
    let process = process(1000, 1000);
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let source = move || match seen.load(Ordering::Relaxed) {
        true => Err(Error::new(Code::INTERRUPTED, "killed")),
        false => Ok(()),
    };
    let outer = Meter::new(&process, Arc::new(source));
    let _outer = enter(outer);
    check().unwrap();
    stop.store(true, Ordering::Relaxed);
    {
        let _inner = enter(meter(&process));
        check().unwrap();
    }
    assert_eq!(code(check()), Code::INTERRUPTED);
    {
        let _shield = shield();
        check().unwrap();
    }
    let ticked = (0..300).find_map(|_| tick(1).err()).expect("a tick checks before long");
    assert_eq!(ticked.code(), Code::INTERRUPTED);
}

#[test]
fn deadlines_and_the_end_of_the_node_stop_operations() {
    let process = process(1000, 1000);
    let meter = meter(&process);
    let _entered = enter(meter.clone());
    meter.begin(Some(Instant::now() + Duration::from_secs(3600)));
    check().unwrap();
    meter.begin(Some(Instant::now()));
    assert_eq!(code(check()), Code::MAX_TIME_MS_EXPIRED);
    meter.begin(None);
    check().unwrap();
    process.end();
    assert_eq!(code(check()), Code::INTERRUPTED_AT_SHUTDOWN);
}

#[test]
fn an_operation_has_a_limit_and_what_it_drops_comes_back() {
    let process = process(1000, 100);
    let _entered = enter(meter(&process));
    let mut held = reserve(60).unwrap();
    assert_eq!(code(held.grow(41)), Code::EXCEEDED_MEMORY_LIMIT);
    assert_eq!((held.bytes(), process.used()), (60, 60));
    let other = reserve(40).unwrap();
    assert_eq!(code(reserve(1)), Code::EXCEEDED_MEMORY_LIMIT);
    drop(other);
    held.set(100).unwrap();
    held.set(10).unwrap();
    assert_eq!(process.used(), 10);
    drop(held);
    assert_eq!(process.used(), 0);
}

#[test]
fn memory_in_a_cursor_stays_with_the_operation_that_took_it() {
    let process = process(1000, 100);
    let meter = meter(&process);
    let _entered = enter(meter.clone());
    let mut kept = reserve(80).unwrap();
    let account = meter.account();
    meter.begin(None);
    let fresh = reserve(80).unwrap();
    assert_eq!(process.used(), 160);
    drop(fresh);
    // The cursor's next batch goes on with its account.
    meter.adopt(account);
    assert_eq!(code(reserve(21)), Code::EXCEEDED_MEMORY_LIMIT);
    std::thread::spawn(move || kept.grow(20).map(|()| drop(kept))).join().unwrap().unwrap();
    assert_eq!(process.used(), 0);
}

#[test]
fn the_largest_makes_room() {
    let mega = 1 << 20;
    let process = process(100 * mega, 80 * mega);
    let (large, small) = (meter(&process), meter(&process));
    let told = Arc::new(AtomicU32::new(0));
    let seen = told.clone();
    large.account().on_shed(move || {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let held = large.reserve(70 * mega).unwrap();
    let mut others = small.reserve(20 * mega).unwrap();
    others.grow(11 * mega).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(code(large.check()), Code::EXCEEDED_MEMORY_LIMIT);
    assert_eq!(code(large.reserve(1)), Code::EXCEEDED_MEMORY_LIMIT);
    small.check().unwrap();
    // It does not wait for ever: far above the limit, the others are refused as well.
    assert_eq!(code(others.grow(30 * mega)), Code::EXCEEDED_MEMORY_LIMIT);
    drop(held);
    large.begin(None);
    large.check().unwrap();
    others.grow(30 * mega).unwrap();
}

#[test]
fn the_largest_itself_is_refused() {
    let mega = 1 << 20;
    let process = process(100 * mega, 100 * mega);
    let (large, small) = (meter(&process), meter(&process));
    let _small = small.reserve(30 * mega).unwrap();
    let mut held = large.reserve(65 * mega).unwrap();
    assert_eq!(code(held.grow(10 * mega)), Code::EXCEEDED_MEMORY_LIMIT);
    small.check().unwrap();
}

#[test]
fn many_small_ones_make_room_together_and_no_more_of_them_than_need_be() {
    let kilo = 1 << 10;
    let process = process(1000 * kilo, 1000 * kilo);
    let ended = Arc::new(AtomicU32::new(0));
    // Idle cursors: what they hold goes when they are told to end.
    let cursors: Vec<Arc<parking_lot::Mutex<Option<Held>>>> = (0..30u64)
        .map(|n| {
            let account = Account::new(&process);
            let held = Arc::new(parking_lot::Mutex::new(Some(account.hold((20 + n) * kilo))));
            let (kept, ended) = (Arc::downgrade(&held), ended.clone());
            account.on_shed(move || {
                drop(kept.upgrade().and_then(|kept| kept.lock().take()));
                ended.fetch_add(1, Ordering::Relaxed);
            });
            held
        })
        .collect();
    let before = process.used();
    assert_eq!(before, (0..30).map(|n| (20 + n) * kilo).sum::<u64>(), "it is counted, whatever the limit is");
    let meter = meter(&process);
    let held = meter.reserve(1060 * kilo - before).unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 2, "49 and 48 KB are enough");
    assert!(process.used() <= process.limit());
    assert!(cursors[29].lock().is_none() && cursors[27].lock().is_some());
    drop((held, cursors));
    assert_eq!(process.used(), 0);
}

#[test]
fn who_has_been_told_to_end_counts_as_room_to_come() {
    let mega = 1 << 20;
    let process = process(100 * mega, 100 * mega);
    let (first, second, third) = (meter(&process), meter(&process), meter(&process));
    let kept = (first.reserve(40 * mega).unwrap(), second.reserve(30 * mega).unwrap());
    assert_eq!(process.shed(10 * mega), (1, 40 * mega));
    assert_eq!(process.shed(40 * mega), (0, 0));
    second.check().unwrap();
    let _third = third.reserve(31 * mega).unwrap();
    second.check().unwrap();
    assert_eq!(process.shed(41 * mega), (1, 31 * mega));
    assert_eq!(code(third.check()), Code::EXCEEDED_MEMORY_LIMIT);
    drop(kept);
}

#[test]
fn messages_count_with_operations() {
    let mega = 1 << 20;
    let process = process(100 * mega, 80 * mega);
    let messages = Part::of(&process);
    messages.change(0, 90 * mega);
    let meter = meter(&process);
    assert_eq!(code(meter.reserve(20 * mega)), Code::EXCEEDED_MEMORY_LIMIT);
    messages.change(90 * mega, 10 * mega);
    meter.begin(None);
    let held = meter.reserve(20 * mega).unwrap();
    assert_eq!((messages.used(), process.used()), (10 * mega, 30 * mega));
    drop(held);
    messages.change(10 * mega, 0);
    assert_eq!((messages.used(), process.used()), (0, 0));
}

#[test]
fn the_small_go_on_for_longer_than_the_large() {
    let mega = 1 << 20;
    let process = process(100 * mega, 100 * mega);
    let messages = Part::of(&process);
    messages.change(0, 130 * mega);
    let (small, large) = (meter(&process), meter(&process));
    let _small = small.reserve(mega / 2).unwrap();
    assert_eq!(code(large.reserve(2 * mega)), Code::EXCEEDED_MEMORY_LIMIT);
    messages.change(130 * mega, 150 * mega);
    assert_eq!(code(small.reserve(1)), Code::EXCEEDED_MEMORY_LIMIT);
}

#[test]
fn who_has_much_gets_no_more_while_memory_is_short_in_fact() {
    let mega = 1 << 20;
    let process = process(100 * mega, 100 * mega);
    let (small, large) = (meter(&process), meter(&process));
    let mut held = large.reserve(2 * mega).unwrap();
    process.set_pressure(Pressure::Critical);
    assert_eq!(code(held.grow(1)), Code::EXCEEDED_MEMORY_LIMIT);
    drop(small.reserve(mega).unwrap());
    process.set_pressure(Pressure::Higher);
    held.grow(1).unwrap();
}

#[test]
fn marks_lie_in_order_on_machines_of_all_sizes() {
    let mega = 1u64 << 20;
    for limit in [16 * mega, 512 * mega, 2048 * mega, 1 << 35, 1 << 42] {
        let marks = Marks::new(limit);
        let levels: Vec<Pressure> = (0..=1000).map(|n| marks.level(limit / 1000 * n)).collect();
        assert!(levels.is_sorted(), "{limit}: {levels:?}");
        assert_eq!((levels[0], marks.level(limit)), (Pressure::None, Pressure::Critical));
        assert_eq!(marks.level(limit * 2), Pressure::Critical);
        let shedding =
            (0..=1000).map(|n| limit / 1000 * n).find(|used| marks.level(*used) >= Pressure::Higher);
        let shedding = shedding.expect("there is one");
        assert!(marks.excess(shedding - limit / 500) == 0 && marks.excess(shedding) <= limit / 500);
        assert!(shedding >= limit / 10 * 7 && limit - shedding <= (1 << 30) + limit / 500, "{shedding}");
    }
}

#[test]
fn a_long_operation_is_told_of_once() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let process = process(1000, 1000);
    let tell = || {
        TOLD.fetch_add(1, Ordering::Relaxed);
    };
    let _entered = enter_as(meter(&process), Conduct { when_long: Some(tell), ..Conduct::FREE });
    tick(1000).unwrap();
    assert_eq!(TOLD.load(Ordering::Relaxed), 0, "the first round only begins to measure");
    let began = Instant::now();
    while TOLD.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody was told");
        tick(16).unwrap();
    }
    for _ in 0..100_000 {
        tick(16).unwrap();
    }
    assert_eq!(TOLD.load(Ordering::Relaxed), 1);
}

#[test]
fn a_sort_ends_when_it_is_told_to() {
    let mut items: Vec<u32> = (0..1000).rev().collect();
    let mut left = 500;
    let stopped = sort_by(&mut items, |a, b| {
        left -= 1;
        if left == 0 { Err(Error::new(Code::INTERRUPTED, "killed")) } else { Ok(a.cmp(b)) }
    });
    assert_eq!(code(stopped), Code::INTERRUPTED);
}

proptest! {
    #[test]
    fn sorts_like_the_standard_library(items in prop::collection::vec(0u8..20, 0..300)) {
        let mut ours: Vec<(u8, usize)> = items.iter().copied().zip(0..).collect();
        let mut theirs = ours.clone();
        theirs.sort_by_key(|(item, _)| *item);
        sort_by(&mut ours, |a, b| Ok(a.0.cmp(&b.0))).unwrap();
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn used_is_the_sum_of_what_is_held(steps in prop::collection::vec((0usize..6, 0u64..400), 1..80)) {
        let process = process(1500, 700);
        let meters = [meter(&process), meter(&process), meter(&process)];
        let mut held: Vec<Option<Held>> = (0..6).map(|_| None).collect();
        for (at, bytes) in steps {
            match &mut held[at] {
                empty @ None => *empty = meters[at % 3].reserve(bytes).ok(),
                full if bytes % 7 == 0 => *full = None,
                Some(held) => {
                    let before = held.bytes();
                    let after = if held.set(bytes).is_ok() { bytes } else { before };
                    prop_assert_eq!(held.bytes(), after);
                }
            }
            let sum: u64 = held.iter().flatten().map(Held::bytes).sum();
            prop_assert_eq!(process.used(), sum);
            // They are small, and go beyond the limit by a half before they are refused.
            prop_assert!(sum <= 2250);
            for (n, meter) in meters.iter().enumerate() {
                let own: u64 = held.iter().skip(n).step_by(3).flatten().map(Held::bytes).sum();
                prop_assert_eq!(meter.account().used(), own);
                prop_assert!(own <= 700);
            }
        }
    }
}

#[test]
fn trees_are_counted_where_they_are_large() {
    let process = process(1 << 20, 1 << 20);
    let _entered = enter(meter(&process));
    // Small ones are free, and so is what nobody asked to be counted.
    grow(100 << 20).unwrap();
    let (seven, held) = growing(|| grow(60_000).map(|()| 7)).unwrap();
    assert_eq!((seven, held.bytes(), process.used()), (7, 0, 0));
    // Many small parts are one large tree, whose memory is that of the whole.
    let nested = growing(|| {
        (0..10).try_for_each(|_| growing(|| grow(20_000)).map(|(_, part)| assert_eq!(part.bytes(), 0)))
    });
    let ((), held) = nested.unwrap();
    assert_eq!((held.bytes(), process.used()), (200_000, 200_000));
    // Where there is no more, nothing is kept, however often it is asked for.
    let failed = growing(|| {
        grow(500_000)?;
        assert!(process.used() >= 700_000);
        let _ = grow(500_000);
        assert_eq!(code(grow(10)), Code::EXCEEDED_MEMORY_LIMIT);
        grow(usize::MAX)
    });
    assert_eq!(code(failed), Code::EXCEEDED_MEMORY_LIMIT);
    assert_eq!(process.used(), 200_000);
    drop(held);
    assert_eq!(process.used(), 0);
    // The next one begins anew.
    assert_eq!(growing(|| grow(1000)).unwrap().1.bytes(), 0);
}

#[test]
fn a_parser_that_panics_leaves_nothing_behind() {
    let process = process(1 << 20, 1 << 20);
    let _entered = enter(meter(&process));
    let panicked = std::panic::catch_unwind(|| growing(|| grow(300_000).map(|()| panic!("while parsing"))));
    assert!(panicked.is_err());
    assert_eq!(process.used(), 0);
    assert_eq!(growing(|| grow(1000)).unwrap().1.bytes(), 0);
}

#[test]
fn trees_outside_any_operation_are_free() {
    let ((), held) = growing(|| grow(usize::MAX / 2)).unwrap();
    drop(held);
}

#[test]
fn who_has_most_together_makes_room_for_others() {
    let mega = 1 << 20;
    let process = Process::new(100 * mega, 50 * mega);
    let of = |owner| {
        let meter = Meter::background(&process);
        meter.set_owner(owner);
        // Its threads do not change whose it is.
        drop(crate::enter(meter.clone()));
        meter
    };
    // Many small cursors of one user, which nobody works for: they are killed.
    let cursors = Arc::new(parking_lot::Mutex::new(Vec::new()));
    for at in 0..24 {
        let account = of(7).account();
        cursors.lock().push(Some(account.reserve(4 * mega).expect("there is room")));
        let kept = cursors.clone();
        account.on_shed(move || kept.lock()[at] = None);
    }
    let other = of(8);
    let held = other.reserve(8 * mega).expect("it is the largest, but not its owner's the most");
    other.check().unwrap();
    assert_eq!(cursors.lock().iter().flatten().count(), 23);
    let _more = other.reserve(30 * mega).expect("room is made");
    // Those of the same owner are shed by size.
    drop(held);
    let own = of(7);
    let error = own.reserve(20 * mega).expect_err("its owner has the most, and it has the most of it");
    assert_eq!(error.code(), Code::EXCEEDED_MEMORY_LIMIT);
}

#[test]
fn who_is_at_work_comes_after_others_that_have_as_much() {
    let mega = 1 << 20;
    let process = Process::new(100 * mega, 60 * mega);
    let (idle, at_work) = (Account::new(&process), Account::new(&process));
    let _idle = idle.reserve(48 * mega).unwrap();
    let mut held = at_work.reserve(50 * mega).unwrap();
    held.grow(4 * mega).expect("the other makes room");
    assert!(idle.is_shed() && !at_work.is_shed());
}

#[test]
fn what_does_not_come_back_is_not_waited_for() {
    let process = Process::new(100 << 20, 100 << 20);
    let (lost, other) = (Account::new(&process), Account::new(&process));
    let _held = lost.reserve(60 << 20).unwrap();
    let _own = other.reserve(10 << 20).unwrap();
    lost.lose(60 << 20);
    assert_eq!(process.shed(5 << 20), (1, 10 << 20));
    assert!(other.is_shed() && !lost.is_shed());
    lost.found(60 << 20);
    assert_eq!(process.shed(50 << 20), (1, 60 << 20));
}

#[test]
fn what_is_free_is_taken_from_nobody() {
    let process = Process::new(1000, 100);
    let account = Account::new(&process);
    let others = account.reserve(100).unwrap();
    // Of more than a half, that half; beyond the limit of one operation.
    let first = process.take_free(5000).unwrap();
    assert_eq!((first.bytes(), process.used()), (500, 600));
    assert!(process.take_free(401).is_none());
    assert_eq!(process.used(), 600);
    let second = process.take_free(400).unwrap();
    assert!(process.take_free(1).is_none() && !account.is_shed());
    drop((first, second));
    process.set_pressure(Pressure::Critical);
    assert!(process.take_free(1).is_none());
    drop(others);
    assert_eq!(process.used(), 0);
}
