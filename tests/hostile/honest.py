"""Honest clients beside the hostile ones: what they were promised must be there at every look.

Each write is sent once. It is acknowledged, or nobody knows; what nobody knows may have happened wholly or not at all.
They speak through plain sockets, one connection each, so that they need few descriptors.
"""

import array
import collections
import multiprocessing
import random
import threading
import time
import uuid

import bson
from bson import Binary, Int64

from wire import Connection, Gone

DATABASE = "honest"
# Longer than anything may take; what hangs is noticed by who waits for a write after it.
PATIENCE = 60
PLAIN, JOURNALED, MAJORITY = {"w": 1, "j": False}, {"w": 1, "j": True}, {"w": "majority", "wtimeout": 30_000}


class Refused(Exception):
    """The server has answered with an error."""


def ask(connection, command):
    """The reply to a command in the honest database; errors of single writes are errors."""
    reply = connection.ask({**command, "$db": command.get("$db", DATABASE)})
    if reply.get("ok") != 1.0:
        raise Refused(f"{reply.get('code')} {reply.get('errmsg')}")
    if reply.get("writeErrors") or reply.get("writeConcernError"):
        raise Refused(str(reply.get("writeErrors") or reply.get("writeConcernError"))[:300])
    return reply


def everything(connection, collection, filter, projection=None):
    """All documents of a query."""
    command = {"find": collection, "filter": filter, "batchSize": 10_000, "readConcern": {"level": "local"}}
    if projection:
        command["projection"] = projection
    cursor = ask(connection, command)["cursor"]
    found = cursor["firstBatch"]
    while cursor["id"]:
        cursor = ask(connection, {"getMore": Int64(cursor["id"]), "collection": collection, "batchSize": 10_000})["cursor"]
        found += cursor["nextBatch"]
    return found


class Client:
    """Works in a thread of its own; errors are part of the game."""

    def __init__(self, name, port, seed, concerns):
        self.name, self.port, self.concerns = name, port, concerns
        self.random = random.Random(f"{seed}-{name}")
        self.operations = self.refused = self.gone = 0
        # Why, and how often.
        self.reasons = collections.Counter()
        self.last_acknowledged = time.monotonic()
        self.stop = threading.Event()
        self.may_work = threading.Event()
        self.may_work.set()
        self.idle = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        connection = None
        while not self.stop.is_set():
            if not self.may_work.is_set():
                self.idle.set()
                self.may_work.wait(0.1)
                continue
            self.idle.clear()
            try:
                connection = connection or Connection(self.port, PATIENCE)
                self.step(connection)
                self.operations += 1
                self.last_acknowledged = time.monotonic()
            except Refused as error:
                self.refused += 1
                self.reasons[str(error)[:60]] += 1
                time.sleep(0.02)
            except Gone:
                self.gone += 1
                time.sleep(0.05)
                if connection:
                    connection.close()
                connection = None
            time.sleep(self.random.uniform(0.002, 0.012))
        if connection:
            connection.close()
        self.idle.set()

    def step(self, connection):
        raise NotImplementedError

    def setup(self, connection):
        """Creates what it needs."""

    def check(self, connection):
        """What is wrong."""
        raise NotImplementedError


class Inserts(Client):
    """Documents that are written once: what was acknowledged is there, and nothing that was never sent."""

    def __init__(self, *args):
        super().__init__(*args)
        self.number = 0
        self.acknowledged, self.unknown = set(), set()

    def step(self, connection):
        first, count = self.number, self.random.choice([1, 1, 1, 1, 20])
        self.number += count
        self.unknown.update(range(first, self.number))
        documents = [{"_id": f"{self.name}-{n}", "w": self.name, "n": n, "text": "x" * self.random.choice([10, 300])} for n in range(first, self.number)]
        ask(connection, {"insert": "writes", "documents": documents, "writeConcern": self.random.choice(self.concerns)})
        # In this order: a look meanwhile finds each in one of them.
        self.acknowledged.update(range(first, self.number))
        self.unknown.difference_update(range(first, self.number))

    def setup(self, connection):
        ask(connection, {"createIndexes": "writes", "indexes": [{"key": {"w": 1, "n": 1}, "name": "w_n", "unique": True}]})

    def check(self, connection):
        # What is acknowledged during the look need not be seen, and what is sent may be.
        promised = set(self.acknowledged)
        found = [d["n"] for d in everything(connection, "writes", {"w": self.name}, {"_id": 0, "n": 1})]
        allowed = self.unknown | self.acknowledged
        wrong = []
        if lost := promised - set(found):
            wrong.append(f"{self.name}: {len(lost)} acknowledged inserts of {len(promised)} are lost: {sorted(lost)[:8]}")
        if more := set(found) - allowed:
            wrong.append(f"{self.name}: {len(more)} inserts are there that nobody has sent: {sorted(more)[:8]}")
        if len(set(found)) != len(found):
            wrong.append(f"{self.name}: documents are there twice")
        return wrong


