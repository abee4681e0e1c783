"""The commands of users and roles: what they keep, show and refuse."""

from bson import Binary
from common import command_fails, connect

FIND = {"resource": {"db": "lib", "collection": "books"}, "actions": ["find"]}


def documents_are_mongodbs(server):
    client = connect(server)
    lib = client.lib
    lib.command("createUser", "bob", pwd="p", roles=["read", {"role": "dbAdmin", "db": "other"}], customData={"a": 1},
                authenticationRestrictions=[{"clientSource": ["127.0.0.1"]}])
    kept = client.admin["system.users"].find_one({"_id": "lib.bob"})
    assert list(kept) == ["_id", "userId", "user", "db", "credentials", "customData", "roles",
                          "authenticationRestrictions"], kept
    assert isinstance(kept["userId"], Binary) and kept["userId"].subtype == 4
    assert list(kept["credentials"]["SCRAM-SHA-256"]) == ["iterationCount", "salt", "storedKey", "serverKey"]
    assert kept["roles"] == [{"role": "read", "db": "lib"}, {"role": "dbAdmin", "db": "other"}]
    assert client.admin["system.version"].find_one({"_id": "authSchema"})["currentVersion"] == 5
    assert "user_1_db_1" in client.admin["system.users"].index_information()
    assert "role_1_db_1" in client.admin["system.roles"].index_information()
    # What mongorestore writes: the same document under another name can log in.
    copied = {**kept, "_id": "lib.copy", "user": "copy", "userId": Binary(bytes(16), 4)}
    client.admin["system.users"].insert_one(copied)
    connect(server, "copy", "p", authSource="lib", authMechanism="SCRAM-SHA-256").admin.command("ping")


