"""How transactions end, as their clients are told."""

import bson
from pymongo.write_concern import WriteConcern

from checks import alone, check, refused


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
