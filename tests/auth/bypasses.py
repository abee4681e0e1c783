"""Ways around the rights that there have been."""

import hashlib
import os
import threading

import pymongo
from bson import Binary, Decimal128, Int64, encode
from bson.raw_bson import RawBSONDocument
from common import command_fails, connect, fails
from scram import Wire
from sheaf_process import Server

PASSWORD = "pencil-7731"


def document(*fields):
    """A document in which a name may stand twice."""
    elements = b"".join(encode({name: value})[4:-1] for name, value in fields)
    return RawBSONDocument((len(elements) + 5).to_bytes(4, "little") + elements + b"\0")


def users(server):
    with connect(server) as client:
        client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
    root = connect(server, "root", PASSWORD)
    root.lib.mine.insert_many([{"_id": at} for at in range(3)])
    root.secret.c.insert_one({"_id": 1})
    for name, roles in [("writer", [{"role": "readWrite", "db": "lib"}]), ("other", [{"role": "readWrite", "db": "lib"}]), ("admins", ["read"])]:
        root.admin.command("createUser", name, pwd=PASSWORD, roles=roles)


def fields_that_stand_twice(server):
    """The rights are asked of the field that counts."""
    root, writer, admins = (connect(server, user, PASSWORD) for user in ("root", "writer", "admins"))
    elsewhere = {"db": "secret", "coll": "hack"}
    for stage in [
        {"$merge": document(("into", "c2"), ("into", elsewhere))},
        {"$merge": document(("into", document(("db", "lib"), ("coll", "c2"), ("db", "secret"))))},
        {"$out": document(("db", "lib"), ("coll", "c2"), ("db", "secret"))},
        {"$lookup": document(("from", "mine"), ("from", {"db": "secret", "coll": "c"}), ("pipeline", []), ("as", "x"))},
        {"$unionWith": document(("coll", "mine"), ("coll", "notes"))},
        {"$unionWith": document(("coll", "mine"), ("pipeline", []), ("pipeline", [{"$unionWith": "notes"}]))},
        {"$graphLookup": document(("from", "mine"), ("from", "c"), ("startWith", 1), ("connectFromField", "a"), ("connectToField", "a"), ("as", "x"))},
    ]:
        for pipeline in ([stage], [{"$lookup": {"from": "mine", "pipeline": [stage], "as": "y"}}]):
            try:
                writer.lib.command("aggregate", "mine", pipeline=pipeline, cursor={})
                raise AssertionError(f"it is done: {pipeline}")
            except pymongo.errors.OperationFailure as error:
                assert error.code in (40413, 13, 51047, 2) or "not allowed" in str(error), (pipeline, error)
    assert root.secret.list_collection_names() == ["c"]
    whole = document(("allChangesForCluster", False), ("allChangesForCluster", True))
    fails(40413, lambda: admins.admin.command("aggregate", 1, pipeline=[{"$changeStream": whole}], cursor={}))
    everybody = document(("allUsers", False), ("allUsers", True))
    for stage in ("$currentOp", "$listLocalSessions"):
        fails(40413, lambda: writer.admin.command("aggregate", 1, pipeline=[{stage: everybody}], cursor={}))


def places_that_are_no_whole_numbers(server):
    """An operation's place among the namespaces is read alike by who asks for rights and by who writes."""
    writer, secret = connect(server, "writer", PASSWORD), connect(server, "root", PASSWORD).secret.c
    before = list(secret.find())
    operations = [
        lambda place: {"insert": place, "document": {"_id": "hack"}},
        lambda place: {"update": place, "filter": {}, "updateMods": {"$set": {"hack": 1}}},
        lambda place: {"delete": place, "filter": {}},
    ]
    for place in (0, 0.5, 0.9, -0.5, float("nan"), Decimal128("0.4"), Int64(0)):
        for operation in operations:
            fails(13, lambda: writer.admin.command("bulkWrite", 1, ops=[operation(place)], nsInfo=[{"ns": "secret.c"}]))
    assert list(secret.find()) == before


