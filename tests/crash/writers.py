"""The concurrent writers of the torture, each with the model of what must be there after a crash.

A writer's `run` works until the connection breaks. Every acknowledged operation is in its model; the one operation whose
answer did not come is in `pending`: it may have happened wholly or not at all. `check` compares the data with the model,
adopts what became of the pending operation, and returns the list of what is wrong.

After a power loss a write that was acknowledged with w:1 may be gone, but only together with all that came later:
`floor` is what a j:true acknowledgement has promised, `freeze` remembers it before the kill.
"""

from random import Random

from pymongo.errors import AutoReconnect, ConnectionFailure, OperationFailure
from pymongo.write_concern import WriteConcern

DATABASE = "torture"
JOURNALED = WriteConcern(w=1, j=True)
PLAIN = WriteConcern(w=1)


class Writer:
    """A writer with its own keys, so that no writer disturbs another one's model."""

    def __init__(self, name, client, random):
        self.name, self.client, self.random = name, client, random
        self.db = client[DATABASE]
        self.errors = []
        self.operations = 0
        self.pending = None

    def run(self, stop):
        while not stop.is_set():
            try:
                self.step()
                self.operations += 1
            except (AutoReconnect, ConnectionFailure):
                return
            except OperationFailure as error:
                if error.code in (91, 11600):
                    # It is being ended in order; nobody knows of this one.
                    return
                # A server that is being killed does not answer with errors, so any of these is a finding.
                self.errors.append(f"{self.name}: unexpected error {error.code}: {error}")
                return

    def concern(self):
        return JOURNALED if self.random.random() < 0.3 else PLAIN

    def freeze(self):
        """Remembers what must survive a power loss from now on."""

    def setup(self):
        """Creates what the writer needs, once."""

    def forget(self):
        """Starts anew after `trim` has emptied the collections that would grow for ever."""


class Sequence(Writer):
    """Inserts numbered documents, one at a time or in ordered batches: no number may be missing before the last."""

    def __init__(self, *args):
        super().__init__(*args)
        self.acknowledged = -1
        self.attempted = -1
        self.floor = self.frozen = -1

    def document(self, seq):
        return {"_id": f"{self.name}-{seq}", "writer": self.name, "seq": seq, "a": seq % 97, "tags": [seq % 7, f"t{seq % 11}"],
                "nested": {"b": -seq}, "text": "x" * (seq % 300)}

    def step(self):
        concern = self.concern()
        count = self.random.choice([1, 1, 1, 40])
        first = self.attempted + 1
        self.attempted += count
        batch = [self.document(first + i) for i in range(count)]
        collection = self.db.get_collection("writes", write_concern=concern)
        if count == 1:
            collection.insert_one(batch[0])
        else:
            collection.insert_many(batch, ordered=True)
        self.acknowledged = self.attempted
        if concern is JOURNALED:
            self.floor = self.acknowledged

    def freeze(self):
        self.frozen = self.floor

    def forget(self):
        self.acknowledged = self.attempted = self.floor = self.frozen = -1

    def check(self, power_loss):
        present = [d["seq"] for d in self.db.writes.find({"writer": self.name}, {"seq": 1, "_id": 0}).sort("seq", 1)]
        wrong = []
        if present != list(range(len(present))):
            gap = next(i for i, seq in enumerate(present) if seq != i)
            wrong.append(f"{self.name}: number {gap} is missing (or double) before the last, {present[-1]}")
        last = len(present) - 1
        least = self.frozen if power_loss else self.acknowledged
        if last < least:
            wrong.append(f"{self.name}: acknowledged up to {least}, found up to {last}")
        if last > self.attempted:
            wrong.append(f"{self.name}: found {last}, but only {self.attempted} was sent")
        sample = self.db.writes.find_one({"_id": f"{self.name}-{last}"}) if last >= 0 else None
        if last >= 0 and sample != self.document(last):
            wrong.append(f"{self.name}: document {last} has wrong content: {sample}")
        self.acknowledged = self.attempted = last
        self.floor = self.frozen = min(self.floor, last)
        return wrong


