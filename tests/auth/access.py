"""What users may do on a server that asks who they are."""

import hashlib

import pymongo
from bson import Binary, Int64
from common import command_fails, connect, fails

PASSWORD = "pencil-7731"


def before_there_is_a_user(server):
    """From this machine somebody may make the first user, and nothing else."""
    with connect(server) as client:
        assert client.admin.command("ping")["ok"] == client.admin.command("buildInfo")["ok"] == 1
        for name in ("find", "insert", "listDatabases", "usersInfo"):
            db = client.admin if name == "listDatabases" else client.lib
            command_fails(13, db, name, "c", words=f"Command {name} requires authentication")
        command_fails(13, client.lib, "createUser", "x", pwd=PASSWORD, roles=[], words="requires authentication")
        client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        command_fails(13, client.admin, "createUser", "y", pwd=PASSWORD, roles=["root"], words="requires authentication")
        command_fails(59, client.admin, "nonesuch")


def make_users(server):
    root = connect(server, "root", PASSWORD)
    root.lib.books.insert_one({"_id": 1})
    root.lib.notes.insert_one({"_id": 1})
    root.other.c.insert_one({"_id": 1})
    admin = root.admin
    admin.command("createUser", "reader", pwd=PASSWORD, roles=[{"role": "read", "db": "lib"}])
    admin.command("createUser", "writer", pwd=PASSWORD, roles=[{"role": "readWrite", "db": "lib"}])
    admin.command("createUser", "keeper", pwd=PASSWORD, roles=[{"role": "dbAdmin", "db": "lib"}])
    admin.command("createUser", "people", pwd=PASSWORD, roles=[{"role": "userAdmin", "db": "lib"}])
    admin.command("createUser", "watch", pwd=PASSWORD, roles=["clusterMonitor"])
    admin.command("createUser", "all", pwd=PASSWORD, roles=["readAnyDatabase"])
    books = {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}
    admin.command("createRole", "books", privileges=[books], roles=[])
    admin.command("createUser", "books", pwd=PASSWORD, roles=["books"])
    admin.command("createUser", "none", pwd=PASSWORD, roles=[])


USERS = ["root", "reader", "writer", "keeper", "people", "watch", "all", "books", "none"]

# A command, its database, and who may run it.
MATRIX = [
    ("lib", {"find": "books"}, "root reader writer all books"),
    ("lib", {"find": "notes"}, "root reader writer all"),
    ("lib", {"count": "books"}, "root reader writer all books"),
    ("lib", {"aggregate": "books", "pipeline": [], "cursor": {}}, "root reader writer all books"),
    ("lib", {"explain": {"find": "books"}}, "root reader writer all books"),
    ("lib", {"explain": {"aggregate": "notes", "pipeline": [], "cursor": {}}}, "root reader writer all"),
    ("lib", {"insert": "books", "documents": [{}]}, "root writer"),
    ("lib", {"update": "books", "updates": [{"q": {"_id": 1}, "u": {"$set": {"a": 1}}}]}, "root writer"),
    ("lib", {"delete": "books", "deletes": [{"q": {"a": 7}, "limit": 1}]}, "root writer"),
    ("lib", {"findAndModify": "books", "query": {"a": 7}, "remove": True}, "root writer"),
    ("lib", {"createIndexes": "books", "indexes": [{"key": {"a": 1}, "name": "a_1"}]}, "root writer keeper"),
    ("lib", {"listIndexes": "books"}, "root reader writer keeper all"),
    ("lib", {"listCollections": 1}, "root reader writer keeper all"),
    ("lib", {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}, " ".join(USERS)),
    ("lib", {"collStats": "books"}, "root reader writer keeper watch all"),
    ("lib", {"dbStats": 1}, "root reader writer keeper watch all"),
    ("lib", {"validate": "books"}, "root keeper"),
    ("lib", {"collMod": "books", "validationLevel": "strict"}, "root keeper"),
    ("lib", {"profile": 0}, "root keeper"),
    ("lib", {"usersInfo": 1}, "root people"),
    ("lib", {"rolesInfo": 1}, "root people"),
    ("other", {"find": "c"}, "root all"),
    ("admin", {"find": "system.users"}, "root"),
    ("admin", {"serverStatus": 1}, "root watch"),
    ("admin", {"listDatabases": 1, "authorizedDatabases": False}, "root watch all"),
    ("admin", {"listDatabases": 1}, " ".join(USERS)),
    ("admin", {"getParameter": 1, "quiet": 1}, "root watch"),
    ("admin", {"setParameter": 1, "quiet": False}, "root"),
    ("admin", {"currentOp": 1}, "root watch"),
    ("admin", {"currentOp": 1, "$ownOps": True}, " ".join(USERS)),
    ("admin", {"getLog": "global"}, "root watch"),
    ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}], "cursor": {}}, "root watch"),
    ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {}}], "cursor": {}}, " ".join(USERS)),
    ("admin", {"startSession": 1}, " ".join(USERS)),
    ("admin", {"bulkWrite": 1, "ops": [{"insert": 0, "document": {}}], "nsInfo": [{"ns": "lib.books"}]}, "root writer"),
]


