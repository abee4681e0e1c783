"""The clients of the torture of a replica set, each with what it was promised.

Each write is sent once. It is acknowledged, or nobody knows; what nobody knows may have happened wholly or not at all. When
the set has come to rest, `check` compares what is there with what was promised, and from then on what is there must stay.
"""

import random
import threading
import time

import pymongo
from pymongo import ReadPreference, WriteConcern, monitoring
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

DATABASE = "torture"
CONCERNS = {
    "majority": WriteConcern(w="majority"),
    "w1": WriteConcern(w=1),
    "j1": WriteConcern(w=1, j=True),
    "w2": WriteConcern(w=2),
}
MAJORITY = CONCERNS["majority"]


class Asked(monitoring.CommandListener):
    """Which server this thread's last command went to."""

    def __init__(self):
        self.thread = threading.local()

    def started(self, event):
        self.thread.port = event.connection_id[1]

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


class Rest:
    """The set at rest: what is there on all members alike, and what happened since the last rest."""

    def __init__(self, db, rolled_back, cut, copied):
        self.db = db
        # Ids in rollback files; ports of members that have lost power, and of those that were behind what the others had
        # of their logs, and have copied all data.
        self.rolled_back, self.cut, self.copied = rolled_back, cut, copied
        self.ids = {name: {d["_id"] for d in db[name].find({}, {"_id": 1})} for name in ("writes", "ledger", "swapped")}

    def may_be_lost(self, identity, concern, by):
        """Whether an acknowledged write may be missing."""
        if concern == "majority" or (concern == "w2" and not self.cut):
            return False
        # Its member still had it, so it must have kept it, unless it was lost with the power.
        return identity in self.rolled_back or by in self.copied or (concern != "j1" and by in self.cut)


class Client:
    """Works in a thread of its own until it is told to stop; errors are part of the game."""

    def __init__(self, name, client, asked, seed):
        self.name, self.client, self.asked = name, client, asked
        self.db = client[DATABASE]
        self.random = random.Random(seed)
        self.operations = self.refused = 0

    def run(self, stop):
        while not stop.is_set():
            try:
                self.step()
                self.operations += 1
            except PyMongoError:
                self.refused += 1
                time.sleep(0.01)

    def setup(self):
        """Creates what it needs."""

    def settle(self, rest):
        """What is wrong."""
        return []

    def forget(self):
        """The collections have been emptied."""


class Promises(Client):
    """Documents that are written once, in `collection`, and what was promised of them."""

    collection = "writes"

    def __init__(self, *args):
        super().__init__(*args)
        self.number = 0
        self.forget()

    def forget(self):
        # Who reads from a member that is behind may still see what has been removed meanwhile.
        self.removed = self.number
        self.know(set())

    def know(self, settled):
        """From now on these must stay."""
        self.settled, self.acknowledged, self.unknown = settled, {}, set()
        # What a majority reader has seen.
        self.seen = set()

    def fresh(self):
        self.number += 1
        return f"{self.name}-{self.number}"

    def settle(self, rest):
        wrong = []
        mine = {i for i in rest.ids[self.collection] if i.startswith(f"{self.name}-")}
        if lost := self.settled - mine:
            wrong.append(f"{self.name}: lost although the set was at rest with them: {sorted(lost)[:5]} of {len(lost)}")
        lost = {i: what for i, what in self.acknowledged.items() if i not in mine and not rest.may_be_lost(i, *what)}
        if lost:
            wrong.append(f"{self.name}: acknowledged and lost: {sorted(lost.items())[:5]} of {len(lost)}")
        lost = {i for i in self.seen - mine if int(i.rsplit("-", 1)[1]) > self.removed}
        if lost:
            wrong.append(f"{self.name}: seen by a majority reader and lost: {sorted(lost)[:5]} of {len(lost)}")
        if more := mine - self.settled - set(self.acknowledged) - self.unknown:
            wrong.append(f"{self.name}: never written: {sorted(more)[:5]} of {len(more)}")
        self.know(mine)
        return wrong


