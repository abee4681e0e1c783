"""Retryable statements that come through two routers at the same time."""

import contextlib
import itertools
import threading
import uuid

import bson
from bson import Int64

from checks import alone, check
from cluster import eventually
from scenarios import spread_evenly

DONE = {"$inc": {"done": 1}, "$set": {"rank": 100}}
MOVED = {"$inc": {"done": 1}, "$set": {"rank": 100, "k": 51}}


def statements(ns, change):
    """Statements that concern one document, of which no router knows where it is, with their databases."""
    db, name = ns.split(".")
    yield db, {"findAndModify": name, "query": {"done": 0}, "sort": {"rank": 1}, "update": change}
    yield db, {"update": name, "updates": [{"q": {"done": 0}, "u": change, "sort": {"rank": 1}}]}
    yield "admin", {"bulkWrite": 1, "nsInfo": [{"ns": ns}], "ops": [
        {"update": 0, "filter": {"done": 0}, "sort": {"rank": 1}, "updateMods": change}]}


class Attempts:
    """One statement, sent through several routers in one session and with one number, as a driver does."""

    def __init__(self, db, command):
        self.db, self.command, self.answers = db, {**command, "txnNumber": Int64(1)}, {}
        self.session = {"id": bson.Binary(uuid.uuid4().bytes, 4)}

    def send(self, client, name):
        try:
            with client.start_session(causal_consistency=False) as own:
                own._materialize(None)
                own._server_session.session_id = self.session
                self.answers[name] = client[self.db].command(self.command, session=own)
        except Exception as error:
            self.answers[name] = error


def meet(cluster, routers, shards, attempts, held):
    """The first attempt finds a document on one shard, and is held up at the command `held`; then the second one comes, for which there is a
    better document on the other shard."""
    plants = [shard.retries.plants for shard in shards]
    routers[0].retries.plants.delete_many({})
    routers[0].retries.plants.insert_many([{"k": 1, "rank": 5, "done": 0}, {"k": 99, "rank": 6, "done": 0}])
    first = [plant.find_one()["rank"] for plant in plants].index(5)
    slow = shards[1 - first if held == "find" else first]
    slow.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": {
        "failCommands": [held], "blockConnection": True, "blockTimeMS": 700}})
    early = threading.Thread(target=attempts.send, args=(routers[0], "early"))
    early.start()

    def is_waiting():
        return any(held in op.get("command", {}) for op in slow.admin.command("currentOp")["inprog"])

    eventually(is_waiting, f"the first attempt is at its {held}")
    plants[1 - first].update_one({}, {"$set": {"rank": 1}})
    attempts.send(routers[1], "late")
    early.join()
    return list(routers[0].retries.plants.find({"done": {"$gt": 0}}))


@check
def a_statement_through_two_routers_happens_once(cluster):
    """What the second router finds executed or executes itself, the first one does not execute any more, and answers the same."""
    ends = [members.direct(members.primary()) for members in cluster.shards]
    with cluster.client(0, retryWrites=False) as one, cluster.client(1, retryWrites=False) as other, ends[0], ends[1]:
        spread_evenly(one, "retries.plants")
        # The delete is of a transaction in which a document moves to another shard.
        for change, held in [(DONE, "find"), (MOVED, "find"), (MOVED, "delete")]:
            for db, command in statements("retries.plants", change):
                attempts = Attempts(db, command)
                done = meet(cluster, (one, other), ends, attempts, held)
                told = held, attempts.command, done, attempts.answers
                assert len(done) == 1 and done[0]["done"] == 1, told
                assert not any(isinstance(answer, Exception) for answer in attempts.answers.values()), told
                counts = [answer.get("n", answer.get("nMatched", answer.get("lastErrorObject", {}).get("n")))
                          for answer in attempts.answers.values()]
                assert counts == [1, 1], told


@alone(shards=2, members=3, routers=1)
def a_new_primary_executes_for_who_has_asked_it(cluster):
    """The shard that has the document changes its primary after it was asked: the new one is asked anew, and executes the statement once."""
    with cluster.client(0, retryWrites=False) as client:
        spread_evenly(client, "offices.plants")
        client.admin.command({"setDefaultRWConcern": 1, "defaultWriteConcern": {"w": "majority"}})
        for db, command in statements("offices.plants", DONE):
            client.offices.plants.delete_many({})
            client.offices.plants.insert_many([{"k": 1, "rank": 5, "done": 0}, {"k": 99, "rank": 6, "done": 0}])
            first, slow = cluster.shards
            attempts = Attempts(db, command)
            with slow.direct(slow.primary()) as end:
                end.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": {
                    "failCommands": ["find"], "blockConnection": True, "blockTimeMS": 4000}})
                early = threading.Thread(target=attempts.send, args=(client, "early"))
                early.start()
                eventually(lambda: any("find" in op.get("command", {}) for op in end.admin.command("currentOp")["inprog"]),
                           "it looks for a document")
                before = first.primary()
                with first.direct(before) as leading:
                    # Not for so long that in the end every member has promised not to lead.
                    leading.admin.command("replSetStepDown", 4, secondaryCatchUpPeriodSecs=3, force=True)
                eventually(lambda: first.primary() not in (None, before), "another member leads")
                early.join()
                end.admin.command({"configureFailPoint": "failCommand", "mode": "off"})
            done = list(client.offices.plants.find({"done": {"$gt": 0}}))
            told = attempts.command, done, attempts.answers
            assert len(done) == 1 and done[0]["done"] == 1, told
            assert not isinstance(attempts.answers["early"], Exception), told