def stages(name, spec):
    return {"aggregate": "books", "pipeline": [{name: spec}], "cursor": {}}


PIPELINES = [
    ("lib", stages("$lookup", {"from": "notes", "localField": "a", "foreignField": "a", "as": "x"}), "root reader writer all"),
    ("lib", stages("$lookup", {"from": "books", "localField": "a", "foreignField": "a", "as": "x"}), "root reader writer all books"),
    ("lib", stages("$lookup", {"from": "books", "pipeline": [{"$unionWith": "notes"}], "as": "x"}), "root reader writer all"),
    ("lib", stages("$unionWith", "notes"), "root reader writer all"),
    ("lib", stages("$unionWith", {"coll": "notes", "pipeline": []}), "root reader writer all"),
    ("lib", stages("$graphLookup", {"from": "notes", "startWith": "$a", "connectFromField": "a", "connectToField": "a", "as": "x"}), "root reader writer all"),
    ("lib", stages("$facet", {"f": [{"$lookup": {"from": "notes", "pipeline": [], "as": "x"}}]}), "root reader writer all"),
    ("lib", stages("$out", "copied"), "root writer"),
    ("lib", stages("$merge", {"into": "copied"}), "root writer"),
    ("lib", stages("$merge", {"into": {"db": "other", "coll": "copied"}}), "root"),
    ("lib", stages("$collStats", {"count": {}}), "root reader writer keeper watch all"),
    ("lib", stages("$indexStats", {}), "root watch"),
]


def matrix(server):
    clients = {user: connect(server, user, PASSWORD) for user in USERS}
    for db, command, who in MATRIX + PIPELINES:
        may = set(who.split())
        for user, client in clients.items():
            name = next(iter(command))
            try:
                client[db].command(command)
                allowed = True
            except pymongo.errors.OperationFailure as error:
                assert error.code == 13, (user, db, command, str(error))
                words = error.details["errmsg"]
                assert words.startswith(f"not authorized on {db} to execute command {{ {name}: "), words
                allowed = False
            assert allowed == (user in may), f"{user} {'may' if allowed else 'must not'} {command} on {db}"
    seen = clients["books"].lib.command("listCollections", nameOnly=True, authorizedCollections=True)
    assert [entry["name"] for entry in seen["cursor"]["firstBatch"]] == ["books"], seen
    names = lambda user: [d["name"] for d in clients[user].admin.command("listDatabases")["databases"]]  # noqa: E731
    assert names("reader") == ["lib"] and names("none") == [] and "other" in names("all"), names("reader")