class Inserts(Promises):
    """Inserts with one write concern, some of them several at once and large."""

    def __init__(self, concern, *args):
        self.concern = concern
        super().__init__(*args)
        self.writes = self.db.get_collection("writes", write_concern=CONCERNS[concern])

    def step(self):
        ids = [self.fresh() for _ in range(self.random.choice([1, 1, 1, 1, 20]))]
        size = self.random.choice([10, 100, 500, 4000 // len(ids)])
        documents = [{"_id": identity, "a": self.random.randrange(100), "text": "x" * size} for identity in ids]
        self.unknown.update(ids)
        if len(ids) == 1:
            self.writes.insert_one(documents[0])
        else:
            self.writes.insert_many(documents)
        self.acknowledged.update(dict.fromkeys(ids, (self.concern, self.asked.thread.port)))
        # Room for the others.
        time.sleep(self.random.uniform(0, 0.004))


class Bank(Promises):
    """Transfers between accounts, in transactions with an entry in a ledger."""

    collection = "ledger"
    ACCOUNTS = 10
    START = 1000

    def setup(self):
        if self.db.accounts.find_one():
            # Banks have one set of accounts.
            return
        accounts = [{"_id": n, "balance": self.START} for n in range(self.ACCOUNTS)]
        self.db.get_collection("accounts", write_concern=MAJORITY).insert_many(accounts)
        self.db.create_collection("ledger", write_concern=MAJORITY)

    def step(self):
        source, target = self.random.sample(range(self.ACCOUNTS), 2)
        amount, concern = self.random.randrange(1, 50), self.random.choice(["majority", "majority", "w1", "j1"])
        identity = self.fresh()
        with self.client.start_session() as session:
            session.start_transaction(write_concern=CONCERNS[concern])
            self.db.accounts.update_one({"_id": source}, {"$inc": {"balance": -amount}}, session=session)
            self.db.accounts.update_one({"_id": target}, {"$inc": {"balance": amount}}, session=session)
            entry = {"_id": identity, "from": source, "to": target, "amount": amount}
            self.db.ledger.insert_one(entry, session=session)
            if self.random.random() < 0.1:
                session.abort_transaction()
                return
            self.unknown.add(identity)
            # The driver sends a commit twice, and who is asked last has answered.
            session.commit_transaction()
            self.acknowledged[identity] = (concern, self.asked.thread.port)

    def settle(self, rest):
        wrong = super().settle(rest)
        balances = dict.fromkeys(range(self.ACCOUNTS), self.START)
        for entry in rest.db.ledger.find():
            balances[entry["from"]] -= entry["amount"]
            balances[entry["to"]] += entry["amount"]
        actual = {d["_id"]: d["balance"] for d in rest.db.accounts.find()}
        if actual != balances:
            wrong.append(f"{self.name}: half a transaction: accounts {actual}, by the ledger {balances}")
        return wrong


class Counter(Client):
    """Counts with a majority's acknowledgement."""

    def __init__(self, *args):
        super().__init__(*args)
        self.counters = self.db.get_collection("counters", write_concern=MAJORITY)
        self.least = self.most = 0

    def setup(self):
        self.counters.insert_one({"_id": self.name, "n": 0})

    def step(self):
        self.most += 1
        self.counters.update_one({"_id": self.name}, {"$inc": {"n": 1}})
        self.least += 1

    def settle(self, rest):
        found = rest.db.counters.find_one({"_id": self.name})["n"]
        wrong = [] if self.least <= found <= self.most else [f"{self.name}: {found}, not {self.least} to {self.most}"]
        self.least = self.most = found
        return wrong


class MajorityReader(Client):
    """Reads with read concern majority on every member. What it has seen must stay."""

    def __init__(self, promises, *args):
        super().__init__(*args)
        self.promises = promises

    def step(self):
        client = self.random.choice(self.promises)
        order = self.random.choice([-1, 1])
        majority = ReadConcern("majority")
        there = self.db.get_collection(client.collection, read_concern=majority, read_preference=ReadPreference.NEAREST)
        mine = {"_id": {"$regex": f"^{client.name}-"}}
        client.seen.update(d["_id"] for d in there.find(mine, {"_id": 1}).sort("$natural", order).limit(50))
        time.sleep(0.02)


class Definitions(Client):
    """Creates and drops collections and indexes. There is no promise but that all members have the same."""

    def step(self):
        db = self.db
        name = f"temporary_{self.random.randrange(4)}"
        kind = self.random.randrange(6)
        if kind == 0:
            db.drop_collection(name)
        elif kind == 1:
            db[name].rename(f"temporary_{self.random.randrange(4, 8)}", dropTarget=True)
        elif kind == 2:
            db.get_collection(name, write_concern=MAJORITY).insert_many([{"v": n} for n in range(100)])
        elif kind == 3:
            db[name].create_index("v", unique=self.random.random() < 0.5)
        elif kind == 4:
            db.writes.create_index([("a", 1), ("text", -1)], name="by_a")
        else:
            db.writes.drop_index("by_a")
        time.sleep(0.02)


class Stream(Client):
    """A change stream over all inserts of `writes`, taken up again where it broke."""

    # Where the last writes before each rest go.
    MARKS = "marks"

    def __init__(self, *args):
        super().__init__(*args)
        self.events, self.known, self.errors = [], set(), []
        # The mark up to which it is to read when it shall stop.
        self.last = None

    def setup(self):
        with self.open(start_at_operation_time=self.client.admin.command("ping")["operationTime"]) as stream:
            self.token = stream.resume_token

    def open(self, **where):
        names = {"$in": ["writes", self.MARKS]}
        pipeline = [{"$match": {"operationType": "insert", "ns.coll": names}}, {"$project": {"documentKey": 1}}]
        return self.db.watch(pipeline, max_await_time_ms=200, **where)

    def step(self):
        with self.open(resume_after=self.token) as stream:
            while not self.stop.is_set() or self.last:
                event = stream.try_next()
                self.token = stream.resume_token
                if event is None:
                    continue
                identity = event["documentKey"]["_id"]
                if identity == self.last:
                    self.last = None
                elif not identity.startswith("mark"):
                    self.events.append(identity)

    def run(self, stop):
        self.stop = stop
        while not stop.is_set() or self.last:
            try:
                self.step()
            except PyMongoError as error:
                if getattr(error, "code", None) in (286, 280):
                    self.errors.append(f"{self.name}: {error}")
                    return
                time.sleep(0.05)

    def settle(self, rest):
        wrong, events = self.errors, self.events
        new = rest.ids["writes"] - self.known
        if len(set(events)) != len(events):
            wrong.append(f"{self.name}: an event came twice: {[i for i in events if events.count(i) > 1][:5]}")
        if missing := new - set(events):
            wrong.append(f"{self.name}: no event of {sorted(missing)[:5]}, {len(missing)} in all")
        if more := set(events) - new:
            wrong.append(f"{self.name}: an event of what is not there: {sorted(more)[:5]}, {len(more)} in all")
        self.operations += len(events)
        self.known |= new
        self.events, self.errors = [], []
        return wrong

    def forget(self):
        self.known = set()


def clients(uri, seed):
    """One of each kind, and several of some. They share connections, and each write is sent once."""
    asked = Asked()
    client = pymongo.MongoClient(
        uri, retryWrites=False, retryReads=False, serverSelectionTimeoutMS=1000, heartbeatFrequencyMS=500,
        socketTimeoutMS=20_000, event_listeners=[asked], maxPoolSize=100,
    )

    def made(kind, name, *more):
        return kind(*more, name, client, asked, f"{seed}-{name}")

    promises = [made(Inserts, f"{concern}{n}", concern) for concern in CONCERNS for n in range(2)]
    promises += [made(Bank, f"bank{n}") for n in range(2)]
    from set_catalog import Catalog, Swapped

    return client, [
        made(Swapped, "swapped"), made(Catalog, "catalog"), *promises, made(Counter, "counter"), made(MajorityReader, "reader", promises), made(Definitions, "definitions"),
        made(Stream, "stream"),
    ]