class Mutations(Writer):
    """Updates, replaces, deletes and upserts its own keys; a version number tells which write a document shows."""

    KEYS = 60
    COLLECTION = "mutable"

    def document(self, name):
        return {"_id": name, "writer": self.name, "v": self.version, "list": [self.version]}

    def __init__(self, *args):
        super().__init__(*args)
        self.version = 0
        # For each key the history since the last durable moment: (version, document or None), the last one is current.
        self.history = {key: [(0, None)] for key in range(self.KEYS)}
        self.durable = self.frozen = 0

    def step(self):
        key, concern = self.random.randrange(self.KEYS), self.concern()
        collection = self.db.get_collection(self.COLLECTION, write_concern=concern)
        self.version += 1
        name = f"{self.name}-{key}"
        current = self.history[key][-1][1]
        kind = self.random.choice(["set", "set", "push", "replace", "delete", "findAndModify"])
        fresh = self.document(name)
        if kind == "delete":
            after = None
        elif kind in ("set", "findAndModify") and current:
            after = {**current, "v": self.version}
        elif kind == "push" and current:
            after = {**current, "v": self.version, "list": (current["list"] + [self.version])[-20:]}
        else:
            after = fresh
        self.pending = (key, self.version, after)
        if kind == "delete":
            collection.delete_one({"_id": name})
        elif after is fresh or kind == "replace":
            collection.replace_one({"_id": name}, fresh, upsert=True)
        elif kind == "push":
            change = {"$set": {"v": self.version}, "$push": {"list": {"$each": [self.version], "$slice": -20}}}
            collection.update_one({"_id": name}, change)
        elif kind == "findAndModify":
            got = collection.find_one_and_update({"_id": name}, {"$set": {"v": self.version}}, return_document=True)
            if got != after:
                self.errors.append(f"{self.name}: findAndModify returned {got}, expected {after}")
        else:
            collection.update_one({"_id": name}, {"$set": {"v": self.version}})
        self.history[key].append((self.version, after))
        self.pending = None
        if concern is JOURNALED:
            self.durable = self.version

    def freeze(self):
        self.frozen = self.durable

    def check(self, power_loss):
        wrong = []
        found = {d["_id"]: d for d in self.db[self.COLLECTION].find({"writer": self.name})}
        # In a power loss every version after some cut is gone, so all keys must agree on one cut.
        newest_present, oldest_absent = 0, None
        for key in range(self.KEYS):
            document = found.pop(f"{self.name}-{key}", None)
            states = list(self.history[key])
            if self.pending and self.pending[0] == key:
                states.append(self.pending[1:])
            allowed = states
            if not power_loss:
                allowed = [state for state in states if state[0] >= self.history[key][-1][0]]
            matches = [at for at, state in enumerate(states) if state in allowed and state[1] == document]
            if not matches:
                wrong.append(f"{self.name}: key {key} is {document}, expected one of {[s[1] for s in allowed][-3:]}")
                self.history[key] = [(self.version, document)]
                continue
            at = matches[-1]
            if power_loss:
                newest_present = max(newest_present, states[matches[0]][0])
                if at + 1 < len(states):
                    absent = states[at + 1][0]
                    oldest_absent = absent if oldest_absent is None else min(oldest_absent, absent)
                    if absent <= self.frozen:
                        wrong.append(f"{self.name}: version {absent} of key {key} is lost, but {self.frozen} was journaled")
            self.history[key] = [(self.version, document)]
        if oldest_absent is not None and newest_present > oldest_absent:
            wrong.append(f"{self.name}: version {newest_present} is there, but the older {oldest_absent} is not")
        if found:
            wrong.append(f"{self.name}: documents that were never written: {list(found)[:3]}")
        self.pending = None
        self.durable = self.frozen = self.version
        return wrong


class Churn(Mutations):
    """Mutations of the collection whose indexes are being built, exchanged and dropped."""

    COLLECTION = "built"

    def document(self, name):
        return {**super().document(name), "u": f"{name} {self.version}", "text": f"{self.version} {name} " * 12}


class Large(Mutations):
    """Mutations of documents that stay where the log has them, while files of which little is wanted are collected."""

    COLLECTION = "large"

    def document(self, name):
        noise = Random(f"{name} {self.version}")
        return {**super().document(name), "noise": noise.randbytes(noise.choice([500, 9_000, 20_000, 60_000]))}

    def step(self):
        super().step()
        if self.random.random() < 0.005:
            self.client.admin.command("fsync")


