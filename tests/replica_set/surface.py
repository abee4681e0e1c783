"""What the members of a set say about themselves: figures for monitoring, hello, replies and errors of the set's commands."""

import signal
import socket
import struct

import bson
import pymongo
from pymongo import WriteConcern
from pymongo.errors import NotPrimaryError, OperationFailure

from members import ReplicaSet, eventually
from sheaf_process import Server


def refused(action, code, name, text):
    """Expects exactly this error."""
    try:
        action()
    except (OperationFailure, NotPrimaryError) as error:
        found = (error.details["code"], error.details["codeName"], error.details["errmsg"])
        assert found == (code, name, text), f"{found}, not {(code, name, text)}"
        return error.details
    raise AssertionError(f"no error {code}: {text}")


# --- figures ---


def a_secondary_counts_what_it_applies(members, client, db):
    at = members.secondaries()[0]
    own = client.admin.command("serverStatus")["opcountersRepl"]["update"]
    with members.direct(at) as secondary:

        def figures():
            status = secondary.admin.command("serverStatus")
            return status["opcountersRepl"], status["metrics"]["repl"]

        counted, before = figures()
        c = db.get_collection("c", write_concern=WriteConcern(w=3))
        c.insert_many([{"_id": n} for n in range(10)])
        c.update_one({"_id": 1}, {"$set": {"a": 1}})
        with client.start_session() as session, session.start_transaction(write_concern=WriteConcern(w=3)):
            c.delete_one({"_id": 2}, session=session)
            c.insert_one({"_id": 10}, session=session)
        db.drop_collection("c")
        db.get_collection("d", write_concern=WriteConcern(w=3)).insert_one({})
        now, after = figures()
        grown = {kind: now[kind] - counted[kind] for kind in now}
        # Other collections may be written meanwhile (sessions), so commands and inserts are at least these.
        assert grown["insert"] >= 12 and grown["update"] >= 1 and grown["delete"] >= 1 and grown["command"] >= 3, grown
        assert now["query"] == now["getmore"] == 0
        assert after["apply"]["ops"] - before["apply"]["ops"] >= 17, (before, after)
        assert after["apply"]["batches"]["num"] > before["apply"]["batches"]["num"]
        assert after["network"]["bytes"] > before["network"]["bytes"] + 500, after
        assert after["network"]["ops"] - before["network"]["ops"] >= 16, (before, after)
        assert after["network"]["replSetUpdatePosition"]["num"] > before["network"]["replSetUpdatePosition"]["num"]
        assert set(after["buffer"]["apply"]) == {"count", "sizeBytes"}, after
    own = client.admin.command("serverStatus")["opcountersRepl"]["update"] - own
    assert own == 0, "a primary applies none of its own writes"


def monitoring_finds_its_sections(members, client, db):
    for at in range(3):
        with members.direct(at) as member:
            status = member.admin.command("serverStatus")
            diagnostic = member.admin.command("getDiagnosticData")["data"]
        assert list(diagnostic) == ["start", "serverStatus", "replSetGetStatus", "local.oplog.rs.stats", "end"], list(diagnostic)
        assert diagnostic["replSetGetStatus"]["set"] == diagnostic["serverStatus"]["repl"]["setName"] and diagnostic["local.oplog.rs.stats"]["capped"]
        names = list(status)
        ours = ["electionMetrics", "flowControl", "opcountersRepl", "oplogTruncation", "repl", "transactions"]
        assert [name for name in names if name in ours] == ours, names
        repl = status["repl"]
        for name in ("topologyVersion", "hosts", "setName", "setVersion", "isWritablePrimary", "secondary", "primary", "me"):
            assert name in repl, (name, repl)
        assert repl["isWritablePrimary"] != repl["secondary"] and repl["rbid"] >= 1 and repl["userWriteBlockMode"] == 1, repl
        assert ("electionId" in repl) == repl["isWritablePrimary"], repl
        flow = status["flowControl"]
        assert (flow["enabled"], flow["isLagged"], flow["isLaggedCount"]) == (True, False, 0), flow
        assert set(status["oplogTruncation"]) >= {"totalTimeTruncatingMicros", "truncateCount"}
        elections = status["electionMetrics"]
        if repl["isWritablePrimary"]:
            kinds = ("stepUpCmd", "priorityTakeover", "electionTimeout")
            assert sum(elections[kind]["successful"] for kind in kinds) >= 1, elections
            assert elections["numCatchUpsAlreadyCaughtUp"] >= 1 and elections["averageCatchUpOps"] == 0.0, elections