@check
def statements_follow_a_database(cluster):
    """What was executed before `movePrimary` and is sent again afterwards is answered by the new shard as by the old one."""
    with cluster.client(0, retryWrites=False) as client:
        client.admin.command("enableSharding", "followed", primaryShard="shard0")
        db = client.followed
        db.plants.insert_many([{"_id": at, "n": 0} for at in range(3)])
        db.create_collection("log", capped=True, size=1 << 20)

        def ask(session, command):
            return db.command({**command, "txnNumber": bson.Int64(1)}, session=session)

        change = {"update": "plants", "updates": [{"q": {"_id": at}, "u": {"$inc": {"n": 1}}} for at in range(3)]}
        find = {"findAndModify": "plants", "query": {"_id": 1}, "update": {"$inc": {"n": 10}}, "new": True}
        log = {"insert": "log", "documents": [{"_id": 1}]}
        commands = [change, find, log]
        with contextlib.ExitStack() as stack:
            sessions = [stack.enter_context(client.start_session()) for _ in range(60)]
            first = [ask(session, command) for session, command in zip(sessions, commands)]
            for session in sessions[3:]:
                ask(session, {"update": "plants", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"n": 1}}}]})
            for to in ("shard1", "shard0"):
                client.admin.command("movePrimary", "followed", to=to)
                for session, command, before in zip(sessions, commands, first):
                    again = ask(session, command)
                    assert again["n" if "n" in before else "value"] == before["n" if "n" in before else "value"], (again, before)
                for session in sessions[3:]:
                    ask(session, {"update": "plants", "updates": [{"q": {"_id": 2}, "u": {"$inc": {"n": 1}}}]})
                assert [plant["n"] for plant in db.plants.find(sort=[("_id", 1)])] == [1, 11, 58]
                assert db.log.count_documents({}) == 1
        client.drop_database("followed")


def by_id(ns, kind, at, change):
    """One statement by `_id`, in both commands that have it."""
    db, name = ns.split(".")
    update = kind == "update"
    statement = {"q": {"_id": at}, **({"u": change} if update else {"limit": 1})}
    yield db, {kind: name, f"{kind}s": [statement]}
    operation = {kind: 0, "filter": {"_id": at}, **({"updateMods": change} if update else {})}
    yield "admin", {"bulkWrite": 1, "nsInfo": [{"ns": ns}], "ops": [operation]}


@check
def what_an_id_names_is_done_once_wherever_its_document_is(cluster):
    """A statement by `_id` that comes again finds its document on another shard: by itself, by another client, or another document of the `_id`."""
    # Sessions of those who send a statement again have its number.
    with cluster.client(0) as client, cluster.client(1) as other, cluster.client(1) as third:
        spread_evenly(third, "again.plants")
        plants = third.again.plants
        numbers = itertools.count(1000)

        def on_other_shard(k):
            here, there = (set(sharded.again.plants.distinct("k")) for sharded in shards)
            return min((there if k in here else here) - {k})

        with cluster.shards[0].direct(0) as first, cluster.shards[1].direct(0) as second:
            shards = (first, second)
            for what in ("itself", "another", "deleted"):
                kind = "delete" if what == "deleted" else "update"
                for form in range(2):
                    at = next(numbers)
                    plants.insert_one({"_id": at, "k": 1, "done": 0})
                    elsewhere = on_other_shard(1)
                    change = {"$inc": {"done": 1}, **({"$set": {"k": elsewhere}} if what == "itself" else {})}
                    attempts = Attempts(*list(by_id("again.plants", kind, at, change))[form])
                    attempts.send(client, "first")
                    if what == "another":
                        assert plants.update_one({"_id": at, "k": 1}, {"$set": {"k": elsewhere}}).modified_count == 1
                    if what == "deleted":
                        plants.insert_one({"_id": at, "k": elsewhere, "done": 1})
                    attempts.send(other, "again")
                    counts = [[answer.get(field) for field in ("n", "nModified", "nMatched", "nDeleted")]
                              for answer in attempts.answers.values()]
                    assert counts[0] == counts[1], (what, form, attempts.answers)
                    document = plants.find_one({"_id": at})
                    assert document == {"_id": at, "k": elsewhere, "done": 1}, (what, form, document)