def what_was_read_in_two_ways(server):
    """Rights are asked for what the command's own parser has read."""
    root = connect(server, "root", PASSWORD)
    on = lambda collection: {"resource": {"db": "lib", "collection": collection}, "actions": ["find"]}
    root.admin.command("createRole", "odd", roles=[], privileges=[on(".chunks"), {"resource": {"cluster": True}, "actions": ["viewUser"]}])
    root.admin.command("createUser", "odd", pwd=PASSWORD, roles=["odd"])
    odd = connect(server, "odd", PASSWORD)
    # An empty name is `fs`; `forAllDBs: false` is no question about all.
    for root_name in ("", "fs", "files"):
        fails(13, lambda: odd.lib.command("filemd5", 1, root=root_name))
    fails(13, lambda: odd.admin.command("usersInfo", {"forAllDBs": False, "user": "root", "db": "admin"}))
    assert len(odd.admin.command("usersInfo", {"forAllDBs": True})["users"]) > 3
    # Why a command cannot be parsed is told to who might run it.
    writer = connect(server, "writer", PASSWORD)
    with Wire(server, "writer", PASSWORD) as wire:
        for field in ("$db", "lsid", "txnNumber"):
            value = {"$db": "lib", "lsid": {"id": Binary(os.urandom(16), 4)}, "txnNumber": Int64(1)}[field]
            assert wire.call(document(("insert", "mine"), ("documents", [{}]), (field, value), (field, value), *([("$db", "lib")] * (field != "$db"))))["code"] == 40413
    twice = document(("insert", 0), ("document", {}), ("insert", 0))
    for db, code in (("lib", 40413), ("secret", 13)):
        fails(code, lambda: writer.admin.command("bulkWrite", 1, ops=[twice], nsInfo=[{"ns": f"{db}.c"}]))


def collections_by_their_numbers(server):
    """Who may not know what a UUID stands for is not told by the error."""
    root, writer = connect(server, "root", PASSWORD), connect(server, "writer", PASSWORD)
    for db in ("secret", "lib"):
        root[db].create_collection("unheard")
        (entry,) = root[db].command("listCollections", filter={"name": "unheard"})["cursor"]["firstBatch"]
        for command in ({"listIndexes": entry["info"]["uuid"]}, {"find": entry["info"]["uuid"]}, {"count": entry["info"]["uuid"]}, {"explain": {"find": entry["info"]["uuid"]}}):
            try:
                raise AssertionError(f"it is found: {writer[db].command(command)}")
            except pymongo.errors.OperationFailure as error:
                assert error.code in (13, 73) and "unheard" not in str(error.details), error
        root[db].drop_collection("unheard")


def views_that_are_changed_in_part(server):
    """What a view shows is asked of whoever changes it: of both its parts, of which neither is left as it was."""
    root = connect(server, "root", PASSWORD)
    root.lib.create_collection("view", viewOn="mine", pipeline=[])
    root.lib.hidden.insert_one({"_id": "hidden"})
    on = lambda name, *actions: {"resource": {"db": "lib", "collection": name}, "actions": list(actions)}
    root.admin.command("createRole", "viewer", roles=[], privileges=[on("view", "find", "collMod"), on("mine", "find")])
    root.admin.command("createUser", "viewer", pwd=PASSWORD, roles=["viewer"])
    lib = connect(server, "viewer", PASSWORD).lib
    for change in ({"pipeline": [{"$unionWith": "hidden"}]}, {"viewOn": "mine"}):
        fails(72, lambda: lib.command("collMod", "view", **change), words="Must specify both 'viewOn' and 'pipeline'")
    fails(13, lambda: lib.command("collMod", "view", viewOn="hidden"))
    fails(13, lambda: lib.command("collMod", "view", viewOn="mine", pipeline=[{"$unionWith": "hidden"}]))
    lib.command("collMod", "view", viewOn="mine", pipeline=[{"$match": {"_id": 1}}])
    assert list(lib.view.find()) == [{"_id": 1}]


def sessions_of_others(server):
    """Who else's session is meant is judged as it is read."""
    root, other = connect(server, "root", PASSWORD), connect(server, "other", PASSWORD)
    digest = lambda user: Binary(hashlib.sha256(f"{user}@admin".encode()).digest(), 0)
    root.lib.kept.insert_one({"_id": 0})
    with root.start_session() as session, session.start_transaction():
        root.lib.kept.update_one({"_id": 0}, {"$set": {"n": 1}}, session=session)
        uuid = session.session_id["id"]
        for command in ("killSessions", "endSessions"):
            fails(40413, lambda: other.admin.command(command, [document(("id", uuid), ("uid", digest("other")), ("uid", digest("root")))]))
        fails(13, lambda: other.admin.command("killSessions", [{"id": uuid, "uid": digest("root")}]))
        # Nobody's is one's own.
        other.admin.command("killSessions", [{"id": uuid, "uid": None}, {"id": uuid}])
        session.commit_transaction()
    assert root.lib.kept.find_one({"_id": 0})["n"] == 1