def a_dump_is_restored(server):
    """As mongorestore does it: documents into collections of its own, and one command that puts them in their places."""
    client = connect(server)
    admin = client.admin
    admin.command("createUser", "kept", pwd="p", roles=["root"])
    find = {"resource": {"db": "tmp", "collection": "books"}, "actions": ["find"]}
    client.tmp.command("createRole", "r", roles=["read"], privileges=[find])
    client.tmp.command("createUser", "dumped", pwd="p", roles=["r"])
    users, roles = list(admin["system.users"].find({"db": "tmp"})), list(admin["system.roles"].find({"db": "tmp"}))
    merge = {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.tempusers", "tempRolesCollection": "admin.temproles"}

    def restore(**more):
        admin.tempusers.drop()
        admin.temproles.drop()
        admin.tempusers.insert_many(users)
        admin.temproles.insert_many(roles)
        admin.command({**merge, **more, "writeConcern": {"w": "majority"}})

    def names(db="tmp"):
        return [user["user"] for user in client[db].command("usersInfo", 1)["users"]]

    client.tmp.command("dropUser", "dumped")
    client.tmp.command("dropRole", "r")
    client.tmp.command("createUser", "later", pwd="p", roles=[])
    restore(drop=False, db="")
    assert names() == ["dumped", "later"]
    told = connect(server, "dumped", "p", authSource="tmp").admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    assert {"role": "r", "db": "tmp"} in told["authenticatedUserRoles"], told
    assert any(privilege["resource"] == find["resource"] for privilege in told["authenticatedUserPrivileges"]), told
    # Whoever is there stays as he is, unless the dump takes the place of all.
    client.tmp.command("updateUser", "dumped", pwd="other")
    restore(db="tmp")
    connect(server, "dumped", "other", authSource="tmp").admin.command("ping")
    restore(db="elsewhere", drop=True)
    assert names() == ["dumped", "later"]
    restore(db="tmp", drop=True)
    assert names() == ["dumped"]
    connect(server, "dumped", "p", authSource="tmp").admin.command("ping")
    assert "kept" in names("admin")
    command_fails(2, admin, {"_mergeAuthzCollections": 1, "db": "", "drop": False}, words="Must provide at least one of")
    command_fails(13, client.lib, merge, words="admin database")
    admin.tempusers.insert_one({"_id": "tmp.x", "user": "x", "db": 1})
    command_fails(12, admin, merge)
    for db, command in ((client.tmp, "dropAllUsersFromDatabase"), (client.tmp, "dropAllRolesFromDatabase")):
        db.command(command)
    admin.command("dropUser", "kept")
    admin.tempusers.drop()
    admin.temproles.drop()


def users_are_shown(server):
    lib = connect(server).lib
    (bob,) = lib.command("usersInfo", "bob")["users"]
    assert list(bob) == ["_id", "userId", "user", "db", "customData", "roles", "mechanisms"], bob
    assert bob["mechanisms"] == ["SCRAM-SHA-1", "SCRAM-SHA-256"]
    assert [user["user"] for user in lib.command("usersInfo", 1)["users"]] == ["bob", "copy"]
    assert [user["user"] for user in lib.command("usersInfo", 1, filter={"user": "bob"})["users"]] == ["bob"]
    assert {user["db"] for user in lib.command("usersInfo", {"forAllDBs": True})["users"]} >= {"lib"}
    (bob,) = lib.command("usersInfo", {"user": "bob", "db": "lib"}, showPrivileges=True, showCredentials=True,
                         showCustomData=False)["users"]
    assert "customData" not in bob and "credentials" in bob
    assert bob["inheritedRoles"] == [{"role": "read", "db": "lib"}, {"role": "dbAdmin", "db": "other"}], bob
    assert bob["inheritedAuthenticationRestrictions"] == [[{"clientSource": ["127.0.0.1"]}]]
    assert any("find" in privilege["actions"] for privilege in bob["inheritedPrivileges"])
    command_fails(20, lib, "usersInfo", 1, showPrivileges=True, words="exact-match usersInfo queries")
    assert lib.command("usersInfo", ["nobody"])["users"] == []


def users_change(server):
    client = connect(server)
    lib = client.lib
    command_fails(51003, lib, "createUser", "bob", pwd="p", roles=[], words='User "bob@lib" already exists')
    command_fails(31, lib, "createUser", "x", pwd="p", roles=["none"], words="Could not find role: none@lib")
    command_fails(2, lib, "createUser", "x", roles=[], words="Must provide a 'pwd' field")
    command_fails(2, lib, "createUser", "", pwd="p", roles=[])
    command_fails(2, lib, "createUser", "x", pwd="p", roles=[], mechanisms=["PLAIN"], words="Unknown auth mechanism")
    command_fails(2, lib, "createUser", "x", pwd="p", roles=[], mechanisms=[], words="must not be empty")
    command_fails(2, lib, "createUser", "x", pwd="p", roles=[], digestPassword=False, mechanisms=["SCRAM-SHA-256"],
                  words="Use of SCRAM-SHA-256 requires undigested passwords")
    command_fails(2, client.local, "createUser", "x", pwd="p", roles=[])
    command_fails(40414, lib, "createUser", "x", pwd="p")
    command_fails(40415, lib, "createUser", "x", pwd="p", roles=[], unknown=1)
    command_fails(11, lib, "updateUser", "nobody", pwd="p", words="User nobody@lib not found")
    command_fails(2, lib, "updateUser", "bob", words="Must specify at least one field")
    command_fails(11, lib, "dropUser", "nobody", words="User 'nobody@lib' not found")
    lib.command("updateUser", "bob", mechanisms=["SCRAM-SHA-256"], customData={"b": 2}, authenticationRestrictions=[])
    (bob,) = lib.command("usersInfo", "bob", showAuthenticationRestrictions=True)["users"]
    assert bob["mechanisms"] == ["SCRAM-SHA-256"] and bob["customData"] == {"b": 2}, bob
    assert not bob.get("authenticationRestrictions"), bob
    command_fails(2, lib, "updateUser", "bob", mechanisms=["SCRAM-SHA-1"], words="subset of previously set mechanisms")
    lib.command("updateUser", "bob", pwd="q", roles=["readWrite"])
    connect(server, "bob", "q", authSource="lib").admin.command("ping")
    lib.command("revokeRolesFromUser", "bob", roles=["readWrite"])
    lib.command("grantRolesToUser", "bob", roles=["read", "read", "dbOwner"])
    (bob,) = lib.command("usersInfo", "bob")["users"]
    assert [role["role"] for role in bob["roles"]] == ["read", "dbOwner"], bob
    # A digest that the client has made.
    digest = "dc3332f4bab13d8f2bfdec9bb0f0c2ce"
    lib.command("createUser", "digested", pwd=digest, roles=[], digestPassword=False, mechanisms=["SCRAM-SHA-1"])
    # Without mechanisms all of the server's are meant.
    command_fails(2, lib, "createUser", "x", pwd=digest, roles=[], digestPassword=False, words="requires undigested passwords")
    assert lib.command("usersInfo", "digested")["users"][0]["mechanisms"] == ["SCRAM-SHA-1"]
    client["$external"].command("createUser", "CN=x", roles=[])
    command_fails(2, client["$external"], "createUser", "CN=y", pwd="p", roles=[])
    assert lib.command("dropAllUsersFromDatabase", 1)["n"] == 3


def roles_change(server):
    client = connect(server)
    lib, admin = client.lib, client.admin
    lib.command("createRole", "reader", privileges=[FIND], roles=[])
    lib.command("createRole", "writer", privileges=[{**FIND, "actions": ["insert", "update"]}], roles=["reader"])
    kept = admin["system.roles"].find_one({"_id": "lib.writer"})
    assert list(kept) == ["_id", "role", "db", "privileges", "roles"], kept
    command_fails(51002, lib, "createRole", "reader", privileges=[], roles=[], words='Role "reader@lib" already exists')
    command_fails(2, lib, "createRole", "read", privileges=[], roles=[], words="same name as a built-in role")
    command_fails(49, lib, "grantRolesToRole", "reader", roles=["writer"], words="cycle in the role graph")
    command_fails(49, lib, "grantRolesToRole", "reader", roles=["reader"])
    command_fails(49, lib, "updateRole", "reader", roles=["writer"], words="cycle in the role graph")
    command_fails(49, lib, "grantRolesToRole", "read", roles=["reader"], words="is a built-in role and cannot be modified")
    command_fails(49, lib, "grantRolesToRole", "reader", roles=[{"role": "read", "db": "x"}], words="from other databases")
    command_fails(49, lib, "createRole", "x", privileges=[{"resource": {"cluster": True}, "actions": ["top"]}], roles=[])
    command_fails(31, lib, "updateRole", "nobody", roles=[])
    command_fails(2, lib, "createRole", "x", privileges=[{**FIND, "actions": ["fly"]}], roles=[],
                  words="Unrecognized action privilege strings: fly")
    lib.command("grantPrivilegesToRole", "reader", privileges=[{**FIND, "actions": ["collStats", "find"]}])
    (reader,) = lib.command("rolesInfo", "reader", showPrivileges=True)["roles"]
    assert reader["privileges"] == [{**FIND, "actions": ["collStats", "find"]}], reader
    lib.command("revokePrivilegesFromRole", "reader", privileges=[{**FIND, "actions": ["collStats"]}])
    (writer,) = lib.command("rolesInfo", "writer", showPrivileges=True)["roles"]
    assert writer["inheritedRoles"] == [{"role": "reader", "db": "lib"}] and not writer["isBuiltin"], writer
    assert writer["inheritedPrivileges"] == [{**FIND, "actions": ["find", "insert", "update"]}], writer
    lib.command("revokeRolesFromRole", "writer", roles=["reader"])
    assert lib.command("rolesInfo", "writer")["roles"][0]["roles"] == []
    lib.command("updateRole", "writer", roles=["reader"], privileges=[])
    lib.command("createUser", "carl", pwd="p", roles=["writer", "reader"])
    lib.command("dropRole", "reader")
    assert lib.command("rolesInfo", "writer")["roles"][0]["roles"] == []
    assert lib.command("usersInfo", "carl")["users"][0]["roles"] == [{"role": "writer", "db": "lib"}]
    command_fails(31, lib, "dropRole", "reader")
    assert lib.command("dropAllRolesFromDatabase", 1)["n"] == 1
    assert lib.command("usersInfo", "carl")["users"][0]["roles"] == []


def built_in_roles_are_shown(server):
    client = connect(server)
    named = lambda db: [role["role"] for role in db.command("rolesInfo", 1, showBuiltinRoles=True)["roles"]]  # noqa: E731
    assert named(client.lib) == ["dbAdmin", "dbOwner", "enableSharding", "read", "readWrite", "userAdmin"]
    assert {"root", "__system", "clusterAdmin", "backup", "restore"} <= set(named(client.admin))
    assert client.lib.command("rolesInfo", 1)["roles"] == []
    (read,) = client.lib.command("rolesInfo", "read", showPrivileges=True)["roles"]
    assert read["isBuiltin"] and read["privileges"][0] == {
        "resource": {"db": "lib", "collection": ""},
        "actions": ["changeStream", "collStats", "dbHash", "dbStats", "find", "killCursors", "listCollections",
                    "listIndexes", "listSearchIndexes", "planCacheRead"],
    }, read
    fragment = client.lib.command("rolesInfo", ["read", "dbAdmin"], showPrivileges="asUserFragment")["userFragment"]
    assert [role["role"] for role in fragment["roles"]] == ["read", "dbAdmin"], fragment


CHECKS = [
    documents_are_mongodbs, a_dump_is_restored, users_are_shown, users_change, roles_change, built_in_roles_are_shown,
]
