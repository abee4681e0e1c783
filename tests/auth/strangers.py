"""What a client that has not logged in can do to a server that asks who its clients are: little."""

import contextlib
import pathlib
import socket
import struct
import tempfile
import time
import zlib

import bson
from common import connect, fails
from scram import Wire
from sheaf_process import Server

PASSWORD = "pencil-7731"
SECRET = b"planted-secret-5581"


def message(body, op=2013, response_to=0):
    payload = struct.pack("<I", 0) + b"\0" + bson.encode(body)
    return struct.pack("<iiii", 16 + len(payload), 7, response_to, op) + payload


def wire(server):
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.settimeout(10)
    return connection


def everything_from(connection):
    answer = b""
    try:
        while part := connection.recv(65536):
            answer += part
    except (ConnectionError, TimeoutError):
        pass
    return answer


def first_user(server):
    with connect(server) as client:
        client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
    root = connect(server, "root", PASSWORD)
    # It has been in the server's memory, in messages of all lengths.
    for length in (1, 10, 100, 1000):
        root.lib.secrets.insert_many([{"text": SECRET.decode() * length} for _ in range(10)])
        assert len(list(root.lib.secrets.find())) >= 10


def long_messages(server):
    """16 KiB are enough to log in; who has logged in may send more."""
    with wire(server) as connection:
        connection.sendall(message({"ping": 1, "comment": "x" * 16_000, "$db": "admin"}))
        assert b"ok" in connection.recv(65536)
        connection.sendall(message({"ping": 1, "comment": "x" * 17_000, "$db": "admin"})[:8000])
        assert everything_from(connection) == b""
    root = connect(server, "root", PASSWORD)
    root.admin.command("ping", comment="x" * 100_000)


def lying_lengths(server):
    """Whatever a message says of its length, no byte comes back that was not meant for this client."""
    ping = message({"ping": 1, "$db": "admin"})[16:]
    # Of snappy: a literal, as it is, behind its length.
    snappy = lambda data, told: varint(told) + bytes([61 << 2]) + struct.pack("<H", len(data) - 1) + data
    for compressor, pack in [(0, lambda data, _: data), (1, snappy), (2, lambda data, _: zlib.compress(data))]:
        for told in (0, 1, len(ping) - 1, len(ping) + 1, len(ping) + 500, 10_000, 16_000, 2**31 - 1):
            for within in (len(ping), told):
                packed = struct.pack("<iiB", 2013, told, compressor) + pack(ping, within & 0xFFFFFFFF)
                refuse_or_ping(server, struct.pack("<iiii", 16 + len(packed), 7, 0, 2012) + packed)
    # What comes out of it is less than was told, or more, or nothing, or is packed again, or comes from no compressor.
    for told, compressor, data in [
        (10_000, 2, zlib.compress(ping[:10])), (10, 2, zlib.compress(ping + bytes(5000))), (100, 2, zlib.compress(ping)[:-4]),
        (16_000, 2, b""), (16_000, 1, varint(16_000)), (16_000, 1, varint(16_000) + bytes([0x3E << 2 | 1, 0, 0])), (100, 3, ping), (100, 77, ping),
    ]:
        packed = struct.pack("<iiB", 2013, told, compressor) + data
        refuse_or_ping(server, struct.pack("<iiii", 16 + len(packed), 7, 0, 2012) + packed)
        again = struct.pack("<iiB", 2012, len(packed), 0) + packed
        refuse_or_ping(server, struct.pack("<iiii", 16 + len(again), 7, 0, 2012) + again)
    for length in (0, 15, 16, 17, 20, 2**31 - 1, -1):
        refuse_or_ping(server, struct.pack("<iiii", length, 7, 0, 2013) + ping)
    # Sequences of documents that are longer or shorter than they say, or say nothing; flags that promise more.
    body = bson.encode({"ping": 1, "$db": "admin"})
    for told in (-1, 0, 4, 5, 12, 13, 14, 200, 16_000, 2**31 - 1):
        for documents in (b"", bson.encode({"a": 1}), struct.pack("<i", 500) + b"\0"):
            section = b"\1" + struct.pack("<i", told) + b"documents\0" + documents
            for flags in (0, 1, 2, 1 << 16):
                sent = struct.pack("<I", flags) + b"\0" + body + section
                refuse_or_ping(server, struct.pack("<iiii", 16 + len(sent), 7, 0, 2013) + sent)
    # Values within documents, in both protocols of requests.
    for inner in (b"\x02a\0" + struct.pack("<i", 5000) + b"x\0", b"\x02a\0" + struct.pack("<i", -1) + b"x\0", b"\x03a\0" + struct.pack("<i", 9000) + b"\0",
                  b"\x05a\0" + struct.pack("<i", 7000) + b"\0x", b"\x0fa\0" + struct.pack("<ii", 8000, 6000) + b"x\0", b"\x0ba\0no end", b"a"):
        elements = bson.encode({"ping": 1, "$db": "admin"})[4:-1] + inner
        for told in (len(elements) + 5, len(elements) + 5000, 5):
            lie = struct.pack("<i", told) + elements + b"\0"
            for op, sent in [(2013, struct.pack("<I", 0) + b"\0" + lie), (2004, struct.pack("<i", 0) + b"admin.$cmd\0" + struct.pack("<ii", 0, -1) + lie)]:
                refuse_or_ping(server, struct.pack("<iiii", 16 + len(sent), 7, 0, op) + sent)
    # Documents and sections that say that they are longer than the message.
    for change in (5, 6):
        for value in (0, 1, 255):
            body = bytearray(message({"ping": 1, "text": "x", "$db": "admin"}))
            body[16 + change] = value
            refuse_or_ping(server, bytes(body))
    connect(server, "root", PASSWORD).admin.command("ping")