class Builder(Writer):
    """Builds indexes that are sorted in several runs, and leads one to unique and back; what was acknowledged is there."""

    DOCUMENTS = 60_000
    NEXT = {"absent": "plain", "plain": "prepared", "prepared": "unique", "unique": "absent"}

    def __init__(self, *args):
        super().__init__(*args)
        self.text = False
        self.state = "absent"
        self.builds = self.exchanges = 0

    def setup(self):
        for first in range(0, self.DOCUMENTS, 5000):
            batch = [{"_id": n, "u": n, "text": f"{n * 7919 % 10_007} {'some words ' * 36}{n}"} for n in range(first, first + 5000)]
            self.db.built.insert_many(batch)

    def step(self):
        kind = self.random.random()
        if kind < 0.4:
            self.pending = ("text", not self.text)
            if self.text:
                self.db.built.drop_index("text")
            else:
                self.db.built.create_index("text", name="text")
                self.builds += 1
            self.text = not self.text
        elif kind < 0.55 and self.state != "absent":
            self.db.command("reIndex", "built")
            self.exchanges += 1
        else:
            target = self.NEXT[self.state]
            self.pending = ("state", target)
            if target == "absent":
                self.db.built.drop_index("u")
            elif target == "plain":
                self.db.built.create_index("u", name="u")
            else:
                field = "prepareUnique" if target == "prepared" else "unique"
                self.db.command("collMod", "built", index={"name": "u", field: True})
                self.exchanges += target == "unique"
            self.state = target
        self.pending = None

    def check(self, power_loss):
        listed = {index["name"]: index for index in self.db.built.list_indexes()}
        u = listed.get("u")
        state = "absent" if u is None else "unique" if u.get("unique") else "prepared" if u.get("prepareUnique") else "plain"
        wrong = []
        if not power_loss:
            pending = self.pending or ("", None)
            if ("text" in listed) not in (self.text, pending[1] if pending[0] == "text" else self.text):
                wrong.append(f"builder: the index on text is {'text' in listed}, acknowledged was {self.text}")
            if state not in (self.state, pending[1] if pending[0] == "state" else self.state):
                wrong.append(f"builder: the index on u is {state}, acknowledged was {self.state}, pending {pending}")
        if extra := set(listed) - {"_id_", "text", "u"}:
            wrong.append(f"builder: indexes that nobody made: {extra}")
        self.text, self.state, self.pending = "text" in listed, state, None
        return wrong


