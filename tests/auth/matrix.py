"""Every built-in role times every command, as the manual's tables have it.

`ROLES` is written from the manual's page of built-in roles, `commands()` from its pages of privilege actions and of each command.
Nothing is taken from the server's own table. A command is asked for in a form that is refused for another reason where it is
allowed and would change something: rights are looked at first, so the code is 13 or it is not.
"""

import random

import pymongo
from common import connect

PASSWORD = "pencil-7731"

READ = "changeStream collStats dbHash dbStats find killCursors listCollections listIndexes planCacheRead"
WRITE = "convertToCapped createCollection createIndex dropCollection dropIndex insert remove renameCollectionSameDB update"
DB_ADMIN = (
    "bypassDocumentValidation collMod collStats compact convertToCapped createCollection createIndex dbStats dropCollection"
    " dropDatabase dropIndex enableProfiler listCollections listIndexes planCacheIndexFilter planCacheRead planCacheWrite"
    " reIndex renameCollectionSameDB storageDetails validate"
)
PROFILE = READ + " convertToCapped createCollection dropCollection"
USER_ADMIN = (
    "changeCustomData changePassword createRole createUser dropRole dropUser grantRole revokeRole setAuthenticationRestriction"
    " viewRole viewUser"
)
MONITOR = (
    "connPoolStats getCmdLineOpts getDefaultRWConcern getLog getParameter getShardMap hostInfo inprog listDatabases listSessions"
    " listShards netstat replSetGetConfig replSetGetStatus serverStatus shardingState top useUUID"
)
HOST = (
    "applicationMessage auditConfigure connPoolSync dropConnections flushRouterConfig fsync invalidateUserCache killAnyCursor"
    " killAnySession killop logRotate replSetResizeOplog resync rotateCertificates setParameter shutdown touch unlock"
)
MANAGER = (
    "addShard appendOplogNote applicationMessage cleanupOrphaned flushRouterConfig getClusterParameter getDefaultRWConcern"
    " listSessions listShards removeShard replSetConfigure replSetGetConfig replSetGetStatus replSetStateChange resync"
    " setClusterParameter setDefaultRWConcern setFeatureCompatibilityVersion"
)
RESTORE = "bypassDocumentValidation collMod convertToCapped createCollection createIndex dropCollection insert"

CLUSTER, ANY, EVERYTHING = ("cluster",), ("any",), ("everything",)


def db(name):
    return ("db", name)


def coll(name, collection):
    return ("coll", name, collection)


def named(collection):
    return ("named", collection)


def replica_state(actions):
    return [(coll("local", kept), actions) for kept in ("system.replset", "replset.election", "replset.minvalid")]


