//! Figures of a member that follows.

use sheaf_bson::{DocBuf, doc};

use super::apply::Follower;
use super::support::*;
use crate::{AppliedOps, Write};

#[test]
fn what_others_have_ordered_is_counted_by_kind() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let primary = open(here.path());
    create(&primary, "t.c", DocBuf::new());
    let mut unit = primary.write(GO_ON);
    let collection = unit.collection("t.c").unwrap().unwrap();
    for id in 0..3 {
        unit.insert(&collection, doc! { "_id": id }.as_raw()).unwrap();
    }
    unit.commit().unwrap();
    let mut txn = primary.begin(None).unwrap();
    let collection = txn.collection("t.c").unwrap().unwrap();
    let key = |id: i32| collection.record_key(id.into()).unwrap();
    let (old, new) = (doc! { "_id": 1 }, doc! { "_id": 1, "a": 1 });
    txn.update(&collection, &key(1), old.as_raw(), new.as_raw(), None).unwrap();
    txn.delete(&collection, &key(2), doc! { "_id": 2 }.as_raw()).unwrap();
    txn.commit(GO_ON).unwrap();
    primary.write_noop(doc! { "msg": "nothing" }.as_raw(), GO_ON).unwrap();

    let mut follower = Follower::open(there.path());
    follower.follow(&primary, 100);
    let applied = follower.engine.applied();
    let expected = AppliedOps { insert: 3, update: 1, delete: 1, command: 1, noop: 1 };
    assert_eq!((applied.ops, applied.ops.all(), applied.batches), (expected, 7, 1));
    // Who orders its own commits applies nothing of others.
    assert_eq!(primary.applied().ops.all(), 0);
    // What a start applies again is not counted once more.
    drop(follower);
    assert_eq!(Follower::open(there.path()).engine.applied().ops.all(), 0);
}
