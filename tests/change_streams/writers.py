"""Writers that note what they did, and the comparison of a stream with their notes."""

import collections
import random
import threading

from pymongo.errors import OperationFailure, PyMongoError

# What an acknowledged write must have been told as: the writer's number of it makes it unique.
Record = collections.namedtuple("Record", "collection key kind stamp")


class Writer(threading.Thread):
    """Writes documents of its own, one statement after another, some of them in transactions."""

    def __init__(self, client, db, names, seed):
        super().__init__(daemon=True)
        self.client, self.db, self.names, self.seed = client, db, names, seed
        self.random = random.Random(seed)
        self.done, self.error, self.stop = [], None, False
        self.number = 0
        self.alive = collections.defaultdict(list)

    def run(self):
        try:
            while not self.stop:
                if self.random.random() < 0.05:
                    self.transaction()
                else:
                    self.done.append(self.write(None))
        except PyMongoError as error:
            self.error = error

    def write(self, session):
        name = self.random.choice(self.names)
        keys = self.alive[name]
        self.number += 1
        stamp = f"{self.seed}-{self.number}"
        choice = self.random.random()
        if not keys or choice < 0.4:
            key = f"{self.seed}:{self.number}"
            self.db[name].insert_one({"_id": key, "stamp": stamp}, session=session)
            keys.append(key)
            return Record(name, key, "insert", stamp)
        key = self.random.choice(keys)
        if choice < 0.7:
            self.db[name].update_one({"_id": key}, {"$set": {"stamp": stamp}}, session=session)
            return Record(name, key, "update", stamp)
        if choice < 0.85:
            self.db[name].replace_one({"_id": key}, {"stamp": stamp}, session=session)
            return Record(name, key, "replace", stamp)
        self.db[name].delete_one({"_id": key}, session=session)
        keys.remove(key)
        return Record(name, key, "delete", None)

    def transaction(self):
        before = {name: list(keys) for name, keys in self.alive.items()}
        with self.client.start_session() as session:
            session.start_transaction()
            try:
                records = [self.write(session) for _ in range(self.random.randint(1, 4))]
                if self.random.random() < 0.3:
                    session.abort_transaction()
                    self.alive = collections.defaultdict(list, before)
                    return
                session.commit_transaction()
                self.done += records
            except OperationFailure as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise
                self.alive = collections.defaultdict(list, before)


def told(event):
    """An event as the record of the write that made it."""
    kind = event["operationType"]
    stamp = None
    if kind in ("insert", "replace"):
        stamp = event["fullDocument"].get("stamp")
    elif kind == "update":
        stamp = event["updateDescription"]["updatedFields"].get("stamp")
    return Record(event["ns"]["coll"], event["documentKey"]["_id"], kind, stamp)


def check_stream(name, events, written):
    """Every acknowledged write once, those of one document in the order of its writer, positions ascending."""
    found = [told(event) for event in events if not str(event["documentKey"]["_id"]).startswith("end")]
    missing = collections.Counter(written) - collections.Counter(found)
    extra = collections.Counter(found) - collections.Counter(written)
    assert not missing, f"{name}: {sum(missing.values())} writes were not told, as {next(iter(missing))}"
    assert not extra, f"{name}: {sum(extra.values())} events nobody wrote, as {next(iter(extra))}"
    wanted, seen = collections.defaultdict(list), collections.defaultdict(list)
    for records, by_key in [(written, wanted), (found, seen)]:
        for record in records:
            by_key[record.collection, record.key].append(record)
    for key, records in wanted.items():
        assert seen[key] == records, f"{name}: the events of {key} are not in order: {seen[key]}"
    positions = [event["_id"]["_data"] for event in events]
    assert positions == sorted(positions) and len(set(positions)) == len(positions), f"{name}: positions do not ascend"