def a_view_shows_what_its_maker_may_read(server):
    root = connect(server, "root", PASSWORD)
    views = {"resource": {"db": "lib", "collection": "seen"}, "actions": ["createCollection", "find"]}
    books = {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}
    root.admin.command("createRole", "maker", privileges=[views, books], roles=[])
    root.admin.command("createUser", "maker", pwd=PASSWORD, roles=["maker"])
    maker = connect(server, "maker", PASSWORD)
    command_fails(13, maker.lib, "create", "seen", viewOn="notes", pipeline=[])
    command_fails(13, maker.lib, "create", "seen", viewOn="books", pipeline=[{"$unionWith": "notes"}])
    maker.lib.command("create", "seen", viewOn="books", pipeline=[])
    assert maker.lib.seen.count_documents({}) == root.lib.books.count_documents({})


def administration_of_users(server):
    people = connect(server, "people", PASSWORD)
    people.lib.command("createUser", "new", pwd=PASSWORD, roles=["read"])
    command_fails(13, people.lib, "createUser", "worse", pwd=PASSWORD, roles=[{"role": "root", "db": "admin"}])
    command_fails(13, people.lib, "grantRolesToUser", "new", roles=[{"role": "readWrite", "db": "other"}])
    command_fails(13, people.admin, "createUser", "x", pwd=PASSWORD, roles=[])
    people.lib.command("grantRolesToUser", "new", roles=["readWrite"])
    new = connect(server, "new", PASSWORD, authSource="lib")
    (own,) = new.lib.command("usersInfo", "new")["users"]
    assert own["user"] == "new"
    command_fails(13, new.lib, "usersInfo", "other")
    command_fails(13, new.lib, "updateUser", "new", pwd="y")
    people.lib.command("dropUser", "new")
    command_fails(13, new.lib, "find", "books", words="requires authentication")


def changes_hold_at_once(server):
    root, books = connect(server, "root", PASSWORD), connect(server, "books", PASSWORD, maxPoolSize=1)
    assert books.lib.books.find_one({"_id": 1})
    notes = {"resource": {"db": "lib", "collection": "notes"}, "actions": ["find"]}
    fails(13, lambda: books.lib.notes.find_one())
    root.admin.command("grantPrivilegesToRole", "books", privileges=[notes])
    assert books.lib.notes.find_one()
    root.admin.command("revokePrivilegesFromRole", "books", privileges=[notes])
    fails(13, lambda: books.lib.notes.find_one())
    root.admin.command("dropRole", "books")
    fails(13, lambda: books.lib.books.find_one())


def cursors_and_sessions_are_their_users(server):
    root, reader = connect(server, "root", PASSWORD), connect(server, "reader", PASSWORD)
    root.lib.many.insert_many([{"_id": n} for n in range(10)])
    with root.start_session() as session:
        opened = root.lib.command({"find": "many", "batchSize": 2}, session=session)["cursor"]["id"]
        command_fails(13, reader.lib, {"getMore": Int64(opened), "collection": "many"})
        command_fails(13, reader.lib, {"killCursors": "many", "cursors": [Int64(opened)]})
        assert len(root.lib.command({"getMore": Int64(opened), "collection": "many"}, session=session)["cursor"]["nextBatch"]) == 8
    command_fails(13, reader.admin, "killAllSessions", [])
    # Who may kill no others' sessions kills his own: one by its number, or all of them.
    with root.start_session() as of_root, reader.start_session() as one, reader.start_session() as two:
        sessions = [(root, of_root), (reader, one), (reader, two)]
        for named, left in (([one.session_id], [0, 2]), ([], [0])):
            cursors = [client.lib.command({"find": "many", "batchSize": 2}, session=of)["cursor"]["id"] for client, of in sessions]
            reader.admin.command("killSessions", named)
            for at, (client, of) in enumerate(sessions):
                more = {"getMore": Int64(cursors[at]), "collection": "many"}
                if at in left:
                    assert client.lib.command(more, session=of)["cursor"]["nextBatch"]
                else:
                    fails(43, lambda client=client, of=of, more=more: client.lib.command(more, session=of))