# --- the commands of a set, and their errors ---

NOT_INITIALIZED = (94, "NotYetInitialized", "no replset config has been received")
NOT_ENABLED = (76, "NoReplicationEnabled", "not running with --replSet")


def admin(client, *command, **fields):
    return lambda: client.admin.command(*command, **fields)


def errors_before_there_is_a_set():
    with Server(args=["--replSet", "rs"]) as uninitiated, Server() as alone:
        with pymongo.MongoClient(uninitiated.uri) as client, pymongo.MongoClient(alone.uri) as single:
            for command in (
                "replSetGetStatus", "replSetGetConfig", "replSetFreeze", "replSetStepDown", "replSetStepUp",
                "replSetMaintenance", "replSetAbortPrimaryCatchUp", "replSetGetRBID",
            ):
                refused(admin(client, command, 1), *NOT_INITIALIZED)
                refused(admin(single, command, 1), *NOT_ENABLED)
            refused(admin(client, "replSetReconfig", {"_id": "rs", "version": 2, "members": []}), *NOT_INITIALIZED)
            refused(admin(client, "replSetSyncFrom", "localhost:1"), *NOT_INITIALIZED)
            refused(
                admin(single, "replSetInitiate"), 76, "NoReplicationEnabled",
                "This node was not started with replication enabled.",
            )
            hello = client.admin.command("hello")
            assert (hello["isWritablePrimary"], hello["secondary"], hello["isreplicaset"]) == (False, False, True), hello
            assert hello["info"] == "Does not have a valid replica set config", hello
            host = f"127.0.0.1:{uninitiated.port}"
            member = {"_id": 0, "host": host}

            def initiation(code, name, text, member=member, **fields):
                config = {"_id": "rs", "version": 1, "members": [member], **fields}
                refused(admin(client, "replSetInitiate", config), code, name, text)

            invalid = (93, "InvalidReplicaSetConfig")
            initiation(
                *invalid,
                "Rejecting initiate with a set name that differs from command line set name, initiate set name: other, "
                "command line set name: rs",
                _id="other",
            )
            initiation(*invalid, "Configuration used to initiate a replica set must  have version 1, but found 2", version=2)
            initiation(
                *invalid,
                f"Member {host}, with _id MemberId(0), has a newlyAdded field, which is not valid for initial configuration "
                "of a replica set.",
                member={**member, "newlyAdded": True},
            )
            initiation(*invalid, "BSON field 'ReplSetConfig.nodes' is an unknown field.", nodes=1)
            initiation(
                *invalid,
                "No host described in new configuration with {version: 1, term: 0} for replica set rs maps to this node",
                member={"_id": 0, "host": "127.0.0.1:1"},
            )
            initiation(
                *invalid,
                "replica set configuration cannot contain 'replicaSetId' field when calling replSetInitiate",
                settings={"replicaSetId": bson.ObjectId()},
            )
            initiation(
                20, "IllegalOperation",
                "Failed to initiate: Replica set config contains customized getLastErrorDefaults, which has been deprecated "
                "and is now ignored. Use setDefaultRWConcern instead to set a cluster-wide default writeConcern.",
                settings={"getLastErrorDefaults": {"w": "majority"}},
            )
            client.admin.command("replSetInitiate", {"_id": "rs", "members": [member]})
            refused(admin(client, "replSetInitiate"), 23, "AlreadyInitialized", "already initialized")


