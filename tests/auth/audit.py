"""The audit log: what is written, where, when, and that nothing passes without it."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading

import bson
import pymongo
from bson import Int64
from common import command_fails, connect, fails
from members import wait_for
from sheaf_process import Server, answers_hello, find_binary, free_port
from strangers import message

PASSWORD = "pencil-7731"

# The parameter of the cluster that says what is written down, and what it has besides its name and its time.
AUDIT, FIELDS = "auditConfig", ("filter", "auditAuthorizationSuccess")

# What must never be found in a log, wherever it was said.
SECRETS = ["planted-chalk-7733", "planted-slate-7734", "planted-sponge-7735"]


@contextlib.contextmanager
def audited(*flags, name="audit.json", form="JSON"):
    """A server with an audit log, and what reads its events."""
    with tempfile.TemporaryDirectory(prefix="sheaf-audit-") as folder:
        path = pathlib.Path(folder) / name
        with Server(args=["--auditDestination", "file", "--auditFormat", form, "--auditPath", str(path), *flags]) as server:
            yield server, path


def events(path, *types):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if not types or event["atype"] in types]


def shape(event):
    return event["atype"], event["param"], event["result"]


def one_of_each():
    with audited("--auth") as (server, path):
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"], customData={"desk": 4})
        root = connect(server, "root", PASSWORD)
        fails(18, lambda: connect(server, "root", "wrong").admin.command("usersInfo", 1))
        admin, lib = root.admin, root.lib
        lib.command("createUser", "ann", pwd=PASSWORD, roles=["read"])
        ann = connect(server, "ann", PASSWORD, authSource="lib")
        command_fails(13, ann.lib, "insert", "books", documents=[{}])
        lib.command("updateUser", "ann", pwd="other")
        lib.command("grantRolesToUser", "ann", roles=["readWrite"])
        lib.command("revokeRolesFromUser", "ann", roles=["readWrite"])
        books = {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}
        lib.command("createRole", "r", roles=["read"], privileges=[books])
        lib.command("updateRole", "r", roles=[])
        lib.command("grantPrivilegesToRole", "r", privileges=[books])
        lib.command("revokePrivilegesFromRole", "r", privileges=[books])
        lib.command("grantRolesToRole", "r", roles=["read"])
        lib.command("revokeRolesFromRole", "r", roles=["read"])
        lib.command("dropRole", "r")
        lib.command("dropAllRolesFromDatabase")
        lib.command("dropUser", "ann")
        lib.command("dropAllUsersFromDatabase")
        before = len(events(path))
        # Whatever is answered is in the file.
        lib.command("create", "books")
        assert len(events(path)) == before + 2, events(path)[before:]
        lib.notes.insert_one({})
        lib.command("create", "seen", viewOn="books", pipeline=[])
        lib.books.create_index("a")
        lib.books.drop_index("a_1")
        admin.command("renameCollection", "lib.notes", to="lib.others")
        lib.drop_collection("seen")
        lib.drop_collection("nonesuch")
        root.drop_database("lib")
        admin.command("setClusterParameter", {"defaultMaxTimeMS": {"readOperations": 0}})
        admin.command("logApplicationMessage", "hello from here")
        admin.command("logRotate", "audit")
        (old,) = [other for other in path.parent.iterdir() if other != path]
        admin.command("logout")
        server.stop()
        old_events, new_events = events(old), events(path)

    def of(log, *types):
        return [event for event in log if event["atype"] in types]

    role = {"role": "read", "db": "lib"}
    found = [shape(event) for event in old_events]
    for wanted in [
        ("createUser", {"user": "root", "db": "admin", "customData": {"desk": 4}, "roles": [{"role": "root", "db": "admin"}]}, 0),
        ("authenticate", {"user": "root", "db": "admin", "mechanism": "SCRAM-SHA-256"}, 0),
        ("authenticate", {"user": "root", "db": "admin", "mechanism": "SCRAM-SHA-256"}, 18),
        ("createUser", {"user": "ann", "db": "lib", "roles": [role]}, 0),
        ("updateUser", {"user": "ann", "db": "lib", "passwordChanged": True}, 0),
        ("grantRolesToUser", {"user": "ann", "db": "lib", "roles": [{"role": "readWrite", "db": "lib"}]}, 0),
        ("revokeRolesFromUser", {"user": "ann", "db": "lib", "roles": [{"role": "readWrite", "db": "lib"}]}, 0),
        ("createRole", {"role": "r", "db": "lib", "roles": [role], "privileges": [books]}, 0),
        ("updateRole", {"role": "r", "db": "lib", "roles": []}, 0),
        ("grantPrivilegesToRole", {"role": "r", "db": "lib", "privileges": [books]}, 0),
        ("revokePrivilegesFromRole", {"role": "r", "db": "lib", "privileges": [books]}, 0),
        ("grantRolesToRole", {"role": "r", "db": "lib", "roles": [role]}, 0),
        ("revokeRolesFromRole", {"role": "r", "db": "lib", "roles": [role]}, 0),
        ("dropRole", {"role": "r", "db": "lib"}, 0),
        ("dropAllRolesFromDatabase", {"db": "lib"}, 0),
        ("dropUser", {"user": "ann", "db": "lib"}, 0),
        ("dropAllUsersFromDatabase", {"db": "lib"}, 0),
        ("createDatabase", {"ns": "lib"}, 0),
        ("createCollection", {"ns": "lib.books"}, 0),
        ("createCollection", {"ns": "lib.notes"}, 0),
        ("createCollection", {"ns": "lib.seen", "viewOn": "lib.books", "pipeline": []}, 0),
        ("dropIndex", {"ns": "lib.books", "indexName": "a_1"}, 0),
        ("renameCollection", {"old": "lib.notes", "new": "lib.others"}, 0),
        ("dropCollection", {"ns": "lib.seen"}, 0),
        ("dropCollection", {"ns": "lib.nonesuch"}, 26),
        ("dropCollection", {"ns": "lib.others"}, 0),
        ("dropDatabase", {"ns": "lib"}, 0),
        ("applicationMessage", {"msg": "hello from here"}, 0),
    ]:
        assert wanted in found, f"{wanted} is not among\n" + "\n".join(map(str, found))
    kinds = [atype for atype, _, _ in found]
    assert kinds[0] == "startup" and "setClusterParameter" in kinds and "clientMetadata" in kinds, kinds
    (index,) = of(old_events, "createIndex")
    assert index["param"]["indexName"] == "a_1" and index["param"]["indexBuildState"] == "IndexBuildSucceeded", index
    refused = [event for event in of(old_events, "authCheck") if event["param"]["command"] == "insert"]
    assert [event["result"] for event in refused] == [13] and refused[0]["param"]["ns"] == "lib.books", refused
    assert refused[0]["users"] == [{"user": "ann", "db": "lib"}] and role in refused[0]["roles"], refused
    assert refused[0]["remote"]["ip"] == "127.0.0.1" and refused[0]["local"]["port"] == server.port, refused
    new = [event["atype"] for event in new_events]
    assert new[0] == "rotateLog" and {"logout", "shutdown"} <= set(new), new
    (rotated,) = of(new_events, "rotateLog")
    assert rotated["param"]["logRotationStatus"]["rotatedLogPath"] == str(old), rotated


def successes_and_filters():
    flags = ["--auth", "--setParameter", "auditAuthorizationSuccess=true", "--auditFilter"]
    wanted = {"atype": "authCheck", "param.command": {"$in": ["find", "insert"]}, "users.user": "root"}
    with audited(*flags, json.dumps(wanted), name="audit.bson", form="BSON") as (server, path):
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connect(server, "root", PASSWORD) as root:
            root.lib.c.insert_one({"_id": 1})
            root.lib.c.find_one()
            root.lib.c.count_documents({})
        found = [shape(event) for event in bson.decode_all(path.read_bytes())]
    assert [(kind, param["command"], param["ns"], code) for kind, param, code in found] == [
        ("authCheck", "insert", "lib.c", 0), ("authCheck", "find", "lib.c", 0),
    ], found


def without_it_there_are_no_commands_of_it(server):
    with connect(server) as client:
        for name in ("logApplicationMessage", "getAuditConfig", "setAuditConfig"):
            command_fails(59, client.admin, name, "x")
        command_fails(4, client.admin, "logRotate", "audit")
        command_fails(4, client.admin, "getClusterParameter", AUDIT)
        command_fails(4, client.admin, "setClusterParameter", {AUDIT: {"filter": {}, "auditAuthorizationSuccess": False}})
        assert AUDIT not in str(client.admin.command("getClusterParameter", "*"))


def bad_flags():
    for flags, words in [
        (["--auditDestination", "paper"], "auditDestination"),
        (["--auditDestination", "file"], "are required"),
        (["--auditPath", "/tmp/x"], "without auditLog.destination"),
        (["--auditDestination", "console", "--auditFilter", "{"], "is no document"),
        (["--auditDestination", "console", "--auditFilter", '{"$nonesuch": 1}'], "auditLog.filter"),
        (["--auditDestination", "file", "--auditFormat", "JSON", "--auditPath", "/nonesuch/x"], "audit log"),
        (["--enableEncryption"], "encrypted volume"),
        (["--logRotate", "bogus"], "unsupported value for logRotate bogus"),
        (["--logRotate", "reopen"], "logAppend must equal true"),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [find_binary(), "server", "--dbpath", folder, "--port", "0", *flags], capture_output=True, text=True, timeout=60
            )
        assert done.returncode != 0 and words.replace("auditDestination", "auditLog.destination") in done.stderr, (flags, done)


def others_move_the_logs():
    """With `logRotate: reopen` the logs stay where they are, and are begun anew where something else has moved them away."""
    with tempfile.TemporaryDirectory(prefix="sheaf-audit-") as folder:
        folder = pathlib.Path(folder)
        config, log, audit = folder / "sheaf.yaml", folder / "sheaf.log", folder / "audit.json"
        config.write_text(
            f"systemLog: {{destination: file, path: {log}, logAppend: true, logRotate: reopen}}\n"
            f"auditLog: {{destination: file, format: JSON, path: {audit}}}\n"
        )
        with Server(args=["--config", str(config)]) as server, connect(server) as client:
            shown = client.admin.command("getCmdLineOpts")["parsed"]["systemLog"]
            assert shown == {"destination": "file", "logAppend": True, "logRotate": "reopen", "path": str(log)}, shown
            for what in ("server", "audit", 1):
                client.admin.command("logRotate", what)
            assert sorted(folder.iterdir()) == [audit, log, config], list(folder.iterdir())
            begins = {path: path.read_bytes()[:200] for path in (log, audit)}
            for path in (log, audit):
                path.rename(f"{path}.1")
            client.admin.command("logRotate", 1)
            client.lib.create_collection("plants")
            assert [event["param"]["ns"] for event in events(audit, "createCollection")] == ["lib.plants"]
            for path in (log, audit):
                moved = pathlib.Path(f"{path}.1")
                assert moved.read_bytes().startswith(begins[path]) and path.exists()
            assert not events(pathlib.Path(f"{audit}.1"), "createCollection")


def changed_at_run_time():
    """`setAuditConfig` holds at once and after a start, where `auditLog.runtimeConfiguration` allows it."""
    with tempfile.TemporaryDirectory(prefix="sheaf-audit-") as folder:
        path, config = pathlib.Path(folder) / "audit.json", pathlib.Path(folder) / "sheaf.yaml"
        config.write_text(
            f"auditLog: {{destination: file, format: JSON, path: {path}, runtimeConfiguration: true}}\n"
        )
        with Server(args=["--config", str(config)]) as server:
            with connect(server) as client:
                first = client.admin.command("getAuditConfig")
                assert (first["filter"], first["auditAuthorizationSuccess"]) == ({}, False), first
                command_fails(40414, client.admin, "setAuditConfig", filter={})
                command_fails(2, client.admin, "setAuditConfig", filter={"$nonesuch": 1}, auditAuthorizationSuccess=True)
                successes = {"atype": "authCheck", "param.command": "find"}
                wanted = {"atype": "createCollection"}
                client.admin.command("setAuditConfig", filter=wanted, auditAuthorizationSuccess=False)
                now = client.admin.command("getAuditConfig")
                assert now["filter"] == wanted and now["clusterParameterTime"] > first["clusterParameterTime"], now
                before = len(events(path))
                client.lib.c.insert_one({})
                client.lib.drop_collection("c")
                assert [event["atype"] for event in events(path)[before:]] == ["createCollection"]
                by_its_parameter(client, path)
                client.admin.command("setAuditConfig", filter=successes, auditAuthorizationSuccess=True)
            for end in (server.stop, server.kill):
                end()
                server.start()
                # It holds for the first command.
                with connect(server) as client:
                    assert client.lib.first.find_one() is None
                    now = client.admin.command("getAuditConfig")
                    assert (now["filter"], now["auditAuthorizationSuccess"]) == (successes, True), now
                last = events(path, "authCheck")[-1]
                assert last["param"]["ns"] == "lib.first", last
    with audited() as (server, _), connect(server) as client:
        command_fails(345, client.admin, "getAuditConfig")
        command_fails(345, client.admin, "setAuditConfig", filter={}, auditAuthorizationSuccess=False)
        command_fails(345, client.admin, "setClusterParameter", {AUDIT: {"filter": {}, "auditAuthorizationSuccess": False}})
    wanted = {"atype": "createIndex"}
    flags = ["--auditFilter", json.dumps(wanted), "--setParameter", "auditAuthorizationSuccess=true"]
    with audited(*flags) as (server, _), connect(server) as client:
        # What the settings say.
        (shown,) = client.admin.command("getClusterParameter", AUDIT)["clusterParameters"]
        assert (shown["_id"], shown["filter"], shown["auditAuthorizationSuccess"]) == (AUDIT, wanted, True), shown


def by_its_parameter(client, path):
    """The same by the parameter of the cluster, which ends as it began."""
    def parameter(name):
        shown = client.admin.command("getClusterParameter", name)["clusterParameters"]
        return next(each for each in shown if each["_id"] == AUDIT)

    first = client.admin.command("getAuditConfig")
    for name in (AUDIT, "*", [AUDIT]):
        assert parameter(name).items() >= {key: first[key] for key in ("clusterParameterTime", *FIELDS)}.items()
    for code, bad in [
        (40414, {"filter": {}}), (2, {"filter": {}, "auditAuthorizationSuccess": False, "x": 1}),
        (2, {"filter": {"atype": {"$nonesuch": 1}}, "auditAuthorizationSuccess": True}), (14, {"filter": 1, "auditAuthorizationSuccess": True}),
    ]:
        command_fails(code, client.admin, "setClusterParameter", {AUDIT: bad})
    client.lib.create_collection("c")
    before = len(events(path))
    wanted = {"filter": {"atype": {"$in": ["auditConfigure", "dropCollection", "setClusterParameter"]}}, "auditAuthorizationSuccess": True}
    client.admin.command("setClusterParameter", {AUDIT: wanted})
    now = parameter(AUDIT)
    assert {key: now[key] for key in FIELDS} == wanted and now["clusterParameterTime"] > first["clusterParameterTime"], now
    client.lib.drop_collection("c")
    told = [event for event in events(path)[before:] if event["atype"] != "getClusterParameter"]
    assert [event["atype"] for event in told] == ["auditConfigure", "setClusterParameter", "dropCollection"], told
    assert told[0]["param"]["config"]["filter"] == told[1]["param"]["updatedParameter"]["filter"] == wanted["filter"], told
    client.admin.command("setClusterParameter", {AUDIT: {key: first[key] for key in FIELDS}})
    assert client.admin.command("getAuditConfig")["filter"] == first["filter"]


def what_makes_collections_on_the_way():
    """Collections that are made or replaced by what is no command for that."""
    with audited() as (server, path):
        with connect(server) as client:
            lib = client.lib
            lib.a.insert_many([{"_id": at} for at in range(3)])
            def told(action):
                before = {atype: len(events(path, atype)) for atype in ("createDatabase", "createCollection", "dropCollection")}
                action()
                return [event["param"]["ns"] for atype, count in before.items() for event in events(path, atype)[count:]]

            out = lambda target: list(lib.a.aggregate([{"$out": target}]))
            assert told(lambda: out("o")) == ["lib.o"]
            assert told(lambda: out("o")) == ["lib.o", "lib.o"]
            assert told(lambda: out({"db": "t2", "coll": "o"})) == ["t2", "t2.o"]
            assert told(lambda: list(lib.a.aggregate([{"$merge": "m"}]))) == ["lib.m"]
            assert told(lambda: list(lib.a.aggregate([{"$merge": "m"}]))) == []
            reduce = {"map": "function() { emit(1, 1) }", "reduce": "function(k, v) { return 1 }", "out": "mr"}
            assert told(lambda: lib.command("mapReduce", "a", **reduce)) == ["lib.mr"]
            assert told(lambda: lib.command("cloneCollectionAsCapped", "a", toCollection="c", size=10000)) == ["lib.c"]
            assert told(lambda: lib.command("convertToCapped", "a", size=10000)) == ["lib.a", "lib.a"]
            assert told(lambda: lib.o.rename("m", dropTarget=True)) == ["lib.m"]
            assert events(path, "renameCollection")[-1]["param"] == {"old": "lib.o", "new": "lib.m"}


def nothing_secret_is_written():
    """Secrets in every command that carries them, and in what is no such command; then the logs are searched."""
    with audited("--auth", "--slowms", "0", "--setParameter", "auditAuthorizationSuccess=true", "-vv") as (server, path):
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(server, "root", PASSWORD)
        root.lib.command("profile", 2)
        lib = root.lib
        lib.command("createUser", "ann", pwd=SECRETS[0], roles=["readWrite"])
        lib.command("updateUser", "ann", pwd=SECRETS[1])
        shown = []

        def refused(*command, **options):
            try:
                lib.command(*command, **options)
            except pymongo.errors.PyMongoError as error:
                shown.append(str(error))
                shown.append(str(getattr(error, "details", "")))

        for name in ("createUser", "updateUser"):
            refused(name, "ann", pwd=SECRETS[0], roles=["read"], bad=1)
            refused(name, 7, pwd=SECRETS[0], roles=["read"])
            refused(name, "x", pwd=[SECRETS[0]], roles=["read"])
            refused(name, "x", pwd={"a": SECRETS[0]}, roles=["nonesuch"], mechanisms=["PLAIN"])
            refused(name, "x", digestPassword="x", pwd=SECRETS[0], roles=["read"])
        payload = bson.Binary(f"n,,n=ann,r={SECRETS[2]}".encode())
        refused("saslStart", 1, mechanism="PLAIN", payload=payload)
        refused("saslStart", 1, mechanism="SCRAM-SHA-256", payload=payload, bad=1)
        refused("saslStart", 1, mechanism="SCRAM-SHA-256", payload=SECRETS[2])
        refused("saslContinue", 1, conversationId=Int64(9), payload=payload)
        refused("saslContinue", 1, conversationId=9, payload=SECRETS[2])
        refused("authenticate", 1, mechanism="MONGODB-CR", user="ann", nonce=SECRETS[0], key=SECRETS[1])
        refused("hello", 1, speculativeAuthenticate={"saslStart": 1, "mechanism": "SCRAM-SHA-256", "db": "lib", "payload": payload})
        refused("hello", 1, speculativeAuthenticate={"saslStart": 1, "mechanism": "PLAIN", "payload": SECRETS[2], "x": SECRETS[1]})
        refused("explain", {"createUser": "x", "pwd": SECRETS[0], "roles": []})
        refused("explain", {"explain": {"createUser": "x", "pwd": SECRETS[0], "roles": []}})
        # The commonest slips.
        for field in ("password", "Pwd", "passwd"):
            refused("createUser", "x", roles=[], **{field: SECRETS[0]})
            refused("updateUser", "ann", **{field: SECRETS[1]})
            refused("authenticate", 1, mechanism="MONGODB-X509", **{field: SECRETS[2]})
        # Users as tools write them.
        kept = root.admin["system.users"].find_one({"_id": "lib.ann"})
        credentials = {**kept["credentials"]["SCRAM-SHA-256"], "storedKey": SECRETS[0], "serverKey": SECRETS[1]}
        written = {**kept, "_id": "lib.eve", "user": "eve", "credentials": {"SCRAM-SHA-256": credentials}}
        root.admin.tempusers.insert_one(written)
        root.admin.tempusers.update_one({"_id": "lib.eve"}, {"$set": {"credentials.SCRAM-SHA-256.storedKey": SECRETS[2]}})
        root.admin.tempusers.find_one({"credentials.SCRAM-SHA-256.storedKey": SECRETS[2]})
        root.admin.tempusers.drop()
        refused("isMaster", 1, speculativeAuthenticate={"authenticate": 1, "nonce": SECRETS[2]})
        fails(18, lambda: connect(server, "ann", SECRETS[0], authSource="lib").lib.c.find_one())
        with connect(server, "ann", SECRETS[1], authSource="lib") as ann:
            try:
                ann.lib.command("createUser", "x", pwd=SECRETS[2], roles=[])
            except pymongo.errors.OperationFailure as error:
                assert error.code == 13
                shown.append(str(error.details))
        shown += [str(entry) for entry in lib["system.profile"].find()]
        shown += [str(entry) for entry in root.admin.aggregate([{"$currentOp": {"allUsers": True, "idleConnections": True}}])]
        shown += root.admin.command("getLog", "global")["log"]
        shown.append(str(lib.command("usersInfo", "ann")))
        shown += [str(entry) for entry in root.admin.aggregate([{"$queryStats": {}}])]
        shown.append(str(root.admin.command("serverStatus")))
        shown.append(server.log_path.read_text(errors="replace"))
        shown.append(path.read_text())
    everything = "\n".join(shown)
    assert "createUser" in everything and "saslStart" in everything
    encoded = [bson.json_util.dumps(bson.Binary(f"n,,n=ann,r={SECRETS[2]}".encode())).split('"')[5]]
    for secret in SECRETS + encoded + [PASSWORD]:
        at = everything.find(secret)
        assert at < 0, f"{secret} is shown: {everything[max(0, at - 300) : at + 50]}"


def redacted_logs(server):
    """`redactClientLogData`: fields without values, also of what fails a validator."""
    with connect(server) as client:
        client.admin.command("setParameter", 1, redactClientLogData=True)
        secret = SECRETS[0]
        client.lib.create_collection("v", validator={"a": {"$type": "int"}}, validationAction="warn")
        client.lib.command("profile", 0, slowms=-1)
        client.lib.v.insert_one({"a": secret})
        list(client.lib.v.find({"a": {"$in": [secret, {"b": secret}]}}))
        fails(2, lambda: list(client.lib.v.find({"a": {"$in": secret}})))
        cursor = client.lib.v.find({"a": {"$ne": secret + "x"}}, batch_size=1)
        client.lib.v.insert_one({"a": 1})
        assert len(list(cursor)) == 2
        log = server.log_path.read_text(errors="replace")
        assert '"a":{"$in":["###",{"b":"###"}]}' in log, log[-3000:]
        assert secret not in log, log[max(0, log.find(secret) - 1000) : log.find(secret) + 50]
        client.admin.command("setParameter", 1, redactClientLogData=False)
        client.lib.command("profile", 0, slowms=100)


def users_written_directly():
    """Who makes himself root without the commands of users is told of, too; what passwords are proved by is not."""
    with audited("--auth") as (server, path):
        with connect(server) as client:
            client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        root = connect(server, "root", PASSWORD).admin
        root.command("createUser", "back", pwd=PASSWORD, roles=["restore"])
        back = connect(server, "back", PASSWORD).admin
        assert not events(path, "directAuthMutation")
        users, version = back["system.users"], back["system.version"]
        kept = root["system.users"].find_one({"user": "back"})
        new = {**kept, "_id": "admin.eve", "user": "eve", "userId": bson.Binary(bytes(16), 4), "roles": [{"role": "root", "db": "admin"}]}
        users.insert_one(new)
        users.update_one({"_id": "admin.eve"}, {"$set": {"customData": {"desk": 7}}})
        users.update_many({"_id": "admin.nobody"}, {"$set": {"customData": 1}})
        users.delete_one({"_id": "admin.eve"})
        version.insert_one({"_id": "mine"})
        root.client.lib.c.insert_one({"_id": 1})
        told = events(path, "directAuthMutation")
        text = path.read_text()
    seen = [(event["param"]["operation"], event["param"]["ns"], event["param"]["document"]["_id"]) for event in told]
    eve = "admin.system.users", "admin.eve"
    assert seen == [("insert", *eve), ("update", *eve), ("remove", *eve), ("insert", "admin.system.version", "mine")], seen
    assert all(event["users"] == [{"user": "back", "db": "admin"}] and event["result"] == 0 for event in told), told
    assert told[1]["param"]["document"]["customData"] == {"desk": 7}
    assert told[0]["param"]["document"]["credentials"] == ["SCRAM-SHA-1", "SCRAM-SHA-256"], told[0]
    assert "storedKey" not in text and "serverKey" not in text


def a_reader_that_has_stopped():
    """Where nobody reads the audit log's pipe nothing is begun any more, what is done waits, and the server ends all the same."""
    with tempfile.TemporaryDirectory(prefix="sheaf-audit-") as folder, contextlib.ExitStack() as stack:
        port, log = free_port(), pathlib.Path(folder) / "log"
        flags = ["--dbpath", f"{folder}/data", "--port", str(port), "--auditDestination", "console", "--logpath", str(log)]
        pathlib.Path(folder, "data").mkdir()
        unread, pipe = os.pipe()
        process = subprocess.Popen([str(find_binary()), "server", *flags], stdout=pipe)
        try:
            wait_for("it answers", lambda: answers_hello(port))
            # Connections are events, too.
            working, looking = (pymongo.MongoClient(port=port, directConnection=True) for _ in range(2))
            assert working.admin.command("ping")["ok"] == looking.admin.command("ping")["ok"] == 1
            # Full to the last byte.
            filling = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
            stack.callback(os.close, filling)
            for size in (4096, 1):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(filling, b" " * size)

            def is_refused():
                """Changes, and who is new and tells what he is."""
                command_fails(96, looking.admin, "createRole", "two", privileges=[], roles=[], words="nobody reads")
                hello = {"hello": 1, "client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}, "$db": "admin"}
                with socket.create_connection(("127.0.0.1", port), 120) as stranger:
                    stranger.sendall(message(hello))
                    assert b"nobody reads" in stranger.recv(65536)

            is_refused()
            assert looking.admin.command("rolesInfo", "two")["roles"] == []
            # There is room for the beginning of an event.
            assert len(os.read(unread, 4096)) == 4096

            def make_user():
                with contextlib.suppress(pymongo.errors.PyMongoError):
                    working.admin.command("createUser", "one", pwd="o", roles=[], customData={"long": "x" * 20_000})
                    answered.append(True)

            answered = []
            worker = threading.Thread(target=make_user, daemon=True)
            worker.start()
            wait_for("the user is there", lambda: looking.admin.command("usersInfo", "one")["users"])
            is_refused()
            process.terminate()
            assert process.wait(120) == 0
            worker.join(120)
            assert not worker.is_alive() and not answered
            assert '"id":99000071' in log.read_text()
        finally:
            process.kill()
            os.close(unread)
            os.close(pipe)


CHECKS = {
    "audit unread": a_reader_that_has_stopped,
    "audit": one_of_each,
    "audit-direct": users_written_directly,
    "audit-filter": successes_and_filters,
    "audit-flags": bad_flags,
    "audit-config": changed_at_run_time,
    "audit-moved": others_move_the_logs,
    "audit on the way": what_makes_collections_on_the_way,
    "secrets": nothing_secret_is_written,
}
ON_A_SERVER = [without_it_there_are_no_commands_of_it, redacted_logs]