class Counts(Client):
    """Counts up in one document for each of several counters."""

    def __init__(self, *args):
        super().__init__(*args)
        self.least, self.most = [0] * 4, [0] * 4

    def setup(self, connection):
        ask(connection, {"insert": "counters", "documents": [{"_id": f"{self.name}-{n}", "n": 0} for n in range(4)]})

    def step(self, connection):
        which = self.random.randrange(4)
        self.most[which] += 1
        ask(connection, {"update": "counters", "updates": [{"q": {"_id": f"{self.name}-{which}"}, "u": {"$inc": {"n": 1}}}], "writeConcern": self.random.choice(self.concerns)})
        self.least[which] += 1

    def check(self, connection):
        promised = list(self.least)
        found = {d["_id"]: d["n"] for d in everything(connection, "counters", {})}
        wrong = []
        for which in range(4):
            there = found.get(f"{self.name}-{which}", -1)
            if not promised[which] <= there <= self.most[which]:
                wrong.append(f"{self.name}: counter {which} is {there}, promised {promised[which]}, sent {self.most[which]}")
        return wrong


class Bank(Client):
    """Transfers in transactions, with an entry in a ledger: the sum stays, no transfer is there by half."""

    ACCOUNTS, START = 10, 1000

    def __init__(self, *args):
        super().__init__(*args)
        self.number = 0
        self.acknowledged = set()
        self.fresh()

    def fresh(self):
        self.lsid, self.transaction = {"id": Binary(uuid.UUID(int=self.random.getrandbits(128)).bytes, 4)}, 0

    def setup(self, connection):
        ask(connection, {"insert": "accounts", "documents": [{"_id": f"{self.name}-{n}", "bank": self.name, "balance": self.START} for n in range(self.ACCOUNTS)]})
        ask(connection, {"create": f"ledger_{self.name}"})

    def step(self, connection):
        source, target = self.random.sample(range(self.ACCOUNTS), 2)
        amount = self.random.randrange(1, 50)
        self.number, self.transaction = self.number + 1, self.transaction + 1
        entry = {"_id": self.number, "from": source, "to": target, "amount": amount}
        shared = {"lsid": self.lsid, "txnNumber": Int64(self.transaction), "autocommit": False}
        try:
            for account, change, begin in ((source, -amount, {"startTransaction": True}), (target, amount, {})):
                updates = [{"q": {"_id": f"{self.name}-{account}"}, "u": {"$inc": {"balance": change}}}]
                ask(connection, {"update": "accounts", "updates": updates, **shared, **begin})
            ask(connection, {"insert": f"ledger_{self.name}", "documents": [entry], **shared})
            ask(connection, {"commitTransaction": 1, "$db": "admin", "writeConcern": self.random.choice(self.concerns), **shared})
        except (Refused, Gone):
            self.fresh()
            raise
        self.acknowledged.add(self.number)

    def check(self, connection):
        promised = set(self.acknowledged)
        wrong = []
        balances = everything(connection, "accounts", {"bank": self.name})
        if sum(d["balance"] for d in balances) != self.ACCOUNTS * self.START or len(balances) != self.ACCOUNTS:
            wrong.append(f"{self.name}: the sum is not {self.ACCOUNTS * self.START}: {balances}")
        if not self.may_work.is_set():
            # At rest the ledger gives the balances.
            entries = everything(connection, f"ledger_{self.name}", {})
            by_ledger = dict.fromkeys(range(self.ACCOUNTS), self.START)
            for entry in entries:
                by_ledger[entry["from"]] -= entry["amount"]
                by_ledger[entry["to"]] += entry["amount"]
            actual = {int(d["_id"].rsplit("-", 1)[1]): d["balance"] for d in everything(connection, "accounts", {"bank": self.name})}
            if actual != by_ledger:
                wrong.append(f"{self.name}: accounts {actual}, by the ledger {by_ledger}")
            if lost := promised - {e["_id"] for e in entries}:
                wrong.append(f"{self.name}: {len(lost)} acknowledged transfers are lost: {sorted(lost)[:8]}")
        return wrong