def errors_of_a_set(members, client, db):
    config = client.admin.command("replSetGetConfig")["config"]
    version, term = config["version"], config["term"]
    at = members.primary()
    following = {**config, "version": version + 1}

    def changed(member, **fields):
        entries = [{**entry, **fields} if number == member else entry for number, entry in enumerate(config["members"])]
        return {**following, "members": entries}

    incompatible = (103, "NewReplicaSetConfigurationIncompatible")
    table = [
        (
            config, *incompatible,
            f"New replica set configuration version and term must be greater than old, but {{version: {version}, term: "
            f"{term}}} is not greater than {{version: {version}, term: {term}}} for replica set rs",
        ),
        (
            {**following, "_id": "other"}, 93, "InvalidReplicaSetConfig",
            "Rejecting reconfig where new config set name differs from command line set name, new config set name: other, "
            "old config set name: rs",
        ),
        (
            {**following, "members": config["members"][:1]}, *incompatible,
            "Non force replica set reconfig can only add or remove at most 1 voting member.",
        ),
        (
            changed(at, newlyAdded=True), 93, "InvalidReplicaSetConfig",
            "Cannot provide newlyAdded field to member config during reconfig.",
        ),
        (
            changed(at, priority=0), 104, "NodeNotElectable",
            f"This node, {members.host(at)}, with _id MemberId({at}) is not electable under the new configuration with "
            f"{{version: {version + 1}, term: {term}}} for replica set rs",
        ),
        (
            changed(0, votes=2), *incompatible, "votes field value is 2 but must be 0 or 1",
        ),
        (
            {**following, "settings": {"getLastErrorDefaults": {"w": 2}}}, 5624102, "Location5624102",
            "Failed to reconfig: Replica set config contains customized getLastErrorDefaults, which has been deprecated and "
            "is now ignored. Use setDefaultRWConcern instead to set a cluster-wide default writeConcern.",
        ),
    ]
    for new, code, name, text in table:
        refused(admin(client, "replSetReconfig", new), code, name, text)
    frozen = "cannot freeze node when primary or running for election. state: Primary"
    refused(admin(client, "replSetFreeze", 1), 95, "NotSecondary", frozen)
    refused(admin(client, "replSetMaintenance", 1), 95, "NotSecondary", "primaries can't modify maintenance mode")
    refused(admin(client, "replSetAbortPrimaryCatchUp", 1), 20, "IllegalOperation", "The node is not in catch-up mode.")
    refused(admin(client, "replSetSyncFrom", members.host(at)), 95, "NotSecondary", "primaries don't sync")
    refused(admin(client, "replSetStepDown", -5), 2, "BadValue", "stepdown period must be a positive integer")
    assert client.admin.command("replSetGetRBID")["rbid"] >= 1
    other = next(number for number in range(3) if number != at)
    with members.direct(other) as secondary:
        own, nobody = members.host(other), "nobody.example:1"
        for target, code, name, text in [
            (own, 72, "InvalidOptions", "I cannot sync from myself"),
            (nobody, 74, "NodeNotFound", f'Could not find member "{nobody}" in replica set'),
            (5, 9, "FailedToParse", 'Empty host component parsing HostAndPort from ""'),
        ]:
            refused(admin(secondary, "replSetSyncFrom", target), code, name, text)
        refused(
            admin(secondary, "replSetMaintenance", False), 96, "OperationFailed", "already out of maintenance mode",
        )
        refused(admin(secondary, "replSetStepDown", 60), 10107, "NotWritablePrimary", "not primary so can't step down")
        refused(
            admin(secondary, "replSetReconfig", following), 10107, "NotWritablePrimary",
            "New config is rejected :: caused by :: replSetReconfig should only be run on a writable PRIMARY. Current state "
            "SECONDARY;",
        )
        refused(
            admin(secondary, "replSetGetConfig", commitmentStatus=True), 10107, "NotWritablePrimary",
            "commitmentStatus is only supported on primary.",
        )