def sessions_are_seen_by_their_users(server):
    """Whose a session is does not depend on who looks at it first."""
    root = connect(server, "root", PASSWORD)
    root.admin.command("createUser", "idle", pwd=PASSWORD, roles=[])
    with Wire(server, "other", PASSWORD) as other, Wire(server, "idle", PASSWORD) as idle:
        begun = other.call({"startSession": 1, "$db": "admin"})["id"]
        refreshed = {"id": Binary(os.urandom(16), 4)}
        other.call({"refreshSessions": [refreshed], "$db": "admin"})

        def seen(wire, spec):
            answer = wire.call({"aggregate": 1, "pipeline": [{"$listLocalSessions": spec}], "cursor": {}, "$db": "admin"})
            return [entry["_id"]["id"] for entry in answer["cursor"]["firstBatch"]] if answer["ok"] else answer["code"]

        own = lambda user: {"users": [{"user": user, "db": "admin"}]}
        for spec in ({}, {"allUsers": False}, own("idle")):
            assert seen(idle, spec) == [], spec
        assert seen(idle, own("other")) == seen(idle, {"users": []}) == seen(idle, {"allUsers": True}) == 13
        for lsid in (begun, refreshed):
            assert other.call({"find": "mine", "lsid": lsid, "$db": "lib"})["ok"] == 1
            for spec in ({}, own("other")):
                assert lsid["id"] in seen(other, spec), spec


def fields_of_routers(server):
    """Only servers say for whose retryable write they act."""
    lsid, own = ({"id": Binary(os.urandom(16), 4)} for _ in range(2))
    with Wire(server, "writer", PASSWORD) as writer, Wire(server, "other", PASSWORD) as other:
        remove = {"findAndModify": "mine", "query": {"_id": 0}, "remove": True, "txnNumber": Int64(1), "$db": "lib"}
        assert writer.call({**remove, "lsid": lsid})["value"] == {"_id": 0}
        remove = {**remove, "query": {"_id": 1000}, "lsid": own}
        acting = {"retryOf": {"lsid": lsid, "txnNumber": Int64(1)}, "startTransaction": True, "autocommit": False}
        assert other.call({**remove, **acting})["code"] == 13
        assert other.call({**remove, "retryAttempt": {"n": b"0" * 16, "asks": True}})["code"] == 13


def collections_without_which_nobody_logs_in(server):
    root = connect(server, "root", PASSWORD)
    root.admin.command("createUser", "restorer", pwd=PASSWORD, roles=["restore", "__system"])
    restorer = connect(server, "restorer", PASSWORD)
    for name in ("system.users", "system.roles", "system.version"):
        command_fails(20, restorer.admin, "drop", name, words=f"can't drop system collection admin.{name}")
    root.lib.command("ping")


def cursors_whose_right_was_taken(server):
    """What opens a cursor is asked of its user for each batch."""
    root = connect(server, "root", PASSWORD)
    root.lib.many.insert_many([{"_id": at} for at in range(10)])
    root.admin.command("createUser", "leaves", pwd=PASSWORD, roles=[{"role": "read", "db": "lib"}])
    leaves = connect(server, "leaves", PASSWORD)
    lib = leaves.lib
    cursors = [
        lib.command("find", "many", batchSize=1)["cursor"]["id"],
        lib.command("aggregate", "many", pipeline=[{"$match": {}}], cursor={"batchSize": 1})["cursor"]["id"],
    ]
    more = lambda cursor: lib.command("getMore", cursor, collection="many", batchSize=1)["cursor"]["nextBatch"]
    assert [len(more(Int64(cursor))) for cursor in cursors] == [1, 1]
    # Another right is no reason to stop.
    root.admin.command("grantRolesToUser", "leaves", roles=[{"role": "read", "db": "other"}])
    assert [len(more(Int64(cursor))) for cursor in cursors] == [1, 1]
    root.admin.command("revokeRolesFromUser", "leaves", roles=[{"role": "read", "db": "lib"}])
    for cursor in cursors:
        fails(13, lambda: more(Int64(cursor)), words="not authorized for getMore with cursor id")
        # Nor by a request in a database that one may read, where the cursor is not.
        fails(13, lambda: leaves.other.command("getMore", Int64(cursor), collection="many"))
        fails(13, lambda: more(Int64(cursor)), words="not authorized for getMore with cursor id")
    root.admin.command("grantRolesToUser", "leaves", roles=[{"role": "read", "db": "lib"}])
    assert [len(more(Int64(cursor))) for cursor in cursors] == [1, 1]
    # A later user of the same name is another one.
    root.admin.command("dropUser", "leaves")
    root.admin.command("createUser", "leaves", pwd=PASSWORD, roles=[{"role": "read", "db": "lib"}])
    with connect(server, "leaves", PASSWORD) as again:
        fails(13, lambda: again.lib.command("getMore", Int64(cursors[0]), collection="many"))


