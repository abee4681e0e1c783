"""Attacks with bytes: messages that end early, that lie about lengths, that nobody understands; connections that end anywhere."""

import os
import struct
import time
import zlib

import bson

import values
import wire
from attack import Attack
from wire import Connection, Gone


class Values(Attack):
    """Every command that the server names, with extreme values."""

    name = "values"

    def connected(self, connection):
        reply = connection.ask({"listCommands": 1, "$db": "admin"})
        self.names = sorted(set(reply.get("commands", {})) - values.LEFT_OUT) or ["ping"]

    def step(self, connection):
        made = values.command(self.random, self.names)
        data = values.encoded(self.random, made)
        if data is None:
            return
        self.ask(connection, data, made)


class Bytes(Attack):
    """Lengths, flags, sections and opcodes that lie."""

    name = "bytes"
    reconnects = True

    def step(self, connection):
        kind = self.random.choice([
            self.header, self.half, self.document, self.sections, self.compressed, self.bomb, self.query, self.leftover, self.noise, self.flags,
        ])
        data = kind()
        self.note(f"{kind.__name__}: {len(data)} bytes {data[:60].hex()}")
        connection.send(data)
        if kind == self.half:
            # Slowly, then not at all.
            time.sleep(self.random.choice([0, 0, 0.01, 0.3]))
            return
        connection.socket.settimeout(0.2)
        try:
            connection.receive()
        except (Gone, struct.error, IndexError, UnicodeDecodeError):
            pass

    def valid(self):
        return wire.message({"find": "c0", "filter": {"a": 1}, "$db": "hostile"})

    def header(self):
        data = bytearray(self.valid())
        data[:4] = struct.pack("<i", self.random.choice([0, -1, 1, 15, 16, 20, len(data) - 1, len(data) + 7, 48_000_000, 48_000_001, 2**31 - 1, -2**31]))
        return bytes(data)

    def half(self):
        data = self.valid()
        return data[:self.random.randrange(1, len(data))]

    def document(self):
        data = bytearray(bson.encode({"insert": "c1", "documents": [{"a": "xyz", "b": [1, {"c": b"123"}]}], "$db": "hostile"}))
        at = self.random.randrange(len(data) - 4)
        data[at:at + 4] = struct.pack("<i", self.random.choice([-1, 0, 1, 4, 5, 2**31 - 1, -2**31, 16 << 20]))
        return wire.message(bytes(data))

    def sections(self):
        data = bytearray(wire.message({"insert": "c1", "$db": "hostile"}, sections=[("documents", [{"a": 1}, {"b": 2}])] * self.random.choice([1, 1, 2, 50])))
        at = data.index(b"documents") - 4
        data[at:at + 4] = struct.pack("<i", self.random.choice([-1, 0, 3, 4, 5, 13, 14, len(data), 48_000_000, 2**31 - 1]))
        return bytes(data)

    def compressed(self):
        declared = self.random.choice([-1, 0, 1, 4, 1000, 47_999_984, 48_000_000, 2**31 - 1, None])
        return wire.compressed(self.valid(), self.random.randrange(6), declared, self.random.choice([2013, 2013, 2004, 2012, 0]),
                               self.random.choice([None, b"", b"\xff" * 100, os.urandom(300)]))

    def bomb(self):
        """A few kilobytes that are megabytes when they are unpacked."""
        inner = bytes(self.random.choice([1, 16, 45]) << 20)
        return wire.compressed(b"\0" * 16 + inner, 2, self.random.choice([None, 1000]), data=zlib.compress(inner))

    def query(self):
        greeting = {"isMaster": 1, "helloOk": True, "client": {"driver": {"name": "x", "version": "y"}, "os": {"type": "z"}}}
        made = self.random.choice([greeting, {"ping": 1}, {"find": "c0"}, {}, {"isMaster": [1] * 1000}, {"hello": float("nan")}])
        return wire.query(made, self.random.choice([0, 4, -1]), self.random.choice([-1, 0, 1, -2**31]),
                          self.random.choice([b"admin.$cmd", b"hostile.c0", b"", b"x" * 300, b"admin.$cmd.sys.inprog"]))

    def leftover(self):
        return wire.packed(self.random.choice(wire.LEFTOVERS), os.urandom(self.random.choice([0, 4, 40, 400])))

    def noise(self):
        return self.random.choice([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", b"ShMb", os.urandom(64), bytes(64)])

    def flags(self):
        return wire.message({"ping": 1, "$db": "admin"}, self.random.choice([1, 2, 3, 1 << 16, 4, 1 << 31, 0xFFFF, 1 << 15]))


class Claims(Attack):
    """48 MB are announced on many connections, 12 MB are sent, and then nothing for a while."""

    name = "claims"
    CONNECTIONS = 24

    def step(self, _):
        held = []
        part = wire.HEADER.pack(wire.LARGEST, 1, 0, wire.OP_MSG) + struct.pack("<IB", 0, 0) + struct.pack("<i", wire.LARGEST - 21) + b"\5x\0" + bytes(12 << 20)
        self.note(f"{self.CONNECTIONS} connections announce 48 MB and send 12 MB")
        try:
            for _ in range(self.CONNECTIONS):
                connection = Connection(self.port, timeout=2)
                held.append(connection)
                connection.send(part)
        except Gone:
            pass
        time.sleep(self.random.uniform(0, 3))
        for connection in held:
            connection.close(reset=self.random.random() < 0.5)
        time.sleep(self.random.uniform(1, 4))


class Hangups(Attack):
    """Whoever asks is gone before the answer, or in the middle of it."""

    name = "hangups"
    reconnects = True

    def step(self, connection):
        made = self.random.choice([
            {"find": "c0", "filter": {}, "batchSize": 1000}, {"aggregate": "c0", "pipeline": [{"$sort": {"s": 1}}, {"$group": {"_id": "$a", "x": {"$push": "$s"}}}], "cursor": {}},
            {"aggregate": "c0", "pipeline": [{"$lookup": {"from": "c0", "pipeline": [{"$match": {"$expr": {"$eq": [{"$add": ["$a", "$b"]}, -1]}}}], "as": "x"}}], "cursor": {}},
            {"insert": "c1", "documents": [{"s": "x" * 1000}] * 2000}, {"update": "c0", "updates": [{"q": {}, "u": {"$inc": {"n": 1}}, "multi": True}]},
            {"createIndexes": "c0", "indexes": [{"key": {"s": 1, "n": 1}, "name": "hang"}]}, {"validate": "c0", "full": True}, {"hello": 1, "maxAwaitTimeMS": 10_000},
            {"dbHash": 1}, {"count": "c0", "query": {"s": {"$regex": "(x+x+)+y"}}},
        ])
        self.note(f"hangs up: {str(made)[:300]}")
        connection.send(wire.message({**made, "$db": "hostile"}))
        time.sleep(self.random.choice([0, 0.001, 0.02, 0.2]))
        if self.random.random() < 0.3:
            connection.socket.settimeout(0.5)
            try:
                connection.exactly(self.random.randrange(1, 500))
            except Gone:
                pass
        connection.close(reset=self.random.random() < 0.5)


class Deaf(Attack):
    """Asks for much, many times, and reads nothing."""

    name = "deaf"

    def step(self, _):
        held = []
        self.note("8 connections ask 40 times for 16 MB and do not read")
        request = wire.message({"find": "large", "batchSize": 1000, "$db": "hostile"}) * 40
        try:
            for _ in range(8):
                connection = Connection(self.port, timeout=1, receive_buffer=4096)
                held.append(connection)
                connection.send(request)
        except Gone:
            pass
        time.sleep(self.random.uniform(0.5, 4))
        for connection in held:
            connection.close(reset=True)


class Monitors(Attack):
    """Drivers' monitors, as many as are let in: each waits for news with a streaming `hello`."""

    name = "monitors"

    def step(self, _):
        held = []
        many = self.random.choice([8, 40, 200])
        self.note(f"{many} monitors")
        try:
            for _ in range(many):
                connection = Connection(self.port, timeout=1)
                held.append(connection)
                reply = connection.ask({"hello": 1, "$db": "admin"})
                command = {"hello": 1, "$db": "admin", "topologyVersion": reply.get("topologyVersion"), "maxAwaitTimeMS": 10_000}
                connection.send(wire.message(command, wire.EXHAUST_ALLOWED))
        except Gone:
            pass
        time.sleep(self.random.uniform(0.2, 5))
        for connection in held:
            connection.close()
        time.sleep(self.random.uniform(0, 3))


ATTACKS = [Values, Bytes, Claims, Hangups, Deaf, Monitors]