def a_default_write_concern_stays_possible(members, client, db):
    config = client.admin.command("replSetGetConfig")["config"]

    def reconfigure(change, **fields):
        new = client.admin.command("replSetGetConfig")["config"]
        new["version"] += 1
        change(new)
        return client.admin.command("replSetReconfig", new, **fields)

    def tag(new):
        for member in new["members"]:
            member["tags"] = {"room": str(member["_id"])}
        new["settings"]["getLastErrorModes"] = {"everywhere": {"room": 3}}

    def default(**concern):
        return client.admin.command("setDefaultRWConcern", defaultWriteConcern=concern)

    reconfigure(tag)
    unknown = "No write concern mode named 'nowhere' found in replica set configuration"
    refused(lambda: default(w="nowhere"), 79, "UnknownReplWriteConcern", unknown)
    refused(lambda: default(w=4), 100, "UnsatisfiableWriteConcern", "Not enough data-bearing nodes")
    default(w="everywhere")
    text = (
        "May not remove custom write concern definition from config while it is in use as the default write concern. Change "
        "the default write concern to a non-conflicting setting and try the reconfig again."
    )

    def forget(new):
        new["settings"]["getLastErrorModes"] = {}

    def ask_for_more(new):
        new["settings"]["getLastErrorModes"] = {"everywhere": {"room": 4}}

    for change in (forget, ask_for_more):
        for force in (False, True):
            refused(
                lambda change=change, force=force: reconfigure(change, force=force),
                103, "NewReplicaSetConfigurationIncompatible", text,
            )
    before = client.admin.command("replSetGetConfig")["config"]["version"]
    default(w="majority")
    reconfigure(forget)
    now = client.admin.command("replSetGetConfig")["config"]
    assert now["version"] == before + 1 and now["settings"]["getLastErrorModes"] == {}, now

    def restore(new):
        new["members"] = config["members"]

    reconfigure(restore)
    refused(
        lambda: client.admin.command("setDefaultRWConcern", defaultWriteConcern={}), 20, "IllegalOperation",
        "The global default write concern cannot be unset once it is set.",
    )


def a_named_successor_wins_against_a_primary(members, client, db):
    at = members.secondaries()[0]
    db.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({})
    with members.direct(at) as secondary:

        def stepped_up():
            try:
                return secondary.admin.command("replSetStepUp")["ok"] == 1
            except OperationFailure as error:
                # A write that it had not heard of came in between.
                assert error.code == 125, error
                return False

        eventually(stepped_up, "a member that was told to lead")
        elections = secondary.admin.command("serverStatus")["electionMetrics"]
        assert elections["stepUpCmd"]["successful"] >= 1, elections
    db.get_collection("c", write_concern=WriteConcern(w="majority")).insert_one({})


HELLO_OF_A_SET = ["topologyVersion", "hosts", "setName", "setVersion", "isWritablePrimary", "secondary", "primary", "me"]
HELLO_OF_ALL = [
    "maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize", "localTime", "logicalSessionTimeoutMinutes",
    "connectionId", "minWireVersion", "maxWireVersion", "readOnly", "ok",
]
TIMES = ["$clusterTime", "operationTime"]
STATUS_OF_A_MEMBER = ["_id", "name", "health", "state", "stateStr", "uptime"]