ROLES = {
    ("read", "lib"): [(db("lib"), READ), (coll("lib", "system.js"), READ)],
    ("readWrite", "lib"): [(db("lib"), READ + " " + WRITE), (coll("lib", "system.js"), READ + " " + WRITE)],
    ("dbAdmin", "lib"): [(db("lib"), DB_ADMIN), (coll("lib", "system.profile"), PROFILE)],
    ("userAdmin", "lib"): [(db("lib"), USER_ADMIN)],
    ("dbOwner", "lib"): [("role", "readWrite", "lib"), ("role", "dbAdmin", "lib"), ("role", "userAdmin", "lib")],
    ("enableSharding", "lib"): [],
    ("readAnyDatabase", "admin"): [(ANY, READ), (named("system.js"), READ), (CLUSTER, "listDatabases")],
    ("readWriteAnyDatabase", "admin"): [
        (ANY, READ + " " + WRITE), (named("system.js"), READ + " " + WRITE), (CLUSTER, "listDatabases"),
    ],
    ("userAdminAnyDatabase", "admin"): [
        (ANY, USER_ADMIN), (db("local"), USER_ADMIN), (db("config"), USER_ADMIN),
        (CLUSTER, "authSchemaUpgrade invalidateUserCache listDatabases"),
        (coll("admin", "system.users"), READ + " createIndex dropIndex"),
        (coll("admin", "system.roles"), READ + " createIndex dropIndex"),
        (coll("admin", "system.version"), READ),
        (named("system.users"), READ),
    ],
    ("dbAdminAnyDatabase", "admin"): [
        (ANY, DB_ADMIN), (named("system.profile"), PROFILE), (CLUSTER, "applyOps listDatabases"),
    ],
    ("clusterMonitor", "admin"): [
        (CLUSTER, MONITOR), (ANY, "collStats dbStats getShardVersion indexStats"), (named("system.profile"), "find"),
        ("role", "read", "config"), ("role", "read", "local"),
        (db("config"), "collStats dbStats getShardVersion indexStats"), (db("local"), "collStats dbStats getShardVersion indexStats"),
        (coll("config", "system.sessions"), "collStats dbStats getShardVersion indexStats"),
        *replica_state("find"),
    ],
    ("hostManager", "admin"): [(CLUSTER, HOST), (ANY, "killCursors")],
    ("clusterManager", "admin"): [
        (CLUSTER, MANAGER), (ANY, "configureQueryAnalyzer"), ("role", "read", "config"),
        (db("config"), "configureQueryAnalyzer insert remove update"), (db("local"), "configureQueryAnalyzer insert remove update"),
        (coll("local", "system.replset"), READ),
    ],
    ("clusterAdmin", "admin"): [
        ("role", "clusterMonitor", "admin"), ("role", "hostManager", "admin"), ("role", "clusterManager", "admin"),
        (ANY, "dropDatabase"),
    ],
    ("backup", "admin"): [
        (CLUSTER, "appendOplogNote getParameter listDatabases serverStatus setUserWriteBlockMode"),
        (EVERYTHING, "collStats listCollections listIndexes"),
        (ANY, "find"), (db("config"), "find"), (db("local"), "find"),
        (named("system.js"), "find"), (named("system.users"), "find"), (named("system.profile"), "find"),
        (coll("admin", "system.roles"), "find"), (coll("admin", "system.version"), "find"),
        (coll("config", "settings"), "find insert update"),
        *replica_state("find")[1:],
    ],
    ("restore", "admin"): [
        (CLUSTER, "applyOps getParameter setUserWriteBlockMode"), (EVERYTHING, "listCollections"),
        (ANY, RESTORE + " " + USER_ADMIN), (named("system.js"), RESTORE),
        (db("config"), RESTORE), (db("local"), RESTORE),
        (coll("admin", "system.version"), RESTORE + " find"), (coll("admin", "system.roles"), "createIndex"),
        (named("system.users"), RESTORE + " find remove update"),
        *replica_state(RESTORE),
    ],
    ("root", "admin"): [
        *[("role", role, "admin") for role in (
            "readWriteAnyDatabase", "dbAdminAnyDatabase", "userAdminAnyDatabase", "clusterAdmin", "restore", "backup",
        )],
        (EVERYTHING, "validate"),
    ],
    ("__system", "admin"): [(EVERYTHING, "*")],
    ("directShardOperations", "admin"): [],
}


def privileges(name):
    """All that a role has: pairs of a resource and a set of actions."""
    # The roles of a database are the same for each.
    own = ROLES[name] if name in ROLES else [
        tuple(name[1] if part == "lib" else part for part in entry) if entry[0] == "role" else
        (tuple(name[1] if part == "lib" else part for part in entry[0]), entry[1])
        for entry in ROLES[name[0], "lib"]
    ]
    for entry in own:
        if entry[0] == "role":
            yield from privileges(entry[1:])
        else:
            yield entry[0], frozenset(entry[1].split())


def covers(resource, target):
    """Whether a privilege on the resource is one on the target."""
    if resource == EVERYTHING:
        return True
    if resource == CLUSTER or target == CLUSTER:
        return resource == target
    collection = target[2] if target[0] == "coll" else None
    normal = collection is None or not collection.startswith("system.")
    if resource == ANY:
        return normal and target[1] not in ("local", "config")
    if resource[0] == "db":
        return normal and resource[1] == target[1]
    if resource[0] == "named":
        return resource[1] == collection
    return resource == target