def who_was_dropped_is_a_stranger(server):
    root = connect(server, "root", PASSWORD)
    root.admin.command("createUser", "goes", pwd=PASSWORD, roles=[])
    with connect(server, "goes", PASSWORD, maxPoolSize=1) as goes:
        goes.admin.command("ping", comment="x" * 100_000)
        root.admin.command("dropUser", "goes")
        fails(13, lambda: goes.lib.command("find", "c"))
        try:
            goes.admin.command("ping", comment="x" * 100_000)
            raise AssertionError("a long message is taken of somebody who is no user any more")
        except pymongo.errors.PyMongoError as error:
            assert not isinstance(error, pymongo.errors.OperationFailure) or error.code == 18, error


def fusions_read_their_collection(server):
    root = connect(server, "root", PASSWORD)
    find = {"resource": {"db": "lib", "collection": "many"}, "actions": ["find"]}
    root.admin.command("createRole", "many", privileges=[find], roles=[])
    root.admin.command("createUser", "fuses", pwd=PASSWORD, roles=["many"])
    lib = connect(server, "fuses", PASSWORD).lib
    fusion = lambda *more: [{"$rankFusion": {"input": {"pipelines": {"a": [{"$sort": {"_id": 1}}, *more]}}}}]
    assert len(list(lib.many.aggregate(fusion()))) == 10
    fails(13, lambda: list(lib.mine.aggregate(fusion())))
    fails(13, lambda: list(lib.many.aggregate(fusion({"$unionWith": "mine"}))))


def files_are_the_servers_own():
    """What a server writes nobody else may read, whatever the umask, unless it is told so."""
    before = os.umask(0o022)
    try:
        for args, others in [((), 0), (("--setParameter", "processUmask=027"), 0o040), (("--setParameter", "honorSystemUmask=true"), 0o044)]:
            with Server(args=args) as server:
                with connect(server) as client:
                    client.lib.c.insert_one({})
                modes = {path.stat().st_mode & 0o066 for path in server.dbpath.rglob("*") if path.is_file()}
                assert modes == {others}, (args, modes)
    finally:
        os.umask(before)


def sessions_after_a_restart():
    """A session's number is its user's: nobody else is answered by its records, or takes it, also when the server has forgotten who came first."""
    with Server(args=["--auth"]) as server:
        users(server)
        lsid = {"id": Binary(os.urandom(16), 4)}
        remove = {"findAndModify": "mine", "query": {"_id": 0}, "remove": True, "lsid": lsid, "txnNumber": Int64(1), "$db": "lib"}
        with Wire(server, "writer", PASSWORD) as writer:
            assert writer.call(remove)["value"] == {"_id": 0}
        server.stop()
        server.start()
        with Wire(server, "other", PASSWORD) as other, Wire(server, "writer", PASSWORD) as writer:
            assert other.call(remove)["value"] is None
            again = writer.call(remove)
            assert again["value"] == {"_id": 0} and again["retriedStmtId"] == 0, again
            named = {**remove, "lsid": {**lsid, "uid": Binary(hashlib.sha256(b"writer@admin").digest())}}
            assert other.call(named)["code"] == 13
            # One's own may be named.
            assert writer.call(named)["value"] == {"_id": 0}


def the_last_user_goes():
    """Who removes all users, by whichever command, does not open the door to the next one who comes, though nobody has knocked in between."""
    for role, remove in [
        ("root", lambda admin: admin["system.users"].delete_many({})),
        ("root", lambda admin: admin.command("dropAllUsersFromDatabase", 1)),
        ("__system", lambda admin: admin["system.users"].delete_many({})),
    ]:
        with Server(args=["--auth"]) as server:
            with connect(server) as client:
                client.admin.command("createUser", "root", pwd=PASSWORD, roles=[role])
            with connect(server, "root", PASSWORD) as root:
                remove(root.admin)
            with connect(server) as nobody:
                command_fails(13, nobody.admin, "createUser", "again", pwd=PASSWORD, roles=["root"])


