"""Logins that are begun and not ended at once: what has changed meanwhile counts."""

import base64
import hashlib
import hmac
import os

from bson import Binary, Int64
from common import command_fails, connect
from scram import Wire
from sheaf_process import Server

PASSWORD = "pencil-7731"


class Conversation:
    """A client's side of SCRAM-SHA-256, step by step."""

    def __init__(self, db, user, password, **options):
        self.db, self.password = db, password
        self.bare = f"n={user},r=chalk-7734"
        said = db.command("saslStart", 1, mechanism="SCRAM-SHA-256", payload=Binary(b"n,," + self.bare.encode()), **options)
        self.id, self.first = said["conversationId"], bytes(said["payload"]).decode()

    def proof(self):
        """The client's second message."""
        fields = dict(part.split("=", 1) for part in self.first.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without = f"c=biws,r={fields['r']}"
        signed = f"{self.bare},{self.first},{without}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def message(self, payload):
        return {"saslContinue": 1, "conversationId": self.id, "payload": Binary(payload)}

    def go_on(self, payload):
        return self.db.command(self.message(payload))

    def fails(self, code, payload):
        command_fails(code, self.db, self.message(payload))


def user_of(client):
    return [user["user"] for user in client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]]


def in_two_steps():
    """The last, empty message is the moment at which somebody is logged in, if he is still who has proved it."""
    with Server(args=["--auth"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(server, "root", PASSWORD).admin
        root.command("createUser", "ann", pwd="old", roles=[])
        with connect(server, maxPoolSize=1) as client:
            whole = Conversation(client.admin, "ann", "old")
            assert not whole.go_on(whole.proof())["done"] and user_of(client) == []
            assert whole.go_on(b"")["done"] and user_of(client) == ["ann"]
        # Another user of the same name is not the one who has proved it.
        with connect(server, maxPoolSize=1) as client:
            half = Conversation(client.admin, "ann", "old")
            half.go_on(half.proof())
            root.command("dropUser", "ann")
            root.command("createUser", "ann", pwd="new", roles=["root"])
            half.fails(18, b"")
            assert user_of(client) == []
        # A password that was changed proves nothing any more, whenever its conversation began.
        for before_proof in (True, False):
            root.command("updateUser", "ann", pwd="old")
            with connect(server, maxPoolSize=1) as client:
                half = Conversation(client.admin, "ann", "old")
                if not before_proof:
                    half.go_on(half.proof())
                root.command("updateUser", "ann", pwd="new")
                half.fails(18, half.proof() if before_proof else b"")
                assert user_of(client) == []
        # Other changes of the user do no harm.
        with connect(server, maxPoolSize=1) as client:
            half = Conversation(client.admin, "ann", "new", options={"skipEmptyExchange": True})
            root.command("updateUser", "ann", customData={"desk": 4}, roles=[])
            assert half.go_on(half.proof())["done"] and user_of(client) == ["ann"]
        # Who logs out begins anew.
        with connect(server, maxPoolSize=1) as client:
            half = Conversation(client.admin, "ann", "new")
            client.admin.command("logout")
            half.fails(17, half.proof())


def sessions_of_nobody():
    """Who has not logged in makes no session, and so uses up none of the room for them; neither does the first user's maker."""
    with Server(args=["--auth", "--setParameter", "maxSessions=20"]) as server:
        lsid = lambda: {"lsid": {"id": Binary(os.urandom(16), 4)}}
        with connect(server) as client:
            for _ in range(30):
                client.admin.command({"ping": 1, **lsid()})
            client.admin.command({"createUser": "root", "pwd": PASSWORD, "roles": ["root"], **lsid()})
        with connect(server, "root", PASSWORD) as root, root.start_session() as session:
            root.lib.c.insert_one({"_id": 1}, session=session)
            shown = list(root.admin.aggregate([{"$listLocalSessions": {"allUsers": True}}], session=session))
            assert [entry["_id"]["id"] for entry in shown] == [session.session_id["id"]], shown
            # Who has logged in uses up what room there is, for himself.
            root.admin.command("createUser", "none", pwd=PASSWORD, roles=[])
            ping = lambda wire: wire.call({"ping": 1, **lsid(), "$db": "admin"})
            with Wire(server, "none", PASSWORD) as none:
                assert [ping(none).get("code") for _ in range(40)][-20:] == 20 * [261]
            with Wire(server, "root", PASSWORD) as wire:
                assert all(ping(wire)["ok"] for _ in range(5))
            assert root.lib.c.find_one({}, session=session) == {"_id": 1}


def what_drivers_and_tools_ask():
    """A user of one mechanism logs in without saying which; the tools ask in which form users are kept."""
    with Server(args=["--auth"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(server, "root", PASSWORD).admin
        for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
            root.command("createUser", mechanism, pwd=PASSWORD, roles=[], mechanisms=[mechanism])
            with connect(server, mechanism, PASSWORD) as client:
                assert user_of(client) == [mechanism]
        first = Conversation(root, "SCRAM-SHA-1", PASSWORD).bare
        speculative = {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": Binary(b"n,," + first.encode()), "db": "admin"}
        for user, begins in (("SCRAM-SHA-1", False), ("SCRAM-SHA-256", True), ("nobody", None)):
            with connect(server) as client:
                said = client.admin.command("hello", saslSupportedMechs=f"admin.{user}", speculativeAuthenticate=speculative)
                assert ("speculativeAuthenticate" in said) == ("SCRAM-SHA-256" in said["saslSupportedMechs"]), said
                assert begins in (None, "speculativeAuthenticate" in said), said
        # What has been used is counted, by mechanism.
        told = root.command("serverStatus")["security"]["authentication"]
        sha1 = told["mechanisms"]["SCRAM-SHA-1"]
        assert set(told["mechanisms"]) == {"MONGODB-X509", "SCRAM-SHA-1", "SCRAM-SHA-256"} and told["saslSupportedMechsReceived"] > 3, told
        assert sha1["authenticate"]["received"] == sha1["authenticate"]["successful"] > 0, sha1
        assert sha1["speculativeAuthenticate"] == sha1["clusterAuthenticate"] == {"received": 0, "successful": 0}, sha1
        assert told["mechanisms"]["SCRAM-SHA-256"]["speculativeAuthenticate"]["successful"] > 0, told
        assert root.command("getParameter", 1, authSchemaVersion=1)["authSchemaVersion"] == 5
        command_fails(20, root, "setParameter", 1, authSchemaVersion=3)
        command_fails(2, root, "createUser", "a\0b", pwd=PASSWORD, roles=[], words="cannot contain NULL characters")


def seen_of(client, user):
    """What somebody learns of a user without a password: mechanisms, salts, iteration counts."""
    seen = [client.admin.command("hello", saslSupportedMechs=f"admin.{user}")["saslSupportedMechs"]]
    for mechanism in ("SCRAM-SHA-1", "SCRAM-SHA-256"):
        said = client.admin.command("saslStart", 1, mechanism=mechanism, payload=Binary(f"n,,n={user},r=chalk-7734".encode()))
        seen.append(bytes(said["payload"]).decode().split(",")[1:])
    return seen


def users_that_are_not_there():
    """They are like those that are: in the same proportions, and the same after a restart."""
    with Server(args=["--auth"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connect(server, "root", PASSWORD) as root:
            root.admin.command("createUser", "old", pwd=PASSWORD, roles=[], mechanisms=["SCRAM-SHA-1"])
            root.admin.command("setParameter", 1, scramSHA256IterationCount=20_000)
            root.admin.command("createUser", "new", pwd=PASSWORD, roles=[])
        names = [f"nobody{at}" for at in range(60)]
        with connect(server) as client:
            before = {name: seen_of(client, name) for name in names}
            there = {name: seen_of(client, name) for name in ("root", "old", "new")}
        server.stop()
        server.start()
        with connect(server, "root", PASSWORD) as root:
            root.admin.command("setParameter", 1, scramSHA256IterationCount=20_000)
        with connect(server) as client:
            assert {name: seen_of(client, name) for name in names} == before
            assert {name: seen_of(client, name) for name in there} == there
        kind = lambda seen: (tuple(seen[0]), *(said[1] for said in seen[1:]))
        kinds = {kind(seen) for seen in before.values()}
        # Where one has not the mechanism, the count is that of a new one.
        assert len(kinds) == 3 and all(counts[0] == "i=10000" for _, *counts in kinds), kinds
        assert {(mechanisms, count) for mechanisms, _, count in kinds if "SCRAM-SHA-256" in mechanisms} == {
            (("SCRAM-SHA-256", "SCRAM-SHA-1"), count) for count in ("i=15000", "i=20000")}, kinds
        assert len({seen[2][0] for seen in before.values()}) == len(names)


def users_that_are_damaged():
    """Who has no user's document is like those that are not there; the reason is the log's."""
    with Server(args=["--auth"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connect(server, "root", PASSWORD) as root:
            credentials = {"SCRAM-SHA-256": {"iterationCount": "many"}}
            root.admin["system.users"].insert_many([
                {"_id": "admin.blank", "x": 1},
                {"_id": "admin.broken", "user": "broken", "db": "admin", "credentials": credentials, "roles": []},
            ])
        with connect(server, maxPoolSize=1) as client:
            for name in ("blank", "broken", "nobody"):
                said = client.admin.command("hello", saslSupportedMechs=f"admin.{name}")
                assert said["saslSupportedMechs"] == ["SCRAM-SHA-256", "SCRAM-SHA-1"], (name, said)
                asked = Conversation(client.admin, name, PASSWORD)
                asked.fails(18, asked.proof())
        log = server.log_tail(1000)
        assert "A user's document cannot be read" in log and '"user":"blank"' in log


def killed_sessions_make_room():
    """The places of sessions that carry numbers of writes are free as soon as the sessions are killed; what they have written is still known."""
    with Server(args=["--auth", "--setParameter", "maxSessions=40"]) as server:
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connect(server, "root", PASSWORD) as root:
            root.admin.command("createUser", "writer", pwd=PASSWORD, roles=[{"role": "readWrite", "db": "lib"}])
            root.lib.c.insert_one({"_id": 1, "n": 0})
        first = {"lsid": {"id": Binary(os.urandom(16), 4)}}
        change = {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}], "txnNumber": Int64(1), "$db": "lib"}
        anew = lambda: {"lsid": {"id": Binary(os.urandom(16), 4)}}
        with Wire(server, "writer", PASSWORD) as writer, Wire(server, "root", PASSWORD) as root:
            done = writer.call(change | first)
            assert done.get("nModified") == 1, done
            codes = [writer.call(change | anew()).get("code") for _ in range(60)]
            assert codes[-1] == 261 and codes.count(None) >= 30, codes
            killed = root.call({"killAllSessions": [{"user": "writer", "db": "admin"}], "$db": "admin"})
            assert killed["ok"], killed
            codes = [writer.call(change | anew()).get("code") for _ in range(30)]
            assert codes == 30 * [None], codes
            again = writer.call(change | first)
            assert again["n"] == 1 and again["retriedStmtIds"] == [0], again


CHECKS = {"damaged users": users_that_are_damaged, "killed sessions": killed_sessions_make_room, "users that are not there": users_that_are_not_there, "drivers and tools": what_drivers_and_tools_ask, "conversations": in_two_steps, "sessions of nobody": sessions_of_nobody}