# Collections that commands are tried on.
PLACES = [
    ("lib", "c"), ("other", "c"), ("admin", "c"), ("config", "c"), ("local", "c"),
    ("lib", "system.js"), ("lib", "system.profile"), ("admin", "system.users"), ("config", "settings"),
]

STOP = {"unknownToEverybody": 1}


def collection_commands(c):
    """Command, and the actions that it needs on the collection: one of these sets."""
    def pipeline(*stages):
        return {"aggregate": c, "pipeline": list(stages), "cursor": {}, **STOP}

    def modify(**how):
        return {"findAndModify": c, "query": {"a": 7}, **how, **STOP}

    def update(upsert):
        return {"update": c, "updates": [{"q": {"a": 7}, "u": {"$set": {"b": 1}}, "upsert": upsert}], **STOP}

    insert = {"insert": c, "documents": [{}], **STOP}
    yield {"find": c, **STOP}, "find"
    yield {"count": c, **STOP}, "find"
    yield {"distinct": c, "key": "a", **STOP}, "find"
    yield pipeline(), "find"
    yield pipeline({"$match": {}}), "find"
    yield pipeline({"$collStats": {"count": {}}}), "collStats"
    yield pipeline({"$indexStats": {}}), "indexStats"
    yield pipeline({"$planCacheStats": {}}), "planCacheRead"
    yield pipeline({"$changeStream": {}}), "changeStream find"
    yield pipeline({"$lookup": {"from": c, "pipeline": [], "as": "x"}}), "find"
    yield pipeline({"$out": c}), "find insert remove"
    yield pipeline({"$merge": {"into": c}}), "find insert update"
    yield {"explain": {"find": c}, **STOP}, "find"
    yield insert, "insert"
    yield {**insert, "bypassDocumentValidation": True}, "insert bypassDocumentValidation"
    yield update(False), "update"
    yield update(True), "update insert"
    yield {"delete": c, "deletes": [{"q": {"a": 7}, "limit": 1}], **STOP}, "remove"
    yield modify(remove=True), "find remove"
    yield modify(update={"$set": {"a": 1}}), "find update"
    yield modify(update={"$set": {"a": 1}}, upsert=True), "find update insert"
    yield {"create": c, **STOP}, "createCollection", "insert"
    yield {"create": c, "viewOn": "nowhere", "pipeline": [], **STOP}, None
    yield {"createIndexes": c, "indexes": [{"key": {"a": 1}, "name": "a_1"}], **STOP}, "createIndex"
    yield {"dropIndexes": c, "index": "nonesuch", **STOP}, "dropIndex"
    yield {"drop": c, **STOP}, "dropCollection"
    yield {"collMod": c, **STOP}, "collMod"
    yield {"collStats": c, **STOP}, "collStats"
    yield {"validate": c, **STOP}, "validate"
    yield {"compact": c, **STOP}, "compact"
    yield {"reIndex": c, **STOP}, "reIndex"
    yield {"convertToCapped": c, "size": "much", **STOP}, "convertToCapped"
    yield {"listIndexes": c, **STOP}, "listIndexes"
    yield {"planCacheClear": c, **STOP}, "planCacheWrite"
    yield {"planCacheSetFilter": c, **STOP}, "planCacheIndexFilter"
    yield {"planCacheListFilters": c, **STOP}, "planCacheIndexFilter"
    yield {"planCacheClearFilters": c, **STOP}, "planCacheIndexFilter"
    yield {"mapReduce": c, "map": "f", "reduce": "f", "out": {"inline": 1}, **STOP}, "find"