def refuse_or_ping(server, sent):
    with wire(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = everything_from(connection)
    assert SECRET not in answer and len(answer) < 2000, (sent, answer)


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def wrong_passwords(server):
    """Who is wrong often waits longer; others of the server do not."""
    def attempt(password):
        began = time.monotonic()
        with connect(server, "root", password) as client:
            fails(18, lambda: client.admin.command("ping"))
        return time.monotonic() - began

    for at in range(20):
        attempt(f"wrong {at}")
    assert attempt("wrong again") > 0.5
    root = connect(server, "root", PASSWORD)

    def soonest():
        """Of some pings: a busy machine holds up one or the other, the server would hold up all."""
        def took():
            began = time.monotonic()
            root.admin.command("ping")
            return time.monotonic() - began
        return min(took() for _ in range(10))

    assert soonest() < 0.5
    # Who does not wait for the answers wins nothing by it: they come one after the other, on whatever connection, also the right one.
    began = time.monotonic()
    for _ in range(3):
        with wire(server) as connection:
            ask(connection, saslContinue(ask(connection, saslStart()), b"c=biws,r=wrong,p=d3Jvbmc="), answered=False)
    with Wire(server, "root", PASSWORD):
        assert time.monotonic() - began > 1
    # Nobody who is logged in waits, nor has a right proof cost anything.
    assert soonest() < 0.5


def saslStart():
    return {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": b"n,,n=root,r=abcdefghijklmnop", "$db": "admin"}


def saslContinue(begun, payload):
    return {"saslContinue": 1, "conversationId": begun["conversationId"], "payload": payload, "$db": "admin"}


def ask(connection, body, answered=True):
    connection.sendall(message(body))
    if answered:
        return bson.decode(connection.recv(65536)[21:])
    # The server has read it; its answer is not waited for.
    time.sleep(0.2)


def silent_ones_make_room():
    """Connections that only sit there keep nobody out: the one that has been silent for longest goes."""
    with Server(args=["--auth", "--maxConns", "20"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        idle = [wire(server) for _ in range(16)]
        for connection in idle:
            ask(connection, {"ping": 1, "$db": "admin"})
        # Whoever has said something lately stays.
        ask(idle[0], {"ping": 1, "$db": "admin"})
        with connect(server, "root", PASSWORD) as root:
            assert root.lib.c.count_documents({}) == 0
            assert everything_from(idle[1]) == b""
            assert ask(idle[0], {"ping": 1, "$db": "admin"})["ok"] == 1
        for connection in idle:
            connection.close()


def guesses_of_others():
    """Who was right lately is kept out by nobody who guesses from the same address, as himself or as whom he has made up."""
    with Server(args=["--auth"]) as server, contextlib.ExitStack() as stack:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        Wire(server, "root", PASSWORD).socket.close()

        def guess(user):
            connection = stack.enter_context(wire(server))
            about = {"driver": {"name": "guesses", "version": "1"}, "os": {"type": "any"}}
            ask(connection, {"hello": 1, "client": about, "$db": "admin"})
            begun = ask(connection, {**saslStart(), "payload": f"n,,n={user},r=abcdefghijklmnop".encode()})
            nonce = dict(field.split(b"=", 1) for field in begun["payload"].split(b","))[b"r"]
            # Nobody waits for the answer.
            connection.sendall(message(saslContinue(begun, b"c=biws,r=" + nonce + b",p=" + b"A" * 43 + b"=")))

        for user in [f"u{number % 70}" for number in range(300)] + ["root"] * 60:
            guess(user)
        for _ in range(3):
            with Wire(server, "root", PASSWORD) as root:
                assert root.call({"ping": 1, "$db": "admin"})["ok"] == 1


def exempt_addresses():
    """Where all connections are taken, those still come whose address is named."""
    with tempfile.TemporaryDirectory(prefix="sheaf-exempt-") as folder, contextlib.ExitStack() as stack:
        config = pathlib.Path(folder) / "sheaf.conf"
        config.write_text("net:\n  maxIncomingConnections: 8\n  maxIncomingConnectionsOverride: [127.0.0.2, 127.0.1.0/24]\n")
        server = stack.enter_context(Server(args=["--config", str(config)]))

        def served(source):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), source_address=(source, 0)))
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                connection.sendall(message({"ping": 1, "$db": "admin"}))
                return b"ok" in connection.recv(65536)
            return False

        for _ in range(20):
            if not served("127.0.0.1"):
                break
        else:
            raise AssertionError("there is no limit")
        assert all(served(source) for source in ("127.0.0.2", "127.0.1.7", "127.0.1.8"))
        assert not served("127.0.0.1") and not served("127.0.0.3")


CHECKS = [first_user, long_messages, lying_lengths, wrong_passwords]
