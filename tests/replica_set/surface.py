"""What the members of a set say about themselves: figures for monitoring, hello, replies and errors of the set's commands."""

import time

import bson
import pymongo
from pymongo import WriteConcern
from pymongo.errors import NotPrimaryError, OperationFailure, PyMongoError

from members import ReplicaSet


def eventually(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)


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


SHARED = [a_secondary_counts_what_it_applies, monitoring_finds_its_sections]
OWN = []
