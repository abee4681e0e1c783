"""Sessions: how long they live, and what is left of them."""

import time
import uuid

import bson
from common import connect
from sheaf_process import Server

SHORT = {"configureFailPoint": "shortSessionTimeout", "mode": "alwaysOn", "data": {"millis": 0}}


def records_of_sessions_end(_):
    """What is on record of retryable writes goes with the session, also after a crash, and without any use of it."""
    server = Server(args=["--setParameter", "enableTestCommands=1"])
    try:
        server.start()
        client = connect(server)
        lsids = [{"id": bson.Binary(uuid.uuid4().bytes, 4)} for _ in range(3)]

        def insert(at):
            """False: it was done before."""
            command = {"insert": "c", "documents": [{"_id": at}], "lsid": lsids[at], "txnNumber": bson.Int64(1)}
            reply = raw(server, {**command, "$db": "t"})
            # Executed anew it meets its own document.
            return "writeErrors" in reply

        assert [insert(at) for at in range(3)] == [False] * 3
        assert [insert(at) for at in range(3)] == [False] * 3
        server.kill()
        server.start()
        assert not insert(1)
        client.admin.command(SHORT)
        deadline = time.monotonic() + 60
        while not all(insert(at) for at in (0, 1, 2)):
            assert time.monotonic() < deadline, "the records stay"
            time.sleep(0.1)
        # And there is an end to it: nothing is written where nothing expires.
        client.admin.command({**SHORT, "mode": "off", "data": {}})
        log = client.local["oplog.rs"]
        newest = [{}]
        while len(newest) < 2 or newest[-1] != newest[-2]:
            time.sleep(1.2)
            newest.append(log.find().sort("$natural", -1).limit(1).next()["ts"])
            assert time.monotonic() < deadline, "the log grows"
        client.close()
    finally:
        server.cleanup()


def raw(server, command):
    """A command without the driver's own session."""
    import socket
    import struct

    body = struct.pack("<IB", 0, 0) + bson.encode(command)
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.settimeout(60)
        connection.sendall(struct.pack("<iiii", len(body) + 16, 1, 0, 2013) + body)
        reply = b""
        while len(reply) < 4 or len(reply) < struct.unpack("<i", reply[:4])[0]:
            piece = connection.recv(65536)
            assert piece, "the server has closed the connection"
            reply += piece
    return bson.decode(reply[21:])