def each_kind_of_member_says_what_it_is():
    """hello and replSetGetStatus of all kinds of members, fields in order."""
    tags = {"dc": "east"}
    kinds = (
        {"priority": 2, "tags": tags},
        {"priority": 0, "hidden": True},
        {"priority": 0, "secondaryDelaySecs": 1, "votes": 0},
        {"arbiterOnly": True},
        {"priority": 0, "buildIndexes": False},
    )
    with ReplicaSet(kinds) as members, members.client():
        with members.direct(0) as primary:
            # What is told of the lead is told when the elected member takes writes.
            eventually(lambda: primary.admin.command("hello")["isWritablePrimary"], "a primary that takes writes")
        own = [
            ["tags"], ["passive", "hidden"], ["passive", "secondaryDelaySecs"], ["arbiterOnly"], ["passive", "buildIndexes"],
        ]
        visible = [members.host(0)]
        passive = [members.host(2), members.host(4)]
        for at, special in enumerate(own):
            with Raw(members.servers[at].port) as connection:
                hello = connection.ask({"hello": 1})
                legacy = connection.ask({"isMaster": 1, "helloOk": True})
            expected = [name for name in HELLO_OF_A_SET if name != "me"]
            expected[2:2] = ["passives", "arbiters"]
            expected += special + ["me"] + (["electionId"] if at == 0 else []) + ["lastWrite"] + HELLO_OF_ALL
            expected += [] if "arbiterOnly" in special else TIMES
            assert list(hello) == expected, (at, list(hello), expected)
            assert (hello["hosts"], hello["passives"], hello["arbiters"]) == (visible, passive, [members.host(3)]), hello
            assert hello["isWritablePrimary"] == (at == 0) and hello["secondary"] == (at not in (0, 3)), hello
            assert hello["me"] == members.host(at) and hello["primary"] == members.host(0), hello
            assert list(legacy)[0] == "helloOk" and "ismaster" in legacy and "isWritablePrimary" not in legacy, legacy
            with Raw(members.servers[at].port) as connection:
                status = connection.ask({"replSetGetStatus": 1})
                waited = connection.ask({"replSetTest": 1, "waitForMemberState": status["myState"], "timeoutMillis": 60000})
                assert waited["ok"] == 1, waited
            assert status["myState"] == {0: 1, 3: 7}.get(at, 2), status
            assert [entry["stateStr"] for entry in status["members"]][0] == "PRIMARY", status
            for number, entry in enumerate(status["members"]):
                assert list(entry)[:6] == STATUS_OF_A_MEMBER, list(entry)
                assert ("self" in entry) == (number == at) and ("optime" in entry) == (number != 3), entry
        with Raw(members.servers[1].port) as connection:
            failed = connection.ask({"replSetTest": 1, "waitForMemberState": 1, "timeoutMillis": 20})
        text = "Timed out waiting for state to become PRIMARY. Current state is SECONDARY"
        assert (failed["code"], failed["errmsg"]) == (262, text), failed


def tools_read_how_far_the_log_reaches(members, client, db):
    """What mongosh's rs.printReplicationInfo() and its kin ask for."""
    for at in range(3):
        with members.direct(at) as member:
            names = member.local.list_collection_names()
            assert {"oplog.rs", "startup_log", "system.replset"} <= set(names), names
            stats = member.local.command("collStats", "oplog.rs")
            assert stats["capped"] is True and stats["maxSize"] > 0 and stats["count"] > 0, stats
            oplog = member.local["oplog.rs"]
            first, last = (oplog.find().sort("$natural", order).limit(1).next() for order in (1, -1))
            assert first["ts"] <= last["ts"] and last["wall"] >= first["wall"], (first, last)
            started = member.local.startup_log.find().sort("$natural", -1).limit(1).next()
            assert started["cmdLine"]["replication"]["replSet"] == "rs", started
            assert member.local.system.replset.find_one()["_id"] == "rs"
    status = client.admin.command("replSetGetStatus")
    assert status["lastStableRecoveryTimestamp"] <= status["optimes"]["lastCommittedOpTime"]["ts"], status


# --- a member that ends ---