DATABASE = [
    ({"dbStats": 1, **STOP}, "dbStats"),
    ({"dbHash": 1, "collections": 7, **STOP}, "dbHash"),
    ({"listCollections": 1, **STOP}, "listCollections"),
    ({"dropDatabase": 1, **STOP}, "dropDatabase"),
    ({"profile": 0, **STOP}, "enableProfiler"),
    ({"createUser": "x", "pwd": "x", "roles": [], **STOP}, "createUser"),
    ({"createUser": "x", "pwd": "x", "roles": ["read"], **STOP}, "createUser grantRole"),
    ({"createUser": "x", "pwd": "x", "roles": [], "authenticationRestrictions": [], **STOP}, "createUser setAuthenticationRestriction"),
    ({"updateUser": "x", "pwd": "x", **STOP}, "changePassword"),
    ({"updateUser": "x", "customData": {}, **STOP}, "changeCustomData"),
    ({"dropUser": "x", **STOP}, "dropUser"),
    ({"dropAllUsersFromDatabase": 1, **STOP}, "dropUser"),
    ({"grantRolesToUser": "x", "roles": ["read"], **STOP}, "grantRole"),
    ({"revokeRolesFromUser": "x", "roles": ["read"], **STOP}, "revokeRole"),
    ({"usersInfo": 1, **STOP}, "viewUser"),
    ({"createRole": "x", "roles": [], "privileges": [], **STOP}, "createRole"),
    ({"createRole": "x", "roles": ["read"], "privileges": [], **STOP}, "createRole grantRole"),
    ({"dropRole": "x", **STOP}, "dropRole"),
    ({"dropAllRolesFromDatabase": 1, **STOP}, "dropRole"),
    ({"grantRolesToRole": "x", "roles": ["read"], **STOP}, "grantRole"),
    ({"revokeRolesFromRole": "x", "roles": ["read"], **STOP}, "revokeRole"),
    ({"rolesInfo": 1, **STOP}, "viewRole"),
]

NOBODY = [{"user": "nonesuch", "db": "nowhere"}]

