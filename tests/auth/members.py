"""How members of a set and of a cluster prove to each other and to clients that they belong together."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pymongo
import strangers
from bson import Binary, Int64, Timestamp
from common import command_fails, connect, fails
from pymongo.errors import OperationFailure, PyMongoError
from scram import Wire
from sheaf_process import Server, find_binary, free_port, stand_still

KEY = "bXkgZGVwbG95bWVudCdzIGtleQ=="
OTHER_KEY = "YW5vdGhlciBkZXBsb3ltZW50J3Mga2V5"
PASSWORD = "pencil-7731"


class Keys:
    """Key files in a folder of their own."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sheaf-keys-"))

    def file(self, name, text, mode=0o400):
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def __enter__(self):
        self.key = self.file("key", KEY)
        self.other = self.file("other", OTHER_KEY)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


def direct(server, **options):
    return connect(server, directConnection=True, **options)


def as_member(server, key=KEY, **options):
    return pymongo.MongoClient(
        f"mongodb://127.0.0.1:{server.port}", username="__system", password=key, authSource="local",
        directConnection=True, serverSelectionTimeoutMS=20_000, **options,
    )


def wait_for(what, condition, seconds=60):
    until = time.monotonic() + seconds
    while True:
        try:
            found = condition()
            if found:
                return found
        except PyMongoError as error:
            found = error
        assert time.monotonic() < until, f"{what}: {found}"
        time.sleep(0.1)


def initiate(servers, name, **more):
    members = [{"_id": at, "host": f"127.0.0.1:{server.port}"} for at, server in enumerate(servers)]
    with direct(servers[0]) as client:
        client.admin.command("replSetInitiate", {"_id": name, "members": members, **more})
    wait_for("a primary", lambda: direct(servers[0]).admin.command("hello")["isWritablePrimary"])