class Bank(Writer):
    """Transfers money in transactions that touch two accounts and a ledger; several banks share the accounts."""

    ACCOUNTS = 8
    START = 1000

    def __init__(self, *args):
        super().__init__(*args)
        self.number = 0
        # The committed ones in their order; of these, the first `durable` are journaled.
        self.done = []
        self.durable = self.frozen = 0
        self.conflicts = 0

    def setup(self):
        documents = [{"_id": i, "balance": self.START} for i in range(self.ACCOUNTS)]
        for document in documents:
            self.db.accounts.replace_one({"_id": document["_id"]}, document, upsert=True)

    def step(self):
        source, target = self.random.sample(range(self.ACCOUNTS), 2)
        amount, concern = self.random.randrange(1, 50), self.concern()
        self.number += 1
        identity = f"{self.name}-{self.number}"
        with self.client.start_session() as session:
            session.start_transaction(write_concern=concern)
            try:
                self.db.accounts.update_one({"_id": source}, {"$inc": {"balance": -amount}}, session=session)
                self.db.accounts.update_one({"_id": target}, {"$inc": {"balance": amount}}, session=session)
                entry = {"_id": identity, "from": source, "to": target, "amount": amount}
                self.db.ledger.insert_one(entry, session=session)
                if self.random.random() < 0.1:
                    session.abort_transaction()
                    return
                self.pending = identity
                session.commit_transaction()
            except OperationFailure as error:
                if not error.has_error_label("TransientTransactionError"):
                    raise
                self.conflicts += 1
                self.pending = None
                return
        self.pending = None
        self.done.append(identity)
        if concern is JOURNALED:
            self.durable = len(self.done)

    def freeze(self):
        self.frozen = self.durable

    def check(self, power_loss):
        wrong = []
        entries = list(self.db.ledger.find({}))
        mine = {e["_id"] for e in entries if e["_id"].startswith(f"{self.name}-")}
        promised = self.done[:self.frozen] if power_loss else self.done
        if lost := set(promised) - mine:
            wrong.append(f"{self.name}: committed transactions are lost: {sorted(lost)[:5]}")
        shown = [identity in mine for identity in self.done]
        if shown != sorted(shown, reverse=True):
            wrong.append(f"{self.name}: a later transaction is there, but not an earlier one")
        allowed = {*self.done, self.pending}
        if extra := mine - allowed:
            wrong.append(f"{self.name}: transactions that never committed are there: {sorted(extra)[:5]}")
        balances = dict.fromkeys(range(self.ACCOUNTS), self.START)
        for entry in entries:
            balances[entry["from"]] -= entry["amount"]
            balances[entry["to"]] += entry["amount"]
        actual = {d["_id"]: d["balance"] for d in self.db.accounts.find({})}
        if balances != actual:
            wrong.append(f"{self.name}: half a transaction: accounts {actual}, by the ledger {balances}")
        self.done = [identity for identity in (*self.done, self.pending) if identity in mine]
        self.pending = None
        self.durable = self.frozen = len(self.done)
        return wrong

    def forget(self):
        self.done, self.durable, self.frozen = [], 0, 0


class Capped(Writer):
    """Fills a capped collection: what is left is the newest stretch of the numbers, in order, without a gap."""

    MAX = 400

    def __init__(self, *args):
        super().__init__(*args)
        self.acknowledged = self.attempted = self.floor = self.frozen = -1

    def setup(self):
        self.db.create_collection("capped", capped=True, size=200_000, max=self.MAX)

    def step(self):
        concern, count = self.concern(), self.random.choice([1, 1, 25])
        first = self.attempted + 1
        self.attempted += count
        batch = [{"_id": first + i, "seq": first + i, "pad": "y" * ((first + i) % 200)} for i in range(count)]
        self.db.get_collection("capped", write_concern=concern).insert_many(batch)
        self.acknowledged = self.attempted
        if concern is JOURNALED:
            self.floor = self.acknowledged

    def freeze(self):
        self.frozen = self.floor

    def check(self, power_loss):
        wrong = []
        forward = [d["seq"] for d in self.db.capped.find().sort("$natural", 1)]
        backward = [d["seq"] for d in self.db.capped.find().sort("$natural", -1)]
        if forward != backward[::-1]:
            wrong.append("capped: the two natural orders differ")
        if forward and forward != list(range(forward[0], forward[0] + len(forward))):
            wrong.append(f"capped: not in order or with gaps: {forward[:5]}...{forward[-5:]}")
        last = forward[-1] if forward else -1
        least = self.frozen if power_loss else self.acknowledged
        if not least <= last <= self.attempted:
            wrong.append(f"capped: the last is {last}, acknowledged {least}, sent {self.attempted}")
        if len(forward) > self.MAX:
            wrong.append(f"capped: {len(forward)} documents, the limit is {self.MAX}")
        if len(forward) < min(last + 1, self.MAX):
            wrong.append(f"capped: only {len(forward)} documents are left, the limit is {self.MAX}")
        self.acknowledged = self.attempted = self.floor = self.frozen = last
        return wrong


