"""How transactions end, as their clients are told."""

import threading

import bson
from pymongo.errors import ExecutionTimeout
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from checks import alone, check, refused
from cluster import eventually


@check
def a_failed_statement_ends_its_transaction(cluster):
    """On all its shards, also if the answer is ok and lists the error, as that of bulkWrite."""
    insert = {"insert": "plants", "documents": [{"_id": 2}, {"_id": 1}]}
    ops = [{"insert": 0, "document": document} for document in insert["documents"]]
    bulk = {"bulkWrite": 1, "ops": ops, "nsInfo": [{"ns": "ended1.plants"}]}
    with cluster.client(0) as client, client.start_session() as session:
        for at in (0, 1):
            client.admin.command("enableSharding", f"ended{at}", primaryShard=f"shard{at}")
            client[f"ended{at}"].plants.insert_one({"_id": 1})
        for db, command in (("ended1", insert), ("admin", bulk)):
            session.start_transaction()
            client.ended0.plants.insert_one({"_id": 2}, session=session)
            reply = client[db].command(command, session=session, check=False)
            assert reply["ok"] == 1 and (reply.get("nErrors") == 1 or len(reply["writeErrors"]) == 1), reply
            refused(251, session.commit_transaction)
            for at in (0, 1):
                plants = client[f"ended{at}"].plants
                assert [plant["_id"] for plant in plants.find()] == [1]
                # Nothing is locked any more.
                assert plants.update_one({"_id": 1}, {"$inc": {"n": 1}}).modified_count == 1
        for at in (0, 1):
            client.drop_database(f"ended{at}")


@check
def collections_over_two_shards(cluster):
    """A transaction may make collections on one shard, not where several take part."""
    with cluster.client(0) as client, client.start_session() as session:
        for at in (0, 1):
            client.admin.command("enableSharding", f"made{at}", primaryShard=f"shard{at}")
        with session.start_transaction():
            client.made0.plants.insert_one({"_id": 1}, session=session)
        session.start_transaction()
        client.made0.plants.insert_one({"_id": 2}, session=session)
        client.made1.plants.insert_one({"_id": 2}, session=session)
        refused(263, session.commit_transaction)
        assert client.made0.plants.count_documents({}) == 1
        assert client.made1.list_collection_names() == []
        client.made0.plants.update_one({"_id": 1}, {"$inc": {"n": 1}})
        for at in (0, 1):
            client.drop_database(f"made{at}")


@alone(shards=1, members=1, routers=2)
def a_commit_that_is_asked_for_after_a_restart(cluster):
    """A transaction that one shard has committed stays committed, whoever asks for it by its token."""
    with cluster.client(0) as first, cluster.client(1) as second:
        first.tokens.plants.insert_one({"_id": 0})
        with first.start_session() as session:
            session.start_transaction(write_concern=WriteConcern("majority"))
            first.tokens.plants.insert_one({"_id": 1}, session=session)
            lsid, number = session.session_id, session._server_session._transaction_id
            session.commit_transaction()
        server = cluster.shards[0].servers[0]
        server.kill()
        server.start()
        # As a driver that has lost its router sends it.
        commit = {"commitTransaction": 1, "txnNumber": bson.Int64(number), "autocommit": False,
                  "recoveryToken": {"recoveryShardId": "shard0"}}
        with second.start_session() as same:
            second.admin.command("ping", session=same)
            same._server_session.session_id = lsid
            for _ in range(2):
                assert second.admin.command(commit, session=same)["ok"] == 1
        assert first.tokens.plants.count_documents({}) == 2


@check
def collections_made_in_transactions(cluster):
    """A transaction that makes a collection commits where it writes on one shard, whatever it reads; over several it never does (263)."""
    with cluster.client() as client:
        for at in (0, 1):
            client.admin.command("enableSharding", f"making{at}", primaryShard=f"shard{at}")
            client[f"making{at}"].plants.insert_one({"_id": 0})
        here, there = client.making0, client.making1

        def run(name, *steps):
            with client.start_session() as session, session.start_transaction():
                for step in steps:
                    step(name, session)

        def create(name, session):
            here.create_collection(name, session=session)

        def implied(name, session):
            here[name].insert_one({}, session=session)

        def index(name, session):
            here[name].create_index("a", session=session)

        def near(_, session):
            here.plants.insert_one({}, session=session)

        def far(_, session):
            there.plants.insert_one({}, session=session)

        def look(_, session):
            there.plants.find_one({}, session=session)

        for making in (create, implied, index):
            for at, steps in enumerate([(making,), (making, near), (near, making), (look, making), (making, look)]):
                name = f"{making.__name__}{at}"
                run(name, *steps)
                assert name in here.list_collection_names(), name
            for at, steps in enumerate([(making, far), (far, making), (near, far, making), (far, making, near)]):
                name = f"{making.__name__}_{at}"
                before = there.plants.count_documents({})
                refused(263, lambda: run(name, *steps))
                assert name not in here.list_collection_names(), name
                assert there.plants.count_documents({}) == before, name


@alone(shards=1, members=3, routers=1)
def transactions_of_a_primary_without_a_majority(cluster):
    """Who has won an election takes transactions as it takes writes, before others have anything of its term; what needs them waits."""
    members = cluster.shards[0]
    with cluster.client() as client:
        everywhere = WriteConcern(w=3, wtimeout=120000)
        client.elected.get_collection("plants", write_concern=everywhere).insert_one({"_id": 0})
        chosen = members.secondaries()[0]
        others = [at for at in range(3) if at != chosen]
        starved = []
        try:
            for at in others:
                with members.direct(at) as member:
                    member.admin.command("configureFailPoint", "stopReplProducer", mode="alwaysOn")
                starved.append(at)
            with members.direct(chosen) as shard:
                def leads():
                    shard.admin.command("replSetStepUp", check=False)
                    return shard.admin.command("hello")["isWritablePrimary"]

                eventually(leads, "it leads")
                own = shard.elected.get_collection("plants", write_concern=WriteConcern(w=1))
                own.insert_one({"_id": 1})
                with shard.start_session() as session:
                    with session.start_transaction(ReadConcern("local"), WriteConcern(w=1)):
                        own.insert_one({"_id": 2}, session=session)
                    with session.start_transaction(ReadConcern("local"), WriteConcern(w=1)):
                        assert own.count_documents({}, session=session) == 3
                time = shard.admin.command("ping")["operationTime"]

                def snapshot(of, **more):
                    concern = {"level": "snapshot", "atClusterTime": time}
                    found = of.elected.command({"find": "plants", "readConcern": concern, **more})
                    return len(found["cursor"]["firstBatch"])

                try:
                    snapshot(shard, maxTimeMS=500)
                    raise AssertionError("a state that no majority has was shown")
                except ExecutionTimeout:
                    pass
                seen = []

                def read():
                    with members.direct(chosen) as late:
                        seen.append(snapshot(late))

                reader = threading.Thread(target=read)
                reader.start()
                eventually(lambda: "snapshot" in str(list(shard.admin.aggregate([{"$currentOp": {}}]))), "it is read")
                assert not seen, seen
                while starved:
                    with members.direct(starved.pop()) as member:
                        member.admin.command("configureFailPoint", "stopReplProducer", mode="off")
                reader.join()
                assert seen == [3], seen
        finally:
            for at in starved:
                with members.direct(at) as member:
                    member.admin.command("configureFailPoint", "stopReplProducer", mode="off")