def entries_that_do_more(server):
    """`applyOps` does what its user may do otherwise, and nothing else."""
    root = connect(server, "root", PASSWORD)
    own = [{"resource": {"cluster": True}, "actions": ["applyOps"]}, {"resource": {"db": "lib", "collection": "mine"}, "actions": ["insert", "update"]}]
    root.admin.command("createRole", "applier", privileges=own, roles=[])
    root.admin.command("createUser", "applier", pwd=PASSWORD, roles=["applier"])
    applier = connect(server, "applier", PASSWORD)
    before = root.secret.c.find_one({"_id": 1})

    def apply(*entries):
        return applier.admin.command("applyOps", list(entries))

    mine = {"op": "i", "ns": "lib.mine", "o": {"_id": "applied"}}
    assert apply(mine)["applied"] == 1
    command = {"op": "c", "ns": "lib.$cmd"}
    for entry in [
        {"op": "i", "ns": "secret.c", "o": {"_id": 2}},
        {"op": "u", "ns": "secret.c", "o2": {"_id": 1}, "o": {"_id": 1, "x": 1}},
        {"op": "d", "ns": "lib.mine", "o": {"_id": "applied"}},
        {"op": "n", "ns": "", "o": {}},
        {**command, "o": {"drop": "mine"}},
        {**command, "o": {"applyOps": [{**command, "o": {"drop": "mine"}}]}},
        {**command, "o": {"renameCollection": "lib.mine", "to": "lib.yours"}},
        document(("op", "i"), ("ns", "secret.c"), ("ns", "lib.mine"), ("o", {"_id": 2})),
        document(("op", "d"), ("op", "i"), ("ns", "lib.mine"), ("o", {"_id": "applied"})),
    ]:
        fails(13, lambda entry=entry: apply(entry))
        fails(13, lambda entry=entry: apply({"op": "i", "ns": "lib.mine", "o": {"_id": "not this one"}}, entry))
    fails(13, apply)
    fails(13, lambda: apply({"op": "c", "ns": "secret.$cmd", "o": {"dropDatabase": 1}}))
    fails(13, lambda: apply({**mine, "ui": Binary(b"0" * 16, 4)}))
    fails(13, lambda: applier.admin.command("applyOps", [mine], bypassDocumentValidation=True))
    fails(13, lambda: connect(server, "writer", PASSWORD).admin.command("applyOps", [mine]))
    assert root.lib.mine.find_one({"_id": "applied"}) and not root.lib.mine.find_one({"_id": "not this one"})
    assert root.secret.c.find_one({"_id": 1}) == before and root.secret.c.count_documents({}) == 1


def one_first_user():
    """Of those who come at once on an empty server one is the first; when all users have gone, nobody is again."""
    with Server(args=["--auth"]) as server:
        made, clients = [], [connect(server) for _ in range(8)]
        together = threading.Barrier(len(clients))

        def come(at):
            together.wait()
            try:
                clients[at].admin.command("createUser", f"user{at}", pwd=PASSWORD, roles=["root"])
                made.append(at)
            except pymongo.errors.OperationFailure as error:
                assert error.code == 13, error

        threads = [threading.Thread(target=come, args=(at,)) for at in range(len(clients))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1, made
        root = connect(server, f"user{made[0]}", PASSWORD)
        root.admin.command("createUser", "restorer", pwd=PASSWORD, roles=["__system"])
        connect(server, "restorer", PASSWORD).admin["system.users"].delete_many({})
        with connect(server) as nobody:
            command_fails(13, nobody.admin, "createUser", "again", pwd=PASSWORD, roles=["root"])


CHECKS = [users, fields_that_stand_twice, places_that_are_no_whole_numbers, what_was_read_in_two_ways, collections_by_their_numbers, views_that_are_changed_in_part, sessions_of_others, sessions_are_seen_by_their_users,
          entries_that_do_more, fields_of_routers, collections_without_which_nobody_logs_in, cursors_whose_right_was_taken,
          fusions_read_their_collection, who_was_dropped_is_a_stranger]
