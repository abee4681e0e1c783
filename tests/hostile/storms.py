"""Attacks with what servers keep: cursors, sessions, running operations, locks, the catalog; and forged members."""

import os
import struct
import time
import uuid

import bson
from bson import Binary, Int64, Timestamp

import wire
from attack import Attack
from wire import Connection, Gone


class Cursors(Attack):
    """Opens cursors and leaves them, reads on with those of others, kills them."""

    name = "cursors"

    def step(self, connection):
        ids = []
        for _ in range(self.random.choice([10, 300])):
            made = self.random.choice([
                {"find": "c0", "batchSize": 1, "noCursorTimeout": True}, {"aggregate": "c0", "pipeline": [{"$sort": {"s": 1}}], "cursor": {"batchSize": 0}},
                {"listCollections": 1, "cursor": {"batchSize": 0}}, {"aggregate": 1, "pipeline": [{"$changeStream": {}}], "cursor": {}},
                {"find": "capped", "tailable": True, "awaitData": True}, {"aggregate": "c0", "pipeline": [{"$group": {"_id": "$n"}}], "cursor": {"batchSize": 1}},
            ])
            cursor = self.ask(connection, {**made, "$db": "hostile"}).get("cursor", {})
            if cursor.get("id"):
                ids.append((cursor["id"], cursor["ns"].split(".", 1)[1]))
        self.random.shuffle(ids)
        for identity, collection in ids[:len(ids) // 2]:
            self.ask(connection, {"getMore": Int64(identity), "collection": collection, "maxTimeMS": 20, "$db": "hostile"})
        if self.random.random() < 0.7:
            self.ask(connection, {"killCursors": "c0", "cursors": [Int64(identity) for identity, _ in ids], "$db": "hostile"})


class Sessions(Attack):
    """Sessions by the thousand, with transactions that nobody ends and numbers that go backwards."""

    name = "sessions"

    def step(self, connection):
        for _ in range(self.random.choice([5, 100])):
            lsid = {"id": Binary(uuid.UUID(int=self.random.getrandbits(128)).bytes, 4)}
            number = Int64(self.random.choice([0, 1, 5, 2**63 - 1, -1]))
            made = self.random.choice([
                {"insert": "c3", "documents": [{"x": 1}], "txnNumber": number}, {"find": "c3", "txnNumber": number, "autocommit": False, "startTransaction": True},
                {"insert": "c3", "documents": [{"x": 1}], "txnNumber": number, "autocommit": False, "startTransaction": True}, {"refreshSessions": [lsid]},
                {"update": "c3", "updates": [{"q": {"_id": self.random.randrange(20)}, "u": {"$inc": {"x": 1}}, "upsert": True}], "txnNumber": number}, {"ping": 1},
            ])
            self.ask(connection, {**made, "lsid": lsid, "$db": "hostile", "maxTimeMS": 500})
            if self.random.random() < 0.3:
                self.ask(connection, {self.random.choice(["commitTransaction", "abortTransaction"]): 1, "lsid": lsid, "txnNumber": number, "autocommit": False, "$db": "admin"})
        if self.random.random() < 0.2:
            self.ask(connection, {"killSessions": [{"id": Binary(uuid.uuid4().bytes, 4)}], "$db": "admin"})


class Kills(Attack):
    """`killOp` for whatever runs, the honest clients' operations among it."""

    name = "kills"

    def step(self, connection):
        running = self.ask(connection, {"currentOp": 1, "$all": self.random.random() < 0.3, "$db": "admin"}).get("inprog", [])
        for operation in running:
            if self.random.random() < 0.5:
                self.ask(connection, {"killOp": 1, "op": operation.get("opid", 1), "$db": "admin"})
        for _ in range(20):
            self.ask(connection, {"killOp": 1, "op": self.random.randrange(1 << 31), "$db": "admin"})
        time.sleep(self.random.uniform(0, 0.2))


class CatalogStorm(Attack):
    """Every command that changes the catalog or the files."""

    name = "catalog"

    def step(self, connection):
        name, other = self.random.sample([f"c{n}" for n in range(6)], 2)
        depth = self.random.randrange(30)
        made = self.random.choice([
            {"compact": name, "force": True}, {"convertToCapped": name, "size": self.random.choice([4096, 1 << 20])},
            {"cloneCollectionAsCapped": name, "toCollection": other, "size": 100_000}, {"drop": name}, {"create": name}, {"dropDatabase": 1, "$db": "hostile2"},
            {"renameCollection": f"hostile.{name}", "to": f"hostile.{other}", "dropTarget": self.random.random() < 0.5, "$db": "admin"},
            {"renameCollection": f"hostile.{name}", "to": f"hostile2.{other}", "dropTarget": True, "$db": "admin"},
            {"renameCollection": f"hostile2.{name}", "to": f"hostile.{other}", "dropTarget": True, "$db": "admin"},
            {"collMod": name, "validator": {"a": {"$exists": True}}, "validationLevel": self.random.choice(["off", "moderate"])},
            {"collMod": name, "index": {"name": "i1", "prepareUnique": True}}, {"collMod": name, "index": {"name": "i1", "unique": True}},
            {"validate": name, "full": True}, {"validate": name, "repair": True}, {"reIndex": name},
            {"createIndexes": name, "indexes": [{"key": {"a": 1, "s": 1}, "name": "i1"}, {"key": {"$**": 1}, "name": "i2"}]},
            {"createIndexes": name, "indexes": [{"key": {"n": 1}, "name": "i3", "unique": True}]}, {"createIndexes": name, "indexes": [{"key": {"s": "text"}, "name": "t"}]},
            {"dropIndexes": name, "index": "*"}, {"dropIndexes": name, "index": "i1"},
            {"aggregate": name, "pipeline": [{"$out": other}], "cursor": {}}, {"aggregate": name, "pipeline": [{"$out": {"db": "hostile2", "coll": other}}], "cursor": {}},
            {"aggregate": name, "pipeline": [{"$merge": {"into": other, "whenMatched": "replace"}}], "cursor": {}},
            {"aggregate": name, "pipeline": [{"$unionWith": other}, {"$unset": "_id"}, {"$merge": other}], "cursor": {}},
            {"replSetResizeOplog": 1, "size": self.random.choice([990.0, 2000.0]), "$db": "admin"}, {"drop": f"v{depth}"}, {"dbHash": 1},
            {"create": f"v{depth}", "viewOn": f"v{depth - 1}" if depth else "c0", "pipeline": [{"$redact": "$$KEEP"}] * self.random.choice([1, 100, 900])},
            {"create": "view", "viewOn": "c0", "pipeline": [{"$set": {"w": {"$range": [0, 100]}}}]}, {"create": "capped", "capped": True, "size": 100_000},
            {"insert": name, "documents": [{"a": n, "s": "y" * 100, "n": n} for n in range(500)]}, {"profile": self.random.choice([0, 1, 2])}, {"drop": "system.profile"},
        ])
        self.ask(connection, {**made, "$db": made.get("$db", "hostile"), "maxTimeMS": self.random.choice([100, 3000, 20_000])})


class Locks(Attack):
    """`fsyncLock`, for a moment, once or several times; sometimes its client goes without unlocking."""

    name = "locks"

    def step(self, connection):
        locked = True
        try:
            for _ in range(self.random.choice([1, 1, 3])):
                self.ask(connection, {"fsync": 1, "lock": True, "fsyncLockAcquisitionTimeoutMillis": 2000, "$db": "admin"})
            time.sleep(self.random.uniform(0, 0.5))
        finally:
            # Nobody could write otherwise, for which nobody but this client was to blame.
            while locked:
                try:
                    while connection.ask({"fsyncUnlock": 1, "$db": "admin"}).get("lockCount"):
                        pass
                    locked = False
                except Gone:
                    time.sleep(0.05)
                    try:
                        connection = Connection(self.port)
                    except Gone:
                        pass
        time.sleep(self.random.uniform(1, 5))


class Members(Attack):
    """Who is no member sends what members send each other: frames that lie, frames that were cut, terms of the far future."""

    name = "members"
    reconnects = True

    def step(self, connection):
        kind = self.random.choice(["config", "config", "raft", "raft", "noise", "length", "hello"])
        sender = self.random.choice([b"127.0.0.1:1", f"127.0.0.1:{self.port}".encode(), b"", b"x" * 300])
        data = b"ShMb" + self.frame(sender)
        term = self.random.choice([0, 1, 50, 2_000_000, 2**63 - 1])
        if kind == "config":
            config = bson.encode({"_id": "rs", "version": min(term, 2**31 - 1), "term": Int64(term), "protocolVersion": Int64(1), "settings": {}, "writeConcernMajorityJournalDefault": True,
                                  "members": [{"_id": n, "host": f"127.0.0.1:{n + 1}", "priority": 1.0, "votes": 1, "tags": {}} for n in range(3)]})
            data += self.frame(self.envelope(term, 4, struct.pack("<I", len(config)) + config))
        elif kind == "raft":
            entry = self.random.choice([b"", b"\0" * 30, bson.encode({"op": "zz", "ns": "t.c", "ts": Timestamp(2**31, 1)}), os.urandom(100)])
            index = self.random.choice([0, 1, 40, 2**63])
            message = bytes([self.random.randrange(0, 20), 0]) + struct.pack("<9Q", self.random.randrange(4), self.random.randrange(4), term, term, index, index, 0, 0, 0)
            message += struct.pack("<I", 0) + struct.pack("<QQ", 0, 0) + struct.pack("<Q", 1) + struct.pack("<QQ", term, index + 1)
            message += struct.pack("<I", 8) + bytes(8) + struct.pack("<I", len(entry)) + entry
            data += self.frame(self.envelope(term, 0, message))
        elif kind == "noise":
            data += self.frame(os.urandom(self.random.choice([1, 41, 500])))
        elif kind == "length":
            data += struct.pack("<I", self.random.choice([2**32 - 1, 48_000_000, 0])) + os.urandom(64)
        elif kind == "hello":
            data = b"ShCp" + os.urandom(32)
        self.note(f"{kind} as {sender[:20]}: {data[:80].hex()}")
        connection.send(data)
        connection.socket.settimeout(0.2)
        try:
            connection.exactly(1)
        except Gone:
            pass

    @staticmethod
    def frame(data):
        return struct.pack("<I", len(data)) + data

    def envelope(self, term, kind, body):
        return b"\1" + struct.pack("<QQqqQ", self.random.randrange(4), self.random.randrange(4), min(term, 2**31), term, self.random.randrange(100)) + bytes([kind]) + body


class Oplog(Attack):
    """Reads of the log of operations, backwards, forwards and with bombs, and heartbeats of nobody."""

    name = "oplog"

    def step(self, connection):
        made = self.random.choice([
            {"find": "oplog.rs", "sort": {"$natural": self.random.choice([1, -1])}, "limit": 1000, "$db": "local"},
            {"aggregate": "oplog.rs", "pipeline": [{"$sort": {"ns": 1}}, {"$group": {"_id": "$ns", "x": {"$push": "$$ROOT"}}}], "cursor": {}, "$db": "local"},
            {"find": "oplog.rs", "filter": {"ts": {"$gte": Timestamp(2**32 - 1, 0)}}, "tailable": True, "awaitData": True, "$db": "local"},
            {"aggregate": 1, "pipeline": [{"$changeStream": {"allChangesForCluster": True}}], "cursor": {}, "$db": "admin"},
            {"replSetHeartbeat": "rs", "term": Int64(2**62), "from": "127.0.0.1:1", "$db": "admin"}, {"replSetGetStatus": 1, "$db": "admin"},
            {"replSetRequestVotes": 1, "setName": "rs", "term": Int64(2**62), "candidateIndex": Int64(0), "dryRun": False, "$db": "admin"},
            {"replSetUpdatePosition": 1, "optimes": [], "$db": "admin"}, {"appendOplogNote": 1, "data": {"x": "y" * 100_000}, "$db": "admin"},
        ])
        wire.message(made)
        self.ask(connection, {**made, "maxTimeMS": 1000})


ATTACKS = [Cursors, Sessions, Kills, CatalogStorm, Locks, Members, Oplog]
