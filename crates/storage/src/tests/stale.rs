//! What a statement has prepared before its member lost the lead.

use std::sync::Arc;

use sheaf_bson::doc;
use sheaf_errors::{Code, Error, Result};

use super::apply::state;
use super::member::Member;
use super::support::*;
use crate::{CreateCollection, HookPoint, OpTime, Write};

/// What others have ordered meanwhile is not overwritten by what was prepared before: the lead was lost and won again while
/// a statement ran.
#[test]
fn what_was_prepared_on_an_older_state_is_not_committed() {
    let (_dir, other) = fresh();
    insert(&other, C, &doc! { "_id": 1, "n": 0 }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    let follow = || {
        member.step_down();
        member.follow(&other, u64::MAX - 1);
        member.lead();
    };
    follow();
    let engine = &member.engine;
    let refused = |result: Result<OpTime>| {
        assert_eq!(result.unwrap_err().code(), Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
        assert!(state(engine) == state(&other));
    };
    let set = |n: i32| {
        let mut unit = other.write(GO_ON);
        change(&mut unit, C, 1, Some(&doc! { "_id": 1, "n": n })).unwrap();
        unit.commit().unwrap();
    };
    // An update of what somebody else has changed.
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 1, Some(&doc! { "_id": 1, "n": 100 })).unwrap();
    set(1);
    follow();
    refused(unit.commit());
    // An insert of what somebody else has inserted.
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(C).unwrap().unwrap();
    unit.insert(&collection, doc! { "_id": 2, "mine": true }.as_raw()).unwrap();
    insert(&other, C, &doc! { "_id": 2 }).unwrap();
    follow();
    refused(unit.commit());
    // A transaction, which reads what it began with.
    let mut txn = engine.begin(None).unwrap();
    change(&mut txn, C, 1, Some(&doc! { "_id": 1, "n": 200 })).unwrap();
    set(2);
    follow();
    refused(txn.commit(GO_ON));
    // A collection whose name is taken meanwhile, by a statement that had its turn.
    let core = engine.core();
    let turn = core.ddl_turn(GO_ON).unwrap();
    let create_spec = CreateCollection::default();
    let command =
        crate::definitions::command::create_command(&core.definitions, "db.new", &create_spec).unwrap();
    // Somebody else's locks are no matter of this thread.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            create(&other, "db.new", doc! {});
            follow();
        });
    });
    refused(core.run_commands(&[command], &[]));
    drop(turn);
    // Without entries in between, losing the lead does no harm.
    let mut unit = engine.write(GO_ON);
    change(&mut unit, C, 1, Some(&doc! { "_id": 1, "n": 300 })).unwrap();
    member.step_down();
    member.lead();
    unit.commit().unwrap();
    assert!(all(engine, C)[0].contains("300"));
}

#[test]
fn a_full_disk_keeps_nobody_who_could_ask_the_next_primary() {
    let dir = tempfile::tempdir().unwrap();
    let member = Member::open(dir.path());
    member.lead();
    let engine = &member.engine;
    create(engine, C, doc! {});
    let before = engine.last_applied();
    let (met, meets) = std::sync::mpsc::channel();
    let met = std::sync::Mutex::new(met);
    let full = move || {
        let _ = met.lock().unwrap().send(());
        Err(Error::new(Code::OUT_OF_DISK_SPACE, "No space left on device"))
    };
    engine.set_hook(HookPoint::Append, Some(Arc::new(full)));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| insert(engine, C, &doc! { "_id": 1 }));
        meets.recv().unwrap();
        meets.recv().unwrap();
        assert!(!waits.is_finished(), "it goes on for as long as this member leads");
        member.step_down();
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.code(), Code::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, "{error}");
    });
    assert_eq!((engine.last_applied(), all(engine, C).len()), (before, 0));
    assert!(insert(engine, C, &doc! { "_id": 2 }).is_err(), "another member leads");
    // Others may have it long since, so it comes when there is room.
    engine.set_hook(HookPoint::Append, None);
    assert!(engine.apply_units().unwrap());
    assert_eq!((engine.last_applied().index, all(engine, C).len()), (before.index + 1, 1));
    assert!(!engine.apply_units().unwrap());
}