class Definitions(Writer):
    """Creates and drops indexes of a busy collection, and whole collections."""

    INDEXES = {
        "by_a": ([("a", 1)], {}), "by_tags": ([("tags", 1), ("a", -1)], {}), "by_seq": ([("writer", 1), ("seq", 1)], {"unique": True}),
        "by_nested": ([("nested.b", 1)], {"sparse": True}), "by_part": ([("seq", 1)], {"partialFilterExpression": {"a": {"$lt": 50}}}),
        "by_hash": ([("text", "hashed")], {}),
    }

    def __init__(self, *args):
        super().__init__(*args)
        self.indexes = set()
        self.collections = {}

    def step(self):
        if self.random.random() < 0.6:
            name = self.random.choice(sorted(self.INDEXES))
            self.pending = ("index", name)
            if name in self.indexes:
                self.db.writes.drop_index(name)
                self.indexes.discard(name)
            else:
                keys, options = self.INDEXES[name]
                self.db.writes.create_index(keys, name=name, **options)
                self.indexes.add(name)
        else:
            name = f"temporary_{self.random.randrange(6)}"
            self.pending = ("collection", name)
            if name in self.collections:
                self.db.drop_collection(name)
                del self.collections[name]
            else:
                count = self.random.randrange(1, 200)
                self.db.create_collection(name)
                self.db[name].create_index("v", unique=True)
                self.db[name].insert_many([{"_id": i, "v": -i} for i in range(count)])
                self.collections[name] = count
        self.pending = None

    def check(self, power_loss):
        wrong = []
        listed = {i["name"] for i in self.db.writes.list_indexes()} - {"_id_"}
        names = {n for n in self.db.list_collection_names() if n.startswith("temporary_")}
        unsure = self.pending or ("", "")
        if not power_loss:
            if different := (listed ^ self.indexes) - ({unsure[1]} if unsure[0] == "index" else set()):
                wrong.append(f"definitions: indexes listed {sorted(listed)}, expected {sorted(self.indexes)}: {different}")
            unsure_names = {unsure[1]} if unsure[0] == "collection" else set()
            if different := (names ^ set(self.collections)) - unsure_names:
                wrong.append(f"definitions: collections {sorted(names)}, expected {sorted(self.collections)}: {different}")
            for name in (names & set(self.collections)) - unsure_names:
                if self.db[name].count_documents({}) != self.collections[name]:
                    wrong.append(f"definitions: {name} lost documents")
        self.indexes = listed
        # A collection whose creation or filling was cut off starts afresh.
        for name in names:
            if power_loss or name == unsure[1] or name not in self.collections:
                self.db.drop_collection(name)
                self.collections.pop(name, None)
        self.collections = {n: c for n, c in self.collections.items() if n in names}
        self.pending = None
        return wrong

    def forget(self):
        self.indexes = set()


def trim(client, writers):
    """Keeps the checks fast: drops what has grown, settles the bank's ledger in one transaction."""
    db = client[DATABASE]
    if db.writes.estimated_document_count() > 20_000:
        db.drop_collection("writes")
        for writer in writers:
            if isinstance(writer, Sequence | Definitions) and type(writer).__name__ != "Swapped":
                writer.forget()
    if db.swapped.estimated_document_count() > 3_000:
        db.drop_collection("swapped")
        for writer in writers:
            if type(writer).__name__ == "Swapped":
                writer.forget()
    if db.ledger.estimated_document_count() > 4_000:
        with client.start_session() as session, session.start_transaction():
            db.ledger.delete_many({}, session=session)
            db.accounts.update_many({}, {"$set": {"balance": Bank.START}}, session=session)
        for writer in writers:
            if isinstance(writer, Bank):
                writer.forget()


def check_indexes(db):
    """Every index of every collection holds exactly the collection's documents, and `validate` agrees."""
    wrong = []
    for name in db.list_collection_names():
        report = db.command("validate", name, full=True)
        if not report["valid"] or report.get("errors"):
            wrong.append(f"validate {name}: {report.get('errors')} {report.get('warnings')}")
        if name == "built":
            # Too large to be read here in each round: validate has compared each entry.
            continue
        everything = {d["_id"] for d in db[name].find({}, {"_id": 1}).hint([("$natural", 1)])}
        if len(everything) != db[name].estimated_document_count():
            wrong.append(f"{name}: {len(everything)} documents, the counter says {db[name].estimated_document_count()}")
        for index in db[name].list_indexes():
            if index.get("partialFilterExpression") or index.get("sparse") or "hashed" in index["key"].values():
                continue
            through = {d["_id"] for d in db[name].find({}).hint(index["name"])}
            if through != everything:
                wrong.append(f"{name}: index {index['name']} shows {len(through)} documents of {len(everything)}")
    return wrong