def refused_files():
    """Key files that are too open, too short, or hold something else are refused at the start, without being shown."""
    with Keys() as keys:
        for path, words in [
            (keys.file("open", KEY, 0o644), "are too open"),
            (keys.file("short", "abc"), "has length 3, must be between 6 and 1024"),
            (keys.file("long", "a" * 1025), "has length 1025"),
            (keys.file("odd", "se cret!key"), "invalid char in key file"),
            (str(keys.folder / "nonesuch"), "error opening file"),
        ]:
            flags = ["--replSet", "rs", "--keyFile", path]
            done = subprocess.run([find_binary(), "server", *flags], capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and words in done.stderr, (path, done)
            assert "secret!key" not in done.stderr
        flags = ["--keyFile", keys.key, "--replSet", "rs", "--clusterAuthMode", "x509"]
        done = subprocess.run([find_binary(), "server", *flags], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "need to enable TLS" in done.stderr, done


def a_set_of_three():
    """Users everywhere, writes for a majority, forwarding, a member that comes later and fetches a copy."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        flags = ["--replSet", "rs", "--keyFile", keys.key]
        servers = [stack.enter_context(Server(args=flags)) for _ in range(3)]
        with direct(servers[0]) as client:
            command_fails(13, client.lib, "insert", "c", documents=[{}])
        initiate(servers, "rs")
        with direct(servers[0]) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"], writeConcern={"w": 3})
            command_fails(13, client.admin, "createUser", "more", pwd=PASSWORD, roles=["root"])
        root = connect(servers[0], "root", PASSWORD)
        root.lib.get_collection("c", write_concern=pymongo.WriteConcern(w=3, wtimeout=30_000)).insert_one({"_id": 1})
        # A secondary knows the user, and writes on the primary for a pipeline that ends with $out.
        second = connect(servers[1], "root", PASSWORD, directConnection=True, readPreference="secondary")
        list(second.lib.c.aggregate([{"$out": "copy"}]))
        assert root.lib.copy.count_documents({}) == 1
        # The key is a password, for tools.
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-1"):
            with as_member(servers[2], authMechanism=mechanism) as member:
                assert member.admin.command("replSetGetStatus")["set"] == "rs"
        with as_member(servers[2], OTHER_KEY) as member:
            fails(18, lambda: member.admin.command("ping"))
        # A member that comes later fetches a copy.
        late = stack.enter_context(Server(args=flags))
        config = root.admin.command("replSetGetConfig")["config"]
        config["version"] += 1
        config["members"].append({"_id": 3, "host": f"127.0.0.1:{late.port}"})
        root.admin.command("replSetReconfig", config)
        states = lambda: [member["stateStr"] for member in root.admin.command("replSetGetStatus")["members"]]
        wait_for("four members", lambda: sorted(states()) == ["PRIMARY"] + 3 * ["SECONDARY"])
        # The primary goes, another leads.
        servers[0].kill()
        with pymongo.MongoClient(
            f"mongodb://127.0.0.1:{servers[1].port}/?replicaSet=rs", username="root", password=PASSWORD,
        ) as more:
            written = more.lib.get_collection("d", write_concern=pymongo.WriteConcern(w=3, wtimeout=30_000))
            wait_for("a write", lambda: written.insert_one({}))


def another_key():
    """A node with another key, or without, is no member, and is named; what speaks without a proof is not listened to."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        audit = pathlib.Path(keys.key).with_name("audit.json")
        audited = ["--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", str(audit)]
        one = stack.enter_context(Server(args=["--replSet", "rs", "--keyFile", keys.key, *audited]))
        stranger = stack.enter_context(Server(args=["--replSet", "rs", "--keyFile", keys.other]))
        open_one = stack.enter_context(Server(args=["--replSet", "rs"]))
        initiate([one], "rs")
        with direct(one) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(one, "root", PASSWORD, directConnection=True)
        config = root.admin.command("replSetGetConfig")["config"]
        for at, server in enumerate([stranger, open_one]):
            config["version"] += 1
            config["members"].append(
                {"_id": 1 + at, "host": f"127.0.0.1:{server.port}", "votes": 0, "priority": 0}
            )
            try:
                root.admin.command("replSetReconfig", config)
            except OperationFailure as error:
                assert error.code in (74, 103), error
        # By a member's protocol without a proof, and with one that is none.
        greeting = b"ShMb" + struct.pack("<I", 5) + b"\x05\0\0\0\0"
        for bytes in (greeting, b"ShMb" + b"ShKy" + 32 * b"n" + b"\x01" + 32 * b"p", b"ShCp" + 40 * b"\0"):
            assert answer_to(one, bytes) == b"" or bytes[4:8] == b"ShKy"
        wait_for("the stranger is named", lambda: "it does not prove that it has the key" in log_of(one))
        refused = '"param" : {"user":"__system","db":"local","mechanism":"keyFile"}, "result" : 18 }'
        wait_for("it is in the audit log", lambda: refused in audit.read_text())
        # Whoever has dialled it is told, too.
        wait_for("it is named where it was dialled", lambda: "it does not take the proof of the key" in log_of(one))
        named = f'"host":"127.0.0.1:{open_one.port}","why":"it does not answer as one that has a key'
        wait_for("one without a key is named, too", lambda: named in log_of(one))
        heard = lambda: {member["name"]: member.get("lastHeartbeatMessage") for member in root.admin.command("replSetGetStatus")["members"]}
        name = f"127.0.0.1:{stranger.port}"
        wait_for("its status says why", lambda: heard().get(name) == f"Error connecting to {name} :: caused by :: Authentication failed.")


def answer_to(server, bytes):
    """What a server answers to these bytes until it closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.settimeout(10)
        with contextlib.suppress(ConnectionError):
            wire.sendall(bytes)
            while part := wire.recv(4096):
                answer += part
    return answer


def log_of(server):
    return server.log_tail(100_000)


def replayed_bytes():
    """What was taken off a link and is played again, altered or spliced is refused, and the set goes on."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        tap = stack.enter_context(Tap())
        first_port = free_port()
        parameter = f"peerAddresses=127.0.0.1:{first_port}=127.0.0.1:{tap.port}"
        flags = ["--replSet", "rs", "--keyFile", keys.key]
        first = stack.enter_context(Server(args=flags, port=first_port))
        second = stack.enter_context(Server(args=[*flags, "--setParameter", parameter]))
        tap.target = first.port
        initiate([first, second], "rs")
        with direct(first) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(first, "root", PASSWORD, directConnection=True)
        both = root.lib.get_collection("c", write_concern=pymongo.WriteConcern(w=2, wtimeout=30_000))
        both.insert_one({"_id": 1})
        taken = [bytes for bytes in tap.taken() if bytes.startswith(b"ShMb") and len(bytes) > 200]
        assert taken, "nothing was taken off the link"
        for bytes in taken[:3]:
            assert b"ShKy" == bytes[4:8]
            # Its opening at the most, and the end: the proof is not for this connection.
            answer = answer_to(first, bytes)
            assert answer == b"" or len(answer) == 36 and answer[:4] == b"ShKy", answer
        tap.alter = True
        wait_for("an altered record is named", lambda: "was not sent like this" in log_of(first))
        tap.alter = False
        wait_for("a write", lambda: both.insert_one({"n": 1}))


class Tap:
    """Hands connections on to a server, and keeps what was sent to it."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target = None
        self.alter = False
        self.kept = []

    def __enter__(self):
        import threading

        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def taken(self):
        return [bytes(kept) for kept in self.kept]

    def accept(self):
        import threading

        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            kept = bytearray()
            self.kept.append(kept)
            threading.Thread(target=self.relay, args=(client, server, kept), daemon=True).start()
            threading.Thread(target=self.relay, args=(server, client, None), daemon=True).start()

    def relay(self, source, target, kept):
        try:
            while data := source.recv(65536):
                if kept is not None:
                    if self.alter and len(kept) > 400:
                        data = data[:-1] + bytes([data[-1] ^ 1])
                    kept += data
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def rotation():
    """Keys are changed member by member, by way of a list with both."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        both = keys.file("both", f"- {KEY}\n- {OTHER_KEY}\n")
        ports = [free_port(), free_port()]
        servers = [
            Server(args=["--replSet", "rs", "--keyFile", key], port=port)
            for key, port in zip((both, keys.other), ports)
        ]
        for server in servers:
            stack.enter_context(server)
        initiate(servers, "rs")
        with direct(servers[0]) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(servers[0], "root", PASSWORD, directConnection=True)
        root.lib.get_collection("c", write_concern=pymongo.WriteConcern(w=2, wtimeout=30_000)).insert_one({"_id": 1})
        for key in (KEY, OTHER_KEY):
            with as_member(servers[0], key) as member:
                member.admin.command("replSetGetStatus")


def transition():
    """A set without keys gets them member by member, and serves all the time."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        servers = [stack.enter_context(Server(args=["--replSet", "rs"])) for _ in range(3)]
        initiate(servers, "rs")
        uri = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        with pymongo.MongoClient(f"mongodb://{uri}/?replicaSet=rs") as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        every = pymongo.WriteConcern(w=3, wtimeout=60_000)
        for flags, user in [(["--transitionToAuth"], {}), ([], {"username": "root", "password": PASSWORD})]:
            for server in servers:
                server.stop()
                server.args = ["--replSet", "rs", "--keyFile", keys.key, *flags]
                server.start()
                # Both kinds of clients are served on the way.
                with pymongo.MongoClient(f"mongodb://{uri}/?replicaSet=rs", **user) as client:
                    all = client.lib.get_collection("c", write_concern=every)
                    wait_for("a write everywhere", lambda: all.insert_one({}))
            # That nobody's rights are looked at on the way is not to be forgotten.
            logs = [server.log_path.read_text() for server in servers]
            assert not flags or [log for log in logs if '"because":"transitionToAuth"' in log] == logs
        with direct(servers[0]) as client:
            command_fails(13, client.lib, "find", "c")


def a_sharded_cluster():
    """Routers log in at the config servers and the shards, and know users from there."""
    with contextlib.ExitStack() as stack:
        keys = stack.enter_context(Keys())
        member = ["--keyFile", keys.key]
        config = stack.enter_context(Server(args=["--configsvr", "--replSet", "c", *member]))
        shards = [
            stack.enter_context(Server(args=["--shardsvr", "--replSet", f"s{at}", *member])) for at in range(2)
        ]
        initiate([config], "c", configsvr=True)
        for at, shard in enumerate(shards):
            initiate([shard], f"s{at}")
        routers = [stack.enter_context(Router(f"c/127.0.0.1:{config.port}", keys.key)) for _ in range(2)]
        first, second = routers
        with connect(first) as client:
            command_fails(13, client.lib, "insert", "c", documents=[{}])
        # Of those who come at once by both of them one is the first.
        made, clients = [], [connect(router) for router in 4 * routers]
        together = threading.Barrier(len(clients))

        def come(at):
            together.wait()
            try:
                clients[at].admin.command("createUser", f"root{at}", pwd=PASSWORD, roles=["root"])
                made.append(f"root{at}")
            except OperationFailure as error:
                assert error.code == 13, error

        threads = [threading.Thread(target=come, args=(at,)) for at in range(len(clients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = made
        connect(first, winner, PASSWORD).admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connect(first) as client:
            command_fails(13, client.admin, "createUser", "more", pwd=PASSWORD, roles=["root"])
        root = connect(first, "root", PASSWORD)
        root.admin.command("dropUser", winner)
        for at, shard in enumerate(shards):
            root.admin.command("addShard", f"s{at}/127.0.0.1:{shard.port}")
        root.admin.command("shardCollection", "lib.books", key={"_id": "hashed"})
        root.lib.books.insert_many([{"_id": at, "n": at} for at in range(200)])
        assert root.lib.books.count_documents({}) == 200
        assert sum(document["n"] for document in root.lib.books.aggregate([{"$group": {"_id": "$n", "n": {"$sum": "$n"}}}])) == 19900
        with root.start_session() as session, session.start_transaction():
            root.lib.books.update_many({}, {"$inc": {"n": 1}}, session=session)
        root.admin.command("createRole", "books", privileges=[
            {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}
        ], roles=[])
        root.lib.notes.insert_one({"_id": 1})
        root.admin.command("createUser", "reader", pwd=PASSWORD, roles=["books"])
        # Another router has the user, and may do what the role says.
        reader = connect(second, "reader", PASSWORD)
        assert reader.lib.books.count_documents({}) == 200
        command_fails(13, reader.lib, "find", "notes")
        command_fails(13, reader.lib, "insert", "books", documents=[{}])
        command_fails(13, reader.admin, "shardCollection", "lib.notes", key={"_id": 1})
        fails(13, lambda: list(reader.lib.books.aggregate([{"$lookup": {"from": "notes", "as": "x", "pipeline": []}}])))
        assert reader.lib.command("listCollections", nameOnly=True, authorizedCollections=True)["cursor"]["firstBatch"] == [
            {"name": "books", "type": "collection"}
        ]
        command_fails(13, reader.lib, "listCollections")
        assert [db["name"] for db in reader.admin.command("listDatabases")["databases"]] == ["lib"]
        assert reader.admin.command("currentOp", **{"$ownOps": True})["ok"] == 1
        status = reader.admin.command("connectionStatus")["authInfo"]
        assert status["authenticatedUsers"] == [{"user": "reader", "db": "admin"}]
        # Cursors belong to their users.
        cursor = root.lib.command("find", "books", batchSize=2)["cursor"]["id"]
        here = connect(first, "reader", PASSWORD)
        command_fails(13, here.lib, "getMore", cursor, collection="books")
        # A change holds on the open connections of the other router within about a second, of this one at once.
        root.admin.command("revokePrivilegesFromRole", "books", privileges=[
            {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}
        ])
        wait_for("the change", lambda: is_refused(reader), seconds=60)
        assert is_refused(here)
        root.admin.command("grantRolesToUser", "reader", roles=[{"role": "read", "db": "lib"}])
        assert here.lib.books.find_one({"_id": 1})
        # Whose sessions are ended loses what he has open on the shards, by whatever router he came.
        wait_for("the grant", lambda: not is_refused(reader), seconds=60)
        with reader.start_session() as session:
            session.start_transaction()
            assert len(list(reader.lib.books.find(session=session))) == 200
            root.admin.command("killAllSessions", [{"user": "reader", "db": "admin"}])
            fails(251, lambda: list(reader.lib.books.find(session=session)))
        # A session is its user's on whatever router: nobody else is answered by its records, or ends its transaction.
        root.admin.command("createUser", "only", pwd=PASSWORD, roles=[{"role": "readWrite", "db": "other"}])
        lsid = {"lsid": {"id": Binary(os.urandom(16), 4)}}
        remove = {"query": {"_id": 1}, "remove": True, "txnNumber": Int64(1), **lsid}
        with Wire(first, "root", PASSWORD) as mine, Wire(second, "only", PASSWORD) as only:
            books = {"findAndModify": "books", **remove, "$db": "lib"}
            assert mine.call(books)["value"]["_id"] == 1
            assert only.call({"findAndModify": "zz", **remove, "$db": "other"})["value"] is None
            again = mine.call(books)
            assert again["value"]["_id"] == 1 and again["retriedStmtId"] == 0, again
            part = {"txnNumber": Int64(2), "autocommit": False, **lsid}
            update = {"update": "books", "updates": [{"q": {"_id": 2}, "u": {"$set": {"n": 1000}}}], "$db": "lib"}
            assert mine.call({**update, "startTransaction": True, **part})["n"] == 1
            assert only.call({"abortTransaction": 1, **part, "$db": "admin"})["code"] == 251
            assert only.call({"endSessions": [lsid["lsid"]], "$db": "admin"})["ok"] == 1
            assert mine.call({"commitTransaction": 1, **part, "$db": "admin"})["ok"] == 1
        assert root.lib.books.find_one({"_id": 2})["n"] == 1000
        root.admin.command("dropUser", "only")
        root.admin.command("dropUser", "reader")
        command_fails(13, here.lib, "find", "books")
        assert [user["user"] for user in root.admin.command("usersInfo", 1)["users"]] == ["root"]
        # Shards know the router as one of them, and clients only as their own users.
        with direct(shards[0]) as client:
            command_fails(13, client.lib, "find", "books")
        with as_member(shards[0]) as tool:
            assert tool.lib.command("find", "books")["ok"] == 1
        # While the config servers hang, what was read of users holds for half a minute: that is time for more than three commands.
        root.lib.books.find_one({"_id": 1})
        stand_still(config.process)
        try:
            for _ in range(6):
                root.lib.books.find_one({"_id": 1})
        finally:
            os.kill(config.process.pid, signal.SIGCONT)


def is_refused(client):
    try:
        client.lib.books.find_one()
    except OperationFailure as error:
        assert error.code == 13, error
        return True
    return False


class Router(Server):
    """A router of the cluster with these config servers."""

    def __init__(self, config, key=None, args=()):
        super().__init__(args=["--configdb", config, *(["--keyFile", key] if key else []), *args])

    @property
    def command(self):
        whole = [str(part) for part in super().command]
        at = whole.index("--dbpath")
        del whole[at : at + 2]
        return ["router" if part == "server" else part for part in whole]


def a_cluster_in_one_process():
    """`sheaf server --shards` with --auth makes a key of its own."""
    with Server(args=["--shards", "2", "--auth"]) as server:
        with connect(server) as client:
            wait_for("the first user", lambda: client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"]))
        root = connect(server, "root", PASSWORD)
        root.admin.command("shardCollection", "lib.c", key={"_id": "hashed"})
        root.lib.c.insert_many([{"_id": at} for at in range(50)])
        assert root.lib.c.count_documents({}) == 50


def times_of_clients():
    """Of who has not logged in no time is taken, of users none that lies ahead: nobody moves the cluster's time."""
    with Keys() as keys, Server(args=["--replSet", "rs", "--keyFile", keys.key]) as server:
        initiate([server], "rs")
        with direct(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        year = 360 * 24 * 3600
        told = {"clusterTime": Timestamp(int(time.time()) + year, 1), "signature": {"hash": bytes(20), "keyId": Int64(0)}}
        late = lambda reply: reply["$clusterTime"]["clusterTime"].time > time.time() + year / 2
        with strangers.wire(server) as connection:
            reply = strangers.ask(connection, {"ping": 1, "$clusterTime": told, "$db": "admin"})
            assert reply["ok"] == 1 and not late(reply), reply
        with direct(server, user="root", password=PASSWORD) as client, client.start_session() as session:
            session.advance_cluster_time(told)
            assert not late(client.admin.command("ping", session=session))
            reply = client.lib.command("insert", "c", documents=[{}], session=session)
            assert not late(reply) and reply["operationTime"].time < time.time() + year / 2, reply
        # What is about the present is taken: another member has told of it.
        soon = Timestamp(int(time.time()) + 30, 1)
        with direct(server, user="root", password=PASSWORD) as client, client.start_session() as session:
            session.advance_cluster_time({**told, "clusterTime": soon})
            assert client.admin.command("ping", session=session)["$clusterTime"]["clusterTime"] >= soon


CHECKS = {
    "times of clients": times_of_clients,
    "key files": refused_files,
    "set": a_set_of_three,
    "another key": another_key,
    "replay": replayed_bytes,
    "rotation": rotation,
    "transition": transition,
    "cluster": a_sharded_cluster,
    "one process": a_cluster_in_one_process,
}