def sessions_are_killed_by_user(server):
    """`killAllSessions` and `killAllSessionsByPattern` end those of whom they name, and nobody else's."""
    root, reader = connect(server, "root", PASSWORD), connect(server, "reader", PASSWORD)
    owner = hashlib.sha256(b"root@admin").digest()
    for kill in (
        {"killAllSessions": [{"user": "root", "db": "admin"}]},
        {"killAllSessionsByPattern": [{"uid": Binary(owner)}]},
    ):
        with connect(server, "root", PASSWORD) as other, root.start_session() as own, reader.start_session() as theirs:
            opened = []
            for client, session in ((root, own), (reader, theirs)):
                opened.append(client.lib.command({"find": "many", "batchSize": 2}, session=session)["cursor"]["id"])
            # Those of others, and of nobody.
            other.admin.command("killAllSessions", [{"user": "root", "db": "other"}])
            other.admin.command("killAllSessionsByPattern", [{"uid": Binary(hashlib.sha256(b"").digest())}])
            more = {"getMore": Int64(opened[0]), "collection": "many", "batchSize": 1}
            assert root.lib.command(more, session=own)["cursor"]["nextBatch"]
            other.admin.command(kill)
            command_fails(43, root.lib, more, session=own)
            more = {"getMore": Int64(opened[1]), "collection": "many"}
            assert len(reader.lib.command(more, session=theirs)["cursor"]["nextBatch"]) == 8
    command_fails(14, root.admin, "killAllSessionsByPattern", [{"uid": 1}])


def roles_in_expressions(server):
    """`$$USER_ROLES`: in a query, a pipeline, an update, and in a view that shows each what his roles may see."""
    root, reader = connect(server, "root", PASSWORD), connect(server, "reader", PASSWORD)
    root.lib.papers.insert_many([{"_id": 1, "for": ["lib.read"]}, {"_id": 2, "for": ["admin.root"]}, {"_id": 3, "for": []}])
    seen = {"$setIntersection": ["$for", "$$USER_ROLES._id"]}
    root.lib.create_collection("mine", viewOn="papers", pipeline=[{"$match": {"$expr": {"$ne": [seen, []]}}}])
    assert [paper["_id"] for paper in root.lib.mine.find()] == [2]
    assert [paper["_id"] for paper in reader.lib.mine.find()] == [1]
    assert reader.lib.papers.count_documents({"$expr": {"$ne": [seen, []]}}) == 1
    shown = list(reader.lib.papers.aggregate([{"$limit": 1}, {"$project": {"_id": 0, "roles": "$$USER_ROLES"}}]))
    assert shown == [{"roles": [{"_id": "lib.read", "role": "read", "db": "lib"}]}], shown
    redact = {"$cond": [{"$eq": [seen, []]}, "$$PRUNE", "$$DESCEND"]}
    assert [paper["_id"] for paper in reader.lib.papers.aggregate([{"$redact": redact}])] == [1]
    root.lib.papers.update_one({"_id": 3}, [{"$set": {"by": "$$USER_ROLES._id"}}])
    assert "admin.root" in root.lib.papers.find_one({"_id": 3})["by"]
    command_fails(4738901, root.lib, "find", "papers", let={"USER_ROLES": []})
    root.lib.papers.drop()
    root.lib.mine.drop()


def no_password_in_an_error(server):
    reader = connect(server, "reader", PASSWORD)
    try:
        reader.lib.command("createUser", "x", pwd="chalk-7733", roles=[])
    except pymongo.errors.OperationFailure as error:
        assert 'pwd: "xxx"' in error.details["errmsg"], error
    assert "chalk-7733" not in server.log_path.read_text(errors="replace")


CHECKS = [
    before_there_is_a_user,
    make_users,
    matrix,
    a_view_shows_what_its_maker_may_read,
    administration_of_users,
    changes_hold_at_once,
    cursors_and_sessions_are_their_users,
    sessions_are_killed_by_user,
    roles_in_expressions,
    no_password_in_an_error,
]