def clients(port, seed, with_majority=False):
    """One or two of each kind."""
    concerns = [PLAIN, JOURNALED] + [MAJORITY] * with_majority
    made = [Inserts("plain", port, seed, [PLAIN]), Inserts("journaled", port, seed, [JOURNALED])]
    made += [Counts("counter", port, seed, concerns), Bank("bank1", port, seed, concerns), Bank("bank2", port, seed, concerns)]
    return made + [Inserts("majority", port, seed, [MAJORITY])] * with_majority


class Honest:
    """All honest clients of a server."""

    def __init__(self, port, seed, with_majority=False):
        self.port = port
        self.clients = clients(port, seed, with_majority)
        self.looks = 0

    def begin(self):
        with Connection(self.port, PATIENCE) as connection:
            for client in self.clients:
                client.setup(connection)
        for client in self.clients:
            client.thread.start()

    def pause(self):
        for client in self.clients:
            client.may_work.clear()
        for client in self.clients:
            if not client.idle.wait(PATIENCE + 30):
                return [f"{client.name}: an operation hangs"]
        return []

    def resume(self):
        for client in self.clients:
            client.idle.clear()
            client.may_work.set()

    def check(self, port=None):
        """Looks at everything. Hostile clients may end the look's reads, too: it is repeated."""
        error = None
        deadline = time.monotonic() + 2 * PATIENCE
        while time.monotonic() < deadline:
            try:
                wrong = []
                for client in self.clients:
                    with Connection(port or self.port, PATIENCE) as connection:
                        wrong += client.check(connection)
                self.looks += 1
                return wrong
            except (Gone, Refused) as failed:
                error = failed
                time.sleep(0.1)
        return [f"the honest clients' data cannot be read: {error}"]

    def wait_for_writes(self, seconds, meanwhile=lambda: None):
        """Whether every client gets a new acknowledgement; `meanwhile` is done again and again."""
        began = time.monotonic()
        while any(client.last_acknowledged < began for client in self.clients):
            if time.monotonic() > began + seconds:
                waiting = {client.name: client.reasons.most_common(3) for client in self.clients if client.last_acknowledged < began}
                return [f"no write in {seconds} s: {waiting}"]
            meanwhile()
            time.sleep(0.05)
        return []

    def end(self):
        for client in self.clients:
            client.stop.set()
            client.may_work.set()
        for client in self.clients:
            client.thread.join(PATIENCE + 30)


def ping(port, seconds_between, phase, path):
    """A process that pings all the time and writes down how long each took, in milliseconds.

    `phase` is 0 while answers are expected, 1 while the server is being ended or started, 2 when it is time to end.
    """
    latencies, stalls = array.array("f"), 0
    connection = None
    parent = multiprocessing.parent_process()
    while phase.value != 2 and parent.is_alive():
        before = phase.value
        began = time.monotonic()
        try:
            connection = connection or Connection(port, PATIENCE)
            connected = time.monotonic()
            connection.ask({"ping": 1, "$db": "admin"})
            if before == 0 and phase.value == 0:
                latencies.append((time.monotonic() - connected) * 1000)
        except (Gone, bson.errors.BSONError):
            if before == 0 and phase.value == 0:
                stalls += 1
                if time.monotonic() - began > 1:
                    latencies.append((time.monotonic() - began) * 1000)
            if connection:
                connection.close()
            connection = None
            time.sleep(0.05)
        time.sleep(seconds_between)
    with open(path, "wb") as file:
        array.array("I", [stalls]).tofile(file)
        latencies.tofile(file)


def latencies(path):
    """(how often no answer came, the sorted latencies) of what `ping` has written."""
    stalls, found = array.array("I"), array.array("f")
    with open(path, "rb") as file:
        stalls.fromfile(file, 1)
        found.frombytes(file.read())
    return stalls[0], sorted(found)