class Raw:
    """One connection that sends commands as they stand; two of them may be under way on two connections."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)

    def send(self, command):
        # The command's name comes first.
        name = next(iter(command))
        body = b"\0\0\0\0\0" + bson.encode({name: command[name], "$db": "admin", **command})
        self.socket.sendall(struct.pack("<iiii", len(body) + 16, 7, 0, 2013) + body)

    def receive(self):
        head = self.socket.recv(16, socket.MSG_WAITALL)
        rest = self.socket.recv(struct.unpack("<i", head[:4])[0] - 16, socket.MSG_WAITALL)
        return bson.decode(rest[5:])

    def ask(self, command):
        self.send(command)
        return self.receive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def a_member_that_ends_lets_operations_end():
    """SIGTERM: a waiting hello is answered at once, an operation under way goes on, others are served meanwhile."""
    with ReplicaSet() as members, members.client() as client:
        client.t.get_collection("c", write_concern=WriteConcern(w=3)).insert_one({"_id": 1})
        at = members.secondaries()[0]
        server = members.servers[at]
        with Raw(server.port) as watching, Raw(server.port) as reading, Raw(server.port) as third:
            version = watching.ask({"hello": 1})["topologyVersion"]
            watching.send({"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 60000})
            block = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 4000}
            third.ask({"setParameter": 1, "shutdownTimeoutMillisForSignaledShutdown": 60000})
            third.ask({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": block})
            find = {"find": "c", "$db": "t", "$readPreference": {"mode": "secondary"}}
            reading.send(find)
            busy = {"currentOp": 1, "command.find": "c"}
            eventually(lambda: third.ask(busy)["inprog"], "the find under way")
            server.process.send_signal(signal.SIGTERM)
            error = watching.receive()
            assert (error["ok"], error["code"], error["codeName"]) == (0, 91, "ShutdownInProgress"), error
            assert error["errmsg"] == "The server is in quiesce mode and will shut down", error
            assert 0 < error["remainingQuiesceTimeMillis"] <= 60000, error
            assert error["topologyVersion"]["counter"] == version["counter"] + 1, (error, version)
            assert third.ask({"hello": 1})["code"] == 91
            assert third.ask({**find, "filter": {"_id": 1}})["cursor"]["firstBatch"] == [{"_id": 1}]
            found = reading.receive()
            assert found["ok"] == 1 and found["cursor"]["firstBatch"] == [{"_id": 1}], found
            assert server.process.wait(60) == 0
        # It is back as soon as it is started.
        server.start()
        members.wait_for(lambda states: states.count("SECONDARY") == 2)


def a_member_with_nothing_to_do_ends_at_once():
    """No operation: what is left of the time for operations is not waited for; neither by the command."""
    with ReplicaSet() as members, members.client() as client:
        at, other = members.secondaries()
        for which, end in ((at, "command"), (other, "signal")):
            server = members.servers[which]
            if end == "command":
                with Raw(server.port) as connection:
                    assert connection.ask({"shutdown": 1, "timeoutSecs": 600})["ok"] == 1
            else:
                with members.direct(which) as secondary:
                    secondary.admin.command("setParameter", 1, shutdownTimeoutMillisForSignaledShutdown=600_000)
                server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0


def the_log_is_kept_as_long_as_was_said():
    """Longer than its size asks for; and no longer when nobody says so any more."""
    args = ["--oplogSize", "1", "--oplogMinRetentionHours", "1.5"]
    with ReplicaSet(({},), args=args) as members, members.client() as client:
        oplog = client.local["oplog.rs"]
        c = client.t.c

        def write(megabytes=4):
            for _ in range(megabytes * 10):
                c.insert_one({"text": "x" * 100_000})
            client.admin.command("fsync")

        def oldest():
            return oplog.find().sort("$natural", 1).limit(1).next()["ts"]

        def status():
            return client.admin.command("serverStatus")["oplogTruncation"]

        first = oldest()
        write(12)
        stats = client.local.command("collStats", "oplog.rs")
        assert stats["capped"] is True and stats["maxSize"] == 1 << 20 and stats["size"] > 12_000_000, stats
        assert oldest() == first and status()["truncateCount"] == 0, status()
        assert status()["oplogMinRetentionHours"] == 1.5, status()
        client.admin.command("replSetResizeOplog", 1, minRetentionHours=0.0)

        def removed():
            write(1)
            return oldest() > first

        eventually(removed, "the beginning of the log removed")
        assert status()["truncateCount"] >= 1 and "oplogMinRetentionHours" not in status(), status()
        # Said by command, both hold for later starts as well.
        client.admin.command("replSetResizeOplog", 1, size=1000.0, minRetentionHours=2.0)
        assert client.local.command("collStats", "oplog.rs")["maxSize"] == 1000 << 20
        members.servers[0].stop()
        members.servers[0].start()
        members.primary()
        eventually(lambda: status().get("oplogMinRetentionHours") == 2.0, "what was said, after a start")
        assert client.local.command("collStats", "oplog.rs")["maxSize"] == 1000 << 20


# --- shard keys ---


def keys_are_analyzed_before_there_are_shards(members, client, db):
    plants = db.get_collection("plants", write_concern=WriteConcern(w=3))
    plants.insert_many([{"_id": at, "bed": at % 4, "k": at} for at in range(1000)])
    plants.create_index("bed")
    named = f"{db.name}.plants"

    def analyze(of=client, name=named, **options):
        return of.admin.command({"analyzeShardKey": name, **options})

    told = analyze(key={"bed": 1})
    found = told["keyCharacteristics"]
    assert (found["numDocsTotal"], found["numDistinctValues"], found["isUnique"]) == (1000, 4, False), found
    assert "numOrphanDocs" not in found and "note" not in found, found
    assert told["readDistribution"]["sampleSize"]["total"] == told["writeDistribution"]["sampleSize"]["total"] == 0, told
    # A key without an index has no characteristics.
    text = "Cannot analyze the characteristics of a shard key that does not have a supporting index"
    refused(lambda: analyze(key={"k": 1}, readWriteDistribution=False), 20, "IllegalOperation", text)
    client.admin.command("setParameter", 1, analyzeShardKeyNumRanges=4)
    client.admin.command("configureQueryAnalyzer", named, mode="full", samplesPerSecond=50)
    try:
        for n in range(3):
            list(plants.find({"k": n}))
        list(plants.find({"bed": 1}))
        plants.update_one({"k": 5}, {"$set": {"k": 1005}})
    finally:
        client.admin.command("configureQueryAnalyzer", named, mode="off")
    told = analyze(key={"k": 1})
    assert "keyCharacteristics" not in told
    reads, writes = told["readDistribution"], told["writeDistribution"]
    assert reads["sampleSize"]["find"] == 4 and reads["percentageOfSingleShardReads"] == 75, reads
    assert len(reads["numReadsByRange"]) == 4 and sum(reads["numReadsByRange"]) == 3 + 4, reads
    assert writes["sampleSize"]["update"] == 1 and writes["percentageOfShardKeyUpdates"] == 100, writes
    # What is written a secondary has, too.
    with members.direct(members.secondaries()[0]) as secondary:
        secondary.admin.command("setParameter", 1, analyzeShardKeyNumRanges=4)
        eventually(lambda: analyze(secondary, key={"k": 1})["readDistribution"]["sampleSize"]["total"] == 4, "it has them")
        assert analyze(secondary, key={"bed": 1})["keyCharacteristics"]["numDistinctValues"] == 4
        secondary.admin.command("setParameter", 1, analyzeShardKeyNumRanges=100)
    client.admin.command("setParameter", 1, analyzeShardKeyNumRanges=100)
    missing = f"{db.name}.nothing"
    refused(lambda: analyze(name=missing, key={"a": 1}), 26, "NamespaceNotFound", f"Namespace {missing} does not exist")
    refused(lambda: analyze(name="config.system.sessions", key={"a": 1}), 20, "IllegalOperation",
            "Cannot run against an internal collection")


SHARED = [
    a_secondary_counts_what_it_applies, monitoring_finds_its_sections, errors_of_a_set,
    tools_read_how_far_the_log_reaches, a_default_write_concern_stays_possible, a_named_successor_wins_against_a_primary,
    keys_are_analyzed_before_there_are_shards,
]
OWN = [
    each_kind_of_member_says_what_it_is, errors_before_there_is_a_set, the_log_is_kept_as_long_as_was_said, a_member_that_ends_lets_operations_end, a_member_with_nothing_to_do_ends_at_once,
]