SERVER = [
    ({"serverStatus": 1}, "serverStatus"),
    ({"lockInfo": 1}, "serverStatus"),
    ({"top": 1}, "top"),
    ({"hostInfo": 1}, "hostInfo"),
    ({"getLog": "startupWarnings"}, "getLog"),
    ({"logRotate": "nonesuch"}, "logRotate"),
    ({"getCmdLineOpts": 1}, "getCmdLineOpts"),
    ({"getParameter": 1, "quiet": 1}, "getParameter"),
    ({"setParameter": 1, "nonesuch": 1}, "setParameter"),
    ({"connPoolStats": 1}, "connPoolStats"),
    ({"listDatabases": 1, "authorizedDatabases": False}, "listDatabases"),
    ({"currentOp": 1}, "inprog"),
    ({"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}], "cursor": {}}, "inprog"),
    ({"aggregate": 1, "pipeline": [{"$listLocalSessions": {"allUsers": True}}], "cursor": {}}, "listSessions"),
    ({"fsync": 1, "lock": "perhaps", **STOP}, "fsync"),
    ({"fsyncUnlock": 1, **STOP}, "unlock"),
    ({"killAllSessions": NOBODY}, "killAnySession"),
    ({"killAllSessionsByPattern": [{"uid": "nonesuch"}]}, "killAnySession"),
    ({"shutdown": 1, "timeoutSecs": -1, **STOP}, "shutdown"),
    ({"dropConnections": 1, "hostAndPort": [], **STOP}, "dropConnections"),
    ({"invalidateUserCache": 1}, "invalidateUserCache"),
    ({"rotateCertificates": 1}, "rotateCertificates"),
    ({"replSetGetStatus": 1}, "replSetGetStatus"),
    ({"replSetGetConfig": 1}, "replSetGetConfig"),
    ({"replSetInitiate": {}}, "replSetConfigure"),
    ({"replSetReconfig": {}}, "replSetConfigure"),
    ({"replSetFreeze": 1}, "replSetStateChange"),
    ({"replSetStepDown": 1}, "replSetStateChange"),
    ({"replSetMaintenance": 1}, "replSetStateChange"),
    ({"replSetSyncFrom": "nowhere:1"}, "replSetStateChange"),
    ({"replSetAbortPrimaryCatchUp": 1}, "replSetStateChange"),
    ({"replSetResizeOplog": 1, "size": -1.0}, "replSetResizeOplog"),
    ({"appendOplogNote": 1, **STOP}, "appendOplogNote"),
    ({"applyOps": [{"op": "n", "ns": "", "o": {}}], "preCondition": []}, "applyOps appendOplogNote"),
    ({"getDefaultRWConcern": 1}, "getDefaultRWConcern"),
    ({"setDefaultRWConcern": 1, **STOP}, "setDefaultRWConcern"),
    ({"setFeatureCompatibilityVersion": "1.0"}, "setFeatureCompatibilityVersion"),
    ({"getClusterParameter": "nonesuch"}, "getClusterParameter"),
    ({"setClusterParameter": {"nonesuch": {}}}, "setClusterParameter"),
    ({"setUserWriteBlockMode": 1, **STOP}, "setUserWriteBlockMode"),
    ({"replSetGetRBID": 1}, "internal"),
    ({"listDatabases": 1}, ""),
    ({"currentOp": 1, "$ownOps": True}, ""),
    ({"startSession": 1}, ""),
    ({"endSessions": []}, ""),
    ({"ping": 1}, "before"),
    ({"hello": 1}, "before"),
    ({"buildInfo": 1}, "before"),
    ({"listCommands": 1}, "before"),
    ({"connectionStatus": 1}, "before"),
    ({"whatsmyuri": 1}, "before"),
]


def commands():
    """A database, a command, where its actions are needed, and the sets of them one of which is enough."""
    for place, collection in PLACES:
        for command, *needs in collection_commands(collection):
            if needs != [None]:
                yield place, command, coll(place, collection), needs
    for place in ("lib", "other", "admin", "config"):
        for command, needs in DATABASE:
            yield place, command, db(place), [needs]
    for command, needs in SERVER:
        yield "admin", command, CLUSTER, [needs]
    same = {"renameCollection": "lib.c", "to": "lib.d", **STOP}
    yield "admin", same, db("lib"), ["renameCollectionSameDB"]


def expected(role, target, needs):
    """Whether somebody with the role (or nobody, if it is `None`) may do what needs one of these sets of actions."""
    if needs == ["before"]:
        return True
    if role is None:
        return False
    held = [actions for resource, actions in privileges(role) if covers(resource, target)]
    everything = frozenset().union(*held)
    return any("*" in everything or everything.issuperset(need.split()) for need in needs)


def every_role_and_every_command(server):
    with connect(server) as first:
        first.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
    root = connect(server, "root", PASSWORD)
    clients = {None: connect(server)}
    for role, place in ROLES:
        root.admin.command("createUser", "m_" + role, pwd=PASSWORD, roles=[{"role": role, "db": place}])
        clients[role, place] = connect(server, "m_" + role, PASSWORD, maxPoolSize=1)
    cases, wrong = 0, []
    for place, command, target, needs in commands():
        for role, client in clients.items():
            cases += 1
            try:
                client[place].command(command)
                allowed = True
            except pymongo.errors.OperationFailure as error:
                allowed = error.code != 13
            if allowed != expected(role, target, needs):
                wrong.append(f"{role and role[0]} {'may' if allowed else 'must not'} {command} on {place}")
    for client in clients.values():
        client.close()
    for role, _ in ROLES:
        root.admin.command("dropUser", "m_" + role)
    print(f"  {cases} cases", flush=True)
    assert cases > 5000 and not wrong, "\n    ".join([f"{len(wrong)} of {cases} are not as the manual has them:", *wrong[:80]])


# Resources of user-defined roles, as the documents of privileges name them.
RESOURCES = [
    ({"db": "lib", "collection": "c"}, coll("lib", "c")),
    ({"db": "other", "collection": "c"}, coll("other", "c")),
    ({"db": "lib", "collection": "system.js"}, coll("lib", "system.js")),
    ({"db": "lib", "collection": ""}, db("lib")),
    ({"db": "config", "collection": ""}, db("config")),
    ({"db": "", "collection": "c"}, named("c")),
    ({"db": "", "collection": ""}, ANY),
    ({"cluster": True}, CLUSTER),
]


def roles_that_users_make(server, seed=None, steps=120):
    """A random walk of grants and revocations, watched by a connection that stays open: each step holds at once, what is granted
    takes nothing away, what is revoked gives nothing."""
    seed = random.randrange(1 << 32) if seed is None else seed
    chance = random.Random(seed)
    every = [case for case in commands() if case[3] not in (["before"], [""])]
    names = sorted({action for _, _, _, needs in every for need in needs for action in need.split()} - {"internal"})
    root = connect(server, "root", PASSWORD)
    for role in ("inner", "outer"):
        root.admin.command("createRole", role, privileges=[], roles=[])
    root.admin.command("createUser", "walker", pwd=PASSWORD, roles=["outer"])
    walker = connect(server, "walker", PASSWORD, maxPoolSize=1)
    held = {"inner": {}, "outer": {}}
    includes = False
    before = set()

    def able(probe):
        target, needs = probe[2:]
        roles = ["outer", "inner"] if includes else ["outer"]
        all_held = [
            actions for role in roles for resource, actions in held[role].items() if covers(resource, target)
        ]
        everything = set().union(*all_held)
        return any(everything.issuperset(need.split()) for need in needs)

    probes = chance.sample(range(len(every)), 25)
    for step in range(steps):
        if step % 20 == 0:
            probes, before = chance.sample(range(len(every)), 25), set()
        role = chance.choice(["inner", "outer"])
        grants = chance.random() < 0.65
        if chance.random() < 0.15:
            how = "grantRolesToRole" if not includes else "revokeRolesFromRole"
            root.admin.command(how, "outer", roles=["inner"])
            includes = grants = not includes
        else:
            document, resource = chance.choice(RESOURCES)
            # Half of them what one of the probes needs.
            needed = [action for need in every[chance.choice(probes)][3] for action in need.split() if action in names]
            actions = sorted({*chance.sample(names, 4), *(needed if chance.random() < 0.5 else [])})
            how = "grantPrivilegesToRole" if grants else "revokePrivilegesFromRole"
            root.admin.command(how, role, privileges=[{"resource": document, "actions": actions}])
            now = held[role].get(resource, set())
            held[role][resource] = now | set(actions) if grants else now - set(actions)
        allowed = set()
        for probe in probes:
            place, command, _, _ = every[probe]
            try:
                walker[place].command(command)
                allowed.add(probe)
            except pymongo.errors.OperationFailure as error:
                if error.code != 13:
                    allowed.add(probe)
            assert (probe in allowed) == able(every[probe]), (seed, step, how, every[probe], held, includes)
        assert allowed >= before if grants else step % 20 == 0 or allowed <= before, (seed, step, how)
        before = allowed
    root.admin.command("dropUser", "walker")
    try:
        walker.lib.command("find", "c")
        raise AssertionError("a user who is gone may still read")
    except pymongo.errors.OperationFailure as error:
        assert error.code == 13, error


def a_new_name_lets_nobody_read(server):
    """Within a database a collection is renamed by who may read it, or may not read it under its new name (manual: privilege actions)."""
    root = connect(server, "root", PASSWORD)
    renames = {"resource": {"db": "lib", "collection": ""}, "actions": ["renameCollectionSameDB"]}
    for readable, allowed in [("", True), ("c", True), ("d", False), ("cd", True)]:
        finds = [{"resource": {"db": "lib", "collection": name}, "actions": ["find"]} for name in readable]
        root.admin.command("createRole", "renames", privileges=[renames, *finds], roles=[])
        root.admin.command("createUser", "renamer", pwd=PASSWORD, roles=["renames"])
        try:
            with connect(server, "renamer", PASSWORD) as client:
                client.admin.command({"renameCollection": "lib.c", "to": "lib.d", **STOP})
            raise AssertionError("a field that nobody knows is taken")
        except pymongo.errors.OperationFailure as error:
            assert (error.code != 13) == allowed, (readable, error)
        root.admin.command("dropUser", "renamer")
        root.admin.command("dropRole", "renames")


CHECKS = [every_role_and_every_command, roles_that_users_make, a_new_name_lets_nobody_read]
